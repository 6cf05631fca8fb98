//! Slurm, by its own commands: what is in its queue, and what is put there. Nothing is ever cancelled.
//!
//! No shell sees any word. A command that takes too long is killed, and what it has done is then not known.

use std::{io, path::PathBuf, process::Stdio, time::Duration};
use tokio::{process::Command, time::timeout};

/// Slurm's own time-outs are shorter, unless it is in trouble.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// What is shown of what a command says.
const SAID_CHARS_MAX: usize = 300;

/// What would make `squeue` leave jobs out, or write otherwise.
const NOT_FOR_SQUEUE: &[&str] = &[
    "SQUEUE_ACCOUNT",
    "SQUEUE_FORMAT2",
    "SQUEUE_LICENSES",
    "SQUEUE_PARTITION",
    "SQUEUE_QOS",
    "SQUEUE_STATES",
    "SQUEUE_USERS",
];
/// What would make several jobs of one, put them elsewhere, or hold `sbatch` back; and what is this scheduler's own: a node
/// with its key would take its place in the mesh.
const NOT_FOR_SBATCH: &[&str] = &[
    "SBATCH_ARRAY_INX",
    "SBATCH_CLUSTERS",
    "SBATCH_TEST_ONLY",
    "SBATCH_WAIT",
    "OTELA_CONFIG",
    "OTELA_OBSERVE_LISTEN",
    "OTELA_PEER_EXTERNAL",
    "OTELA_PEER_KEY",
    "OTELA_PEER_LISTEN",
    "OTELA_PEER_MEMBERSHIP",
    "OTELA_PEER_STATE",
];
/// Of an `sbatch` that says something of these nobody knows whether the job was taken.
const DOUBTFUL: &[&str] = &["timed out", "timeout", "contact", "connect", "communicat", "zero bytes", "interrupted"];

/// Slurm, as the user that this process runs as sees it.
#[derive(Debug, Clone)]
pub struct Slurm {
    /// What jobs are given in their environment, beside that of this process.
    environment: Vec<(String, String)>,
    within: Duration,
}

/// A job in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Its state, in Slurm's word, such as `PENDING`.
    pub state: String,
    /// Its name.
    pub name: String,
}

/// A job that is to be submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The job's name.
    pub name: String,
    /// What is said before the script.
    pub options: Vec<String>,
    /// The script.
    pub script: PathBuf,
}

/// What came of submitting a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It is in the queue, under this number.
    Taken(u64),
    /// It is not, for this reason.
    Refused(String),
    /// It may be.
    Unknown(String),
}

/// There is no Slurm here.
#[derive(Debug, thiserror::Error)]
#[error("jobs of Slurm are to be submitted, and {program} cannot be run here: start this where it is on PATH")]
pub struct NoSlurm {
    program: &'static str,
    source: io::Error,
}

impl Slurm {
    /// Jobs are given `environment` beside that of this process.
    pub fn new(environment: Vec<(String, String)>) -> Self {
        Self { environment, within: ANSWER_WITHIN }
    }

    /// Whether its commands are there.
    ///
    /// # Errors
    /// [`NoSlurm`].
    pub async fn check(&self) -> Result<(), NoSlurm> {
        for program in ["sbatch", "squeue"] {
            match run(Command::new(program).arg("--version"), self.within).await {
                Err(Failed::NotStarted(source)) => return Err(NoSlurm { program, source }),
                // Whatever it says, it is there.
                Ok(_) | Err(Failed::TooLong) => {}
            }
        }
        Ok(())
    }

    /// The jobs of this user that have one of these names.
    ///
    /// # Errors
    /// Why that is not known, on one line.
    pub async fn queue(self, names: Vec<String>) -> Result<Vec<Job>, String> {
        let mut squeue = Command::new("squeue");
        NOT_FOR_SQUEUE.iter().for_each(|name| _ = squeue.env_remove(name));
        squeue.args(["--me", "--noheader", "--array", &format!("--name={}", names.join(",")), "--format=%A|%T|%j"]);
        match run(&mut squeue, self.within).await {
            Ok(said) if said.is_success => said.out.lines().filter(|line| !line.trim().is_empty()).map(job).collect(),
            Ok(said) => Err(format!("squeue: {}", said.trouble())),
            Err(failed) => Err(failed.line("squeue", self.within)),
        }
    }

    /// Puts a job into the queue.
    pub async fn submit(self, batch: Batch) -> Submitted {
        let mut sbatch = Command::new("sbatch");
        NOT_FOR_SBATCH.iter().for_each(|name| _ = sbatch.env_remove(name));
        sbatch.envs(self.environment);
        sbatch.arg("--parsable").arg(format!("--job-name={}", batch.name)).args(batch.options).arg(batch.script);
        match run(&mut sbatch, self.within).await {
            Ok(said) => outcome(&said),
            Err(failed @ Failed::NotStarted(_)) => Submitted::Refused(failed.line("sbatch", self.within)),
            Err(failed @ Failed::TooLong) => Submitted::Unknown(failed.line("sbatch", self.within)),
        }
    }
}

/// What became of a job, by what `sbatch` has said.
fn outcome(said: &Said) -> Submitted {
    if !said.is_success {
        let why = format!("sbatch: {}", said.trouble());
        let words = said.err.to_lowercase();
        let is_doubtful = words.is_empty() || DOUBTFUL.iter().any(|word| words.contains(word));
        return if is_doubtful { Submitted::Unknown(why) } else { Submitted::Refused(why) };
    }
    // NUMBER or NUMBER;CLUSTER, after what a site's own filters may say.
    let last = said.out.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    match last.split(';').next().unwrap_or_default().parse() {
        Ok(id) => Submitted::Taken(id),
        Err(_) => Submitted::Unknown(format!("sbatch: {:?} is not the number of a job", short(last))),
    }
}

fn job(line: &str) -> Result<Job, String> {
    let parts = || {
        let mut parts = line.trim().splitn(3, '|');
        let id = parts.next()?.trim().parse().ok()?;
        Some(Job { id, state: parts.next()?.trim().to_owned(), name: parts.next()?.trim().to_owned() })
    };
    parts().ok_or_else(|| format!("squeue: {:?} is not NUMBER|STATE|NAME", short(line)))
}

/// What a command has said.
struct Said {
    is_success: bool,
    status: String,
    out: String,
    err: String,
}

impl Said {
    /// What is wrong, by its own words.
    fn trouble(&self) -> String {
        let words = self.err.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ");
        if words.is_empty() { self.status.clone() } else { short(&words).to_owned() }
    }
}

enum Failed {
    NotStarted(io::Error),
    TooLong,
}

impl Failed {
    fn line(&self, program: &str, within: Duration) -> String {
        match self {
            Self::NotStarted(error) => format!("{program}: {error}"),
            Self::TooLong => format!("{program}: no answer within {within:?}"),
        }
    }
}

async fn run(command: &mut Command, within: Duration) -> Result<Said, Failed> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let done = timeout(within, output).await.map_err(|_| Failed::TooLong)?.map_err(Failed::NotStarted)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Said {
        is_success: done.status.success(),
        status: done.status.to_string(),
        out: text(&done.stdout),
        err: text(&done.stderr),
    })
}

fn short(text: &str) -> &str {
    text.char_indices().nth(SAID_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(is_success: bool, out: &str, err: &str) -> Submitted {
        outcome(&Said { is_success, status: "exit status: 1".into(), out: out.into(), err: err.into() })
    }

    #[test]
    fn what_sbatch_says_is_taken_refused_or_in_doubt() {
        for (out, id) in [("12\n", 12), ("12;alps\n", 12), ("sbatch: a site's filter says hello\n\n 13 \n", 13)] {
            assert_eq!(said(true, out, ""), Submitted::Taken(id));
        }
        let refused = said(false, "", "sbatch: error: invalid account\nsbatch: error: Batch job submission failed\n");
        let why = "sbatch: sbatch: error: invalid account, sbatch: error: Batch job submission failed";
        assert_eq!(refused, Submitted::Refused(why.into()));
        for err in [
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            "sbatch: error: Unable to contact slurm controller (connect failure)",
            "sbatch: error: Zero Bytes were transmitted or received",
            "",
        ] {
            assert!(matches!(said(false, "", err), Submitted::Unknown(_)), "{err}: it may be in the queue");
        }
        assert!(matches!(said(true, "Submitted\n", ""), Submitted::Unknown(_)));
    }

    #[test]
    fn lines_of_the_queue() {
        let of = |id, state: &str, name: &str| Job { id, state: state.into(), name: name.into() };
        assert_eq!(job(" 7|RUNNING|otela-lab-a|b "), Ok(of(7, "RUNNING", "otela-lab-a|b")));
        for bad in ["slurm_load_jobs error", "7_[1-9]|PENDING|a", "7|PENDING"] {
            assert!(job(bad).unwrap_err().starts_with("squeue: \""), "{bad}");
        }
    }
}
