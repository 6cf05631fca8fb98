//! Flags of `otela ingress`.

use super::{PeerArgs, egress::ViaArgs};
use clap::builder::BoolishValueParser;
use otela_ingress::{IngressConfig, ModelSettings, Origin, Policy, Settings, TlsFiles};
use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// Flags of `otela ingress`.
#[derive(Debug, clap::Args)]
pub(crate) struct IngressArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    requests: RequestArgs,
    /// How long requests may run on after a stop was asked for.
    #[arg(long, env = "OTELA_INGRESS_DRAIN", value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
}

/// How clients come in.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
struct ClientArgs {
    /// Where clients connect over HTTP/1.1 or HTTP/2; port 0 takes a free one.
    #[arg(long, env = "OTELA_INGRESS_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Allow an address that other machines can reach. There are no keys yet: whoever reaches it may use it.
    #[arg(long, env = "OTELA_INGRESS_OPEN", value_parser = BoolishValueParser::new())]
    open: bool,
    /// Speak HTTPS, with the certificates in this file (PEM). Renewed ones are taken up within half a minute.
    #[arg(long, env = "OTELA_INGRESS_HTTPS_CERT", value_name = "FILE", requires = "https_key")]
    https_cert: Option<PathBuf>,
    /// The key of these certificates (PEM).
    #[arg(long, env = "OTELA_INGRESS_HTTPS_KEY", value_name = "FILE", requires = "https_cert")]
    https_key: Option<PathBuf>,
    /// Whose web pages may call, for example https://chat.example.org, or * for all; several times, or separated by commas.
    #[arg(long, env = "OTELA_INGRESS_CORS", value_name = "ORIGIN", value_delimiter = ',')]
    cors: Vec<Origin>,
    /// A Unix socket through which ingresses on this machine take over from each other: one that is started with the same
    /// path takes the listening socket of the one that runs, which then finishes what it has and ends.
    #[arg(long, env = "OTELA_INGRESS_HANDOVER", value_name = "PATH")]
    handover: Option<PathBuf>,
    /// Largest request body in MiB.
    #[arg(long, env = "OTELA_INGRESS_BODY_MIB_MAX", value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=4096))]
    body_mib_max: u32,
    /// A request's body may pause for so long.
    #[arg(long, env = "OTELA_INGRESS_BODY_STALL", value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    body_stall: Duration,
    /// Silence on an event stream after which the client is sent a comment.
    #[arg(long, env = "OTELA_INGRESS_KEEP_ALIVE", value_name = "TIME", default_value = "15s", value_parser = keep_alive)]
    keep_alive: Duration,
}

/// What holds for every request, unless its model has settings of its own.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Requests")]
struct RequestArgs {
    /// How replicas are picked: random, round-robin, weighted, least-loaded, p2c or affinity. `help` explains them.
    #[arg(long, env = "OTELA_INGRESS_POLICY", value_name = "NAME", default_value = "random")]
    policy: PolicyArg,
    /// Let requests choose their policy with X-Otela-Policy.
    #[arg(long, env = "OTELA_INGRESS_POLICY_BY_REQUEST", value_parser = BoolishValueParser::new())]
    policy_by_request: bool,
    /// Further nodes to try after the first.
    #[arg(long, env = "OTELA_INGRESS_RETRIES_MAX", value_name = "N", default_value = "3")]
    retries_max: u32,
    /// How long a node may take until the head of its answer, for example 10m; or never.
    #[arg(long, env = "OTELA_INGRESS_ANSWER_WITHIN", value_name = "TIME", default_value = "never")]
    answer_within: Limit,
    /// How long an answer that has begun may pause; or never.
    #[arg(long, env = "OTELA_INGRESS_STALL_WITHIN", value_name = "TIME", default_value = "30m")]
    stall_within: Limit,
    /// Give a request that has waited so long for its first byte to a second node as well, and take what comes first; or
    /// never.
    #[arg(long, env = "OTELA_INGRESS_HEDGE_AFTER", value_name = "TIME", default_value = "never")]
    hedge_after: Limit,
    /// Requests in flight on one replica from this ingress. More wait in a queue.
    #[arg(long, env = "OTELA_INGRESS_IN_FLIGHT_MAX", value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight_max: u32,
    /// Requests for a model that may wait for a place. More are refused with 503.
    #[arg(long, env = "OTELA_INGRESS_QUEUE_MAX", value_name = "N", default_value = "1024")]
    queue_max: usize,
    /// How long they may wait.
    #[arg(long, env = "OTELA_INGRESS_QUEUE_WITHIN", value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    queue_within: Duration,
    /// Do not continue streams that break on another node.
    #[arg(long, env = "OTELA_INGRESS_NO_RESUME", value_parser = BoolishValueParser::new())]
    no_resume: bool,
}

/// A policy, or the wish to be told of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyArg {
    Help,
    Is(Policy),
}

impl FromStr for PolicyArg {
    type Err = otela_ingress::UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "help" { Ok(Self::Help) } else { text.parse().map(Self::Is) }
    }
}

/// A time, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) Option<Duration>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self(None)),
            time => match humantime::parse_duration(time) {
                Ok(Duration::ZERO) => Err("0 would end everything at once: give a time, or never".to_owned()),
                Ok(time) => Ok(Self(Some(time))),
                Err(error) => Err(format!("{error}; or never")),
            },
        }
    }
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
        let clients = &self.clients;
        if !clients.listen.ip().is_loopback() && !clients.open {
            return Err(NotOpen(clients.listen));
        }
        let settings = self.settings();
        let defaults = IngressConfig::new(clients.listen);
        let tls = clients.https_cert.clone().zip(clients.https_key.clone());
        Ok(IngressConfig {
            // Room for one body at the least.
            bodies_bytes_max: defaults.bodies_bytes_max.max(settings.body_bytes_max),
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            handover: clients.handover.clone(),
            settings,
            ..defaults
        })
    }

    /// What of the settings may change while it runs.
    pub(crate) fn settings(&self) -> Settings {
        let (clients, requests) = (&self.clients, &self.requests);
        let policy = match requests.policy {
            PolicyArg::Is(policy) => policy,
            PolicyArg::Help => Policy::default(),
        };
        let usual = ModelSettings {
            policy,
            retries_max: requests.retries_max,
            answer_within: requests.answer_within.0,
            stall_within: requests.stall_within.0,
            hedge_after: requests.hedge_after.0,
            in_flight_max: requests.in_flight_max,
            queue_max: requests.queue_max,
            queue_within: requests.queue_within,
            resume: !requests.no_resume,
        };
        Settings {
            body_bytes_max: clients.body_mib_max as usize * 1024 * 1024,
            keep_alive_every: clients.keep_alive,
            body_stall_max: clients.body_stall,
            origins: clients.cors.iter().cloned().collect(),
            policy_by_request: requests.policy_by_request,
            usual,
            models: std::collections::HashMap::new(),
        }
    }

    /// What is said of the policies, if that was asked for.
    pub(crate) fn policy_help(&self) -> Option<String> {
        let each = |policy: Policy| format!("{policy}\n    {}\n", policy.about());
        (self.requests.policy == PolicyArg::Help).then(|| Policy::ALL.into_iter().map(each).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_a_time_or_never() {
        assert_eq!("never".parse(), Ok(Limit(None)));
        assert_eq!("90s".parse(), Ok(Limit(Some(Duration::from_secs(90)))));
        assert!("0s".parse::<Limit>().unwrap_err().contains("never"));
        assert!("soon".parse::<Limit>().unwrap_err().contains("never"));
    }
}
