//! Plans on disk: one file each, written once.

use crate::plan::Plan;
use std::{
    collections::BTreeSet,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

/// No scheduler lives to make as many.
const NUMBER_MAX: u64 = u64::MAX >> 16;

/// The file of kinds of jobs that are being submitted.
const UNSETTLED: &str = "submitting.json";

/// A directory of plans.
#[derive(Debug)]
pub struct Plans {
    dir: PathBuf,
    /// Holds the directory for as long as this process lives.
    _lock: fs::File,
    /// Number and generation of the newest.
    last: (u64, u64),
    /// Kinds of which jobs are being submitted, or were perhaps.
    unsettled: BTreeSet<String>,
}

/// Plans cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum PlansError {
    /// The directory, or a file in it.
    #[error("cannot keep plans in {}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another scheduler keeps its plans there.
    #[error("another process keeps its plans in {}: give each scheduler its own --plans", .0.display())]
    InUse(PathBuf),
    /// A plan is not there, or may not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not a plan.
    #[error("{} is not a plan: {what}", path.display())]
    NotAPlan {
        /// The file.
        path: PathBuf,
        /// Why.
        what: String,
    },
}

impl Plans {
    /// The plans in `dir`, which is made if it is not there. What was being written when a process ended is no plan.
    ///
    /// # Errors
    /// [`PlansError`].
    pub fn open(dir: &Path) -> Result<Self, PlansError> {
        let io = |source| PlansError::Io { path: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(io)?;
        let lock = fs::File::create(dir.join("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(PlansError::InUse(dir.to_owned())),
            Err(fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let numbers = fs::read_dir(dir).map_err(io)?.filter_map(|entry| number(&entry.ok()?.path()));
        let unsettled = read_unsettled(&dir.join(UNSETTLED))?;
        let mut plans = Self { dir: dir.to_owned(), _lock: lock, last: (0, 0), unsettled };
        if let Some(last) = numbers.max() {
            plans.last = (last, read(&plans.path(last))?.generation);
        }
        Ok(plans)
    }

    /// The number of the next plan.
    pub fn next(&self) -> u64 {
        self.last.0 + 1
    }

    /// The generation of the newest plan; 0 without any.
    pub fn generation(&self) -> u64 {
        self.last.1
    }

    /// Keeps a plan, for good: it is on the disk when this returns.
    ///
    /// # Errors
    /// [`PlansError`]; then it is not to be carried out.
    pub fn keep(&mut self, plan: &Plan) -> Result<(), PlansError> {
        let path = self.path(plan.number);
        let written = || {
            // Nobody else writes here, so nothing comes between.
            if path.exists() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            write(&path.with_extension("unfinished"), &path, &serde_json::to_vec_pretty(plan)?)
        };
        written().map_err(|source| PlansError::Io { path: path.clone(), source })?;
        self.last = (plan.number, plan.generation);
        Ok(())
    }

    /// Kinds of Slurm jobs of which nobody knows whether the last ones were taken.
    pub(super) fn unsettled(&self) -> &BTreeSet<String> {
        &self.unsettled
    }

    /// Keeps these kinds in place of those: on the disk when this returns.
    pub(super) fn unsettle(&mut self, kinds: BTreeSet<String>) -> Result<(), PlansError> {
        if kinds == self.unsettled {
            return Ok(());
        }
        let path = self.dir.join(UNSETTLED);
        let written = || write(&path.with_extension("unfinished"), &path, &serde_json::to_vec(&kinds)?);
        written().map_err(|source| PlansError::Io { path: path.clone(), source })?;
        self.unsettled = kinds;
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("plan-{number:08}.json"))
    }
}

/// All of a file or nothing, and on the disk when this returns.
fn write(unfinished: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

fn read_unsettled(path: &Path) -> Result<BTreeSet<String>, PlansError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(source) => Err(PlansError::Read { path: path.to_owned(), source }),
        Ok(text) => serde_json::from_slice(&text)
            .map_err(|error| PlansError::NotAPlan { path: path.to_owned(), what: error.to_string() }),
    }
}

/// Reads a plan.
///
/// # Errors
/// [`PlansError`].
pub fn read(path: &Path) -> Result<Plan, PlansError> {
    let text = fs::read(path).map_err(|source| PlansError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|error| PlansError::NotAPlan { path: path.to_owned(), what: error.to_string() })
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?
        .to_str()?
        .strip_prefix("plan-")?
        .strip_suffix(".json")?
        .parse()
        .ok()
        .filter(|number| *number < NUMBER_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(number: u64) -> Plan {
        Plan {
            number,
            generation: 7,
            scheduler: "s".into(),
            mesh: "m".into(),
            made_at_ms: 1,
            models: Vec::new(),
            steps: Vec::new(),
            idle: Vec::new(),
            submit: Vec::new(),
        }
    }

    #[test]
    fn numbers_go_on_after_a_crash_and_no_plan_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("plans");
        let mut plans = Plans::open(&at).unwrap();
        assert_eq!((plans.next(), plans.generation()), (1, 0));
        plans.keep(&plan(1)).unwrap();
        // A crash while the next was written.
        fs::write(at.join("plan-00000002.unfinished"), "{").unwrap();
        fs::write(at.join("plan-18446744073709551615.json"), "{").unwrap();
        assert!(matches!(Plans::open(&at), Err(PlansError::InUse(_))), "one process at a time");
        let unsettled = BTreeSet::from(["a100x4".to_owned()]);
        plans.unsettle(unsettled.clone()).unwrap();
        drop(plans);
        let mut again = Plans::open(&at).unwrap();
        assert_eq!(again.unsettled(), &unsettled, "it is not known whether these were submitted");
        again.unsettle(BTreeSet::new()).unwrap();
        assert_eq!((again.next(), again.generation()), (2, 7));
        again.keep(&plan(2)).unwrap();
        let said = again.keep(&plan(1)).unwrap_err().to_string();
        assert!(said.ends_with("plan-00000001.json"), "{said}");
        assert_eq!(read(&at.join("plan-00000002.json")).unwrap(), plan(2));
        fs::write(at.join("plan-00000003.json"), "{").unwrap();
        drop(again);
        assert!(Plans::open(&at).unwrap_err().to_string().contains("is not a plan: EOF"));
    }
}
