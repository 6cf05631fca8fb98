//! Flags that say how an engine is watched over, and who may look.

use super::model::Limit;
use crate::exit::CommandError;
use clap::ValueEnum;
use otela_node::{
    agent::{AgentConfig, HungAfter, LogSink, Patience, Restart, writable},
    engine::{Engine, FatalPatterns},
};
use otela_proto::{PeerId, id::peer_id};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// More is as good as never.
const HUNG_AFTER_MAX: Duration = Duration::from_hours(24 * 30);

/// When an engine is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    /// The node leaves with its engine.
    Never,
    /// When it has failed: it ended with an error, was lost, or did not start to serve.
    OnFailure,
}

/// How an engine is watched over, and who may look.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Supervision")]
pub(crate) struct SuperviseArgs {
    /// What the engine is, if its command line does not tell: vllm, sglang, llama.cpp, ollama, tensorrt-llm, triton, otela or
    /// generic.
    #[arg(long, env = "OTELA_START_ENGINE", value_name = "NAME")]
    engine: Option<Engine>,
    /// When an engine that has ended is started again.
    #[arg(long, env = "OTELA_START_RESTART", value_name = "WHEN", default_value = "never")]
    restart: When,
    /// So many times in a row; an engine that has served for ten minutes begins a new row. The pauses between them grow to two
    /// minutes.
    #[arg(long, env = "OTELA_START_RESTARTS_MAX", value_name = "N", default_value = "5", requires = "restart")]
    restarts_max: u32,
    /// An engine that has requests and makes no token for so long, nor when asked, is taken out of rotation until it does, and
    /// ended after five times as long; or never. If not given, 2m; 10m for llama.cpp, Ollama and engines that are not known,
    /// which may let a small request wait behind long ones.
    #[arg(long, env = "OTELA_START_HUNG_AFTER", value_name = "TIME")]
    hung_after: Option<Limit>,
    /// A line of the engine's output after which it is of no use, as a regular expression; several times. Faults of CUDA, HIP
    /// and NCCL are known without.
    #[arg(long = "fatal", env = "OTELA_START_FATAL", value_name = "REGEX")]
    fatal: Vec<String>,
    /// An engine that prints a fatal fault has so long to make a token; one that does has survived it, and its lines are not
    /// looked at for as long again.
    #[arg(long, env = "OTELA_START_FATAL_WITHIN", value_name = "TIME", default_value = "10s", value_parser = super::parse::pause)]
    fatal_within: Duration,
    /// Models and adapters of the engine are read again this often.
    #[arg(long, env = "OTELA_START_MODELS_EVERY", value_name = "TIME", default_value = "30s", value_parser = super::parse::pause)]
    models_every: Duration,
    /// Where is written down what is known of an engine that failed: a folder, a URL, or peer:ID for a relay or an ingress that
    /// keeps it.
    #[arg(long, env = "OTELA_START_LOG_SINK", value_name = "SINK")]
    log_sink: Option<LogSink>,
    /// A peer that may drain this node and read what its engine prints; several times, or separated by commas.
    #[arg(long = "operator", env = "OTELA_START_OPERATORS", value_name = "PEER", value_parser = peer_id, value_delimiter = ',')]
    operators: Vec<PeerId>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Where nodes of this machine are found.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ControlArgs {
    /// The folder of the control sockets of nodes on this machine; in the user's runtime folder if there is one, else in /tmp.
    #[arg(long, env = "OTELA_START_CONTROL", value_name = "FOLDER")]
    control: Option<PathBuf>,
    /// The user's runtime folder.
    #[arg(long, env = "XDG_RUNTIME_DIR", value_name = "FOLDER", hide = true)]
    xdg_runtime_dir: Option<PathBuf>,
}

impl ControlArgs {
    /// Where a node has its socket.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folders().remove(0)
    }

    /// Where nodes may have theirs: those in a batch job have no runtime folder.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        if let Some(folder) = &self.control {
            return vec![folder.clone()];
        }
        let runtime =
            self.xdg_runtime_dir.as_deref().filter(|folder| folder.is_dir()).map(|folder| folder.join("otela"));
        let user = rustix::process::geteuid().as_raw();
        runtime.into_iter().chain([Path::new("/tmp").join(format!("otela-{user}"))]).collect()
    }
}

impl SuperviseArgs {
    /// Puts them into the settings of an agent.
    ///
    /// # Errors
    /// A regular expression is none, or nothing can be written to the log sink.
    pub(super) fn settle(&self, agent: &mut AgentConfig) -> Result<(), CommandError> {
        if let Some(LogSink::Folder(folder)) = &self.log_sink {
            let unusable = |source| CommandError::PostMortems { flag: "--log-sink", folder: folder.clone(), source };
            writable(folder).map_err(unusable)?;
        }
        agent.engine = self.engine;
        agent.restart = match self.restart {
            When::Never => Restart::Never,
            When::OnFailure => Restart::OnFailure(self.restarts_max),
        };
        let hung_after = match self.hung_after {
            None => HungAfter::Usual,
            Some(Limit(Some(time))) => HungAfter::After(time.min(HUNG_AFTER_MAX)),
            Some(Limit(None)) => HungAfter::Never,
        };
        let (fatal_within, models_every) = (self.fatal_within, self.models_every);
        agent.patience = Patience { hung_after, fatal_within, models_every };
        agent.fatal = Arc::new(FatalPatterns::new(&self.fatal)?);
        agent.log_sink = self.log_sink.clone();
        agent.operators = self.operators.clone();
        agent.control = Some(self.control.folder());
        Ok(())
    }
}
