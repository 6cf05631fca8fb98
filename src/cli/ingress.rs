//! Flags of `otela ingress`.

use super::{ModelArgs, PeerArgs, egress::ViaArgs};
use clap::{Args, Command, builder::BoolishValueParser};
use otela_ingress::{IngressConfig, Origin, Settings, TlsFiles};
use std::{collections::HashMap, net::SocketAddr, path::PathBuf, time::Duration};

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
    live: LiveArgs,
    #[command(flatten)]
    usual: ModelArgs,
    /// Models with settings of their own, by their id: of the file alone.
    #[arg(skip)]
    models: HashMap<String, ModelArgs>,
    /// How long requests may run on after a stop was asked for.
    #[arg(long, env = "OTELA_INGRESS_DRAIN", value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
    /// Keep in this folder what nodes of the mesh write down of engines that failed, which they send with --log-sink peer:ID.
    #[arg(long, env = "OTELA_INGRESS_POST_MORTEMS", value_name = "FOLDER")]
    pub(crate) post_mortems: Option<PathBuf>,
}

/// How clients come in.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
struct ClientArgs {
    /// Where clients connect over HTTP/1.1 or HTTP/2; port 0 takes a free one.
    #[arg(long, env = "OTELA_INGRESS_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = super::listen_address)]
    listen: SocketAddr,
    /// Allow an address that other machines can reach. There are no keys yet: whoever reaches it may use it.
    #[arg(long, env = "OTELA_INGRESS_OPEN", value_parser = BoolishValueParser::new())]
    open: bool,
    /// Speak HTTPS, with the certificates in this file (PEM). Renewed ones are taken up.
    #[arg(long, env = "OTELA_INGRESS_HTTPS_CERT", value_name = "FILE", requires = "https_key")]
    https_cert: Option<PathBuf>,
    /// The key of these certificates (PEM).
    #[arg(long, env = "OTELA_INGRESS_HTTPS_KEY", value_name = "FILE", requires = "https_cert")]
    https_key: Option<PathBuf>,
    /// How often these files are looked at, in case they have been renewed.
    #[arg(long, env = "OTELA_INGRESS_HTTPS_EVERY", value_name = "TIME", default_value = "30s", value_parser = super::parse::pause)]
    https_every: Duration,
    /// A Unix socket through which ingresses on this machine take over from each other: one that is started with the same
    /// path takes the listening socket of the one that runs, which then finishes what it has and ends.
    #[arg(long, env = "OTELA_INGRESS_HANDOVER", value_name = "PATH")]
    handover: Option<PathBuf>,
}

/// What of clients and requests may change while it runs, besides [`ModelArgs`].
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
struct LiveArgs {
    /// Whose web pages may call, for example `https://chat.example.org`, or `*` for all; several times, or separated by commas.
    #[arg(long, env = "OTELA_INGRESS_CORS", value_name = "ORIGIN", value_delimiter = ',')]
    cors: Vec<Origin>,
    /// Largest request body in MiB.
    #[arg(long, env = "OTELA_INGRESS_BODY_MIB_MAX", value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=4096))]
    body_mib_max: u32,
    /// A client has so long to send the head of its first request, and of each after it.
    #[arg(long, env = "OTELA_INGRESS_HEAD_WITHIN", value_name = "TIME", default_value = "30s", value_parser = super::parse::pause)]
    head_within: Duration,
    /// A request's body may pause for so long.
    #[arg(long, env = "OTELA_INGRESS_BODY_STALL", value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    body_stall: Duration,
    /// Silence on an event stream after which the client is sent a comment.
    #[arg(long, env = "OTELA_INGRESS_KEEP_ALIVE", value_name = "TIME", default_value = "15s", value_parser = keep_alive)]
    keep_alive: Duration,
    /// Let requests choose their policy with X-Otela-Policy.
    #[arg(
        long,
        env = "OTELA_INGRESS_POLICY_BY_REQUEST",
        help_heading = "Requests",
        value_parser = BoolishValueParser::new()
    )]
    policy_by_request: bool,
}

/// The flags whose values a running ingress takes over when it rereads its file, by clap's names.
pub(crate) fn live_flags() -> Vec<String> {
    let flags = ModelArgs::augment_args(LiveArgs::augment_args(Command::new("live")));
    flags.get_arguments().map(|flag| flag.get_id().to_string()).collect()
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
    "{0} can be reached by other machines and there are no keys yet: listen on 127.0.0.1, or add --open (`open = true` in a file) if everybody who reaches it may use it"
)]
pub(crate) struct NotOpen(SocketAddr);

impl IngressArgs {
    /// Settings of a model of its own: the usual ones, but for what `flags` say otherwise.
    ///
    /// # Errors
    /// Clap's, if one of them is not known or its value is not allowed.
    pub(crate) fn add_model(&mut self, id: &str, flags: Vec<String>) -> Result<(), clap::Error> {
        let model = self.usual.with(flags)?;
        self.models.insert(id.to_owned(), model);
        Ok(())
    }

    /// The settings of the HTTP side.
    pub(crate) fn config(&self) -> Result<IngressConfig, NotOpen> {
        let clients = &self.clients;
        if !clients.listen.ip().is_loopback() && !clients.open {
            return Err(NotOpen(clients.listen));
        }
        let tls = clients.https_cert.clone().zip(clients.https_key.clone());
        Ok(IngressConfig {
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key, looked_at_every: clients.https_every }),
            handover: clients.handover.clone(),
            settings: self.settings(),
            ..IngressConfig::new(clients.listen)
        })
    }

    /// What of them may change while it runs.
    fn settings(&self) -> Settings {
        let live = &self.live;
        Settings {
            body_bytes_max: live.body_mib_max as usize * 1024 * 1024,
            keep_alive_every: live.keep_alive,
            head_within: live.head_within,
            body_stall_max: live.body_stall,
            origins: live.cors.iter().cloned().collect(),
            policy_by_request: live.policy_by_request,
            usual: self.usual.settings(),
            models: self.models.iter().map(|(id, model)| (id.clone(), model.settings())).collect(),
        }
    }
}
