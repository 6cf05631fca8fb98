//! A real Slurm of one test's own: a controller and four nodes on this machine, two of them with fake accelerators.

use crate::support::{eventually, finishes};
use std::{
    fs::File,
    path::PathBuf,
    process::{Output, Stdio},
};
use tempfile::TempDir;
use tokio::process::Command;

/// Its ports are fixed, so there is one at a time on a machine, whoever tests there.
const LOCK: &str = "/tmp/otela-slurm.lock";

/// A running Slurm. Dropping it ends its jobs and then itself.
pub(crate) struct Slurm {
    dir: TempDir,
    _lock: File,
}

/// The folder that holds `slurm_start.sh`.
#[expect(clippy::disallowed_methods, reason = "where the lab's scripts are may be told by whoever runs the tests")]
fn scripts() -> PathBuf {
    let usual = || concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into();
    let shared: PathBuf = std::env::var("OTELA_SHARED").map_or_else(|_| usual(), PathBuf::from);
    shared.join("lab")
}

impl Slurm {
    pub(crate) async fn start() -> Self {
        let lock = tokio::task::spawn_blocking(|| {
            let lock = File::options().create(true).append(true).open(LOCK).unwrap();
            lock.lock().unwrap();
            lock
        });
        let lock = lock.await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let log = File::create(dir.path().join("started")).unwrap();
        let started = Command::new(scripts().join("slurm_start.sh"))
            .arg(dir.path())
            .stdin(Stdio::null())
            // Daemons keep what they are given, so no pipe.
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .await
            .unwrap();
        let said = std::fs::read_to_string(dir.path().join("started")).unwrap();
        assert!(started.success(), "{said}");
        Self { dir, _lock: lock }
    }

    /// What its commands and whoever calls them need to find it.
    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.path().join("slurm.conf")
    }

    /// One of its commands to its end.
    pub(crate) async fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let done = Command::new(program).args(arguments).env("SLURM_CONF", self.conf()).stdin(Stdio::null()).output();
        finishes("an answer of Slurm", done).await.unwrap()
    }

    /// The same; what it says, which must be a success.
    pub(crate) async fn says(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.run(program, arguments).await;
        assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Submits a job whose output goes to `NAME-ID.log` in [`Self::dir`], with more of the environment; its id.
    pub(crate) async fn submit(&self, name: &str, environment: &[(&str, &str)], arguments: &[&str]) -> String {
        let output = self.dir.path().join(format!("{name}-%j.log"));
        let mut command = Command::new("sbatch");
        command.args(["--parsable", "--job-name", name, "--output"]).arg(output).args(arguments);
        command.env("SLURM_CONF", self.conf()).envs(environment.iter().copied()).stdin(Stdio::null());
        let done = finishes("an answer of Slurm", command.output()).await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// What a job has written.
    pub(crate) fn output(&self, name: &str, job: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{name}-{job}.log"))).unwrap_or_default()
    }

    /// The state of a job, such as `RUNNING`.
    pub(crate) async fn state(&self, job: &str) -> String {
        let shown = self.says("scontrol", &["show", "job", "-o", job]).await;
        let state = shown.split_whitespace().find_map(|word| word.strip_prefix("JobState="));
        state.unwrap_or_else(|| panic!("a job has a state: {shown}")).to_owned()
    }

    /// Waits until a job has ended; its last state.
    pub(crate) async fn ended(&self, job: &str) -> String {
        eventually("the end of a job", async || {
            let state = self.state(job).await;
            let is_over = !["PENDING", "CONFIGURING", "RUNNING", "COMPLETING"].contains(&state.as_str());
            is_over.then_some(state)
        })
        .await
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let run = |program: &mut std::process::Command| {
            let done = program.env("SLURM_CONF", self.conf()).stdin(Stdio::null()).output();
            done.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned()).unwrap_or_default()
        };
        run(std::process::Command::new("scancel").args(["--me", "--signal=KILL", "--full"]));
        run(std::process::Command::new("scancel").arg("--me"));
        // The test is over, and nothing of it may stay.
        let until_empty = "for _ in $(seq 600); do [ -z \"$(squeue --me --noheader)\" ] && break; sleep 0.1; done";
        run(std::process::Command::new("sh").args(["-c", until_empty]));
        run(std::process::Command::new(scripts().join("slurm_stop.sh")).arg(self.dir.path()));
    }
}
