//! Checks that need no network: interfaces, ports, open files, key and state.

use super::finding::Finding;
use crate::{cli::As, files};
use multiaddr::{Multiaddr, Protocol};
use otela_node::{
    peer::{AddressChoice, Identity, IdentityError, Interfaces, State, StateError, check_free},
    telemetry::chain,
};
use otela_proto::id::MeshName;
use rustix::{
    fs::{Access, access},
    process::{Resource, getrlimit},
};
use std::{net::IpAddr, path::Path};

/// A bound on the interfaces that are named on one line.
const SHOWN_MAX: usize = 6;

/// Which addresses others would be told, which not and why.
pub(super) fn interfaces(choice: &AddressChoice, listen: &[Multiaddr], external: &[Multiaddr]) -> Vec<Finding> {
    let check = "interfaces";
    let interfaces = Interfaces::now();
    let all = choice.explain(&interfaces.clone().only(|ip| is_listened_on(listen, ip)));
    let told: Vec<_> = all.iter().filter(|(.., reason)| reason.is_none()).collect();
    let near_only = told.iter().all(|(_, ip, _)| ip.is_loopback());
    let told = listed(told.iter().map(|(name, ip, _)| format!("{ip} ({name})")));
    let external = listed(external.iter().map(ToString::to_string));
    let mut findings = vec![if !external.is_empty() {
        Finding::ok(check, format!("announced would be what --external says: {external}"))
    } else if told.is_empty() {
        let advice = "name interfaces or subnets that this machine has with --announce, or give --external";
        Finding::fail(check, "no address of this machine would be announced", advice)
    } else if near_only {
        let advice = "check that a network interface is up; only this machine can reach such an address";
        Finding::warn(check, format!("announced would be {told} alone"), advice)
    } else {
        Finding::ok(check, format!("announced would be {told}"))
    }];
    let left = all.iter().filter_map(|(name, ip, reason)| Some(format!("{ip} ({name}): {}", (*reason)?.text())));
    let left = listed(left);
    if !left.is_empty() {
        findings.push(Finding::ok(check, format!("left out: {left}")));
    }
    let unmatched = choice.unmatched(&interfaces);
    if !unmatched.is_empty() {
        let says = format!("--announce names what this machine does not have now: {}", unmatched.join(", "));
        let there = format!("it has {}", interfaces.names().join(", "));
        findings.push(Finding::warn(check, says, there));
    }
    findings
}

/// Whether who listens there is reached at `ip`.
pub(super) fn is_listened_on(listen: &[Multiaddr], ip: IpAddr) -> bool {
    listen.iter().any(|address| listens_at(address, ip))
}

/// Whether who listens on `address` is reached at `ip`.
fn listens_at(address: &Multiaddr, ip: IpAddr) -> bool {
    let at: IpAddr = match address.iter().next() {
        Some(Protocol::Ip4(at)) => at.into(),
        Some(Protocol::Ip6(at)) => at.into(),
        _ => return false,
    };
    at == ip || at.is_unspecified() && at.is_ipv4() == ip.is_ipv4()
}

fn listed(all: impl Iterator<Item = String>) -> String {
    let mut all: Vec<_> = all.collect();
    let more = all.len().saturating_sub(SHOWN_MAX);
    all.truncate(SHOWN_MAX);
    let shown = all.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Ports that another process has.
pub(super) fn ports(listen: &[Multiaddr]) -> Vec<Finding> {
    let taken = |address: &Multiaddr| {
        let error = check_free(address).err()?;
        let advice = "if that is the otela that this is about, all is well; if not, choose another with --peer-listen";
        let says = format!("cannot listen on {address}: {error}");
        Some(if error.kind() == std::io::ErrorKind::AddrInUse {
            Finding::warn("port", says, advice)
        } else {
            Finding::fail("port", says, "name an address of this machine with --peer-listen")
        })
    };
    listen.iter().filter_map(taken).collect()
}

/// How many files this process may open: every connection is one.
pub(super) fn open_files(role: As) -> Finding {
    let limit = match role {
        As::Node => getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        // These take what there is.
        As::Ingress | As::Relay => files::limit_once_raised(),
    };
    of_open_files(limit, role)
}

fn of_open_files(limit: u64, role: As) -> Finding {
    // Peers beside an engine's own; clients of an ingress and its peers; members of a relay.
    let (name, wanted) = match role {
        As::Node => ("a node", 1_024),
        As::Ingress => ("an ingress", 24_576),
        As::Relay => ("a relay", 8_192),
    };
    if limit >= wanted {
        return Finding::ok("open files", format!("{limit} may be open, enough for {name}"));
    }
    let says = format!("{limit} may be open, {name} under load needs {wanted}");
    Finding::warn(
        "open files",
        says,
        format!("ulimit -n {wanted} before the start, or LimitNOFILE={wanted} in its unit"),
    )
}

/// The key file. It is not made here.
pub(super) fn key(path: Option<&Path>) -> Finding {
    let check = "key";
    let Some(path) = path else {
        return Finding::ok(check, "none was named: the peer has another id after each start");
    };
    if !path.exists() {
        return to_be_made(check, path);
    }
    match Identity::load_or_create(path) {
        Ok(_) => Finding::ok(check, format!("{} can be used", path.display())),
        Err(error @ IdentityError::InUse { .. }) => {
            Finding::warn(check, chain(&error), "if that is the otela that this is about, all is well")
        }
        Err(error) => Finding::fail(check, chain(&error), "name another file with --key"),
    }
}

/// The state directory. It is not made here.
pub(super) fn state(dir: Option<&Path>, mesh: &MeshName) -> Finding {
    let check = "state";
    let Some(dir) = dir else {
        return Finding::ok(
            check,
            "no directory was named: after a restart the mesh is found through bootstraps alone",
        );
    };
    if !dir.exists() {
        return to_be_made(check, dir);
    }
    if dir.is_dir() && access(dir, Access::WRITE_OK).is_err() {
        let says = format!("{} cannot be written to", dir.display());
        return Finding::fail(
            check,
            says,
            "give its owner's rights to whoever runs otela, or name another with --state",
        );
    }
    match State::open(dir, mesh) {
        Ok(state) => Finding::ok(check, format!("{} remembers {} peers", dir.display(), state.peers_len())),
        Err(error @ StateError::InUse { .. }) => {
            Finding::warn(check, chain(&error), "if that is the otela that this is about, all is well")
        }
        Err(error) => Finding::fail(check, chain(&error), "name another directory with --state"),
    }
}

fn to_be_made(check: &'static str, path: &Path) -> Finding {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if access(folder, Access::WRITE_OK).is_ok() {
        return Finding::ok(check, format!("{} is not there and can be made", path.display()));
    }
    let says = format!("{} is not there and cannot be made", path.display());
    Finding::fail(check, says, format!("make the folder {} and let whoever runs otela write to it", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn limits_on_open_files_are_judged_by_the_role() {
        assert_eq!(of_open_files(1_024, As::Node).verdict, Verdict::Ok);
        let few = of_open_files(1_024, As::Ingress);
        assert!(few.verdict == Verdict::Warn && few.advice.unwrap().contains("ulimit -n 24576"));
    }

    #[test]
    fn files_are_looked_at_and_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let mesh: MeshName = "lab".parse().unwrap();
        assert_eq!(key(None).verdict, Verdict::Ok);
        for finding in [key(Some(&path)), state(Some(&path), &mesh)] {
            assert!(finding.verdict == Verdict::Ok && finding.says.contains("can be made"), "{finding:?}");
        }
        assert!(!path.exists());
        let nowhere = dir.path().join("no/such/key");
        assert_eq!((key(Some(&nowhere)).verdict, state(Some(&nowhere), &mesh).verdict), (Verdict::Fail, Verdict::Fail));
        std::fs::write(&path, "not a key").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let wrong = key(Some(&path));
        assert!(wrong.verdict == Verdict::Fail && wrong.says.contains("not an otela key file"), "{wrong:?}");
        assert_eq!(state(Some(&path), &mesh).verdict, Verdict::Fail, "a file is no directory");
        let used = dir.path().join("used");
        let held = Identity::load_or_create(&used).unwrap();
        assert_eq!(key(Some(&used)).verdict, Verdict::Warn);
        drop(held);
        assert_eq!(key(Some(&used)).verdict, Verdict::Ok);
    }

    #[test]
    fn interfaces_that_are_not_there_are_named() {
        let choice: AddressChoice = ["nosuchif0".parse().unwrap()].into_iter().collect();
        let everywhere = ["/ip4/0.0.0.0/tcp/0".parse().unwrap()];
        let findings = interfaces(&choice, &everywhere, &[]);
        assert_eq!(findings[0].verdict, Verdict::Fail, "nothing is left: {findings:?}");
        assert!(findings.iter().any(|f| f.verdict == Verdict::Warn && f.says.contains("nosuchif0")), "{findings:?}");
        let external = interfaces(&choice, &everywhere, &everywhere);
        assert!(external[0].verdict == Verdict::Ok && external[0].says.contains("--external"), "{external:?}");
    }

    #[test]
    fn only_what_is_listened_on_counts() {
        let at = |address: &str, ip: &str| listens_at(&address.parse().unwrap(), ip.parse().unwrap());
        assert!(at("/ip4/0.0.0.0/tcp/0", "10.0.0.1") && !at("/ip4/0.0.0.0/tcp/0", "fd00::1"));
        assert!(at("/ip4/10.0.0.1/tcp/0", "10.0.0.1") && !at("/ip4/10.0.0.1/tcp/0", "10.0.0.2"));
        assert!(at("/ip6/::/udp/0/quic-v1", "fd00::1") && !at("/dns/a/tcp/1", "10.0.0.1"));
        let near = ["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let findings = interfaces(&AddressChoice::default(), &near, &[]);
        assert!(findings[0].verdict == Verdict::Warn && findings[0].says.contains("127.0.0.1"), "{findings:?}");
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken: Multiaddr = format!("/ip4/127.0.0.1/tcp/{}", holder.local_addr().unwrap().port()).parse().unwrap();
        let findings =
            ports(&[taken, "/ip4/127.0.0.1/tcp/0".parse().unwrap(), "/ip4/192.0.2.1/tcp/7".parse().unwrap()]);
        assert_eq!(findings.iter().map(|f| f.verdict).collect::<Vec<_>>(), [Verdict::Warn, Verdict::Fail]);
    }
}
