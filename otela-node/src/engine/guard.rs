//! The process between agent and engine that leaves nothing behind, however the agent ends.
//!
//! The agent runs its own binary again as `otela guard -- CMD ARGS...`. The guard leads a session of its own and
//! is the subreaper of everything below it, so no fork, rename, or new session gets a process out of its sight:
//! the tree is empty exactly when the guard has no child left. It decides nothing but "the agent is gone, so
//! stop"; signals that a batch system sends to every process of a job are for the agent to act upon.
//!
//! `otela guard-exec` is the second stage: it arms the parent-death signal, which only a process itself can do
//! without `unsafe` code, and becomes the engine.

use super::{
    control::{Exit, Order, Report, line},
    process::DEFAULT_GRACE,
    tree,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, Signal, WaitOptions, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, setsid,
    },
};
use signal_hook::consts::signal as signals;
use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// What is left of the tree when the engine's main process has ended by itself gets this long.
const STRAY_GRACE: Duration = Duration::from_secs(2);
/// Without an agent nobody waits for a clean end, and somebody may wait for the accelerator.
const ORPHANED_GRACE: Duration = Duration::from_secs(4);
/// Between two rounds of SIGKILL: a process in the kernel's hands (a driver, a dead file system) can take long.
const KILL_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// More than any order needs; a longer line is not from an agent.
const ORDER_BYTES_MAX: usize = 4096;
/// Signals a job's processes get all together. The engine gets them from the sender, not from us.
const SURVIVED: [i32; 7] = [
    signals::SIGTERM,
    signals::SIGINT,
    signals::SIGHUP,
    signals::SIGQUIT,
    signals::SIGUSR1,
    signals::SIGUSR2,
    signals::SIGXCPU,
];

/// `otela guard [--grace-ms=N] -- CMD ARGS...`; `argv` is what follows `guard`. Ends when no process of the
/// engine's tree is left, with the engine's exit code or 128 + its signal.
///
/// To be called before any thread or runtime exists.
#[must_use]
pub fn main(argv: &[OsString]) -> ExitCode {
    let Some((grace, command)) = split(argv, "--grace-ms=") else { return misuse() };
    let grace = grace.map_or(DEFAULT_GRACE, Duration::from_millis);
    let Ok(control) = control_channel() else { return misuse() };
    match Guard::start(control, grace, command) {
        Ok(guard) => guard.run(),
        Err(code) => code,
    }
}

/// `otela guard-exec --parent=PID -- CMD ARGS...`; `argv` is what follows `guard-exec`. Becomes the command, or
/// writes the reason as `errno text` to standard input, which is the guard's pipe.
#[must_use]
pub fn exec(argv: &[OsString]) -> ExitCode {
    let Some((Some(parent), [program, arguments @ ..])) = split(argv, "--parent=") else { return misuse() };
    let armed = set_parent_process_death_signal(Some(Signal::KILL));
    let is_parent = getppid().is_some_and(|pid| u64::try_from(pid.as_raw_nonzero().get()) == Ok(parent));
    if armed.is_err() || !is_parent {
        // The guard died before the signal was armed: nobody would ever stop the engine.
        return ExitCode::FAILURE;
    }
    // The copy closes itself on success, which is how the guard learns of it.
    let Ok(mut report) = io::stdin().as_fd().try_clone_to_owned().map(fs::File::from) else { return misuse() };
    let error = Command::new(program).args(arguments).stdin(Stdio::null()).exec();
    let _guard_is_gone = write!(report, "{} {error}", error.raw_os_error().unwrap_or(0));
    exec_failure(error.kind())
}

/// As shells have it: 127 for a command that is not there, 126 for one that cannot be run.
fn exec_failure(kind: io::ErrorKind) -> ExitCode {
    ExitCode::from(if kind == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn misuse() -> ExitCode {
    eprintln!("otela guard: started by otela itself; to run an engine use `otela start --process CMD ARGS...`");
    ExitCode::from(2)
}

/// `[OPTION=number] -- CMD ARGS...`
fn split<'a>(argv: &'a [OsString], option: &str) -> Option<(Option<u64>, &'a [OsString])> {
    let end = argv.iter().position(|word| word == OsStr::new("--"))?;
    let (options, command) = (&argv[..end], &argv[end + 1..]);
    let number = match options {
        [] => None,
        [one] => Some(one.to_str()?.strip_prefix(option)?.parse().ok()?),
        _ => return None,
    };
    (!command.is_empty()).then_some((number, command))
}

/// Standard input, which must be the agent's socket.
fn control_channel() -> io::Result<UnixStream> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    control.peer_addr()?;
    control.set_nonblocking(true)?;
    Ok(control)
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running,
    Terminating { until: Instant },
    Killing { pause: Duration },
}

struct Guard {
    /// `None` once the agent is gone.
    control: Option<UnixStream>,
    inbox: Vec<u8>,
    wake: UnixStream,
    grace: Duration,
    engine: Pid,
    exit: Option<Exit>,
    phase: Phase,
    killed: HashSet<i32>,
}

impl Guard {
    /// Runs the command; on failure the agent has been told why.
    fn start(control: UnixStream, grace: Duration, command: &[OsString]) -> Result<Self, ExitCode> {
        let failed = |error: io::Error| {
            let errno = error.raw_os_error().unwrap_or(0);
            let _agent_is_gone = (&control).write_all(&line(&Report::Failed { errno, message: error.to_string() }));
            exec_failure(error.kind())
        };
        let wake = prepare().map_err(failed)?;
        let (engine, mut report) = spawn(command).map_err(failed)?;
        detach_output().map_err(failed)?;
        let mut reason = String::new();
        let _killed_meanwhile = report.by_ref().take(4096).read_to_string(&mut reason);
        if let Some((errno, message)) = reason.split_once(' ') {
            // Nobody else may come to reap it.
            let _ended = rustix::process::waitpid(Some(engine), WaitOptions::empty());
            let errno = errno.parse().unwrap_or(0);
            let _agent_is_gone = (&control).write_all(&line(&Report::Failed { errno, message: message.to_owned() }));
            return Err(exec_failure(io::Error::from_raw_os_error(errno).kind()));
        }
        let mut guard = Self {
            control: Some(control),
            inbox: Vec::new(),
            wake,
            grace,
            engine,
            exit: None,
            phase: Phase::Running,
            killed: HashSet::new(),
        };
        guard.say(&Report::Started { pid: engine.as_raw_nonzero().get() });
        Ok(guard)
    }

    fn run(mut self) -> ExitCode {
        while self.reap() {
            if self.exit.is_some() && matches!(self.phase, Phase::Running) {
                self.terminate(STRAY_GRACE);
            }
            let wait = self.advance();
            self.sleep(wait);
            self.drain_wake();
            self.read_orders();
        }
        self.say(&Report::Gone { killed: self.killed.len() });
        self.exit.map_or(ExitCode::FAILURE, |exit| ExitCode::from(exit.exit_code()))
    }

    /// Collects every process that has ended. False when none is left, which only the kernel can know.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.engine => {
                    if let Some(exit) = Exit::from_status(status) {
                        self.exit = Some(exit);
                        self.say(&Report::Exited(exit));
                    }
                }
                Ok(Some(_stray)) => {}
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_no_child) => return false,
            }
        }
    }

    /// Does what is due, and tells how long nothing more will be.
    fn advance(&mut self) -> Option<Duration> {
        match self.phase {
            Phase::Running => None,
            Phase::Terminating { until } => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    self.phase = Phase::Killing { pause: KILL_PAUSE.0 };
                    return self.advance();
                }
                Some(left)
            }
            Phase::Killing { pause } => {
                for pid in self.signal_tree(Signal::KILL) {
                    self.killed.insert(pid);
                }
                self.phase = Phase::Killing { pause: (pause * 2).min(KILL_PAUSE.1) };
                Some(pause)
            }
        }
    }

    fn terminate(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        match self.phase {
            Phase::Running => {
                self.signal_tree(Signal::TERM);
                // A stopped process could not act on it.
                self.signal_tree(Signal::CONT);
                self.phase = Phase::Terminating { until };
            }
            Phase::Terminating { until: earlier } => {
                self.phase = Phase::Terminating { until: until.min(earlier) };
            }
            Phase::Killing { .. } => {}
        }
    }

    /// Signals the engine's group at once and everything outside it one by one; returns who was there.
    fn signal_tree(&self, signal: Signal) -> Vec<i32> {
        let all = tree::processes();
        let members = tree::descendants(&all, getpid().as_raw_nonzero().get());
        let group = self.engine.as_raw_nonzero().get();
        // Only a group with a member of ours is ours: its number may have been given to somebody else.
        if members.iter().any(|member| member.group == group) {
            tree::send_group(group, signal);
        }
        for member in members.iter().filter(|member| member.group != group) {
            tree::send(member.pid, signal);
        }
        members.iter().map(|member| member.pid).collect()
    }

    fn sleep(&self, wait: Option<Duration>) {
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut sources = vec![PollFd::new(&self.wake, PollFlags::IN)];
        sources.extend(self.control.as_ref().map(|control| PollFd::new(control, PollFlags::IN)));
        // Interrupted or not: the caller looks at everything.
        let _ready = poll(&mut sources, wait.as_ref());
    }

    fn drain_wake(&mut self) {
        let mut bytes = [0; 256];
        while self.wake.read(&mut bytes).is_ok_and(|n| n > 0) {}
    }

    fn read_orders(&mut self) {
        let Some(control) = &mut self.control else { return };
        let mut bytes = [0; 1024];
        let ended = loop {
            match control.read(&mut bytes) {
                Ok(0) => break true,
                Ok(n) => self.inbox.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
            if self.inbox.len() > ORDER_BYTES_MAX {
                break false;
            }
        };
        while let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
            let order = self.inbox.drain(..=end).collect::<Vec<u8>>();
            match serde_json::from_slice(&order) {
                Ok(Order::Stop { grace_ms }) => self.terminate(Duration::from_millis(grace_ms)),
                Ok(Order::Kill {}) => self.phase = Phase::Killing { pause: KILL_PAUSE.0 },
                Err(_newer_agent) => {}
            }
        }
        if self.inbox.len() > ORDER_BYTES_MAX {
            self.inbox.clear();
        }
        if ended {
            self.control = None;
            self.terminate(self.grace.min(ORPHANED_GRACE));
        }
    }

    fn say(&mut self, report: &Report) {
        // The few short lines of a guard's life always fit the socket's buffer; an error means nobody listens.
        if let Some(control) = &mut self.control {
            let _agent_is_gone = control.write_all(&line(report));
        }
    }
}

/// Makes this process a guard; returns what becomes readable at every signal.
fn prepare() -> io::Result<UnixStream> {
    let _leads_already = setsid();
    set_child_subreaper(Some(getpid()))?;
    // Run through /proc/self/exe it would be listed as `exe`.
    let _cosmetic = fs::write("/proc/self/comm", "otela-guard");
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    for signal in SURVIVED.into_iter().chain([signals::SIGCHLD]) {
        signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
    }
    Ok(wake)
}

/// Starts the second stage in a group of its own. The pipe ends without a word once it has become the engine.
fn spawn(command: &[OsString]) -> io::Result<(Pid, io::PipeReader)> {
    let (report, writer) = io::pipe()?;
    let child = Command::new(Path::new("/proc/self/exe"))
        .arg0("otela")
        .arg("guard-exec")
        .arg(format!("--parent={}", std::process::id()))
        .arg("--")
        .args(command)
        .stdin(Stdio::from(writer))
        .process_group(0)
        .spawn()?;
    Ok((Pid::from_child(&child), report))
}

/// The pipes belong to the engine: they must end with it, not with us.
fn detach_output() -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn everything_after_the_first_dashes_is_the_command() {
        let argv = words("--grace-ms=250 -- vllm serve -- x");
        let (grace, command) = split(&argv, "--grace-ms=").expect("well formed");
        assert_eq!(grace, Some(250));
        assert_eq!(command, words("vllm serve -- x"));
        assert_eq!(split(&words("-- a"), "--grace-ms=").expect("well formed").0, None);
        for bad in ["vllm serve", "--", "--grace-ms=x -- a", "--other=1 -- a", "--grace-ms=1 --grace-ms=2 -- a"] {
            assert!(split(&words(bad), "--grace-ms=").is_none(), "{bad}");
        }
    }
}
