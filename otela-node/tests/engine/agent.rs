//! A small agent in a process of its own, for cases that kill the agent, look at its memory or change its
//! environment: `agent MODE REPORT CMD ARGS...`. What it finds out goes to the file REPORT, one line each.

use crate::scene;
use otela_node::{
    engine::{Echo, Kind, Launch, Process, Progress, ReadyOptions, wait_ready},
    tasks::Tasks,
};
use std::{
    ffi::OsString,
    fs,
    io::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};
use tokio::sync::watch;

pub(crate) fn main(argv: &[OsString]) -> ExitCode {
    let [mode, report, command @ ..] = argv else { return ExitCode::from(2) };
    let mode = mode.to_str().expect("text").to_owned();
    let report = fs::File::options().append(true).create(true).open(report).expect("writable");
    if mode == "words" {
        words(report, command);
        return ExitCode::SUCCESS;
    }
    let command = command.to_vec();
    scene::run(async move {
        match mode.as_str() {
            "hold" => hold(report, command).await,
            "watch" => watch_end(report, command).await,
            "noise" => noise(report, command).await,
            "ready" => ready(report, command).await,
            other => panic!("unknown mode {other}"),
        }
    });
    ExitCode::SUCCESS
}

/// Starts an agent in `mode`, its output going nowhere.
pub(crate) fn start(mode: &str, report: &Path, command: &[OsString]) -> Child {
    started(Command::new("/proc/self/exe").stdout(Stdio::null()), mode, report, command)
}

pub(crate) fn started(agent: &mut Command, mode: &str, report: &Path, command: &[OsString]) -> Child {
    agent.arg("agent").arg(mode).arg(report).args(command).stdin(Stdio::null()).spawn().expect("an agent")
}

/// The lines of a report once there are `n`.
pub(crate) async fn reported(report: &Path, n: usize) -> Vec<String> {
    loop {
        let text = fs::read_to_string(report).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.len() >= n && text.ends_with('\n') {
            return lines;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn report_in(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("report")
}

fn say(report: &mut fs::File, line: &str) {
    report.write_all(format!("{line}\n").as_bytes()).expect("writable");
}

/// Starts the engine and never looks again.
async fn hold(mut report: fs::File, command: Vec<OsString>) {
    let tasks = Tasks::new();
    let launch = Launch { grace: Duration::from_millis(300), ..Launch::new(command) };
    let process = Process::spawn(&launch, &tasks).await.expect("the engine starts");
    say(&mut report, &process.guard_pid().to_string());
    std::future::pending::<()>().await;
}

/// Is an engine itself, and reports what it was given.
fn words(mut report: fs::File, given: &[OsString]) {
    let files = inherited();
    let pid = |id: std::io::Result<rustix::process::Pid>| id.expect("ours").as_raw_nonzero();
    say(&mut report, &given.iter().map(|word| hex(word.as_bytes())).collect::<Vec<_>>().join(" "));
    say(&mut report, std::env::current_dir().expect("there is one").to_str().expect("text"));
    say(&mut report, &hex(&fs::read("/proc/self/environ").expect("ours")));
    let group = pid(Ok(rustix::process::getpgrp()));
    say(&mut report, &format!("group {group} session {}", pid(rustix::process::getsid(None).map_err(Into::into))));
    let stdin = std::io::read_to_string(std::io::stdin()).expect("readable");
    say(&mut report, &format!("{} bytes", stdin.len()));
    say(&mut report, &files.to_string());
}

/// Open files that a child would get.
pub(crate) fn inherited() -> usize {
    const CLOSED_BY_EXEC: u32 = 0o2_000_000;
    let flags = |info: String| {
        let octal =
            info.lines().find_map(|line| line.strip_prefix("flags:")).expect("there are flags").trim().to_owned();
        u32::from_str_radix(&octal, 8).expect("octal")
    };
    let files =
        fs::read_dir("/proc/self/fdinfo").expect("ours").filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    files.filter(|info| flags(info.clone()) & CLOSED_BY_EXEC == 0).count()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Two engines: reports both guards, how the first one ends, when it is gone, whether the second still runs.
async fn watch_end(mut report: fs::File, command: Vec<OsString>) {
    let tasks = Tasks::new();
    let first = scene::spawn(command, &tasks).await;
    let second = scene::spawn(vec!["sleep".into(), "1000".into()], &tasks).await;
    say(&mut report, &first.guard_pid().to_string());
    say(&mut report, &first.exited().await.to_string());
    say(&mut report, &first.gone().await.to_string());
    let second_is_well = second.exit().is_none() && alive(second.guard_pid()) && alive(second.pid());
    say(&mut report, if second_is_well { "second runs" } else { "second was harmed" });
    second.stop(Duration::from_secs(5)).await;
}

fn alive(pid: i32) -> bool {
    procfs::process::Process::new(pid).and_then(|p| p.stat()).is_ok_and(|stat| stat.state != 'Z')
}

/// Echoes the engine to its own output, which the case never reads.
async fn noise(mut report: fs::File, command: Vec<OsString>) {
    let echo = Echo::to_own_output().expect("own output");
    let tasks = Tasks::new();
    let before = peak_kib();
    let launch = Launch { echo: Some(echo.clone()), ..Launch::new(command) };
    let process = Process::spawn(&launch, &tasks).await.expect("the engine starts");
    say(&mut report, &process.gone().await.to_string());
    say(&mut report, &(peak_kib() - before).to_string());
    say(&mut report, &echo.dropped_bytes().to_string());
    // Not necessarily the last: the other pipe may have been read after it, by what fits a pipe.
    let kept = process.output().last_lines(usize::MAX);
    say(&mut report, if kept.iter().any(|line| line == "all written") { "end kept" } else { "end lost" });
}

fn peak_kib() -> u64 {
    let status = procfs::process::Process::myself().and_then(|me| me.status()).expect("readable");
    status.vmhwm.expect("a user process has memory")
}

/// Reports where the engine is ready.
async fn ready(mut report: fs::File, command: Vec<OsString>) {
    let tasks = Tasks::new();
    let kind = Kind::recognise(&command, None);
    let process = scene::spawn(command, &tasks).await;
    let (progress, _) = watch::channel(Progress::default());
    let ready = wait_ready(&process, &kind, &ReadyOptions::default(), &progress).await;
    say(&mut report, &ready.map_or_else(|error| error.to_string(), |ready| ready.models[0].id.clone()));
    process.stop(Duration::from_secs(5)).await;
}
