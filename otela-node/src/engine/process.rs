//! An engine's process as the agent holds it: started behind a guard, watched, stopped to the last descendant.

use super::{
    control::{Exit, Order, Report, line},
    fatal::FatalPatterns,
    orphans::{self, Registration},
    output::{Echo, Output, Stream},
};
use crate::tasks::Tasks;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::{Child, Command},
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// Between SIGTERM and SIGKILL unless somebody says otherwise: well inside Slurm's own kill wait of 30 s.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// A guard answers within milliseconds; a home directory on a dead file server does not.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long past the grace an ending agent waits for processes that SIGKILL does not end.
const STUCK_LIMIT: Duration = Duration::from_secs(20);
/// For the last bytes out of pipes whose writers are all gone.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);
/// Between two rounds against the orphans of a dead guard.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);
const REQUESTS_MAX: usize = 8;
/// A longer grace is as good as this one, and can be added to any clock.
const GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// What to start, and how.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The engine's command line, passed on untouched: no shell, no splitting. Environment and working
    /// directory are the agent's own.
    pub argv: Vec<OsString>,
    /// The `otela` binary, which has the guard's subcommands.
    pub guard: PathBuf,
    /// From SIGTERM to SIGKILL when the [`Process`] is dropped or the agent dies.
    pub grace: Duration,
    /// Where the engine's output is echoed; `None` only keeps its last lines.
    pub echo: Option<Echo>,
    /// Variables besides the agent's own.
    pub environment: Vec<(OsString, OsString)>,
    /// Lines of its output that tell of a fatal fault.
    pub patterns: Arc<FatalPatterns>,
}

impl Launch {
    /// `argv` behind a guard of this very binary, with the default grace and no echo.
    #[must_use]
    pub fn new(argv: Vec<OsString>) -> Self {
        Self {
            argv,
            guard: PathBuf::from("/proc/self/exe"),
            grace: DEFAULT_GRACE,
            echo: None,
            environment: Vec::new(),
            patterns: Arc::default(),
        }
    }

    /// The variables that the engine is started with: this process's own, and those that are added. For records only.
    #[must_use]
    pub fn whole_environment(&self) -> BTreeMap<String, String> {
        let own = procfs::process::Process::myself().and_then(|process| process.environ()).unwrap_or_default();
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let added = self.environment.iter().map(|(name, value)| (text(name), text(value)));
        own.iter().map(|(name, value)| (text(name), text(value))).chain(added).collect()
    }

    fn command(&self) -> String {
        self.argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Why no engine runs. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The command line is empty.
    #[error("no engine command: write it after --process, for example `--process vllm serve MODEL`")]
    Empty,
    /// The command is not there.
    #[error("engine command `{command}` not found: install it, load its module, or give its full path")]
    NotFound {
        /// As given.
        command: String,
    },
    /// The command is a script whose interpreter is not there, or a binary whose loader is not.
    #[error("engine command `{command}` exists, but what its first line names to run it does not")]
    NoInterpreter {
        /// As given.
        command: String,
    },
    /// The command is there but cannot be run.
    #[error("engine command `{command}` cannot be run: {reason}; check its permissions and that it is a program")]
    NotExecutable {
        /// As given.
        command: String,
        /// The operating system's words.
        reason: String,
    },
    /// There is no free port to give it.
    #[error("no free port for the engine; give it one with --port")]
    NoPort(#[source] io::Error),
    /// The guard did not start or did not answer: not the engine's fault.
    #[error("cannot start the engine's guard {}", guard.display())]
    Guard {
        /// The binary that should have been the guard.
        guard: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    exit: Option<Exit>,
    gone: bool,
}

enum Request {
    Stop(Duration),
    Kill,
}

/// A running engine, or one that has ended. Dropping it stops the engine without waiting.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    guard: i32,
    requests: mpsc::Sender<Request>,
    state: watch::Receiver<State>,
    output: Output,
}

impl Process {
    /// Starts the engine. Returns once its command runs (which is long before it serves).
    ///
    /// The first call makes this process a subreaper, see the `orphans` module.
    ///
    /// # Errors
    /// The command is missing or cannot be run, or the guard cannot.
    pub async fn spawn(launch: &Launch, tasks: &Tasks) -> Result<Self, LaunchError> {
        if launch.argv.is_empty() {
            return Err(LaunchError::Empty);
        }
        let guard_error = |source| LaunchError::Guard { guard: launch.guard.clone(), source };
        let (mut child, registration, control) = start_guard(launch).map_err(guard_error)?;
        let (reports, orders) = control.into_split();
        let mut reports = BufReader::new(reports).lines();
        let output = Output::watched_for(Arc::clone(&launch.patterns));
        let stdout = child.stdout.take().map(|pipe| output.clone().drain(pipe, Stream::Stdout, launch.echo.clone()));
        let stderr = child.stderr.take().map(|pipe| output.clone().drain(pipe, Stream::Stderr, launch.echo.clone()));
        let readers = [
            stdout.map(|drain| AbortOnDropHandle::new(tasks.spawn_to_end(drain))),
            stderr.map(|drain| AbortOnDropHandle::new(tasks.spawn_to_end(drain))),
        ];
        let first = timeout(START_LIMIT, next(&mut reports)).await;
        let pid = match first.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(guard_error)? {
            Some(Report::Started { pid }) => pid,
            Some(Report::Failed { errno, message }) => return Err(refused(launch, errno, message)),
            _ => {
                let said = output.last_line().unwrap_or_else(|| "it ended without a word".to_owned());
                return Err(guard_error(io::Error::other(said)));
            }
        };
        let guard = registration.pid;
        let (requests, requested) = mpsc::channel(REQUESTS_MAX);
        let (state, watched) = watch::channel(State::default());
        tracing::info!(pid, guard, command = launch.command(), "engine started");
        let supervisor = Supervisor {
            child,
            registration,
            pid,
            guard,
            orders,
            reports,
            requested,
            state,
            readers,
            grace: launch.grace,
            echo: launch.echo.clone(),
            tasks: tasks.clone(),
        };
        tasks.spawn_to_end(supervisor.run());
        Ok(Self { pid, guard, requests, state: watched, output })
    }

    /// The engine's main process. Once it has ended the number may mean somebody else.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The guard: root of the engine's process tree.
    #[must_use]
    pub fn guard_pid(&self) -> i32 {
        self.guard
    }

    /// What the engine printed last.
    #[must_use]
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The end of the engine's main process, if it has come.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.state.borrow().exit
    }

    /// Waits for the engine's main process to end. Others of its tree may still run: see [`Process::gone`].
    pub async fn exited(&self) -> Exit {
        let mut state = self.state.clone();
        let seen = state.wait_for(|state| state.exit.is_some()).await.map(|state| state.exit);
        // Without a supervisor the guard has seen the channel close, and kills.
        seen.ok().flatten().unwrap_or(LOST)
    }

    /// Waits until no process of the engine's tree is left and everything it printed has been read.
    pub async fn gone(&self) -> Exit {
        let mut state = self.state.clone();
        // An error means that the supervisor gave up on processes that cannot be killed.
        let _abandoned = state.wait_for(|state| state.gone).await.is_err();
        state.borrow().exit.unwrap_or(LOST)
    }

    /// SIGTERM to the whole tree, SIGKILL to what is left after `grace`; returns when nothing is left. Calling
    /// it again while it runs can shorten the grace, never lengthen it; afterwards it only tells the exit.
    pub async fn stop(&self, grace: Duration) -> Exit {
        let _gone_already = self.requests.send(Request::Stop(grace)).await;
        self.gone().await
    }

    /// SIGKILL to the whole tree now; returns when nothing is left.
    pub async fn kill(&self) -> Exit {
        let _gone_already = self.requests.send(Request::Kill).await;
        self.gone().await
    }
}

/// What a process counts as having ended by when nobody was left to see it: the parent-death signal.
const LOST: Exit = Exit::Signal(9);

/// Runs `otela guard -- ARGV...` with our end of its control channel.
fn start_guard(launch: &Launch) -> io::Result<(Child, Registration, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = Command::new(&launch.guard);
    command
        .arg0("otela")
        .arg("guard")
        .arg(format!("--grace-ms={}", millis(launch.grace)))
        .arg("--")
        .args(&launch.argv)
        .envs(launch.environment.iter().cloned())
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // The command keeps a copy of the guard's end and must go before we wait for the end of the channel.
    let (child, registration) = orphans::spawn_guard(&mut command)?;
    Ok((child, registration, UnixStream::from_std(ours)?))
}

async fn next(reports: &mut Lines<BufReader<OwnedReadHalf>>) -> io::Result<Option<Report>> {
    match reports.next_line().await? {
        Some(line) => serde_json::from_str(&line).map(Some).map_err(io::Error::from),
        None => Ok(None),
    }
}

fn refused(launch: &Launch, errno: i32, reason: String) -> LaunchError {
    let command = launch.command();
    match io::Error::from_raw_os_error(errno).kind() {
        io::ErrorKind::NotFound if command.contains('/') && Path::new(&command).exists() => {
            LaunchError::NoInterpreter { command }
        }
        io::ErrorKind::NotFound => LaunchError::NotFound { command },
        _ => LaunchError::NotExecutable { command, reason },
    }
}

/// Owns the guard from the start of an engine to the end of its last process.
struct Supervisor {
    child: Child,
    registration: Registration,
    pid: i32,
    guard: i32,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    requested: mpsc::Receiver<Request>,
    state: watch::Sender<State>,
    readers: [Option<AbortOnDropHandle<()>>; 2],
    grace: Duration,
    echo: Option<Echo>,
    tasks: Tasks,
}

impl Supervisor {
    async fn run(mut self) {
        let mut held = true;
        let mut stopped = false;
        let mut deadline = None;
        loop {
            tokio::select! {
                report = next(&mut self.reports) => match report {
                    Ok(Some(Report::Exited(exit))) => self.exited(exit),
                    Ok(Some(Report::Gone { killed })) => {
                        tracing::debug!(pid = self.pid, killed, "no process of the engine is left");
                        break;
                    }
                    Ok(Some(Report::Started { .. } | Report::Failed { .. })) => {}
                    Ok(None) | Err(_) => {
                        self.guard_died().await;
                        break;
                    }
                },
                request = self.requested.recv(), if held => match request {
                    Some(Request::Stop(grace)) => self.order(&stop_order(grace)).await,
                    Some(Request::Kill) => self.order(&Order::Kill {}).await,
                    None => held = false,
                },
                () = self.tasks.stopped(), if !stopped => stopped = true,
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    tracing::error!(pid = self.pid, guard = self.guard,
                        "engine processes that SIGKILL does not end: leaving them to their guard");
                    // The guard lives on and must never be taken for an orphan.
                    std::mem::forget(self.registration);
                    return;
                }
            }
            if (stopped || !held) && deadline.is_none() {
                deadline = Some(Instant::now() + self.grace.min(GRACE_MAX) + STUCK_LIMIT);
                self.order(&stop_order(self.grace)).await;
            }
        }
        self.finish().await;
    }

    fn exited(&self, exit: Exit) {
        let first = self.state.send_if_modified(|state| {
            let first = state.exit.is_none();
            state.exit = state.exit.or(Some(exit));
            first
        });
        if first {
            tracing::info!(pid = self.pid, %exit, "engine ended");
        }
    }

    async fn order(&mut self, order: &Order) {
        // A dead guard is noticed by the end of its reports.
        let _dead = self.orders.write_all(&line(order)).await;
    }

    /// The guard was killed. The parent-death signal ends the engine's main process; the rest is now ours.
    async fn guard_died(&mut self) {
        let _status = self.child.wait().await;
        tracing::warn!(guard = self.guard, "the engine's guard was killed: killing the engine");
        let mut killed = 0;
        loop {
            let sweep = orphans::sweep(self.guard, self.pid);
            if let Some(exit) = sweep.exit {
                self.exited(exit);
            }
            if sweep.killed == 0 {
                break;
            }
            killed += 1;
            tokio::time::sleep(SWEEP_PAUSE.saturating_mul(killed).min(Duration::from_secs(1))).await;
        }
        self.exited(LOST);
    }

    /// Nothing runs any more: collect the guard and the last words, then say so.
    async fn finish(&mut self) {
        let _status = timeout(OUTPUT_LIMIT, self.child.wait()).await;
        let last_words = futures::future::join_all(self.readers.iter_mut().flatten());
        if timeout(OUTPUT_LIMIT, last_words).await.is_err() {
            tracing::warn!(pid = self.pid, "somebody outside the engine's processes holds its output open");
        }
        if let Some(echo) = &self.echo {
            echo.flush(OUTPUT_LIMIT).await;
        }
        self.state.send_modify(|state| state.gone = true);
    }
}

fn stop_order(grace: Duration) -> Order {
    Order::Stop { grace_ms: millis(grace) }
}

fn millis(grace: Duration) -> u64 {
    u64::try_from(grace.min(GRACE_MAX).as_millis()).unwrap_or(u64::MAX)
}
