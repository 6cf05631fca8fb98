//! Nothing of an engine's process tree is left, whoever dies first.

use crate::{
    agent::{self, report_in, reported},
    scene::{Marker, Roles, signal, spawn},
};
use otela_node::{engine::Exit, tasks::Tasks};
use otela_testing::{FAR_BEYOND_PATIENCE, PATIENCE};
use rustix::process::Signal;
use std::{
    io::{BufRead, BufReader, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    time::Duration,
};

/// Grace for a tree to end: enough for an obedient one on a busy machine, and the wait for a stubborn one.
const SHORT: Duration = Duration::from_secs(5);

fn alive(roles: Roles) -> Vec<i32> {
    let state = |pid| procfs::process::Process::new(pid).and_then(|process| process.stat()).map(|stat| stat.state);
    let mut pids = vec![roles.main, roles.middle, roles.worker, roles.session, roles.daemon];
    pids.retain(|pid| state(*pid).is_ok_and(|state| state != 'Z'));
    pids
}

fn assert_gone(roles: Roles) {
    let alive = alive(roles);
    assert!(alive.is_empty(), "{alive:?} of {roles:?} live");
}

pub(crate) async fn p49_stop_ends_workers_that_hide_and_ignore() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["stubborn"]), &tasks).await;
    let roles = marker.up().await;
    assert_eq!(roles.main, process.pid());
    let exit = process.stop(SHORT).await;
    assert_gone(roles);
    assert_eq!(exit, Exit::Code(0), "the main process obeyed");
    marker.all_gone().await;
    assert_eq!(process.stop(SHORT).await, exit, "stopping again only tells the exit");
    assert_eq!(process.exited().await, exit);
}

pub(crate) async fn p49_a_polite_tree_is_not_killed() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["polite"]), &tasks).await;
    marker.up().await;
    // With this grace, only a tree that ends by itself lets the case end in time.
    let grace = FAR_BEYOND_PATIENCE;
    assert_eq!(process.stop(grace).await, Exit::Code(0));
    marker.all_gone().await;
}

pub(crate) async fn p49_an_agent_killed_leaves_nothing() {
    for how in [Signal::KILL, Signal::TERM, Signal::ABORT] {
        let mut marker = Marker::new();
        let folder = tempfile::tempdir().expect("a folder");
        let mut agent = agent::start("hold", &report_in(&folder), &marker.tree(&["stubborn"]));
        let roles = marker.up().await;
        reported(&report_in(&folder), 1).await;
        signal(i32::try_from(agent.id()).expect("pids fit"), how);
        agent.wait().expect("ours");
        marker.all_gone().await;
        // A dying process closes its files before it is dead.
        while !alive(roles).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

pub(crate) async fn p49_an_agent_that_drops_its_engine_leaves_nothing() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["polite"]), &tasks).await;
    let roles = marker.up().await;
    drop(process);
    marker.all_gone().await;
    assert!(tasks.shutdown(PATIENCE).await, "nothing is left to wait for");
    assert_gone(roles);
}

pub(crate) async fn p49_tasks_shut_down_only_after_the_engine() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["polite"]), &tasks).await;
    let roles = marker.up().await;
    assert!(!tasks.shutdown(Duration::ZERO).await, "the engine had to be stopped");
    assert_gone(roles);
    assert_eq!(process.exit(), Some(Exit::Code(0)));
}

pub(crate) async fn p49_a_guard_killed_leaves_nothing_and_harms_no_other_engine() {
    let mut marker = Marker::new();
    let folder = tempfile::tempdir().expect("a folder");
    let report = report_in(&folder);
    let mut agent = agent::start("watch", &report, &marker.tree(&["stubborn"]));
    let roles = marker.up().await;
    let guard = reported(&report, 1).await[0].parse().expect("a pid");
    signal(guard, Signal::KILL);
    marker.all_gone().await;
    let killed = Exit::Signal(9).to_string();
    assert_eq!(reported(&report, 4).await[1..], [killed.as_str(), killed.as_str(), "second runs"]);
    assert_gone(roles);
    agent.wait().expect("ours");
}

/// `docker exec`, `kubectl exec`, `srun` into a container: the session's leader is outside, and its id reads as 0.
pub(crate) async fn p49_a_guard_killed_in_a_session_from_outside_the_container() {
    let container = || {
        let mut command = tokio::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        command
    };
    if !container().arg("true").status().await.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this machine allows no user and pid namespaces (unshare)");
        return;
    }
    let output = container()
        .arg(std::env::current_exe().expect("this binary"))
        .args(["--exact", "p49_a_guard_killed_leaves_nothing_and_harms_no_other_engine"])
        .output()
        .await
        .expect("unshare of util-linux runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

/// `killall -9 otela`: nobody is left to look for the engine's children, but itself it dies.
pub(crate) async fn p49_agent_and_guard_killed_together_end_the_engine() {
    let mut marker = Marker::new();
    let folder = tempfile::tempdir().expect("a folder");
    let mut agent = agent::start("hold", &report_in(&folder), &marker.tree(&["alone"]));
    marker.up_to(1).await;
    let guard = reported(&report_in(&folder), 1).await[0].parse().expect("a pid");
    let pid = i32::try_from(agent.id()).expect("pids fit");
    // So that it cannot act between the two.
    signal(pid, Signal::STOP);
    signal(guard, Signal::KILL);
    signal(pid, Signal::KILL);
    agent.wait().expect("ours");
    marker.all_gone().await;
}

pub(crate) async fn p49_a_middle_process_killed_hides_nobody() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["stubborn"]), &tasks).await;
    let roles = marker.up().await;
    signal(roles.middle, Signal::KILL);
    // The worker is now nobody's child but the guard's.
    let parent = |pid| procfs::process::Process::new(pid).and_then(|process| process.stat()).map(|stat| stat.ppid);
    while parent(roles.worker).expect("the worker lives") == roles.middle {
        tokio::task::yield_now().await;
    }
    assert_eq!(parent(roles.worker).expect("the worker lives"), process.guard_pid());
    assert_eq!(process.exit(), None);
    process.stop(SHORT).await;
    assert_gone(roles);
    marker.all_gone().await;
}

pub(crate) async fn p49_an_exit_is_known_at_once_and_strays_are_ended() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["stubborn", "3"]), &tasks).await;
    let roles = marker.up().await;
    signal(roles.main, Signal::USR1);
    assert_eq!(process.exited().await, Exit::Code(3));
    assert!(marker.held(), "the exit does not wait for strays");
    process.gone().await;
    assert_gone(roles);
    marker.all_gone().await;
}

pub(crate) async fn p49_signals_to_the_whole_job_leave_the_guard_in_charge() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["stubborn"]), &tasks).await;
    let roles = marker.up().await;
    for number in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1, Signal::USR2] {
        signal(process.guard_pid(), number);
    }
    // All of these have been dealt with once a later one has its effect.
    signal(roles.main, Signal::USR1);
    assert_eq!(process.exited().await, Exit::Code(0));
    process.stop(SHORT).await;
    assert_gone(roles);
    marker.all_gone().await;
}

pub(crate) async fn p49_a_second_stop_shortens_the_grace() {
    let mut marker = Marker::new();
    let tasks = Tasks::new();
    let process = spawn(marker.tree(&["stubborn"]), &tasks).await;
    let roles = marker.up().await;
    let (long, short) = tokio::join!(process.stop(FAR_BEYOND_PATIENCE), async {
        process.exited().await;
        process.stop(Duration::ZERO).await
    });
    assert_eq!(long, short);
    assert_gone(roles);
    marker.all_gone().await;
}

pub(crate) async fn p49_the_guard_ends_as_the_engine_did() {
    for (command, code, said) in [
        (&["sh", "-c", "exit 3"][..], 3, r#"{"exited":{"code":3}}"#),
        (&["sh", "-c", "kill -SEGV $$"], 128 + 11, r#"{"exited":{"signal":11}}"#),
        (&["/nonexistent/engine"], 127, r#"{"failed":{"errno":2"#),
    ] {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        // In one statement: the command would keep the guard's end of the channel open.
        let mut guard = Command::new("/proc/self/exe")
            .arg0("otela")
            .args(["guard", "--"])
            .args(command)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("a guard");
        (&ours).write_all(b"nonsense from a newer agent\n").expect("read by the guard");
        let status = guard.wait().expect("ours");
        assert_eq!(status.code(), Some(code), "{command:?}");
        let lines: Vec<String> = BufReader::new(ours).lines().map_while(Result::ok).collect();
        assert!(lines.iter().any(|line| line.starts_with(said)), "{lines:?}");
    }
}
