//! Follows one name or list for as long as the peer lives.

use super::{Bootstrap, Dns, Troubles, dns::DnsError, form::List, web, web::WebError};
use crate::{
    peer::{
        defaults::{COMPLAIN_EVERY, LIST_AGAIN_MAX, LIST_AGAIN_MIN, LIST_EVERY},
        metrics::PeerMetrics,
    },
    tasks::Tasks,
    telemetry::chain,
};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use multiaddr::Multiaddr;
use rand::RngExt;
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

/// The last good answer of each name and list, by what was configured.
pub(in crate::peer) type Lists = BTreeMap<String, Vec<Multiaddr>>;

/// A configured bootstrap, by its number, stands for these addresses now.
#[derive(Debug)]
pub(in crate::peer) struct Told {
    pub(in crate::peer) source: usize,
    pub(in crate::peer) addresses: Vec<Multiaddr>,
}

/// Why a name or list gave nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum FollowError {
    #[error(transparent)]
    Dns(#[from] DnsError),
    #[error(transparent)]
    Web(#[from] WebError),
}

/// Follows those of `bootstraps` that are names or lists, until the tasks are stopped.
pub(in crate::peer) fn follow(bootstraps: Vec<Bootstrap>, shared: &Shared, tasks: &Tasks) {
    for (source, bootstrap) in bootstraps.into_iter().enumerate().filter(|(_, bootstrap)| bootstrap.is_list()) {
        tasks.spawn(Follower::new(source, bootstrap, shared.clone()).run(tasks.clone()));
    }
}

/// The follower of one name or list.
struct Follower {
    source: usize,
    bootstrap: Bootstrap,
    dns: Dns,
    told: mpsc::Sender<Told>,
    lists: watch::Sender<Lists>,
    /// Whether no bootstrap is connected.
    deserted: watch::Receiver<bool>,
    troubles: Troubles,
    metrics: PeerMetrics,
    pauses: ExponentialBackoff,
    is_failing: bool,
    complained: Option<Instant>,
}

/// What followers share.
#[derive(Clone)]
pub(in crate::peer) struct Shared {
    pub(in crate::peer) dns: Dns,
    pub(in crate::peer) told: mpsc::Sender<Told>,
    pub(in crate::peer) lists: watch::Sender<Lists>,
    pub(in crate::peer) deserted: watch::Receiver<bool>,
    pub(in crate::peer) troubles: Troubles,
    pub(in crate::peer) metrics: PeerMetrics,
}

/// What a bootstrap stands for now.
pub(super) async fn read(bootstrap: &Bootstrap, dns: &Dns) -> Result<List, FollowError> {
    match bootstrap {
        Bootstrap::Address(address) => Ok(List { addresses: vec![address.clone()], passed_over: 0 }),
        Bootstrap::DnsAddr { host, peer } => Ok(dns.resolve(host, *peer).await?),
        Bootstrap::List(url) => Ok(web::fetch(url).await?),
    }
}

impl Follower {
    /// Follows `bootstrap`, the one with the number `source`.
    fn new(source: usize, bootstrap: Bootstrap, shared: Shared) -> Self {
        let Shared { dns, told, lists, deserted, troubles, metrics } = shared;
        Self {
            source,
            bootstrap,
            dns,
            told,
            lists,
            deserted,
            troubles,
            metrics,
            pauses: pauses(),
            is_failing: false,
            complained: None,
        }
    }

    /// Runs until the tasks are stopped. What was remembered serves until there is something newer.
    async fn run(mut self, tasks: Tasks) {
        let remembered = self.lists.borrow().get(&self.bootstrap.to_string()).cloned();
        let follow = async {
            if let Some(addresses) = remembered {
                self.tell(addresses).await;
            }
            loop {
                match read(&self.bootstrap, &self.dns).await {
                    Ok(list) => {
                        self.read_again(list).await;
                        self.rest().await;
                    }
                    Err(error) => {
                        self.failed(&error);
                        sleep(self.pause()).await;
                    }
                }
            }
        };
        tokio::select! {
            () = follow => {}
            () = tasks.stopped() => {}
        }
    }

    async fn read_again(&mut self, list: List) {
        let List { addresses, passed_over } = list;
        tracing::debug!(list = %self.bootstrap, addresses = addresses.len(), passed_over, "a list of bootstraps was read");
        if std::mem::take(&mut self.is_failing) {
            self.troubles.are_over(&self.bootstrap.to_string());
            tracing::info!(list = %self.bootstrap, "a list of bootstraps can be read again");
        }
        self.lists.send_if_modified(|lists| {
            lists.insert(self.bootstrap.to_string(), addresses.clone()).as_ref() != Some(&addresses)
        });
        self.tell(addresses).await;
    }

    async fn tell(&self, addresses: Vec<Multiaddr>) {
        // The driver is gone only while the peer stops.
        let _ = self.told.send(Told { source: self.source, addresses }).await;
    }

    fn failed(&mut self, error: &FollowError) {
        self.metrics.lists_failed.inc();
        self.is_failing = true;
        self.troubles.begin(self.bootstrap.to_string(), format!("it cannot be read: {}", chain(error)));
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            let (list, error) = (&self.bootstrap, chain(error));
            tracing::warn!(%list, error, "cannot read a list of bootstraps, will go on trying");
        }
    }

    /// Until the list is to be read again: in an hour, or when none of the bootstraps answers.
    async fn rest(&mut self) {
        let at = Instant::now() + LIST_EVERY.mul_f64(rand::rng().random_range(0.8..1.2));
        loop {
            tokio::select! {
                () = sleep_until(at) => return,
                () = is(&mut self.deserted) => {}
            }
            // They have just been told, or one of them has a moment's trouble.
            sleep(self.pause()).await;
            if *self.deserted.borrow() {
                return;
            }
            self.pauses = pauses();
        }
    }

    fn pause(&mut self) -> Duration {
        self.pauses.next().unwrap_or(LIST_AGAIN_MAX)
    }
}

async fn is(state: &mut watch::Receiver<bool>) {
    if state.wait_for(|holds| *holds).await.is_err() {
        // The peer stops.
        std::future::pending::<()>().await;
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(LIST_AGAIN_MIN)
        .with_max_delay(LIST_AGAIN_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}
