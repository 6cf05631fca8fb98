//! A scheduler that submits Slurm jobs: to scripts that stand for Slurm, and to a real one.

use crate::{
    sched::{nvidia_smi, prints},
    slurm::Slurm,
    support::{Mesh, Otela, eventually, get, post, sum_metric},
};
use serde_json::{Value, json};
use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

const QWEN: &str = "Qwen/Qwen2.5-7B-Instruct";

/// Stands for `sbatch`: keeps what it was told, and puts a job that waits into the queue. While there is a file `hold`, it
/// does not come to that; while there is one called `refuse`, it takes nothing.
const SBATCH: &str = r#"#!/bin/sh
cd 'DIR' || exit 1
case "$1" in --version) echo slurm; exit;; esac
echo "$@" >> submissions
env | grep ^OTELA_ > environment
[ -e refuse ] && { echo 'sbatch: error: invalid account' >&2; exit 1; }
id=$((100 + $(wc -l < submissions)))
if [ -e hold ]; then touch held; while [ -e hold ]; do sleep 0.05; done; fi
for word in "$@"; do case "$word" in --job-name=*) echo "$id|PENDING|${word#--job-name=}" >> queue;; esac; done
echo "$id"
"#;
/// Stands for `squeue`: shows the queue, unless there is a file `lost`.
const SQUEUE: &str = r#"#!/bin/sh
cd 'DIR' || exit 1
case "$1" in --version) echo slurm; exit;; esac
echo "$@" >> looks
[ -e lost ] && { echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1; }
[ -e queue ] && cat queue
exit 0
"#;

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A mesh with a scheduler that has scripts for Slurm.
struct Scripted {
    mesh: Mesh,
    dir: PathBuf,
    scheduler: String,
    /// One card.
    smi: PathBuf,
    /// As many as a node of the real Slurm has, of which it lets a job see its own.
    smi_of_all: PathBuf,
}

impl Scripted {
    async fn new() -> Self {
        let mesh = Mesh::ingress(&[]).await;
        let dir = mesh.dir.path().to_owned();
        let bin = dir.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        // All of them before anybody runs one: a file that is open for writing cannot be run.
        let here = |text: &str| text.replace("DIR", dir.to_str().unwrap());
        executable(&bin.join("sbatch"), &here(SBATCH));
        executable(&bin.join("squeue"), &here(SQUEUE));
        let [smi, smi_of_all] = [1, 4].map(|count| nvidia_smi(&dir, count, "NVIDIA A100-SXM4-80GB", 81_920));
        std::fs::write(dir.join("worker.sbatch"), "#!/bin/sh\n#SBATCH --nodes=1\n").unwrap();
        let otela = env!("CARGO_BIN_EXE_otela");
        let templates = format!("[sim]\ncommand = ['{otela}', 'engine', '{{model}}', '--port', '{{port}}']\n");
        std::fs::write(dir.join("templates.toml"), templates).unwrap();
        let key = dir.join("scheduler.key");
        let scheduler = prints(&["key", key.to_str().unwrap()]).await.trim().to_owned();
        Self { mesh, dir, scheduler, smi, smi_of_all }
    }

    fn policy(&self, rate: f64, max: u32) {
        let text = format!(
            "[[models]]\nmodel = '{QWEN}'\nrate = {rate:?}\n[[slurm.jobs]]\nname = 'a100'\nscript = 'worker.sbatch'\n\
             options = ['--partition=gpu', '--comment=a b']\naccelerator = 'A100-80GB'\nmax = {max}\n"
        );
        std::fs::write(self.dir.join("policy.toml"), text).unwrap();
    }

    fn arguments(&self) -> Vec<String> {
        let here = |name: &str| self.dir.join(name).to_str().unwrap().to_owned();
        let (policy, key, plans) = (here("policy.toml"), here("scheduler.key"), here("plans"));
        let network = ["--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", &self.mesh.bootstrap];
        let run = ["sched", "run", &policy, "--key", &key, "--plans", &plans, "--every", "1s"];
        [&run[..], &network].concat().into_iter().map(str::to_owned).collect()
    }

    fn run(&self) -> Otela {
        self.with_path(&format!("{}:$PATH", self.dir.join("bin").display()), &self.arguments())
    }

    /// An `otela` that finds programs here.
    fn with_path(&self, path: &str, arguments: &[String]) -> Otela {
        // Its own key is no key for its jobs.
        let shell = format!("PATH=\"{path}\" OTELA_PEER_KEY=not-for-jobs exec \"$0\" \"$@\"");
        let start = ["-c", &shell, env!("CARGO_BIN_EXE_otela")];
        Otela::run_program("/bin/sh", start.into_iter().chain(arguments.iter().map(String::as_str)))
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the queue was looked at so often from now on.
    async fn looks(&self, times: usize) {
        let until = self.lines("looks").len() + times;
        eventually("the queue is looked at", async || (self.lines("looks").len() >= until).then_some(())).await;
    }

    async fn queued(&self, count: usize) {
        let is_there = async || (self.lines("queue").len() == count).then_some(());
        eventually(&format!("{count} jobs in the queue: {:?}", self.lines("queue")), is_there).await;
    }

    fn touch(&self, file: &str) {
        std::fs::write(self.dir.join(file), "").unwrap();
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.dir.join(file)).unwrap();
    }

    /// The node of a job.
    fn node(&self, job: &str) -> Otela {
        let environment = self.lines("environment").join(" ");
        let templates = self.dir.join("templates.toml");
        let shell = format!(
            "PATH=\"{}:$PATH\" exec env {environment} \"$0\" start --templates '{}' --label slurm_job_id={job} \
             --peer-listen /ip4/127.0.0.1/tcp/0",
            self.smi.display(),
            templates.display(),
        );
        Otela::run_program("sh", ["-c", &shell, env!("CARGO_BIN_EXE_otela")])
    }
}

/// What a scheduler counts.
async fn counts(scheduler: &Otela, metric: &str) -> f64 {
    let http = scheduler.observed().await;
    sum_metric(std::str::from_utf8(&get(http, "/metrics").await.body).unwrap(), metric)
}

#[tokio::test]
async fn a_job_is_submitted_for_what_is_lacking_and_its_node_is_given_the_model() {
    let slurm = Scripted::new().await;
    slurm.policy(0.5, 3);
    let scheduler = slurm.run();
    slurm.queued(1).await;
    let script = slurm.dir.join("worker.sbatch");
    let told = format!("--parsable --job-name=otela-test-a100 --partition=gpu --comment=a b {}", script.display());
    assert_eq!(slurm.lines("submissions"), [told]);
    let mut environment = slurm.lines("environment");
    // Whoever runs the tests may have others.
    environment.retain(|variable| variable.starts_with("OTELA_PEER_") || variable.starts_with("OTELA_START_"));
    environment.sort();
    let expected = [
        format!("OTELA_PEER_BOOTSTRAP={}", slurm.mesh.bootstrap),
        "OTELA_PEER_MESH=test".to_owned(),
        format!("OTELA_START_SCHEDULERS={}", slurm.scheduler),
    ];
    assert_eq!(environment, expected);
    slurm.looks(2).await;
    let names = "--me --noheader --array --name=otela-test-a100 --format=%A|%T|%j";
    assert!(slurm.lines("looks").iter().all(|look| look == names), "{:?}", slurm.lines("looks"));
    assert_eq!(slurm.lines("submissions").len(), 1, "one is on its way");
    assert_eq!(counts(&scheduler, "otela_sched_jobs{kind=\"a100\",state=\"pending\"}").await, 1.0);

    std::fs::write(slurm.dir.join("queue"), "101|RUNNING|otela-test-a100\n").unwrap();
    let mut node = slurm.node("101");
    slurm.mesh.serves(QWEN, 1).await;
    let joined = async || counts(&scheduler, "otela_sched_jobs{kind=\"a100\",state=\"joined\"}").await == 1.0;
    eventually("it is known as joined", async || joined().await.then_some(())).await;
    slurm.looks(2).await;
    assert_eq!(slurm.lines("submissions").len(), 1, "{}", scheduler.output());

    // The job ends, and its node with it: another is asked for, at once.
    node.signal("-KILL");
    node.ends().await;
    std::fs::write(slurm.dir.join("queue"), "").unwrap();
    slurm.queued(1).await;
    let taken = "otela_sched_jobs_submitted_total{kind=\"a100\",outcome=\"taken\"}";
    eventually("both are counted", async || (counts(&scheduler, taken).await == 2.0).then_some(())).await;
    let plans = slurm.dir.join("plans");
    let first = prints(&["sched", "explain", plans.join("plan-00000001.json").to_str().unwrap()]).await;
    assert!(first.contains("SUBMITS") && first.contains("1 more jobs of kind a100 are submitted"), "{first}");
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_is_not_an_empty_one() {
    let slurm = Scripted::new().await;
    slurm.policy(0.5, 3);
    slurm.touch("lost");
    let scheduler = slurm.run();
    scheduler.says("Slurm's queue is not known, and nothing is submitted until it is: squeue: slurm_load_jobs").await;
    slurm.looks(3).await;
    assert_eq!(slurm.lines("submissions").len(), 0, "{}", scheduler.output());
    assert_eq!(scheduler.output().matches("queue is not known, and").count(), 1, "{}", scheduler.output());
    assert!(counts(&scheduler, "otela_sched_queue_unknown_total").await >= 2.0);
    // A job of an earlier scheduler is there: that is enough.
    std::fs::write(slurm.dir.join("queue"), "7|PENDING|otela-test-a100\n").unwrap();
    slurm.remove("lost");
    scheduler.says("Slurm's queue is known ").await;
    slurm.looks(3).await;
    assert_eq!(slurm.lines("submissions").len(), 0, "{}", scheduler.output());
    // It ends, and no node of it has joined.
    std::fs::write(slurm.dir.join("queue"), "").unwrap();
    scheduler.says("of job 7 no node has joined, and it has ended: jobs of this kind are not submitted for 30s").await;
    slurm.looks(2).await;
    assert_eq!(slurm.lines("submissions").len(), 0, "{}", scheduler.output());
}

#[tokio::test]
async fn what_slurm_refuses_is_said_and_not_asked_for_again_at_once() {
    let slurm = Scripted::new().await;
    slurm.policy(1e6, 3);
    slurm.touch("refuse");
    let scheduler = slurm.run();
    scheduler.says("sbatch: sbatch: error: invalid account: jobs of this kind are not submitted for 30s").await;
    slurm.looks(3).await;
    assert_eq!(slurm.lines("submissions").len(), 1, "not even the others of the same plan");
    assert_eq!(counts(&scheduler, "otela_sched_jobs_submitted_total{kind=\"a100\",outcome=\"refused\"}").await, 1.0);
}

#[tokio::test]
async fn p57_there_are_never_more_jobs_than_may_be_whoever_is_killed_in_between() {
    let slurm = Scripted::new().await;
    // Jobs wait all along, and more is asked for than can be had.
    slurm.policy(1e6, 4);
    let mut first = slurm.run();
    slurm.queued(4).await;
    slurm.looks(2).await;
    assert_eq!(slurm.lines("submissions").len(), 4);
    first.signal("-KILL");
    first.ends().await;
    // One more may be, and the scheduler is killed while it submits that: nobody knows what comes of it.
    slurm.policy(1e6, 5);
    slurm.touch("hold");
    let mut second = slurm.run();
    eventually("a job is being submitted", async || slurm.dir.join("held").exists().then_some(())).await;
    second.signal("-KILL");
    second.ends().await;
    slurm.policy(2e6, 5);
    let third = slurm.run();
    third.says("it is this scheduler's turn").await;
    slurm.looks(3).await;
    assert_eq!(slurm.lines("submissions").len(), 5, "the fifth may still come: {}", third.output());
    slurm.remove("hold");
    slurm.queued(5).await;
    slurm.looks(3).await;
    assert_eq!((slurm.lines("submissions").len(), slurm.lines("queue").len()), (5, 5), "{}", third.output());
}

#[tokio::test]
async fn a_policy_with_jobs_needs_slurm_and_a_dry_run_shows_them() {
    let slurm = Scripted::new().await;
    slurm.policy(0.5, 3);
    let mut nowhere = slurm.with_path("/nowhere", &slurm.arguments());
    assert_eq!(nowhere.ends().await, 69);
    assert!(
        nowhere.output().contains("sbatch cannot be run here: start this where it is on PATH"),
        "{}",
        nowhere.output()
    );
    std::fs::write(slurm.dir.join("worker.sbatch"), "#!/bin/sh\n#SBATCH --array=1-9\n").unwrap();
    let mut many = slurm.run();
    assert_eq!(many.ends().await, 2);
    assert!(many.output().contains("worker.sbatch: #SBATCH --array=1-9 is not allowed"), "{}", many.output());
    std::fs::write(slurm.dir.join("worker.sbatch"), "#!/bin/sh\n").unwrap();
    let path = format!("PATH={}:$PATH exec \"$0\" \"$@\"", slurm.dir.join("bin").display());
    let policy = slurm.dir.join("policy.toml");
    let plan = async |flags: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", &path, env!("CARGO_BIN_EXE_otela"), "sched", "plan"]).arg(&policy).args(flags);
        command.args(["--mesh", "test", "--bootstrap", &slurm.mesh.bootstrap]).stdin(Stdio::null());
        let done = command.output().await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let told = plan(&[]).await;
    assert!(told.contains("SUBMITS") && told.contains("0 of at most 3 are in the queue"), "{told}");
    slurm.touch("lost");
    let answer: Value = serde_json::from_str(&plan(&["--json"]).await).unwrap();
    assert_eq!(answer["submit"], json!([]));
    assert!(answer["queue_unknown"].as_str().unwrap().contains("Unable to contact"), "{answer}");
    assert_eq!(slurm.lines("submissions").len(), 0, "nobody was told anything");
}

/// A policy's job that becomes an idle node of this mesh, with fake cards.
fn real_script(dir: &Path, smi: &Path) -> String {
    let (otela, templates) = (env!("CARGO_BIN_EXE_otela"), dir.join("templates.toml"));
    format!(
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --output={}/job-%j.log\nexport PATH=\"{}:$PATH\"\n\
         exec '{otela}' start --templates '{}' --peer-listen /ip4/127.0.0.1/tcp/0 --stop-grace 1s\n",
        dir.display(),
        smi.display(),
        templates.display()
    )
}

#[tokio::test]
async fn lab_slurm_jobs_are_submitted_replaced_and_succeeded_in_time() {
    let slurm = Slurm::start().await;
    let scripted = Scripted::new().await;
    std::fs::write(scripted.dir.join("worker.sbatch"), real_script(&scripted.dir, &scripted.smi_of_all)).unwrap();
    // A limit of two minutes: of those the node serves the first with nobody beside it.
    let policy = format!(
        "replace_before_end = 70\n[[models]]\nmodel = '{QWEN}'\nrate = 0.5\n[[slurm.jobs]]\nname = 'a100'\n\
         script = 'worker.sbatch'\noptions = ['--gpus=a100:1', '--time=2']\naccelerator = 'A100-80GB'\nmax = 2\n"
    );
    std::fs::write(scripted.dir.join("policy.toml"), policy).unwrap();
    let conf = slurm.conf();
    let shell = format!("SLURM_CONF='{}' exec \"$0\" \"$@\"", conf.display());
    let start = ["-c", &shell, env!("CARGO_BIN_EXE_otela")].map(str::to_owned);
    let scheduler = Otela::run_program("sh", start.into_iter().chain(scripted.arguments()));
    let serving = async || {
        let nodes = scripted.mesh.listed().await.into_iter();
        let serves = |node: &Value| node["assigned"]["state"] == "serving" && node["draining"] != true;
        let jobs = nodes.filter(serves).filter_map(|node| Some(node["labels"]["slurm_job_id"].as_str()?.to_owned()));
        jobs.collect::<Vec<_>>()
    };
    let answers = async || {
        let body = json!({"model": QWEN, "prompt": "x", "max_tokens": 2});
        post(scripted.mesh.http, "/v1/completions", &body).await.status
    };
    let queued = async || slurm.says("squeue", &["--me", "--noheader", "--format=%A"]).await.lines().count();
    let first = eventually("the first job serves", async || serving().await.pop()).await;
    assert_eq!((answers().await, queued().await), (200, 1), "{}", scheduler.output());
    slurm.says("scancel", &[&first]).await;
    let other = async |than: &str| serving().await.into_iter().find(|job| job != than);
    let second = eventually("a cancelled job is replaced", async || other(&first).await).await;
    // From now on somebody serves at any time, past the end of the second one.
    let succeeded = async || {
        assert_eq!(answers().await, 200, "{}", scheduler.output());
        assert!(queued().await <= 2, "{}", scheduler.output());
        let third = other(&second).await?;
        (!serving().await.contains(&second)).then_some(third)
    };
    let third = eventually("the successor serves alone", succeeded).await;
    scheduler.writes(&format!("job={third}"), 1).await;
    assert_eq!(answers().await, 200);
}
