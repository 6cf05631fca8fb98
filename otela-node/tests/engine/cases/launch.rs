//! What an engine is given, and what becomes of what it prints.

use crate::{
    agent::{hex, inherited, report_in, reported, started},
    scene::{script, spawn},
};
use otela_node::{
    engine::{Launch, LaunchError, Process},
    tasks::Tasks,
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    process::{Command, Stdio},
};

pub(crate) async fn p49_commands_that_cannot_run_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        path.to_str().expect("text").to_owned()
    };
    let tasks = Tasks::new();
    let refused = async |command: &str| {
        let launch = Launch::new(vec![command.into(), "--port".into(), "1".into()]);
        Process::spawn(&launch, &tasks).await.expect_err("no such engine")
    };
    let error = refused("no-such-engine").await;
    assert!(matches!(&error, LaunchError::NotFound { command } if command == "no-such-engine"), "{error}");
    assert!(error.to_string().contains("`no-such-engine` not found"), "{error}");
    let error = refused(&file("plain", "text", 0o644)).await;
    assert!(matches!(&error, LaunchError::NotExecutable { command, .. } if command.ends_with("/plain")), "{error}");
    let error = refused(folder.path().to_str().expect("text")).await;
    assert!(matches!(error, LaunchError::NotExecutable { .. }), "{error}");
    let error = refused(&file("script", "#!/no/such/python\n", 0o755)).await;
    assert!(matches!(error, LaunchError::NoInterpreter { .. }), "{error}");
    let error = Process::spawn(&Launch::new(vec![]), &tasks).await.expect_err("nothing to start");
    assert!(matches!(error, LaunchError::Empty), "{error}");
    let no_guard = Launch { guard: "/no/such/otela".into(), ..Launch::new(vec!["true".into()]) };
    let error = Process::spawn(&no_guard, &tasks).await.expect_err("no guard");
    assert!(matches!(error, LaunchError::Guard { .. }), "{error}");
    let not_a_guard = Launch { guard: "/bin/echo".into(), ..Launch::new(vec!["true".into()]) };
    let error = Process::spawn(&not_a_guard, &tasks).await.expect_err("no guard");
    assert!(matches!(error, LaunchError::Guard { .. }), "{error}");
}

pub(crate) async fn p52_the_engine_gets_its_words_and_environment_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = report_in(&folder);
    let words =
        [OsStr::new(""), OsStr::new("a b"), OsStr::new("$HOME;'\""), OsStr::new("--"), OsStr::from_bytes(b"\xff\n")];
    let mut argv: Vec<OsString> = ["/proc/self/exe", "agent", "words"].map(Into::into).to_vec();
    argv.push(report.clone().into());
    argv.extend(words.iter().map(|word| (*word).to_owned()));
    let tasks = Tasks::new();
    let process = spawn(argv, &tasks).await;
    let exit = process.gone().await;
    assert!(exit.success(), "{:?}", process.output().last_lines(20));
    let [given, cwd, environment, ids, stdin, files] = reported(&report, 6).await.try_into().expect("six lines");
    assert_eq!(given, words.map(|word| hex(word.as_bytes())).join(" "));
    assert_eq!(cwd, std::env::current_dir().expect("there is one").to_str().expect("text"));
    // Not printed when it differs: who knows what is in there.
    assert!(environment == hex(&fs::read("/proc/self/environ").expect("ours")), "the environment differs");
    assert_eq!(ids, format!("group {0} session {1}", process.pid(), process.guard_pid()));
    assert_eq!(stdin, "0 bytes");
    assert_eq!(files, inherited().to_string());
}

pub(crate) async fn p51_output_that_nobody_reads_never_stops_the_engine() {
    const MEGABYTES: &str = "20";
    let folder = tempfile::tempdir().expect("a folder");
    let report = report_in(&folder);
    let command = script("noise.py", &[MEGABYTES]);
    // Held but not read: our own output is stuck as soon as the pipe is full.
    let mut agent = started(
        Command::new("/proc/self/exe").stdout(Stdio::piped()).stderr(Stdio::piped()),
        "noise",
        &report,
        &command,
    );
    let lines = reported(&report, 4).await;
    assert_eq!(lines[0], "exit code 0");
    let grown_kib: u64 = lines[1].parse().expect("a number");
    println!("memory grew by {grown_kib} KiB");
    assert!(grown_kib < 64 * 1024, "50 MB of output grew the agent by {grown_kib} KiB");
    let dropped: u64 = lines[2].parse().expect("a number");
    assert!(dropped > 30_000_000, "only {dropped} bytes were dropped and counted");
    assert_eq!(lines[3], "end kept");
    agent.kill().expect("ours");
    agent.wait().expect("ours");
}
