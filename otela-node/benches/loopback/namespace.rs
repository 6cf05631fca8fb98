//! A network namespace in which nobody else sends, and the kernel's counters of its loopback interface.

use procfs::net::dev_status;
use std::process::{Command, ExitCode};

/// The first argument of the program when it runs itself again.
const INSIDE: &str = "--inside";

/// Whose loopback interface is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// One of our own.
    Own,
    /// The host's: others may have sent as well.
    Host,
}

impl Place {
    pub(crate) fn note(self) -> &'static str {
        match self {
            Self::Own => {
                "On the wire: IP packets on the loopback interface of a network namespace of their own. The loopback has no link layer, loses nothing, and its large packets merge what a network would send as several."
            }
            Self::Host => {
                "On the wire: IP packets on the host's own loopback interface, whatever else uses it, for no network namespace could be made (unshare --user --net, ip); these rows have no reach."
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own namespace",
            Self::Host => "host",
        }
    }
}

/// What has become of the wish for a namespace.
pub(crate) enum Entered {
    /// This process goes on, there.
    Here(Place),
    /// Another one has done the work.
    Elsewhere(ExitCode),
}

/// Runs the program again inside of a namespace, or says that this is it, or that there is none.
pub(crate) fn enter(arguments: &[String]) -> Entered {
    if arguments.first().is_some_and(|first| first == INSIDE) {
        return Entered::Here(Place::Own);
    }
    let possible = unshare().args(["sh", "-c", "ip link set lo up && ip -br link show lo up | grep -q lo"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("no network namespace can be made here: counting on the host's loopback interface");
        return Entered::Here(Place::Host);
    }
    let program = std::env::current_exe().unwrap();
    let script = r#"ip link set lo up && exec "$0" "$@""#;
    let status = unshare().args(["sh", "-c", script]).arg(program).arg(INSIDE).args(arguments).status().unwrap();
    Entered::Elsewhere(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--"]);
    command
}

/// What has been sent on the loopback interface. It receives the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) bytes: f64,
    pub(crate) packets: f64,
}

pub(crate) fn sent() -> Sent {
    let lo = &dev_status().unwrap()["lo"];
    Sent { bytes: lo.sent_bytes as f64, packets: lo.sent_packets as f64 }
}
