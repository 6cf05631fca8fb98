//! Networks in namespaces: a public segment, and sites behind gateways that translate addresses or filter.
//!
//! ```text
//!   a (192.168.10.2) - gateway (10.77.0.101) -+
//!   b (192.168.10.2) - gateway (10.77.0.102) -+- public segment 10.77.0.0/24 - r1 (.11), r2 (.12), p (.13)
//! ```
//!
//! Both sites use the same private network, as sites do, and no route leaves the laboratory.

use crate::support::Otela;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fmt::Write as _,
    fs::File,
    future::Future,
    os::fd::AsFd,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// How a site's gateway treats what passes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gateway {
    /// The same port for every destination (endpoint-independent mapping); answers come in, and nothing else.
    Cone,
    /// Another port for each destination.
    Symmetric,
    /// As `Cone`, and only TCP gets out.
    OnlyTcp,
    /// As `Cone`, and only TCP to port 443 gets out; the rest is dropped without a word.
    Only443,
    /// Nothing passes, in any direction: only the gateway itself gets out.
    Closed,
}

impl Gateway {
    /// How ports are translated, and what is let out, in the words of nftables.
    fn rules(self) -> (&'static str, &'static str) {
        match self {
            Self::Cone => ("masquerade", "accept"),
            Self::Symmetric => ("masquerade random,fully-random", "accept"),
            Self::OnlyTcp => ("masquerade", "meta l4proto tcp accept"),
            Self::Only443 => ("masquerade", "tcp dport 443 accept"),
            Self::Closed => ("masquerade", "drop"),
        }
    }
}

/// Hosts on the public segment, and the last byte of each one's address.
const PUBLIC: [(&str, u8); 3] = [("r1", 11), ("r2", 12), ("p", 13)];
const SITES: [(&str, u8); 2] = [("a", 101), ("b", 102)];

/// The address of a public host.
pub(crate) fn address(host: &str) -> String {
    let (_, byte) = PUBLIC.iter().find(|(name, _)| *name == host).unwrap();
    format!("10.77.0.{byte}")
}

/// A laboratory. Dropping it kills what runs in it and takes it down.
#[derive(Debug)]
pub(crate) struct Lab {
    prefix: String,
    dir: tempfile::TempDir,
}

impl Lab {
    /// Public hosts `r1`, `r2` and `p`, and sites `a` and `b` behind gateways of these kinds.
    pub(crate) fn new(a: Gateway, b: Gateway) -> Self {
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("otela{}-{}", std::process::id(), BUILT.fetch_add(1, Ordering::Relaxed));
        let lab = Self { prefix, dir: tempfile::tempdir().unwrap() };
        let mut script = String::new();
        let net = lab.host("net");
        writeln!(script, "space {net}; in_ {net} ip link add br0 type bridge; in_ {net} ip link set br0 up").unwrap();
        for (name, byte) in PUBLIC {
            writeln!(script, "public {net} {} {byte}", lab.host(name)).unwrap();
        }
        for ((name, byte), gateway) in SITES.into_iter().zip([a, b]) {
            let (host, gate) = (lab.host(name), lab.host(&format!("g{name}")));
            let (translation, out) = gateway.rules();
            writeln!(script, "public {net} {gate} {byte}").unwrap();
            writeln!(script, "site {gate} {host} '{translation}' '{out}'").unwrap();
        }
        run(&format!("{HELPERS}\n{script}"));
        lab
    }

    /// A directory of its own.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The namespace of a host.
    pub(crate) fn host(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// An `otela` on a host.
    pub(crate) fn otela(&self, host: &str, arguments: &[&str]) -> Otela {
        self.otela_with(host, &[], arguments)
    }

    /// The same with further variables in its environment, each as `NAME=VALUE`.
    pub(crate) fn otela_with(&self, host: &str, variables: &[&str], arguments: &[&str]) -> Otela {
        let host = self.host(host);
        let inside = ["netns", "exec", &host, "env"];
        Otela::run_program("ip", [&inside[..], variables, &[env!("CARGO_BIN_EXE_otela")], arguments].concat())
    }

    /// Runs a future on a host, in a thread that has moved there.
    pub(crate) async fn on<T: Send + 'static, F: Future<Output = T>>(
        &self,
        host: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        let (done, outcome) = tokio::sync::oneshot::channel();
        let thread = self.begin(host, async move || _ = done.send(work().await));
        match outcome.await {
            Ok(outcome) => outcome,
            Err(_) => std::panic::resume_unwind(thread.join().unwrap_err()),
        }
    }

    /// Begins a future on a host, in a thread that has moved there and ends with it.
    pub(crate) fn begin<F: Future<Output = ()>>(
        &self,
        host: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> std::thread::JoinHandle<()> {
        let space = File::open(format!("/run/netns/{}", self.host(host))).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work());
        })
    }

    /// Runs a shell command on a host.
    pub(crate) fn sh(&self, host: &str, command: &str) {
        run(&format!("{HELPERS}\nin_ {} sh -ec '{command}'", self.host(host)));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let script = format!(
            "for space in $(ip netns list | cut -d' ' -f1 | grep '^{}-'); do
                 kill -9 $(ip netns pids $space) 2>/dev/null || true
                 ip netns del $space || true
             done",
            self.prefix
        );
        run(&script);
    }
}

/// What the script of a laboratory is written in.
const HELPERS: &str = r#"
in_() { ip netns exec "$@"; }
space() { ip netns add "$1"; in_ "$1" ip link set lo up; }
# public NET HOST BYTE: a host on the public segment
public() {
    space "$2"
    ip link add "to$3" netns "$1" type veth peer name eth0 netns "$2"
    in_ "$1" ip link set "to$3" master br0 up
    in_ "$2" ip addr add "10.77.0.$3/24" dev eth0
    in_ "$2" ip link set eth0 up
}
# site GATEWAY HOST TRANSLATION OUT: a host behind a gateway
site() {
    space "$2"
    ip link add lan netns "$1" type veth peer name eth0 netns "$2"
    in_ "$1" ip addr add 192.168.10.1/24 dev lan
    in_ "$1" ip link set lan up
    in_ "$2" ip addr add 192.168.10.2/24 dev eth0
    in_ "$2" ip link set eth0 up
    in_ "$2" ip route add default via 192.168.10.1
    in_ "$1" sysctl -qw net.ipv4.ip_forward=1
    in_ "$1" nft -f - <<RULES
table ip gateway {
    chain translate { type nat hook postrouting priority srcnat; oifname "eth0" $3; }
    chain through { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname "lan" $4; }
    chain to_it { type filter hook input priority filter; policy drop; ct state established,related accept; iifname { "lo", "lan" } accept; }
}
RULES
}
"#;

fn run(script: &str) {
    let output = Command::new("bash").args(["-euo", "pipefail", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}\n{script}", String::from_utf8_lossy(&output.stderr));
}
