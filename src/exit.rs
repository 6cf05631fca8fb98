//! What can go wrong in a command, told on one line, and the exit codes. The table is in docs/cli.md.

use crate::{
    cli::{NoCertificate, NotOpen},
    config::FileError,
    look::AskError,
    operate::OperateError,
    probe::ProbeFailed,
    sched::SchedError,
    sign::SignError,
};
use otela_ingress::ListenError;
use otela_node::{
    agent::{Outcome, TemplatesError},
    engine::{LaunchError, NotReady, PatternError},
    peer::{
        IdentityError, StartError, StateError, TlsError,
        admission::{AdmissionError, MeshFileError},
        provider::ProviderError,
    },
    telemetry::{chain, trace::TraceError},
};
use otela_proto::id::MeshName;
use otela_sched::{controller::PlansError, engine::EngineError};
use std::{error::Error, io, net::SocketAddr, path::PathBuf, process::ExitCode, sync::mpsc, time::Duration};

/// The answer is no.
const NO: u8 = 1;
/// The command line is wrong, or what a file says in its place; clap's own code.
pub(crate) const USAGE: u8 = 2;
/// Something needed is not to be had: a port is taken, a file is in use. As in sysexits.h.
const UNAVAILABLE: u8 = 69;
/// The engine did not become ready in time; trying again may help.
const TEMPORARY: u8 = 75;
/// The engine was of no use any more and was ended.
const LOST: u8 = 70;
/// What was configured cannot be.
const CONFIG: u8 = 78;
/// As in shells: found but cannot be run, and not found.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// A last line has this long to be taken.
const SAY_WITHIN: Duration = Duration::from_millis(500);

/// Why a command has ended before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The log filter cannot be parsed.
    #[error("--log {filter:?} is not a filter such as info or warn,otela_node=debug")]
    LogFilter { filter: String, source: Box<dyn Error + Send + Sync> },
    /// Traces cannot be sent where they should go.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// The configuration file cannot be used.
    #[error(transparent)]
    Config(#[from] FileError),
    /// There is no configuration file to look at.
    #[error("which file? Name it, or give --config or OTELA_CONFIG")]
    NoConfig,
    /// The key file cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// What decides who is admitted cannot be used, or this peer would not be.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The mesh file cannot be used.
    #[error(transparent)]
    MeshFile(#[from] MeshFileError),
    /// Two names for the mesh.
    #[error("--mesh names {named} and the mesh file {of_file}: leave out --mesh, or give the other file")]
    TwoMeshes { named: MeshName, of_file: MeshName },
    /// The node cannot prove its provider.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// Something cannot be signed, or what was signed not written.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A certificate is missing.
    #[error(transparent)]
    NoCertificate(#[from] NoCertificate),
    /// The peer cannot be started.
    #[error(transparent)]
    Peer(#[from] StartError),
    /// The ingress may not listen there.
    #[error(transparent)]
    NotOpen(#[from] NotOpen),
    /// The ingress cannot listen.
    #[error(transparent)]
    Ingress(#[from] ListenError),
    /// Nobody could read the registry over HTTP.
    #[error("cannot listen for HTTP on {address}: choose another address with --http")]
    Http { address: SocketAddr, source: io::Error },
    /// The simulated engine is told what cannot be, or cannot listen.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Another process uses the key.
    #[error("another otela process uses this peer's key: this one stops, give each its own --key")]
    Superseded,
    /// An otela that was asked gives no answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Nothing was measured.
    #[error(transparent)]
    Probe(#[from] ProbeFailed),
    /// A node does not do what it is asked.
    #[error(transparent)]
    Operate(#[from] OperateError),
    /// The launch templates cannot be used.
    #[error(transparent)]
    Templates(#[from] TemplatesError),
    /// The key of an engine that runs already cannot be read.
    #[error("cannot read the engine's key {path}: name a file that has it with --attach-key")]
    EngineKey { path: PathBuf, source: io::Error },
    /// Nobody could write down anything of an engine that failed.
    #[error("post-mortems cannot be kept in {folder}: name a folder that can be written to with {flag}")]
    PostMortems { flag: &'static str, folder: PathBuf, source: io::Error },
    /// A line of an engine's output cannot be looked for.
    #[error("--fatal cannot be used")]
    Fatal(#[from] PatternError),
    /// Measurements, models or factors cannot be used.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The answer cannot be printed.
    #[error("cannot write to the standard output")]
    Output(#[source] io::Error),
    /// The operating system refuses what every process needs.
    #[error("cannot set up this process")]
    Process(#[from] io::Error),
}

impl CommandError {
    /// The error and its causes, on one line.
    pub(crate) fn line(&self) -> String {
        chain(self).replace('\n', " ")
    }

    /// Its exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Ask(AskError::Question(_)) | Self::Probe(ProbeFailed::NoBootstrap(_)) => USAGE,
            Self::Sched(SchedError::NotPlaced { .. }) | Self::Operate(OperateError::Refused(_)) => NO,
            Self::Operate(
                OperateError::NoBootstrap(_) | OperateError::Several(_) | OperateError::NoKey | OperateError::NoNode(_),
            ) => USAGE,
            Self::Operate(OperateError::KeyMissing(_)) => CONFIG,
            Self::Sched(SchedError::NotJoined(_) | SchedError::NoSlurm(_)) => UNAVAILABLE,
            Self::Sched(SchedError::Plans(PlansError::Io { .. } | PlansError::InUse(_))) => UNAVAILABLE,
            Self::Sched(SchedError::Engine(error)) if !error.is_usage() => UNAVAILABLE,
            Self::Config(_) | Self::NoConfig | Self::Sched(_) | Self::Fatal(_) => USAGE,
            Self::LogFilter { .. } | Self::NotOpen(_) | Self::Traces(_) | Self::Ingress(ListenError::Tls(_)) => CONFIG,
            Self::Identity(IdentityError::InUse { .. }) | Self::State(StateError::InUse { .. }) | Self::Superseded => {
                UNAVAILABLE
            }
            Self::Identity(_) | Self::State(_) | Self::Tls(_) | Self::NoCertificate(_) => CONFIG,
            Self::Engine(EngineError::Config(_)) | Self::Templates(_) | Self::EngineKey { .. } => CONFIG,
            Self::PostMortems { .. } => CONFIG,
            Self::Admission(_) | Self::MeshFile(_) | Self::TwoMeshes { .. } | Self::Sign(_) | Self::Provider(_) => {
                CONFIG
            }
            Self::Peer(_)
            | Self::Ingress(_)
            | Self::Http { .. }
            | Self::Engine(_)
            | Self::Ask(_)
            | Self::Probe(_)
            | Self::Operate(_)
            | Self::Output(_)
            | Self::Process(_) => UNAVAILABLE,
        })
    }
}

/// Prints what clap has to say: what is wrong, or the text that was asked for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Whoever does not read it is told by the code.
    let _ = error.print();
    if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS }
}

/// Tells how an agent ended, and its exit code: the engine's own if it ended by itself.
pub(crate) fn outcome(outcome: &Outcome) -> ExitCode {
    match outcome {
        Outcome::Stopped => ExitCode::SUCCESS,
        Outcome::EngineExited { exit, last_lines } => {
            let lines = if last_lines.is_empty() { "It wrote nothing." } else { "Its last lines:" };
            say(&format!("otela: the engine ended by itself: {exit}. {lines}"));
            for line in last_lines {
                say(&format!("  {line}"));
            }
            ExitCode::from(exit.exit_code())
        }
        Outcome::EngineLost { cause, last_lines } => {
            say(&format!("otela: {cause}. Its last lines:"));
            for line in last_lines {
                say(&format!("  {line}"));
            }
            ExitCode::from(LOST)
        }
        Outcome::NotLaunched(error) => {
            say(&format!("otela: {}", chain(error)));
            ExitCode::from(match error {
                LaunchError::NotFound { .. } => NOT_FOUND,
                LaunchError::NotExecutable { .. } | LaunchError::NoInterpreter { .. } => CANNOT_RUN,
                _ => UNAVAILABLE,
            })
        }
        Outcome::NotReady(error) => {
            say(&format!("otela: {}", chain(error)));
            ExitCode::from(match error {
                NotReady::AddressInUse { .. } => UNAVAILABLE,
                NotReady::Exited { .. } | NotReady::TimedOut { .. } => TEMPORARY,
                NotReady::Fatal { .. } => LOST,
            })
        }
    }
}

/// Writes a line to stderr, but does not wait for ever for somebody who does not read it.
pub(crate) fn say(line: &str) {
    let line = line.to_owned();
    let (done, written) = mpsc::channel();
    std::thread::spawn(move || {
        eprintln!("{line}");
        // Nobody waits any more if it took too long.
        let _ = done.send(());
    });
    let _ = written.recv_timeout(SAY_WITHIN);
}
