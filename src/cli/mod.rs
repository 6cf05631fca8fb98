//! The command line. Each command's flags are in a file of their own and become validated settings at once.

mod allocation;
mod config;
mod doctor;
mod egress;
mod engine;
mod ingress;
mod look;
mod model;
mod operate;
mod parse;
mod peer;
mod probe;
mod provider;
mod relay;
mod sched;
mod sign;
mod start;
mod supervise;

pub(crate) use config::{ConfigArgs, ConfigCommand};
pub(crate) use doctor::{As, DoctorArgs, GpuArgs, JobArgs, PlaceArgs};
pub(crate) use egress::NoCertificate;
pub(crate) use engine::EngineArgs;
pub(crate) use ingress::{IngressArgs, NotOpen, live_flags};
pub(crate) use look::{ModelsArgs, NodesArgs, Parameters, StatusArgs, Target};
pub(crate) use model::{ModelArgs, model_flags};
pub(crate) use operate::{DrainArgs, LogsArgs, WhichArgs};
pub(crate) use peer::PeerArgs;
pub(crate) use probe::{ProbeArgs, Whom};
pub(crate) use relay::RelayArgs;
pub(crate) use sched::{
    CalibrateArgs, CatalogArgs, ExplainArgs, MeasuredArgs, PlanArgs, ProfileArgs, RunArgs, SchedArgs, SchedCommand,
    SimulateArgs, SolveArgs, ValidateArgs, WantedArgs,
};
pub(crate) use sign::{KeyArgs, SignArgs, VerifyArgs};
pub(crate) use start::StartArgs;

use clap::{Parser, Subcommand, ValueEnum};
use otela_node::telemetry::{
    self, LogFormat, chain,
    trace::{self, TraceError},
};
use std::{ffi::OsString, path::PathBuf};
use url::Url;

/// Turns GPUs scattered over clusters and workstations into one OpenAI-compatible service.
///
/// A provider runs `otela start --process vllm serve MODEL`; a consumer points any OpenAI client at an ingress. Peers
/// find each other through relays and need no central server. Every flag can also be given as the environment
/// variable that its help names, and then also in a configuration file, under the variable's name: OTELA_PEER_MESH is
/// `mesh` in the section `[peer]`. A flag wins over the variable, and the variable over the file.
#[derive(Debug, Parser)]
#[command(name = "otela", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// A configuration file (TOML). None is read, if none is named.
    #[arg(long, global = true, env = "OTELA_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
    /// Worker threads. Half of the processors, but at most 8, if not given.
    #[arg(long, global = true, env = "OTELA_THREADS", value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => Err("not a number from 1 to 1024".to_owned()),
    }
}

/// How the program logs.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// What is logged to stderr, for example `warn` or `info,otela_node=debug`.
    /// Usually `warn,otela=info`; for the demo and the commands that look at a mesh `error`.
    #[arg(long = "log", global = true, env = "OTELA_LOG_FILTER", value_name = "FILTER", value_parser = log_filter)]
    pub(crate) filter: Option<String>,
    /// How log lines look.
    #[arg(long = "log-format", global = true, env = "OTELA_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub(crate) format: Format,
}

fn log_filter(text: &str) -> Result<String, String> {
    let wrong = |error| format!("it is not a filter such as info or warn,otela_node=debug: {}", chain(&error));
    telemetry::check_filter(text).map_err(wrong)?;
    Ok(text.to_owned())
}

/// A collector, unless the variable that could name one is empty.
#[derive(Debug, Clone)]
struct TracesTo(Option<Url>);

fn traces_to(text: &str) -> Result<TracesTo, TraceError> {
    if text.is_empty() { Ok(TracesTo(None)) } else { trace::collector(text).map(|url| TracesTo(Some(url))) }
}

/// Where traces of requests go.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Send traces of requests by OTLP over HTTP to the collector at this URL, for example http://localhost:4318.
    /// If not given, to the one that OpenTelemetry's own variables name (OTEL_EXPORTER_OTLP_ENDPOINT), if they do.
    #[arg(long, global = true, env = "OTELA_TRACES_TO", value_name = "URL", value_parser = traces_to)]
    traces_to: Option<TracesTo>,
    /// The same, as OpenTelemetry has it.
    #[arg(long, global = true, hide = true, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// The whole URL for traces.
    #[arg(long, global = true, hide = true, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value_name = "URL")]
    otlp_traces_endpoint: Option<String>,
    /// How the collector is spoken to; there is one way only.
    #[arg(long, global = true, hide = true, env = "OTEL_EXPORTER_OTLP_PROTOCOL", value_name = "PROTOCOL")]
    otlp_protocol: Option<String>,
    /// Whether OpenTelemetry's own variables are to be looked at.
    #[arg(long, global = true, hide = true, env = "OTEL_SDK_DISABLED", value_name = "BOOL")]
    otel_disabled: Option<String>,
    /// What the service is called.
    #[arg(long, global = true, hide = true, env = "OTEL_SERVICE_NAME", value_name = "NAME")]
    pub(crate) otel_service_name: Option<String>,
}

impl TraceArgs {
    /// Where traces go, if anywhere. Variables that are empty are none.
    pub(crate) fn collector(&self) -> Result<Option<Url>, TraceError> {
        let told = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        if let Some(TracesTo(Some(to))) = &self.traces_to {
            return Ok(Some(to.clone()));
        }
        if self.otel_disabled.as_ref().is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let collector = match (told(&self.otlp_traces_endpoint), told(&self.otlp_endpoint)) {
            (Some(whole), _) => trace::whole_url(&whole)?,
            (None, Some(base)) => trace::collector(&base)?,
            (None, None) => return Ok(None),
        };
        match told(&self.otlp_protocol) {
            Some(protocol) if protocol != "http/protobuf" => Err(TraceError::Protocol(protocol)),
            _ => Ok(Some(collector)),
        }
    }
}

/// The log formats.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Join a mesh as a node: wrap an engine, or without --process offer this machine's hardware.
    Start(Box<StartArgs>),
    /// Join a mesh as an ingress: take OpenAI requests over HTTP and route them to nodes.
    Ingress(Box<IngressArgs>),
    /// Join a mesh as a relay: the public meeting point through which others join.
    Relay(Box<RelayArgs>),
    /// Run a simulated engine that speaks vLLM's HTTP API, for trying things without a GPU.
    Engine(Box<EngineArgs>),
    /// Run a whole mesh on this machine: a relay, an ingress and two nodes.
    Demo(DemoArgs),
    /// List the nodes of a mesh, as one of its otelas sees them.
    Nodes(NodesArgs),
    /// List the models that a mesh serves or loads, as one of its otelas sees them.
    Models(ModelsArgs),
    /// Show how an otela stands in its mesh.
    Status(StatusArgs),
    /// Make a key, if the file is not there, and print its peer id, which stands for the public key everywhere.
    Key(KeyArgs),
    /// Sign a binary as a maintainer, a peer's membership as an authority of a private mesh, or as a provider that a peer
    /// is a node of yours.
    Sign(SignArgs),
    /// Check what is said of a binary, a member or a provider's node, and whether it counts in a mesh. Ends with 1 if not.
    Verify(VerifyArgs),
    /// Let a node finish what runs and leave: it takes no new requests.
    Drain(Box<DrainArgs>),
    /// Print what a node's engine prints.
    Logs(Box<LogsArgs>),
    /// Measure the ways to another peer of a mesh: round trips, throughput, direct and through relays.
    Probe(Box<ProbeArgs>),
    /// Say which ways into a mesh work from this machine, what is in the way, and what to do.
    Doctor(Box<DoctorArgs>),
    /// Check a configuration file, or show what a command would run with.
    Config(ConfigArgs),
    /// Fit what the scheduler knows of accelerators and engines to measurements, and hold it against them.
    Sched(Box<SchedArgs>),
}

/// An address to listen on.
///
/// # Errors
/// It is not an IP address with a port.
pub(crate) fn listen_address(text: &str) -> Result<std::net::SocketAddr, String> {
    text.parse().map_err(|_| {
        "it should be an IP address and a port, for example 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:0; names are not looked up"
            .to_owned()
    })
}

/// Flags of `otela demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Where the demo's ingress listens; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = listen_address)]
    pub(crate) listen: std::net::SocketAddr,
    /// Wrap this engine instead of simulated ones; everything after it is the engine's own command line. With
    /// `{port}` in it, two nodes run it, each with a free port in that place; without, one node runs it.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) process: Option<Vec<OsString>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
