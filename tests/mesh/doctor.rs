//! `otela doctor`: what it says of a mesh that can be joined, and of what is in the way.

use crate::support::{Mesh, Otela, get};
use serde_json::Value;
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

const NEAR: &str = "/ip4/127.0.0.1/tcp/0";

/// Runs a doctor on loopback to its end: the exit code, and what it has found.
async fn doctor(arguments: &[&str]) -> (i32, Value) {
    doctor_of("test", arguments).await
}

async fn doctor_of(mesh: &str, arguments: &[&str]) -> (i32, Value) {
    let usual = ["doctor", "--mesh", mesh, "--json"];
    let near = ["--peer-listen", NEAR];
    let listens = arguments.contains(&"--peer-listen");
    let usual = usual.iter().chain(near.iter().filter(|_| !listens));
    told(Otela::run(usual.chain(arguments))).await
}

async fn told(mut process: Otela) -> (i32, Value) {
    let (code, output) = (process.ends().await, process.output());
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {code} {output}")))
}

/// A program of this name in `bin`.
fn tool(bin: &Path, name: &str, script: &str) {
    let path = bin.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The same doctor in a place with these tools and variables, as `NAME=VALUE`.
async fn doctor_in(bin: &Path, variables: &[&str], arguments: &[&str]) -> (i32, Value) {
    let shell = ["-c", "PATH=\"$0:$PATH\" exec env \"$@\"", bin.to_str().unwrap()];
    let usual = [env!("CARGO_BIN_EXE_otela"), "doctor", "--mesh", "test", "--json", "--peer-listen", NEAR];
    let words = shell.iter().chain(variables).chain(&usual).chain(arguments);
    told(Otela::run_program("sh", words)).await
}

/// The verdict and the words of each finding of a check.
fn found<'a>(told: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let checks = told["checks"].as_array().unwrap().iter().filter(|found| found["check"] == check);
    checks.map(|found| (found["verdict"].as_str().unwrap(), found["says"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_mesh_that_can_be_joined_is_found_well_beside_bootstraps_that_are_not() {
    let mesh = Mesh::ingress(&["--peer-listen", "/ip4/127.0.0.1/udp/0/quic-v1"]).await;
    let (head, id) = mesh.bootstrap.split_once("/p2p/").unwrap();
    let nobody = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
    let other = format!("{head}/p2p/{nobody}");
    let bootstraps = [&mesh.bootstrap, "127.0.0.1:1", &other, "no-such-host.invalid:7411"].join(",");
    let (code, told) = doctor(&["--bootstrap", &bootstraps]).await;
    assert_eq!((code, &told["ok"]), (0, &true.into()), "{told:#}");
    let bootstrap = found(&told, "bootstrap");
    let says = |verdict: &str, marks: &[&str]| {
        let fits = |(v, says): &&(&str, &str)| *v == verdict && marks.iter().all(|mark| says.contains(mark));
        assert!(bootstrap.iter().any(|found| fits(&found)), "{verdict} {marks:?}: {bootstrap:#?}");
    };
    says("ok", &["TCP", head, id, "round trip"]);
    says("warn", &["TCP", "127.0.0.1/tcp/1:", "refused"]);
    says("warn", &["TCP", head, "another peer is there", id]);
    says("warn", &["no-such-host.invalid", "resolved"]);
    assert!(
        found(&told, "names").iter().any(|(v, says)| *v == "warn" && says.contains("no-such-host.invalid")),
        "{told:#}"
    );
    assert_eq!(found(&told, "mesh").iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>(), ["ok"], "{told:#}");
    assert!(found(&told, "clock")[0].1 == "agrees with the mesh's", "{told:#}");
    assert!(found(&told, "nat")[0].1.starts_with("none"), "{told:#}");
    assert!(found(&told, "reachable")[0].1.contains("could dial"), "{told:#}");
    for warned in told["checks"].as_array().unwrap().iter().filter(|found| found["verdict"] != "ok") {
        assert!(warned["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{warned}");
    }
    // Whoever has looked was never a member.
    let listed = get(mesh.http, "/v1/registry/nodes?state=alive,unreachable,suspect,evicted,left").await.json();
    assert_eq!(listed["total"], 1, "{listed}");
}

#[tokio::test]
async fn a_mesh_that_cannot_be_joined_is_told_with_what_to_do() {
    let mesh = Mesh::ingress(&[]).await;
    let (code, told) = doctor(&[]).await;
    assert_eq!((code, found(&told, "mesh")[0].0), (1, "fail"), "{told:#}");
    let (code, told) = doctor(&["--bootstrap", "127.0.0.1:1"]).await;
    assert_eq!((code, &told["ok"], found(&told, "mesh")[0].0), (1, &false.into(), "fail"), "{told:#}");
    assert!(found(&told, "proxy")[0].1.contains("no bootstrap is reached"), "{told:#}");
    let (code, told) = doctor_of("other", &["--bootstrap", &mesh.bootstrap]).await;
    let bootstrap = found(&told, "bootstrap");
    assert!(code == 1 && bootstrap.iter().any(|(_, says)| says.contains("it is of another mesh")), "{told:#}");
    // A relay needs nobody.
    let (code, told) = doctor(&["--as", "relay"]).await;
    assert_eq!((code, found(&told, "mesh")[0].0), (0, "ok"), "{told:#}");
}

#[tokio::test]
async fn what_is_wrong_on_this_machine_is_told_and_nothing_is_touched() {
    let mesh = Mesh::ingress(&[]).await;
    let (dir, holder) = (tempfile::tempdir().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (key, state) = (dir.path().join("key"), dir.path().join("state"));
    let (key, state) = (key.to_str().unwrap(), state.to_str().unwrap());
    let arguments = ["--bootstrap", &mesh.bootstrap, "--key", key, "--state", state, "--announce", "nosuchif0"];
    let (code, told) = doctor(&arguments).await;
    assert_eq!(code, 1, "nothing would be announced: {told:#}");
    assert!(found(&told, "interfaces").iter().any(|(_, says)| says.contains("nosuchif0")), "{told:#}");
    assert_eq!((found(&told, "key")[0].0, found(&told, "state")[0].0), ("ok", "ok"), "{told:#}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it only looks");
    // An otela that runs here is not disturbed, and what it holds is no error.
    let taken = format!("/ip4/127.0.0.1/tcp/{}", holder.local_addr().unwrap().port());
    let node = Otela::run(["relay", "--mesh", "test", "--key", key, "--state", state, "--peer-listen", NEAR]);
    node.says("others join").await;
    let arguments = ["--bootstrap", &mesh.bootstrap, "--key", key, "--state", state, "--peer-listen", &taken];
    let (code, told) = doctor(&arguments).await;
    assert_eq!(code, 0, "{told:#}");
    for (check, says) in [("key", "in use by another otela"), ("state", "in use by another otela"), ("port", &taken)] {
        assert!(found(&told, check)[0].0 == "warn" && found(&told, check)[0].1.contains(says), "{check} {told:#}");
    }
    std::fs::write(dir.path().join("wrong"), "not a key").unwrap();
    let (code, told) =
        doctor(&["--bootstrap", &mesh.bootstrap, "--key", dir.path().join("wrong").to_str().unwrap()]).await;
    assert_eq!((code, found(&told, "key")[0].0), (1, "fail"), "{told:#}");
}

#[tokio::test]
async fn people_read_lines() {
    let mesh = Mesh::ingress(&[]).await;
    let mut process = Otela::run(["doctor", "--mesh", "test", "--peer-listen", NEAR, "--bootstrap", &mesh.bootstrap]);
    let (code, output) = (process.ends().await, process.output());
    assert!(code == 0 && output.ends_with("A mesh can be joined and served from here."), "{code} {output}");
    assert!(output.lines().any(|line| line.starts_with("ok    mesh")), "{output}");
}

const CARDS: &str = r#"case "$1" in
-L) echo 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)'; echo 'GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-1)';;
--query-gpu=index,uuid,memory.used) echo '0, GPU-0, 4'; echo '1, GPU-1, 20484';;
--query-compute-apps=*) echo '1, GPU-1, 20480, python3';;
*) for n in 0 1; do echo "$n, GPU-$n, 81920, 550.54.15, NVIDIA A100-SXM4-80GB"; done;;
esac"#;

const SCONTROL: &str = r#"case "$2 $3 $4" in
'job -o 4711') echo 'JobId=4711 JobName=serve RunTime=00:55:00 TimeLimit=01:00:00 Partition=gpu';;
'config  ') echo 'KillWait                = 5 sec';;
'batch_script 4711 -') echo '#!/bin/bash'; echo '#SBATCH --signal=B:TERM@10';;
*) exit 1;;
esac"#;

#[tokio::test]
async fn the_job_around_a_node_and_its_accelerators_are_looked_at() {
    let bin = tempfile::tempdir().unwrap();
    tool(bin.path(), "nvidia-smi", CARDS);
    tool(bin.path(), "scontrol", SCONTROL);
    let mesh = Mesh::ingress(&[]).await;
    let job = [
        "SLURM_JOB_ID=4711",
        "SLURM_JOB_PARTITION=gpu",
        "SLURM_GPUS_ON_NODE=4",
        "SLURM_STEP_TASKS_PER_NODE=4(x2)",
        "SLURM_NODEID=1",
        "CUDA_VISIBLE_DEVICES=0,1",
        "http_proxy=http://127.0.0.1:9",
        "HTTP_PROXY=http://127.0.0.1:10",
        "HOME=/",
        "TMPDIR=/tmp",
    ];
    let (key, state) = (bin.path().join("key"), bin.path().join("state"));
    let files = ["--key", key.to_str().unwrap(), "--state", state.to_str().unwrap()];
    let (code, told) = doctor_in(bin.path(), &job, &[&["--bootstrap", &mesh.bootstrap], &files[..]].concat()).await;
    assert_eq!((code, &told["ok"]), (0, &true.into()), "{told:#}");
    for (check, verdict, says) in [
        ("gpu", "ok", "a node would show 2 x A100-80GB, driver 550.54.15"),
        ("gpu", "warn", "this job has 4 and sees 2"),
        ("gpu", "warn", "20480 MiB of card 1 are in use by process 1 (python3)"),
        ("slurm", "warn", "job 4711 in gpu ends in 5m"),
        (
            "slurm",
            "warn",
            "killed after 5s (KillWait), and a node takes up to 25s to stop; --signal asks for one 10s earlier",
        ),
        ("slurm", "warn", "this step runs 4 tasks"),
        ("proxy variables", "warn", "http_proxy and HTTP_PROXY say different things"),
        ("file systems", "ok", "the key"),
        ("file systems", "ok", "TMPDIR /tmp is on"),
    ] {
        let found = found(&told, check);
        assert!(found.iter().any(|(v, s)| *v == verdict && s.contains(says)), "{check} {verdict} {says}: {found:#?}");
    }
    let documented = include_str!("../../docs/doctor.md");
    for found in told["checks"].as_array().unwrap() {
        let keys: Vec<_> = found.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["advice", "check", "says", "verdict"], "programs read them: {found}");
        let check = found["check"].as_str().unwrap();
        assert!(documented.contains(&format!("\n| `{check}` |")), "docs/doctor.md does not tell of {check}");
        assert!(found["verdict"] == "ok" || found["advice"].is_string(), "{found}");
    }
    // Of somebody who runs no engine nobody wants to know it.
    let (_, told) = doctor_in(bin.path(), &job, &["--as", "ingress", "--bootstrap", &mesh.bootstrap]).await;
    assert_eq!((found(&told, "gpu"), found(&told, "slurm")), (Vec::new(), Vec::new()), "{told:#}");
}

#[tokio::test]
async fn accelerators_that_no_engine_could_use_fail() {
    let bin = tempfile::tempdir().unwrap();
    tool(bin.path(), "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18");
    let mesh = Mesh::ingress(&[]).await;
    let bootstrap = ["--bootstrap", &mesh.bootstrap];
    let (code, told) = doctor_in(bin.path(), &["SLURM_JOB_ID="], &bootstrap).await;
    let gpu = found(&told, "gpu");
    assert!(code == 1 && gpu[0].0 == "fail" && gpu[0].1.contains("version mismatch"), "{told:#}");
    assert_eq!(found(&told, "slurm"), [], "this is no job");
}
