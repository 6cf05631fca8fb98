//! The network interfaces themselves: which are down, which carry too little, and which fast one others are not told of.

use super::{finding::Finding, machine::is_listened_on};
use multiaddr::Multiaddr;
use otela_node::peer::{AddressChoice, Interfaces, Reason};
use std::{net::IpAddr, path::Path};

const CHECK: &str = "nics";
/// IPv6 needs as much, and QUIC almost.
const MTU: u32 = 1_280;
/// As the kernel numbers kinds of interfaces: those of InfiniBand.
const INFINIBAND: u32 = 32;
/// A machine with many containers has an interface for each.
const SHOWN_MAX: usize = 8;

/// An interface, and what becomes of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nic {
    name: String,
    /// Whether it has a cable and is switched on; one that does not say so counts as up.
    is_up: bool,
    /// A card, not what the system makes up.
    is_card: bool,
    /// One of a fast fabric: InfiniBand, Slingshot.
    is_fast: bool,
    mtu: u32,
    /// Its addresses, and why one would not be announced.
    addresses: Vec<(IpAddr, Option<&'static str>)>,
}

/// Looks at the interfaces that the kernel lists at `root`, which is `/sys/class/net`.
pub(super) fn read(root: &Path, choice: &AddressChoice, listen: &[Multiaddr]) -> Vec<Nic> {
    let Ok(found) = std::fs::read_dir(root) else { return Vec::new() };
    let interfaces = Interfaces::now();
    let explained = choice.explain(&interfaces.clone().only(|ip| is_listened_on(listen, ip)));
    let reason = |of: &str, ip: IpAddr| match explained.iter().find(|(name, own, _)| name == of && *own == ip) {
        Some((.., reason)) => reason.map(Reason::text),
        None => Some("it is not listened on"),
    };
    let nic = |name: String| {
        let folder = root.join(&name);
        let text = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned();
        let is_fabric = name.starts_with("hsn") || text("type").parse() == Ok(INFINIBAND);
        let own = interfaces.iter().filter(|(of, _)| *of == name);
        Nic {
            is_up: !["down", "lowerlayerdown", "notpresent"].contains(&text("operstate").as_str()),
            is_card: folder.join("device").exists(),
            is_fast: is_fabric || name.starts_with("ib") && name[2..].starts_with(|c: char| c.is_ascii_digit()),
            mtu: text("mtu").parse().unwrap_or(0),
            addresses: own.map(|(_, ip)| (ip, reason(&name, ip))).collect(),
            name,
        }
    };
    let mut nics: Vec<_> = found.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).map(nic).collect();
    nics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    nics
}

/// What is to be said of them. Where `is_external` is so, others are told other addresses than these.
pub(super) fn judge(nics: &[Nic], is_external: bool) -> Vec<Finding> {
    if nics.is_empty() {
        return Vec::new();
    }
    let (up, down): (Vec<_>, Vec<_>) = nics.iter().partition(|nic| nic.is_up);
    // What the system makes up and nobody uses is often down.
    let down: Vec<_> = down.into_iter().filter(|nic| nic.is_card || nic.is_fast).collect();
    let mut says = format!("up: {}", listed(&up));
    if !down.is_empty() {
        says = format!("{says}; down: {}", listed(&down));
    }
    let mut findings = vec![Finding::ok(CHECK, says)];
    findings.extend(nics.iter().filter_map(of_mtu));
    findings.extend(nics.iter().filter(|_| !is_external).filter_map(of_fast));
    findings
}

fn listed(nics: &[&Nic]) -> String {
    let shown: Vec<_> = nics.iter().take(SHOWN_MAX).map(|nic| format!("{} (MTU {})", nic.name, nic.mtu)).collect();
    let more = nics.len().saturating_sub(SHOWN_MAX);
    let shown = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn is_announced(nic: &Nic) -> bool {
    nic.addresses.iter().any(|(_, reason)| reason.is_none())
}

fn of_mtu(nic: &Nic) -> Option<Finding> {
    (nic.is_up && is_announced(nic) && (1..MTU).contains(&nic.mtu)).then(|| {
        let says = format!("{} carries packets of {} bytes, and QUIC and IPv6 need {MTU}", nic.name, nic.mtu);
        let advice = format!("ip link set {0} mtu 1500, or leave it out with --announce '!{0}'", nic.name);
        Finding::warn(CHECK, says, advice)
    })
}

/// A fast one that others are not told of is a way lost; one without an address has none to tell.
fn of_fast(nic: &Nic) -> Option<Finding> {
    if !nic.is_fast || is_announced(nic) {
        return None;
    }
    let name = &nic.name;
    let Some((ip, reason)) = nic.addresses.first() else {
        let says = format!("{name} has no address: engines may use it (RDMA), peers cannot");
        return Some(Finding::note(
            CHECK,
            says,
            "if other machines are reached over it by IP, have it given an address",
        ));
    };
    let says = format!("{name} is fast, and others are not told {ip}: {}", reason.unwrap_or_default());
    let advice = "if it leads to other peers, let others be told of it, with --announce and --peer-listen";
    Some(Finding::warn(CHECK, says, advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn nic(name: &str, addresses: &[(&str, Option<&'static str>)]) -> Nic {
        let addresses = addresses.iter().map(|(ip, reason)| (ip.parse().unwrap(), *reason)).collect();
        Nic { name: name.to_owned(), is_up: true, is_card: true, is_fast: name != "eth0", mtu: 9_000, addresses }
    }

    #[test]
    fn p53_a_fast_interface_that_others_are_not_told_of_is_named() {
        let warned = |nic: &Nic| of_fast(nic).map(|found| (found.verdict, found.says));
        assert_eq!(warned(&nic("hsn0", &[("10.1.0.2", None), ("fe80::1", Some("near"))])), None);
        assert_eq!(warned(&nic("eth0", &[("10.2.0.2", Some("not chosen"))])), None, "it is as others");
        let (verdict, says) = warned(&nic("hsn0", &[("10.1.0.2", Some("not chosen by --announce"))])).unwrap();
        assert!(verdict == Verdict::Warn && says.ends_with("10.1.0.2: not chosen by --announce"), "{says}");
        let (verdict, says) = warned(&nic("ib0", &[])).unwrap();
        assert!(verdict == Verdict::Ok && says.contains("RDMA"), "{says}");
        let left_out = [nic("hsn0", &[("10.1.0.2", Some("not chosen"))])];
        assert_eq!((judge(&left_out, false).len(), judge(&left_out, true).len()), (2, 1));
    }

    #[test]
    fn interfaces_that_are_down_or_narrow_are_named() {
        let down = Nic { is_up: false, ..nic("eth0", &[]) };
        let made_up = Nic { is_up: false, is_card: false, ..nic("eth0", &[]) };
        let narrow = Nic { mtu: 1_200, ..nic("eth0", &[("10.1.0.2", None)]) };
        let said = judge(&[down, made_up, narrow.clone()], false);
        assert_eq!(said[0].says, "up: eth0 (MTU 1200); down: eth0 (MTU 9000)");
        assert!(said.len() == 2 && said[1].verdict == Verdict::Warn && said[1].says.contains("1200 bytes"), "{said:?}");
        assert!(of_mtu(&Nic { addresses: Vec::new(), ..narrow }).is_none(), "nobody comes this way");
        assert_eq!(judge(&[], false), []);
    }

    #[test]
    fn what_the_kernel_lists_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        for (name, state, kind, mtu) in
            [("ib0", "up", "32", "2044"), ("ibx", "unknown", "1", "1500"), ("eno1", "down", "1", "1500")]
        {
            let folder = dir.path().join(name);
            std::fs::create_dir_all(folder.join("device")).unwrap();
            for (file, text) in [("operstate", state), ("type", kind), ("mtu", mtu)] {
                std::fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
        }
        let nics = read(dir.path(), &AddressChoice::default(), &[]);
        let seen: Vec<_> = nics.iter().map(|nic| (nic.name.as_str(), nic.is_up, nic.is_fast, nic.mtu)).collect();
        assert_eq!(seen, [("eno1", false, false, 1500), ("ib0", true, true, 2044), ("ibx", true, false, 1500)]);
        assert!(nics.iter().all(|nic| nic.is_card && nic.addresses.is_empty()));
        assert_eq!(read(Path::new("/nonexistent"), &AddressChoice::default(), &[]), []);
    }
}
