//! Which of this machine's own addresses others are told: what was chosen by interface or subnet, and what is never of
//! use to them.

use ipnet::IpNet;
use std::{fmt, net::IpAddr, str::FromStr};

/// The system's bound on the length of an interface's name.
const INTERFACE_BYTES_MAX: usize = 15;
/// Docker names the bridges of networks after so many hexadecimal digits of their ids.
const BRIDGE_DIGITS: usize = 12;

/// What an address is chosen by.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// All addresses of the interface of this name.
    Interface(String),
    /// All addresses of this subnet.
    Subnet(IpNet),
}

/// One element of `--announce`: an interface's name, a subnet or an address; with `!` before it, what is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pattern: Pattern,
    excludes: bool,
}

/// Why a text is no [`Choice`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither an interface such as hsn0 nor a subnet such as 10.0.0.0/8; !hsn0 and !10.0.0.0/8 leave them out"
)]
pub struct ChoiceError(String);

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ChoiceError(text.to_owned());
        let (name, excludes) = text.trim().strip_prefix('!').map_or((text.trim(), false), |rest| (rest.trim(), true));
        let subnet = name.parse().or_else(|_| name.parse::<IpAddr>().map(IpNet::from));
        let is_name = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '!' | ',');
        let pattern = match subnet {
            Ok(subnet) => Pattern::Subnet(subnet),
            // What looks like an address and is none would be taken for an interface that is not there.
            Err(_) if name.is_empty() || name.len() > INTERFACE_BYTES_MAX || !name.chars().all(is_name) => {
                return Err(wrong());
            }
            Err(_) if name.chars().all(|c| c.is_ascii_digit() || c == '.') => return Err(wrong()),
            Err(_) => Pattern::Interface(name.to_owned()),
        };
        Ok(Self { pattern, excludes })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.excludes { "!" } else { "" };
        match &self.pattern {
            Pattern::Interface(name) => write!(f, "{sign}{name}"),
            Pattern::Subnet(subnet) => write!(f, "{sign}{subnet}"),
        }
    }
}

impl Choice {
    fn names(&self, interfaces: &[&str]) -> bool {
        matches!(&self.pattern, Pattern::Interface(name) if interfaces.contains(&name.as_str()))
    }

    fn matches(&self, ip: IpAddr, interfaces: &[&str]) -> bool {
        self.names(interfaces) || matches!(&self.pattern, Pattern::Subnet(subnet) if subnet.contains(&ip))
    }
}

/// Why an address is not told to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// `--announce` leaves it out.
    Excluded,
    /// `--announce` names others.
    NotChosen,
    /// It belongs to a bridge between containers or virtual machines of this host, and the same exists on others.
    ContainerBridge,
    /// It is a loopback or link-local one, and there are others.
    Near,
    /// There are too many.
    TooMany,
}

impl Reason {
    /// In a few words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Excluded => "excluded by --announce",
            Self::NotChosen => "not chosen by --announce",
            Self::ContainerBridge => "a bridge of this host's containers",
            Self::Near => "loopback or link-local, and there are others",
            Self::TooMany => "more than are announced",
        }
    }
}

/// What becomes of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is told.
    Told,
    /// It is told only if there is no other.
    Spare,
    /// It is not told.
    LeftOut(Reason),
}

/// All that was chosen. Without any element everything that may be of use is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressChoice(Vec<Choice>);

impl FromIterator<Choice> for AddressChoice {
    fn from_iter<T: IntoIterator<Item = Choice>>(choices: T) -> Self {
        Self(choices.into_iter().collect())
    }
}

impl AddressChoice {
    /// What becomes of `ip`, which belongs to `interfaces` (several, if it was given twice; none, if that is not known).
    pub(super) fn verdict(&self, ip: IpAddr, interfaces: &[&str]) -> Verdict {
        if self.0.iter().any(|choice| choice.excludes && choice.matches(ip, interfaces)) {
            return Verdict::LeftOut(Reason::Excluded);
        }
        let mut wanted = self.0.iter().filter(|choice| !choice.excludes).peekable();
        let chooses = wanted.peek().is_some();
        let chosen: Vec<_> = wanted.filter(|choice| choice.matches(ip, interfaces)).collect();
        if chooses && chosen.is_empty() {
            return Verdict::LeftOut(Reason::NotChosen);
        }
        // A subnet may hold bridges by chance; a name is meant.
        let is_named = chosen.iter().any(|choice| choice.names(interfaces));
        if !is_named && !interfaces.is_empty() && interfaces.iter().all(|name| is_container_bridge(name)) {
            return Verdict::LeftOut(Reason::ContainerBridge);
        }
        if !chooses && is_near(ip) { Verdict::Spare } else { Verdict::Told }
    }

    /// Each address of this machine with its interface, and why it would not be told to others, if so.
    #[must_use]
    pub fn explain(&self, interfaces: &Interfaces) -> Vec<(String, IpAddr, Option<Reason>)> {
        let verdict = |ip| self.verdict(ip, &interfaces.of(ip));
        let is_told = interfaces.iter().any(|(_, ip)| verdict(ip) == Verdict::Told);
        let reason = |ip| match verdict(ip) {
            Verdict::Told => None,
            Verdict::Spare => is_told.then_some(Reason::Near),
            Verdict::LeftOut(reason) => Some(reason),
        };
        interfaces.iter().map(|(name, ip)| (name.to_owned(), ip, reason(ip))).collect()
    }

    /// What was chosen or excluded and matches nothing of this machine.
    #[must_use]
    pub fn unmatched(&self, interfaces: &Interfaces) -> Vec<String> {
        let nothing = |choice: &&Choice| !interfaces.0.iter().any(|(name, ip)| choice.matches(*ip, &[name]));
        self.0.iter().filter(nothing).map(Choice::to_string).collect()
    }
}

/// Only this machine or its own cable can reach it.
pub(super) fn is_near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Whether an interface of this name was made by what runs containers or virtual machines. A machine's own bridge, as
/// `br0`, is none.
fn is_container_bridge(name: &str) -> bool {
    const BEGINNINGS: [&str; 11] =
        ["docker", "cni", "virbr", "veth", "podman", "lxcbr", "lxdbr", "flannel", "cali", "cilium", "kube-"];
    let digits = name.strip_prefix("br-").filter(|digits| digits.len() == BRIDGE_DIGITS);
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || digits.is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()))
}

/// The interfaces of this machine and their addresses.
#[derive(Debug, Clone, Default)]
pub struct Interfaces(Vec<(String, IpAddr)>);

impl Interfaces {
    /// As they are now. None where the system does not tell, which leaves nothing out.
    #[must_use]
    pub fn now() -> Self {
        let found = if_addrs::get_if_addrs().unwrap_or_else(|error| {
            tracing::debug!(%error, "the system does not tell its interfaces");
            Vec::new()
        });
        // A second address may have a label of its own, as `eth0:1`.
        let name = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        Self(found.iter().map(|interface| (name(&interface.name), interface.ip())).collect())
    }

    /// Those of their addresses for which this holds.
    #[must_use]
    pub fn only(mut self, holds: impl Fn(IpAddr) -> bool) -> Self {
        self.0.retain(|(_, ip)| holds(*ip));
        self
    }

    /// The names of those that have this address.
    #[must_use]
    pub fn of(&self, ip: IpAddr) -> Vec<&str> {
        self.0.iter().filter(|(_, own)| *own == ip).map(|(name, _)| name.as_str()).collect()
    }

    /// Each name once.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Each address with its interface's name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        self.0.iter().map(|(name, ip)| (name.as_str(), *ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(texts: &[&str]) -> AddressChoice {
        texts.iter().map(|text| text.parse::<Choice>().unwrap()).collect()
    }

    fn told(choice: &AddressChoice, ip: &str, interface: &str) -> Verdict {
        choice.verdict(ip.parse().unwrap(), &[interface])
    }

    #[test]
    fn p53_names_subnets_and_what_is_neither() {
        for (text, shown) in [
            ("hsn0", "hsn0"),
            (" !docker0", "!docker0"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("! fd00::/8", "!fd00::/8"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("br-1234567890ab", "br-1234567890ab"),
        ] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), shown);
        }
        for wrong in
            ["", "!", "!!a", "10.0.0.0/33", "10.0.0", "300.1.1.1", "a b", "ein-sehr-langer-name", "eth0/8", "a:b"]
        {
            let error = wrong.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains("hsn0") && error.contains("10.0.0.0/8"), "{wrong}: {error}");
        }
    }

    #[test]
    fn p53_without_a_choice_all_but_bridges_is_told_and_loopback_is_spare() {
        let all = choice(&[]);
        for (ip, interface) in [("10.1.0.7", "hsn0"), ("192.168.1.2", "br0"), ("2001:db8::7", "br-lan")] {
            assert_eq!(told(&all, ip, interface), Verdict::Told, "{interface}");
        }
        for (ip, interface) in [("127.0.0.1", "lo"), ("169.254.7.7", "usb0"), ("::1", "lo"), ("fe80::1", "hsn0")] {
            assert_eq!(told(&all, ip, interface), Verdict::Spare, "{ip}");
        }
        for interface in ["docker0", "br-1234567890ab", "cni0", "virbr0", "veth12ab", "cilium_host", "podman1"] {
            assert_eq!(told(&all, "172.17.0.1", interface), Verdict::LeftOut(Reason::ContainerBridge), "{interface}");
        }
        assert_eq!(all.verdict("172.17.0.1".parse().unwrap(), &[]), Verdict::Told, "nobody knows whose it is");
        assert_eq!(all.verdict("10.1.0.7".parse().unwrap(), &["docker0", "hsn0"]), Verdict::Told);
    }

    #[test]
    fn p53_what_is_chosen_is_told_and_nothing_else() {
        let chosen = choice(&["hsn0", "172.16.0.0/12", "!172.16.9.0/24"]);
        assert_eq!(told(&chosen, "10.1.0.7", "hsn0"), Verdict::Told);
        assert_eq!(told(&chosen, "172.16.1.1", "mgmt0"), Verdict::Told);
        assert_eq!(told(&chosen, "172.16.9.1", "mgmt0"), Verdict::LeftOut(Reason::Excluded));
        assert_eq!(told(&chosen, "192.168.1.2", "mgmt0"), Verdict::LeftOut(Reason::NotChosen));
        assert_eq!(told(&chosen, "127.0.0.1", "lo"), Verdict::LeftOut(Reason::NotChosen));
        assert_eq!(told(&chosen, "172.17.0.1", "docker0"), Verdict::LeftOut(Reason::ContainerBridge));
        assert_eq!(told(&choice(&["docker0"]), "172.17.0.1", "docker0"), Verdict::Told, "who names it means it");
        assert_eq!(told(&choice(&["lo"]), "127.0.0.1", "lo"), Verdict::Told);
        let but_one = choice(&["!mgmt0"]);
        assert_eq!(told(&but_one, "10.1.0.7", "hsn0"), Verdict::Told);
        assert_eq!(told(&but_one, "192.168.1.2", "mgmt0"), Verdict::LeftOut(Reason::Excluded));
        assert_eq!(told(&but_one, "127.0.0.1", "lo"), Verdict::Spare);
    }

    #[test]
    fn p53_what_matches_nothing_is_known() {
        let here = Interfaces(vec![("lo".into(), [127, 0, 0, 1].into()), ("hsn0".into(), [10, 1, 0, 7].into())]);
        assert_eq!(here.names(), ["hsn0", "lo"]);
        assert_eq!(here.of([10, 1, 0, 7].into()), ["hsn0"]);
        assert!(choice(&["hsn0", "10.0.0.0/8", "!127.0.0.1"]).unmatched(&here).is_empty());
        assert_eq!(choice(&["hsn1", "192.168.0.0/16", "!ib0"]).unmatched(&here), ["hsn1", "192.168.0.0/16", "!ib0"]);
    }
}
