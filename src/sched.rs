//! `otela sched`: what the scheduler's library knows and foretells, on the command line.

mod calibrate;
mod judged;
mod live;
mod measured;
mod objectives;
mod picture;
mod plans;
mod profile;
mod simulate;
mod solve;
mod validate;

use crate::{
    cli::{CatalogArgs, SchedArgs, SchedCommand},
    exit::CommandError,
};
use otela_sched::{
    actuator::NoSlurm,
    calibrate::{MeasurementError, RecordingError, TableError},
    catalog::{Catalog, CatalogError, Unknown},
    controller::PlansError,
    place::{NoRoom, NotPlaced, ProblemError},
    plan::PolicyError,
    scenario::ScenarioError,
    sim::VariantError,
};
use std::{io, path::PathBuf, process::ExitCode, time::Duration};

pub(crate) use profile::EngineError;

/// Why nothing was fitted or held against anything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchedError {
    /// A file is not there, or may not be read.
    #[error("cannot read {path}: name a table (CSV), or a folder with requests.jsonl and meta.json")]
    Read { path: PathBuf, source: io::Error },
    /// A user's catalog.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A name that nobody knows.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// A table of measurements.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    /// A recorded run.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A recorded run over no accelerator.
    #[error("{path}")]
    Variant { path: PathBuf, source: VariantError },
    /// A recorded run on nobody knows what.
    #[error("{path} does not say on which accelerator it was recorded: name it with --accelerator")]
    NoAccelerator { path: PathBuf },
    /// A file of factors.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A problem that has no solution.
    #[error("{path}")]
    NotPlaced { path: PathBuf, source: NotPlaced },
    /// What runs is not what the problem says.
    #[error("{path}")]
    NoRoom { path: PathBuf, source: NoRoom },
    /// What is wanted.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Plans.
    #[error(transparent)]
    Plans(#[from] PlansError),
    /// Jobs are wanted where there is no Slurm.
    #[error(transparent)]
    NoSlurm(#[from] NoSlurm),
    /// Nobody to join.
    #[error("which mesh? Name it with --bootstrap or --mesh-file")]
    NoBootstrap,
    /// A mesh that does not let us look.
    #[error("the mesh was not found within {0:?}: see `otela doctor` with the same flags")]
    NotJoined(Duration),
    /// A file of another kind is not there, or may not be read.
    #[error("cannot read {path}")]
    Open { path: PathBuf, source: io::Error },
    /// A picture cannot be drawn.
    #[error("cannot draw {path}: {what}")]
    Plot { path: PathBuf, what: String },
    /// An engine cannot be measured.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What was found cannot be written.
    #[error("cannot write {path}: name another file with --out")]
    Write { path: PathBuf, source: io::Error },
}

/// Runs the command.
pub(crate) async fn run(args: SchedArgs) -> Result<ExitCode, CommandError> {
    match args.command {
        SchedCommand::Calibrate(args) => calibrate::run(&args),
        SchedCommand::Profile(args) => profile::run(&args).await,
        SchedCommand::Validate(args) => validate::run(&args),
        SchedCommand::Simulate(args) => simulate::run(&args),
        SchedCommand::Solve(args) => solve::run(&args),
        SchedCommand::Plan(args) => live::plan(*args).await,
        SchedCommand::Run(args) => live::run(*args).await,
        SchedCommand::Explain(args) => plans::explain(&args),
    }
}

/// The models and accelerators that are known.
fn catalog(known: &CatalogArgs) -> Result<Catalog, SchedError> {
    let mut catalog = Catalog::builtin();
    if let Some(path) = &known.catalog {
        catalog.extend(&path.display().to_string(), &simulate::text(path)?)?;
    }
    Ok(catalog)
}

/// A share as a percentage.
fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}
