//! A real Slurm of one test's own: a controller and four nodes on this machine, two of them with fake accelerators.

use crate::support::{eventually, finishes};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    os::fd::AsFd,
    path::PathBuf,
    process::{Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};
use tempfile::TempDir;
use tokio::process::Command;

/// A running Slurm, in a network of its own, since its ports are fixed. Dropping it ends its jobs and then itself.
pub(crate) struct Slurm {
    dir: TempDir,
    network: Network,
}

/// A network that has a loopback and nothing else, and in which the thread that made it and all that this starts is. Dropping
/// it kills what still runs there.
struct Network(String);

impl Network {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("otela-slurm-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // An address besides the loopback's: without one the resolver knows not even 127.0.0.1 to programs that ask for what
        // this machine could reach.
        let made = format!(
            "ip netns add {name} && ip -n {name} link set lo up && ip -n {name} link add lan0 type bridge \
             && ip -n {name} addr add 192.0.2.1/24 dev lan0 && ip -n {name} link set lan0 up"
        );
        assert!(std::process::Command::new("sh").args(["-c", &made]).status().unwrap().success(), "{made}");
        let network = Self(name);
        let space = File::open(format!("/run/netns/{}", network.0)).unwrap();
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        network
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // This process is in it too.
        let others = format!(
            "for pid in $(ip netns pids {0}); do [ $pid = {1} ] || echo $pid; done",
            self.0,
            std::process::id()
        );
        let end = format!("kill -9 $({others}) 2>/dev/null; ip netns del {}", self.0);
        let _best_effort = std::process::Command::new("sh").args(["-c", &end]).status();
    }
}

/// The folder that holds `slurm_start.sh`.
#[expect(clippy::disallowed_methods, reason = "where the lab's scripts are may be told by whoever runs the tests")]
fn scripts() -> PathBuf {
    let usual = || concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into();
    let shared: PathBuf = std::env::var("OTELA_SHARED").map_or_else(|_| usual(), PathBuf::from);
    shared.join("lab")
}

impl Slurm {
    /// Starts it; what the test starts afterwards is in its network.
    pub(crate) async fn start() -> Self {
        let network = Network::new();
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
        Self { dir, network }
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
        // Daemons go on for a moment after they were told to end.
        let until_gone = format!(
            "for _ in $(seq 100); do [ $(ip netns pids {} | wc -l) -gt 0 ] || break; sleep 0.1; done",
            self.network.0
        );
        run(std::process::Command::new("sh").args(["-c", &until_gone]));
    }
}
