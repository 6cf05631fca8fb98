//! The TCP addresses on which an engine's own processes listen.
//!
//! Read from `/proc`, so that an answer can never come from another server that happens to have the port: an
//! address counts only if the kernel would hand a connection to it to a socket of the engine's tree.

use super::tree;
use procfs::{
    net::{TcpNetEntry, TcpState},
    process::{FDTarget, Process},
};
use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// A socket of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// As bound; may be a wildcard.
    pub bound: SocketAddr,
    /// The addresses at which a connection from this host reaches this socket and no other server's. Empty when
    /// somebody else shares the port (`SO_REUSEPORT`) or took the more specific address.
    pub dial: Vec<SocketAddr>,
    /// Tells this socket from a later one on the same port.
    pub inode: u64,
}

/// What was found under one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listening {
    /// The sockets in LISTEN state, by port.
    pub listeners: Vec<Listener>,
    /// Processes of the tree into which we may not look, for example of a set-user-id program.
    pub unreadable: Vec<i32>,
}

/// The sockets on which the descendants of `root` (a guard) accept connections. Takes milliseconds of blocking
/// reads.
///
/// # Errors
/// `/proc/net/tcp` cannot be read.
pub fn listening(root: i32) -> io::Result<Listening> {
    let all = tree::processes();
    let mut inodes = HashSet::new();
    let mut unreadable = Vec::new();
    for member in tree::descendants(&all, root) {
        match sockets(member.pid) {
            Ok(found) => inodes.extend(found),
            Err(procfs::ProcError::PermissionDenied(_)) => unreadable.push(member.pid),
            Err(_ended_meanwhile) => {}
        }
    }
    let table = table()?;
    let mut listeners: Vec<Listener> = table
        .iter()
        .filter(|socket| inodes.contains(&socket.inode))
        .map(|socket| Listener {
            bound: socket.bound,
            dial: ways(socket.bound).into_iter().filter(|way| reaches(*way, &table, &inodes)).collect(),
            inode: socket.inode,
        })
        .collect();
    listeners.sort_by_key(|listener| (listener.bound.port(), listener.bound.ip()));
    Ok(Listening { listeners, unreadable })
}

/// Who has a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The port it listens on.
    pub port: u16,
    /// Its owner's user id.
    pub uid: u32,
    /// Process id and command line; hidden when it belongs to somebody else.
    pub process: Option<(i32, String)>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((pid, command)) => write!(f, "process {pid} ({command})"),
            None => write!(f, "a process of user id {}", self.uid),
        }
    }
}

/// The process that listens on `port`, whoever it is.
pub(super) fn holder(port: u16) -> Option<Holder> {
    let socket = table().ok()?.into_iter().find(|socket| socket.bound.port() == port)?;
    let owns = |pid: &i32| sockets(*pid).is_ok_and(|found| found.contains(&socket.inode));
    let process = tree::processes().into_iter().map(|entry| entry.pid).find(owns).map(|pid| (pid, command(pid)));
    Some(Holder { port, uid: socket.uid, process })
}

/// The command line, cut to what fits a message.
fn command(pid: i32) -> String {
    let words = Process::new(pid).and_then(|process| process.cmdline()).unwrap_or_default();
    let mut line = words.join(" ");
    if line.len() > 120 {
        line.truncate(line.floor_char_boundary(120));
        line.push_str("...");
    }
    line
}

#[derive(Debug, Clone, Copy)]
struct Socket {
    bound: SocketAddr,
    inode: u64,
    uid: u32,
}

fn table() -> io::Result<Vec<Socket>> {
    let v4 = procfs::net::tcp().map_err(io::Error::other)?;
    // A kernel without IPv6 has no such file.
    let v6 = procfs::net::tcp6().unwrap_or_default();
    let listening = |entry: &TcpNetEntry| entry.state == TcpState::Listen;
    let entries = v4.into_iter().chain(v6).filter(listening);
    Ok(entries.map(|e| Socket { bound: e.local_address, inode: e.inode, uid: e.uid }).collect())
}

fn sockets(pid: i32) -> procfs::ProcResult<HashSet<u64>> {
    let files = Process::new(pid)?.fd()?;
    Ok(files
        .filter_map(|file| match file.ok()?.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect())
}

/// Where a socket bound like this may be reached from its own host.
fn ways(bound: SocketAddr) -> Vec<SocketAddr> {
    let port = bound.port();
    match bound.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![(Ipv4Addr::LOCALHOST, port).into()],
        IpAddr::V6(ip) if ip.is_unspecified() => {
            vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
        }
        // The table does not tell the interface, without which it means nothing.
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Vec::new(),
        ip => vec![(ip, port).into()],
    }
}

/// Whether a connection to `way` can only end at one of `ours`.
fn reaches(way: SocketAddr, table: &[Socket], ours: &HashSet<u64>) -> bool {
    let mut best: HashMap<u8, bool> = HashMap::new();
    for socket in table.iter().filter(|socket| socket.bound.port() == way.port()) {
        if let Some(fit) = fit(socket.bound.ip(), way.ip()) {
            *best.entry(fit).or_insert(true) &= ours.contains(&socket.inode);
        }
    }
    best.into_iter().max_by_key(|(fit, _)| *fit).is_some_and(|(_, only_ours)| only_ours)
}

/// How well a listening socket fits an address: the kernel takes the best, and any of several equal ones.
fn fit(bound: IpAddr, way: IpAddr) -> Option<u8> {
    match (bound, way) {
        _ if bound.to_canonical() == way => Some(2),
        (IpAddr::V4(bound), IpAddr::V4(_)) if bound.is_unspecified() => Some(1),
        (IpAddr::V6(bound), IpAddr::V6(_)) if bound.is_unspecified() => Some(1),
        // Unless it was made for IPv6 only, which the table does not tell.
        (IpAddr::V6(bound), IpAddr::V4(_)) if bound.is_unspecified() => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(bound: &str, inode: u64) -> Socket {
        Socket { bound: bound.parse().expect("an address"), inode, uid: 0 }
    }

    fn reached(way: &str, table: &[Socket]) -> bool {
        reaches(way.parse().expect("an address"), table, &HashSet::from([1]))
    }

    #[test]
    fn wildcards_are_dialled_on_loopback() {
        let ways = |bound: &str| {
            ways(bound.parse().expect("an address")).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ways("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(ways("[::]:1"), "127.0.0.1:1 [::1]:1");
        assert_eq!(ways("[::1]:1"), "[::1]:1");
        assert_eq!(ways("[::ffff:127.0.0.1]:1"), "127.0.0.1:1");
        assert_eq!(ways("10.1.2.3:1"), "10.1.2.3:1");
        assert_eq!(ways("[fe80::1]:1"), "");
    }

    #[test]
    fn an_address_that_somebody_else_may_answer_is_not_ours() {
        assert!(reached("127.0.0.1:1", &[socket("0.0.0.0:1", 1), socket("0.0.0.0:2", 9)]));
        assert!(!reached("127.0.0.1:1", &[socket("0.0.0.0:1", 1), socket("127.0.0.1:1", 9)]));
        assert!(reached("127.0.0.1:1", &[socket("0.0.0.0:1", 9), socket("127.0.0.1:1", 1)]));
        assert!(!reached("127.0.0.1:1", &[socket("127.0.0.1:1", 1), socket("127.0.0.1:1", 9)]));
        assert!(!reached("127.0.0.1:1", &[socket("[::]:1", 1), socket("0.0.0.0:1", 9)]));
        assert!(reached("[::1]:1", &[socket("[::]:1", 1), socket("0.0.0.0:1", 9)]));
        assert!(!reached("[::1]:1", &[socket("0.0.0.0:1", 1)]));
    }

    #[test]
    fn our_own_listener_is_found_with_its_holder() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let holder = holder(port).expect("listens");
        let me = i32::try_from(std::process::id()).expect("process ids fit");
        assert_eq!(holder.process.expect("our own").0, me);
        assert_eq!(listening(me).expect("readable").listeners, []);
    }
}
