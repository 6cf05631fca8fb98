//! Who descends from whom, read from `/proc`.
//!
//! A reading is no snapshot: a process whose parent ends while we read may be missing from its tree. Whether a
//! tree is empty is therefore never decided here, but by `wait` in the subreaper that adopts its orphans.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::{HashMap, HashSet};

/// One process of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    pub(super) zombie: bool,
}

/// Every process we can see. Processes that end meanwhile are left out.
pub(super) fn processes() -> Vec<Entry> {
    let Ok(all) = procfs::process::all_processes() else { return Vec::new() };
    all.filter_map(|process| process.ok()?.stat().ok())
        .map(|stat| Entry {
            pid: stat.pid,
            parent: stat.ppid,
            group: stat.pgrp,
            session: stat.session,
            zombie: matches!(stat.state, 'Z' | 'X'),
        })
        .collect()
}

/// The descendants of `root` in `all`, without `root` and without those that have ended.
pub(super) fn descendants(all: &[Entry], root: i32) -> Vec<Entry> {
    let mut children: HashMap<i32, Vec<&Entry>> = HashMap::new();
    for entry in all {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut found = Vec::new();
    // A process id that was reused while we read could close a circle.
    let mut seen = HashSet::from([root]);
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        for entry in children.get(&parent).into_iter().flatten() {
            if seen.insert(entry.pid) {
                next.push(entry.pid);
                found.push(**entry);
            }
        }
    }
    found.retain(|entry| !entry.zombie);
    found
}

/// Sends `signal` to one process. One that is gone, or not ours to signal, is left alone.
pub(super) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _gone = kill_process(pid, signal);
    }
}

/// Sends `signal` to a process group at once, members that are just being forked included.
pub(super) fn send_group(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _gone = kill_process_group(group, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32, zombie: bool) -> Entry {
        Entry { pid, parent, group: pid, session: pid, zombie }
    }

    #[test]
    fn zombies_hide_nothing_and_circles_end() {
        let all = [
            entry(2, 1, false),
            entry(3, 2, true),
            entry(4, 3, false),
            entry(5, 1, false),
            entry(6, 7, false),
            entry(7, 6, false),
        ];
        let mut found: Vec<i32> = descendants(&all, 2).iter().map(|e| e.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [4]);
        let mut circle: Vec<i32> = descendants(&all, 6).iter().map(|e| e.pid).collect();
        circle.sort_unstable();
        assert_eq!(circle, [7]);
    }

    #[test]
    fn this_process_is_seen() {
        let me = i32::try_from(std::process::id()).expect("process ids fit");
        assert!(processes().iter().any(|e| e.pid == me && !e.zombie));
    }
}
