//! What happens when a guard is killed itself: its orphans become ours, and are killed here.
//!
//! The agent is a subreaper too. A guard leads its own session, so whatever we adopt that is neither in our own
//! session nor a guard came out of a dead guard's tree. The agent must therefore start nothing else in a
//! session of its own.

use super::{control::Exit, tree};
use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::{
    collections::BTreeSet,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::process::{Child, Command};

/// The guards of this operating system process: like its children, there is one such set per process.
static GUARDS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn guards() -> MutexGuard<'static, BTreeSet<i32>> {
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard that may be alive; taken off the list on drop.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) pid: i32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        guards().remove(&self.pid);
    }
}

/// Starts a guard so that no sweep can take it for an orphan.
pub(super) fn spawn_guard(command: &mut Command) -> io::Result<(Child, Registration)> {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        tracing::warn!(%error, "cannot adopt orphans: an engine whose guard is killed may leave processes behind");
    }
    let mut guards = guards();
    let child = command.spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(io::ErrorKind::NotFound)?;
    guards.insert(pid);
    Ok((child, Registration { pid }))
}

/// One round against the orphans of the dead `guard`.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Processes that were alive and have been sent SIGKILL.
    pub(super) killed: usize,
    /// The engine's exit, if this round collected it.
    pub(super) exit: Option<Exit>,
}

/// Kills and collects once. To be repeated until nothing was killed; call only after `guard` was waited for,
/// since a dying process's files close before its children are handed over.
pub(super) fn sweep(guard: i32, engine: i32) -> Sweep {
    let guards = guards();
    let all = tree::processes();
    let me = getpid().as_raw_nonzero().get();
    // From the same reading, not from `getsid`: in a container whose session began outside it is 0, no process id.
    let own_session = all.iter().find(|entry| entry.pid == me).map(|entry| entry.session);
    let mut sweep = Sweep::default();
    let mut targets = BTreeSet::new();
    for adopted in all.iter().filter(|e| e.parent == me && Some(e.session) != own_session && !guards.contains(&e.pid)) {
        if !adopted.zombie {
            targets.insert(adopted.pid);
        }
        targets.extend(tree::descendants(&all, adopted.pid).iter().map(|entry| entry.pid));
    }
    // Where another reaper got them, the session still tells.
    targets.extend(all.iter().filter(|e| e.session == guard && !e.zombie).map(|e| e.pid));
    for pid in &targets {
        tree::send(*pid, Signal::KILL);
    }
    sweep.killed = targets.len();
    for adopted in all.iter().filter(|e| e.parent == me && Some(e.session) != own_session && !guards.contains(&e.pid)) {
        if let Ok(Some((_, status))) = waitpid(Pid::from_raw(adopted.pid), WaitOptions::NOHANG)
            && adopted.pid == engine
        {
            sweep.exit = Exit::from_status(status);
        }
    }
    sweep
}
