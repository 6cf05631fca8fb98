//! What the cases have in common: deadlines, scripts, the marker of a process tree.

use otela_node::{
    engine::{Launch, Process},
    tasks::Tasks,
};
use otela_testing::finishes;
use std::{
    ffi::OsString,
    fs,
    future::Future,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::mpsc;

/// Runs one case in a runtime of its own.
pub(crate) fn run(case: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(finishes("the case", case));
}

/// The command line of one of the scripts beside this file.
pub(crate) fn script(name: &str, arguments: &[&str]) -> Vec<OsString> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engine").join(name);
    let mut argv: Vec<OsString> = vec!["python3".into(), "-u".into(), path.into()];
    argv.extend(arguments.iter().map(OsString::from));
    argv
}

pub(crate) async fn spawn(argv: Vec<OsString>, tasks: &Tasks) -> Process {
    Process::spawn(&Launch::new(argv), tasks).await.expect("the engine starts")
}

/// A line that the engine prints, starting with `start`.
pub(crate) async fn printed(process: &Process, start: &str) -> String {
    loop {
        let lines = process.output().last_lines(100);
        if let Some(line) = lines.iter().find_map(|line| line.strip_prefix(start)) {
            return line.trim().to_owned();
        }
        assert!(process.exit().is_none(), "the engine ended: {lines:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A fifo that every process of `tree.py` writes its role to and holds open.
pub(crate) struct Marker {
    _folder: tempfile::TempDir,
    path: PathBuf,
    lines: mpsc::Receiver<String>,
}

impl Marker {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("marker");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("a fifo");
        let (sender, lines) = mpsc::channel(16);
        let fifo = path.clone();
        // Opening waits for the first process; the last line is followed by the end once all are gone.
        std::thread::spawn(move || {
            let held = fs::File::open(fifo).expect("ours");
            for line in BufReader::new(held).lines() {
                let _case_failed = sender.blocking_send(line.expect("text"));
            }
        });
        Self { _folder: folder, path, lines }
    }

    /// `tree.py` on this marker.
    pub(crate) fn tree(&self, arguments: &[&str]) -> Vec<OsString> {
        let path = self.path.to_str().expect("text");
        script("tree.py", &[&[path], arguments].concat())
    }

    /// Waits for the whole tree to be up; process ids by role.
    pub(crate) async fn up(&mut self) -> Roles {
        self.up_to(5).await
    }

    /// Waits for the first `n` processes of the tree.
    pub(crate) async fn up_to(&mut self, n: usize) -> Roles {
        let mut roles = Roles::default();
        for _ in 0..n {
            let line = self.lines.recv().await.expect("all processes come up");
            let (role, pid) = line.split_once(' ').expect("role and pid");
            let pid = pid.parse().expect("a pid");
            match role {
                "main" => roles.main = pid,
                "middle" => roles.middle = pid,
                "worker" => roles.worker = pid,
                "session" => roles.session = pid,
                "daemon" => roles.daemon = pid,
                other => panic!("unknown role {other}"),
            }
        }
        roles
    }

    /// Resolves when no process of the tree holds the marker any more.
    pub(crate) async fn all_gone(&mut self) {
        assert_eq!(self.lines.recv().await, None);
    }

    /// Whether some process of the tree holds the marker now.
    pub(crate) fn held(&mut self) -> bool {
        self.lines.try_recv() == Err(mpsc::error::TryRecvError::Empty)
    }
}

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Roles {
    pub(crate) main: i32,
    pub(crate) middle: i32,
    pub(crate) worker: i32,
    pub(crate) session: i32,
    pub(crate) daemon: i32,
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("alive");
}
