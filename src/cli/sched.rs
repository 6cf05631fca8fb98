//! Flags of `otela sched`.

use std::path::PathBuf;

/// Flags of `otela sched`.
#[derive(Debug, clap::Args)]
pub(crate) struct SchedArgs {
    #[command(subcommand)]
    pub(crate) command: SchedCommand,
}

/// What to do with models, accelerators and what is known of them.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SchedCommand {
    /// Fit the cost model's factors to measurements.
    Calibrate(CalibrateArgs),
    /// Hold the cost model against measurements: its error by accelerator, engine and model.
    Validate(ValidateArgs),
    /// Say what a scenario comes to: replicas, what comes to them, and what they lose on the way.
    Simulate(SimulateArgs),
    /// Find the placement with the least makespan: which model on how many of which accelerators.
    Solve(SolveArgs),
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
    /// Models and accelerators of your own (TOML), besides those that come with the program.
    #[arg(long, value_name = "FILE")]
    pub(crate) catalog: Option<PathBuf>,
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

/// Flags of `otela sched validate`.
#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) read: MeasuredArgs,
    /// Factors to hold against the measurements; those that come with the program, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) factors: Option<PathBuf>,
}

/// Flags of `otela sched simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimulateArgs {
    /// The scenario (TOML); docs/simulator.md has one.
    #[arg(value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    /// Models and accelerators of your own (TOML), besides those that come with the program.
    #[arg(long, value_name = "FILE")]
    pub(crate) catalog: Option<PathBuf>,
    /// Factors of engines; those that come with the program, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) factors: Option<PathBuf>,
    /// Draw the latencies, and how they went over time, into this file (SVG).
    #[arg(long, value_name = "FILE")]
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
    /// Models and accelerators of your own (TOML), besides those that come with the program.
    #[arg(long, value_name = "FILE")]
    pub(crate) catalog: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
