//! The `otela` binary as a process: what it says, how it ends, and that nothing of it stays.

use otela_testing::{finishes, lazily};
use std::process::Stdio;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
};

/// Of a test that fails, so many lines of each process are shown.
const SAID_LAST: usize = 40;

/// A running `otela` process. Dropping it kills it; its engine goes with it.
pub(crate) struct Otela {
    pub(crate) child: Child,
    lines: watch::Sender<Vec<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Otela {
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::run_program(env!("CARGO_BIN_EXE_otela"), arguments)
    }

    /// Runs `program`, which becomes an `otela`.
    pub(crate) fn run_program<S: AsRef<std::ffi::OsStr>>(
        program: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = watch::Sender::default();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let readers = vec![collect(stdout, lines.clone()), collect(stderr, lines.clone())];
        Self { child, lines, readers }
    }

    /// What comes after `mark` in the first line of output that has it.
    pub(crate) async fn says(&self, mark: &str) -> String {
        let after = |line: &String| Some(line.split_once(mark)?.1.split_whitespace().next()?.to_owned());
        let mut lines = self.lines.subscribe();
        let what = lazily(|| format!("{mark:?} in\n{}", self.output()));
        let said = lines.wait_for(|lines| lines.iter().any(|line| after(line).is_some()));
        let lines = finishes(what, said).await.expect("this end is held here");
        lines.iter().find_map(after).expect("it was waited for")
    }

    /// The `nth` line of output, from one on, that has `mark`. What others see of a process may be seen before what it
    /// says of that, so that its output is waited for as well.
    pub(crate) async fn writes(&self, mark: &str, nth: usize) -> String {
        let mut lines = self.lines.subscribe();
        let found = |lines: &Vec<String>| lines.iter().filter(|line| line.contains(mark)).nth(nth - 1).cloned();
        let what = lazily(|| format!("{nth} times {mark:?} in\n{}", self.output()));
        let lines =
            finishes(what, lines.wait_for(|lines| found(lines).is_some())).await.expect("this end is held here");
        found(&lines).expect("it was waited for")
    }

    /// Where its registry, health and metrics are read.
    pub(crate) async fn observed(&self) -> std::net::SocketAddr {
        let at = self.says("registry: http://").await;
        at.split('/').next().unwrap().parse().unwrap()
    }

    /// All that it has written.
    pub(crate) fn output(&self) -> String {
        self.lines.borrow().join("\n")
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("still running").to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Its exit code, or 128 plus the signal that ended it.
    pub(crate) async fn ends(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = finishes("the end of a process", self.child.wait()).await.unwrap();
        // What it said last may still be on its way.
        for reader in self.readers.drain(..) {
            finishes("the end of its output, which no process holds", reader).await.unwrap();
        }
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

/// Whoever reads of a failure sees what each process said last.
impl Drop for Otela {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.lines.borrow();
            let last = lines.len().saturating_sub(SAID_LAST);
            eprintln!("otela, process {:?}, said last:\n{}\n", self.child.id(), lines[last..].join("\n"));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "readers of a child's pipes end with the child")]
fn collect(pipe: impl AsyncRead + Send + Unpin + 'static, lines: watch::Sender<Vec<String>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut pipe = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = pipe.next_line().await {
            lines.send_modify(|lines| lines.push(line));
        }
    })
}
