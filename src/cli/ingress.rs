//! Flags of `otela ingress`.

use super::{PeerArgs, egress::ViaArgs};
use clap::builder::BoolishValueParser;
use otela_ingress::{IngressConfig, Policy};
use std::{net::SocketAddr, time::Duration};

/// Flags of `otela ingress`.
#[derive(Debug, clap::Args)]
pub(crate) struct IngressArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
    /// Where clients connect over HTTP; port 0 takes a free one.
    #[arg(long, env = "OTELA_INGRESS_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Allow an address that other machines can reach. There are no keys yet: whoever reaches it may use it.
    #[arg(long, env = "OTELA_INGRESS_OPEN", value_parser = BoolishValueParser::new())]
    open: bool,
    /// How replicas are picked: random.
    #[arg(long, env = "OTELA_INGRESS_POLICY", value_name = "NAME", default_value = "random")]
    policy: Policy,
    /// Largest request body in MiB.
    #[arg(long, env = "OTELA_INGRESS_BODY_MIB_MAX", value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=4096))]
    body_mib_max: u32,
    /// Further nodes to try after the first.
    #[arg(long, env = "OTELA_INGRESS_RETRIES_MAX", value_name = "N", default_value = "3")]
    retries_max: u32,
    /// How long a node may take until the head of its answer, for example 10m. As long as it takes, if not given.
    #[arg(long, env = "OTELA_INGRESS_ANSWER_WITHIN", value_name = "TIME", value_parser = humantime::parse_duration)]
    answer_within: Option<Duration>,
    /// Silence on an event stream after which the client is sent a comment.
    #[arg(long, env = "OTELA_INGRESS_KEEP_ALIVE", value_name = "TIME", default_value = "15s", value_parser = keep_alive)]
    keep_alive: Duration,
    /// How long requests may run on after a stop was asked for.
    #[arg(long, env = "OTELA_INGRESS_DRAIN", value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
}

fn keep_alive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(every) if every >= Duration::from_millis(100) => Ok(every),
        Ok(_) => Err("less than 100ms".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Why an ingress is not started.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} can be reached by other machines and there are no keys yet: listen on 127.0.0.1, or add --open if everybody who reaches it may use it"
)]
pub(crate) struct NotOpen(SocketAddr);

impl IngressArgs {
    /// The settings of the HTTP side.
    pub(crate) fn config(&self) -> Result<IngressConfig, NotOpen> {
        if !self.listen.ip().is_loopback() && !self.open {
            return Err(NotOpen(self.listen));
        }
        let body_bytes_max = self.body_mib_max as usize * 1024 * 1024;
        let defaults = IngressConfig::new(self.listen);
        Ok(IngressConfig {
            policy: self.policy,
            body_bytes_max,
            // Room for one body at the least.
            bodies_bytes_max: defaults.bodies_bytes_max.max(body_bytes_max),
            retries_max: self.retries_max,
            answer_within: self.answer_within,
            keep_alive_every: self.keep_alive,
            ..defaults
        })
    }
}
