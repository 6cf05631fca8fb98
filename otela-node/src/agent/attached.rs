//! A node beside an engine that somebody else runs: in another container, as a service, by hand.
//!
//! Nothing is known of its process, so what it answers is all there is to go by. It may be started again at any time; the node
//! waits for it, and shows it as loading meanwhile.

use super::{Agent, Outcome, health::Serving};
use crate::engine::{Engine, Kind, Reached, Ready};
use std::{convert::Infallible, net::SocketAddr, time::Duration};
use tokio::{
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

/// Pauses between two looks at an engine that does not serve yet.
const LOOKED_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// An engine that serves is looked at this often; to connect costs it nothing.
const KNOCKED_EVERY: Duration = Duration::from_millis(250);
/// It is on this host, or beside it.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// So many knocks in a row that nobody hears, and it is gone.
const UNHEARD_MAX: u32 = 2;
/// The stage of an engine that is not there.
const WAITING: &str = "starting";

/// An engine that runs already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Its host, a name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The key that it wants.
    pub api_key: Option<String>,
}

impl Agent {
    /// Offers the engine whenever it serves, until the node is asked to stop.
    pub(super) async fn attach(&self, engine: &Attached) -> Outcome {
        let kind = Kind {
            api_key: engine.api_key.clone(),
            host: Some(engine.host.clone()),
            port: Some(engine.port),
            ..Kind::recognise(&[], self.config.engine.or(Some(Engine::Generic)))
        };
        tokio::select! {
            never = self.offer(engine, &kind) => match never {},
            () = self.tasks.draining() => {}
        }
        self.drain(std::future::pending()).await;
        Outcome::Stopped
    }

    async fn offer(&self, engine: &Attached, kind: &Kind) -> Infallible {
        loop {
            let ready = self.wait_for(engine, kind).await;
            let serving = Serving::new(kind.clone(), &ready, self.patience(kind), self.tasks.clone());
            self.gate.open(serving.open());
            self.reachable().await;
            self.say_serving(kind, &ready).await;
            tokio::select! {
                () = gone(ready.endpoint) => tracing::warn!(endpoint = %ready.endpoint, "the engine is gone, waiting for it"),
                why = self.hangs(&serving, None) => tracing::warn!("the engine hangs: {why}"),
                never = self.read_models_again(&serving) => match never {},
                never = self.read_load(&serving) => match never {},
            }
            self.gate.close();
        }
    }

    /// Waits until it serves, and says how far it is.
    async fn wait_for(&self, engine: &Attached, kind: &Kind) -> Ready {
        let (mut said, mut pause) = (String::new(), LOOKED_EVERY.0);
        self.say_loading(kind, WAITING).await;
        loop {
            let problem = match lookup_host((engine.host.as_str(), engine.port)).await {
                Err(error) => format!("{}: {error}", engine.host),
                Ok(addresses) => match self.first_that_serves(addresses, kind).await {
                    Ok(ready) => return ready,
                    Err(problem) => problem,
                },
            };
            if problem != said {
                tracing::info!("waiting for the engine at {}:{}: {problem}", engine.host, engine.port);
                said = problem;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOKED_EVERY.1);
        }
    }

    /// A name may stand for addresses of both kinds, of which the engine has one.
    async fn first_that_serves(
        &self,
        addresses: impl Iterator<Item = SocketAddr>,
        kind: &Kind,
    ) -> Result<Ready, String> {
        let mut problem = "the name has no address".to_owned();
        for address in addresses {
            match Reached::at(address, kind, &self.config.ready).await {
                Ok(ready) => return Ok(ready),
                Err(why) => problem = why,
            }
        }
        Err(problem)
    }
}

/// Resolves when nobody listens there any more.
async fn gone(endpoint: SocketAddr) {
    let mut unheard = 0;
    while unheard < UNHEARD_MAX {
        sleep(KNOCKED_EVERY).await;
        let knocked = timeout(CONNECT_WITHIN, TcpStream::connect(endpoint)).await;
        // A queue that is full is not an engine that is gone: only a refusal is.
        let is_refused = matches!(knocked, Ok(Err(_)));
        unheard = if is_refused { unheard + 1 } else { 0 };
    }
}
