//! What a process does when it is signalled.
//!
//! SIGTERM and SIGINT end every command in good order. SIGHUP says two things in this world: that a terminal was closed, and,
//! to services, that their file should be read again. An ingress rereads its file (`reload`). The others have nothing to
//! reread: with a terminal they end in good order, as whoever closes it expects, and without one, where somebody may have
//! sent the signal to all otelas of a machine, they go on. `nohup` keeps them in any case.

use otela_node::{agent::Ending, tasks::Tasks};
use procfs::process::Process;
use rustix::process::Signal as Number;
use std::{
    io,
    time::{Duration, Instant},
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals closer together than this are one.
const SAME_STOP_WITHIN: Duration = Duration::from_millis(500);
/// SIGHUP in the kernel's set of signals.
const HANGUP: u64 = 1;

/// Asks for a clean end on SIGTERM and SIGINT, and when the terminal is closed.
///
/// # Errors
/// The operating system refuses to tell of signals.
pub(crate) fn drain_on_signal(tasks: &Tasks) -> io::Result<()> {
    drain_on_stop(tasks)?;
    drain_on_hangup(tasks)
}

/// Asks for a clean end on SIGTERM and SIGINT; a second one ends everything at once.
///
/// # Errors
/// The operating system refuses to tell of signals.
pub(crate) fn drain_on_stop(tasks: &Tasks) -> io::Result<()> {
    let stopping = tasks.clone();
    on_stop(tasks, move || stopping.drain())
}

/// As [`drain_on_signal`], for a node: by its own end. By SIGUSR1, SIGUSR2 and SIGXCPU batch systems tell that the allocation
/// ends soon; requests that run have until then.
///
/// # Errors
/// The operating system refuses to tell of signals.
pub(crate) fn end_on_signal(tasks: &Tasks, ending: &Ending) -> io::Result<()> {
    let stopping = ending.clone();
    on_stop(tasks, move || stopping.drain(None))?;
    drain_on_hangup(tasks)?;
    for (kind, name) in [
        (SignalKind::user_defined1(), "SIGUSR1"),
        (SignalKind::user_defined2(), "SIGUSR2"),
        (SignalKind::from_raw(Number::XCPU.as_raw()), "SIGXCPU"),
    ] {
        let (mut notices, ending) = (signal(kind)?, ending.clone());
        tasks.spawn(async move {
            while notices.recv().await.is_some() {
                tracing::info!("{name}: the allocation ends soon, this node takes no new requests");
                ending.drain_before_the_end();
            }
        });
    }
    Ok(())
}

/// Calls `first` on SIGTERM and SIGINT; a second one ends everything at once.
fn on_stop(tasks: &Tasks, first: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopping = tasks.clone();
    tasks.spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let signal = next().await;
        tracing::info!("{signal}: stopping in good order; once more to stop at once");
        first();
        // One stop may arrive twice: by the process and by its group.
        let began = Instant::now();
        let mut second = next().await;
        while began.elapsed() < SAME_STOP_WITHIN {
            second = next().await;
        }
        tracing::warn!("{second}: stopping at once");
        stopping.stop();
    });
    Ok(())
}

fn drain_on_hangup(tasks: &Tasks) -> io::Result<()> {
    let Ok(me) = Process::myself() else { return Ok(()) };
    // By nohup, or whoever else wants it to outlive its terminal.
    if me.status().is_ok_and(|status| status.sigign & HANGUP != 0) {
        return Ok(());
    }
    let has_terminal = me.stat().is_ok_and(|stat| stat.tty_nr != 0);
    let (mut hangups, stopping) = (Hangups::new()?, tasks.clone());
    tasks.spawn(async move {
        loop {
            hangups.next().await;
            if has_terminal {
                break;
            }
            tracing::info!("SIGHUP: nothing is done, only an ingress rereads its configuration");
        }
        tracing::info!("SIGHUP: the terminal is closed, stopping in good order");
        // No second stop: it may come several times, and nobody asks for haste.
        stopping.drain();
    });
    Ok(())
}

/// SIGHUP, which ends this process no more once this is there.
#[derive(Debug)]
pub(crate) struct Hangups(Signal);

impl Hangups {
    /// Those from now on.
    ///
    /// # Errors
    /// The operating system refuses to tell of signals.
    pub(crate) fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Resolves when there was at least one since the last time.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // The runtime has ended.
            std::future::pending::<()>().await;
        }
    }
}
