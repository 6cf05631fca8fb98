//! Kinds of Slurm jobs that an operator allows.

use crate::catalog::{Catalog, Unknown};
use serde::Deserialize;
use std::{collections::BTreeSet, path::PathBuf};

/// What may be submitted to Slurm.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmPolicy {
    /// Kinds of jobs.
    #[serde(default)]
    pub jobs: Vec<JobKind>,
}

/// A kind of jobs. Each is one node of the mesh.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobKind {
    /// Its name, a part of its jobs' names.
    pub name: String,
    /// The batch script, as the policy's file sees it.
    pub script: PathBuf,
    /// What `sbatch` is told before the script.
    #[serde(default)]
    pub options: Vec<String>,
    /// The accelerators that a job's node will have, by the catalog's name.
    pub accelerator: String,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// Models that its node's templates allow: ids, or beginnings of ids with a `*` after them. All, if there are none.
    #[serde(default)]
    pub models: Vec<String>,
    /// How many of its jobs may be in the queue at once, in whatever state.
    pub max: u32,
}

/// What would make more of a job than one, hide it from the queue that is read, or let `sbatch` not come back: long names,
/// short ones, and what to do instead.
const NOT_ALLOWED: &[(&str, &str, &str)] = &[
    ("--array", "-a", "each job is one node: say with max how many there may be"),
    ("--job-name", "-J", "jobs are found again by the name that they are given"),
    ("--clusters", "-M", "the queue of another cluster is not read: run a scheduler there"),
    ("--cluster", "", "the queue of another cluster is not read: run a scheduler there"),
    ("--uid", "", "only jobs of the user that runs the scheduler are found again"),
    ("--wait", "-W", "sbatch would not come back before the job has ended"),
    ("--test-only", "", "nothing would be submitted"),
    ("--wrap", "", "the script is what runs"),
];

/// Longer names are cut off by some of Slurm's tools.
const NAME_CHARS_MAX: usize = 64;

fn one() -> u32 {
    1
}

impl SlurmPolicy {
    /// What is wrong with it, on one line.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for kind in &self.jobs {
            if !names.insert(&kind.name) {
                return Err(format!("slurm.jobs: {} is there twice", kind.name));
            }
            kind.check().map_err(|what| format!("slurm.jobs, {:?}: {what}", kind.name))?;
        }
        Ok(())
    }

    /// The first accelerator that the catalog does not have, and where.
    pub(super) fn unknown(&self, catalog: &Catalog) -> Option<(String, Unknown)> {
        let unknown = |kind: &JobKind| {
            let unknown = catalog.accelerator(&kind.accelerator).err()?;
            Some((format!("slurm.jobs, {:?}: accelerator", kind.name), unknown))
        };
        self.jobs.iter().find_map(unknown)
    }
}

impl JobKind {
    fn check(&self) -> Result<(), String> {
        // Without a dash, nobody takes a kind of mesh `a` for one of mesh `a-b`.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if self.name.is_empty() || self.name.len() > NAME_CHARS_MAX || !self.name.chars().all(is_plain) {
            return Err(format!("name: 1 to {NAME_CHARS_MAX} letters, digits, _ and ."));
        }
        if self.count == 0 || self.max == 0 {
            return Err("count and max are from 1 on".to_owned());
        }
        if self.script.as_os_str().is_empty() {
            return Err("script: name a file".to_owned());
        }
        if let Some(first) = self.options.first().filter(|option| !option.starts_with('-')) {
            return Err(format!("options: {first:?} would be taken for the script: options begin with -"));
        }
        let refused = self.options.iter().find_map(|option| Some((option, not_allowed(option)?)));
        refused.map_or(Ok(()), |(option, instead)| Err(format!("options: {option:?} is not allowed: {instead}")))
    }

    /// What `script`, which is this kind's, asks of `sbatch` that no kind may.
    ///
    /// # Errors
    /// What is wrong with it, on one line.
    pub fn check_script(&self, script: &str) -> Result<(), String> {
        // As sbatch reads it: up to the first line that does something.
        let comments = script.lines().take_while(|line| line.trim().is_empty() || line.starts_with('#'));
        let options = comments.filter_map(|line| line.strip_prefix("#SBATCH")).flat_map(str::split_whitespace);
        // A name in the script is overridden.
        let refused = options.filter(|option| !option.starts_with("--job-name") && !option.starts_with("-J"));
        let mut refused = refused.filter_map(|option| Some((option, not_allowed(option)?)));
        refused.next().map_or(Ok(()), |(option, instead)| Err(format!("#SBATCH {option} is not allowed: {instead}")))
    }

    /// The names of its jobs in a mesh.
    pub fn job_name(&self, mesh: &str) -> String {
        format!("otela-{mesh}-{}", self.name)
    }
}

/// Why an option may not be given, if so. Long options may be shortened, and short ones have their value behind them.
fn not_allowed(option: &str) -> Option<&'static str> {
    let name = option.split('=').next().unwrap_or(option);
    let is_it = |(long, short, _): &&(&str, &str, &str)| {
        let is_long = name == *long || (name.len() > 4 && name.starts_with("--") && long.starts_with(name));
        let is_short = !short.is_empty() && option.starts_with(short) && !option.starts_with("--");
        is_long || is_short
    };
    NOT_ALLOWED.iter().find(is_it).map(|(_, _, instead)| *instead)
}
