//! Flags of `otela sched`.

use super::{PeerArgs, Target, egress::ViaArgs};
use otela_proto::{PeerId, id::peer_id};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use url::Url;

/// Flags of `otela sched`.
#[derive(Debug, clap::Args)]
pub(crate) struct SchedArgs {
    #[command(subcommand)]
    pub(crate) command: SchedCommand,
}

impl SchedArgs {
    /// Whether it runs on and writes a log, instead of answering a person.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self.command, SchedCommand::Run(_))
    }
}

/// What to do with models, accelerators and what is known of them.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SchedCommand {
    /// Fit the cost model's factors to measurements.
    Calibrate(CalibrateArgs),
    /// Measure a running engine: makes the table that calibrate and validate read.
    Profile(Box<ProfileArgs>),
    /// Hold the cost model against measurements: its error by accelerator, engine and model.
    Validate(ValidateArgs),
    /// Say what a scenario comes to: replicas, what comes to them, and what they lose on the way.
    Simulate(SimulateArgs),
    /// Find the placement with the least makespan: which model on how many of which accelerators.
    Solve(SolveArgs),
    /// Say what would be placed on the idle nodes of a mesh now. Tells nobody anything.
    Plan(Box<PlanArgs>),
    /// Place models on idle nodes, for as long as this runs: nodes whose providers name this scheduler do what it says.
    Run(Box<RunArgs>),
    /// Show a plan that was made, with its reasons.
    Explain(ExplainArgs),
}

/// What is known besides what comes with the program.
#[derive(Debug, clap::Args)]
pub(crate) struct CatalogArgs {
    /// Models and accelerators of your own (TOML), besides those that come with the program.
    #[arg(long, value_name = "FILE")]
    pub(crate) catalog: Option<PathBuf>,
}

/// What both read.
#[derive(Debug, clap::Args)]
pub(crate) struct MeasuredArgs {
    /// Tables of measured batches (CSV), or folders with the requests.jsonl and meta.json of recorded runs.
    #[arg(value_name = "FILE|FOLDER", required = true)]
    pub(crate) measured: Vec<PathBuf>,
    /// The accelerator of recorded runs that do not say it.
    #[arg(long, value_name = "NAME")]
    pub(crate) accelerator: Option<String>,
    #[command(flatten)]
    pub(crate) known: CatalogArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `otela sched calibrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    pub(crate) read: MeasuredArgs,
    /// Fit on this model, and test on those that are not named; several times. Without it all are fitted on.
    #[arg(long, value_name = "MODEL")]
    pub(crate) fit: Vec<String>,
    /// Where to write the factors (TOML). If there are some, those of other accelerators and engines stay.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Flags of `otela sched profile`.
#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// The HTTP address of an engine with an OpenAI API, which nobody else uses meanwhile; whatever follows /v1 is left out.
    #[arg(value_name = "URL", value_parser = engine)]
    pub(crate) url: Url,
    /// On which accelerator it runs; a name of the catalog, or as nvidia-smi prints it.
    #[arg(long, value_name = "NAME")]
    pub(crate) accelerator: String,
    /// Over how many of them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tp: u32,
    /// The model, as the engine calls it, where it serves several.
    #[arg(long, value_name = "ID")]
    pub(crate) model: Option<String>,
    /// The engine's name, if not what it says itself.
    #[arg(long, value_name = "NAME")]
    pub(crate) engine: Option<String>,
    /// Its version, if not what it says itself.
    #[arg(long, value_name = "VERSION")]
    pub(crate) engine_version: Option<String>,
    /// The engine's key, if it wants one.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// How long it may take. What was not measured by then is left out.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub(crate) within: Duration,
    /// Requests at once.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batches: Vec<u32>,
    /// Tokens of prompts.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "128,512,2048", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) prompts: Vec<u32>,
    /// Tokens of answers.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "64,256", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub(crate) answers: Vec<u32>,
    #[command(flatten)]
    pub(crate) known: CatalogArgs,
    /// Where to write the table (CSV); to the standard output, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print medians and what was left out as JSON, in place of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An engine's address, without /v1 and what follows.
fn engine(text: &str) -> Result<Url, String> {
    let example = "an example: http://127.0.0.1:8000";
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let mut url: Url = whole.parse().map_err(|error| format!("not a URL ({error}); {example}"))?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_plain {
        return Err(format!("not http://HOST:PORT or https://HOST:PORT; {example}"));
    }
    let path = url.path().trim_end_matches('/');
    let path = path.find("/v1").map_or(path, |at| &path[..at]).to_owned();
    url.set_path(&path);
    url.set_fragment(None);
    Ok(url)
}

/// Flags of `otela sched validate`.
#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) read: MeasuredArgs,
    /// Factors to hold against the measurements; those that come with the program, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) factors: Option<PathBuf>,
}

/// A picture's file. Told before anything is computed.
fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg")) {
        true => Ok(path),
        false => Err("pictures are SVG: name a file that ends in .svg, of which browsers and rsvg-convert make others"
            .to_owned()),
    }
}

/// Flags of `otela sched simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimulateArgs {
    /// The scenario (TOML); docs/simulator.md has one.
    #[arg(value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    #[command(flatten)]
    pub(crate) known: CatalogArgs,
    /// Factors of engines; those that come with the program, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) factors: Option<PathBuf>,
    /// Draw the latencies, how they went over time, and what replicas had to do, into this file.
    #[arg(long, value_name = "FILE.svg", value_parser = picture)]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `otela sched solve`.
#[derive(Debug, clap::Args)]
pub(crate) struct SolveArgs {
    /// The problem (TOML or JSON); docs/scheduler.md has one.
    #[arg(value_name = "FILE")]
    pub(crate) problem: PathBuf,
    #[command(flatten)]
    pub(crate) known: CatalogArgs,
    /// Factors of engines, where it is simulated; those that come with the program, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) factors: Option<PathBuf>,
    /// Draw which accelerators are for which model into this file.
    #[arg(long, value_name = "FILE.svg", value_parser = picture)]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is wanted of a mesh.
#[derive(Debug, clap::Args)]
pub(crate) struct WantedArgs {
    /// What is to be served, and for what load (TOML); docs/scheduler.md has one.
    #[arg(value_name = "FILE")]
    pub(crate) policy: PathBuf,
    #[command(flatten)]
    pub(crate) known: CatalogArgs,
    /// An ingress to ask how much of each model is wanted; several times, or separated by commas.
    #[arg(long = "ingress", env = "OTELA_SCHED_INGRESSES", value_name = "URL", value_delimiter = ',')]
    pub(crate) ingresses: Vec<Target>,
}

/// Flags of `otela sched plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) wanted: WantedArgs,
    /// For which scheduler: only nodes that name it count. All that name any, if not given.
    #[arg(long = "as", value_name = "PEER", value_parser = peer_id)]
    pub(crate) scheduler: Option<PeerId>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
}

/// Flags of `otela sched run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) wanted: WantedArgs,
    /// Directory to keep plans in, on a disk that outlives this process. Made if it is not there.
    #[arg(long, env = "OTELA_SCHED_PLANS", value_name = "DIR", default_value = "otela-plans")]
    pub(crate) plans: PathBuf,
    /// How often loads are looked at. Nodes that come and go are seen at once.
    #[arg(long, env = "OTELA_SCHED_EVERY", value_name = "TIME", default_value = "15s", value_parser = every)]
    pub(crate) every: Duration,
    /// Where the registry, health and metrics can be read over HTTP; port 0 takes a free one.
    #[arg(long, env = "OTELA_OBSERVE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = super::listen_address)]
    pub(crate) http: SocketAddr,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
}

/// More often than every second shows nothing new.
fn every(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if every < Duration::from_secs(1) { Err("shorter than 1s".to_owned()) } else { Ok(every) }
}

/// Flags of `otela sched explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The plan: a file of the directory that `otela sched run` keeps them in.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_svg() {
        assert!(picture("a/b.SVG").is_ok());
        assert!(picture("b.png").unwrap_err().contains(".svg") && picture("svg").is_err());
    }

    #[test]
    fn engines_are_named_as_clients_name_them() {
        for (text, url) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000/"),
            ("http://gpu:8000/v1/", "http://gpu:8000/"),
            ("https://proxy.example/engine/v1/chat", "https://proxy.example/engine"),
        ] {
            assert_eq!(engine(text).unwrap().as_str(), url, "{text}");
        }
        for bad in ["", "ftp://gpu", "http://me:secret@gpu", "http://gpu?x=1", "a b"] {
            assert!(engine(bad).unwrap_err().contains("an example"), "{bad}");
        }
    }
}
