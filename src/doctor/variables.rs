//! The proxy variables, as other programs read them: an engine, its downloads, and whoever asks it by hand. Otela itself
//! never goes through a proxy to its engine, whatever they say.

use super::finding::Finding;
use std::net::IpAddr;

const CHECK: &str = "proxy variables";

/// What one variable says: its name, its value in small letters, and in capitals. Empty is not set.
pub(super) type Spelled<'a> = (&'static str, &'a str, &'a str);

/// What is to be said of them.
pub(super) fn judge(variables: &[Spelled<'_>]) -> Vec<Finding> {
    let mut findings: Vec<_> = variables.iter().filter_map(of_spelling).collect();
    let value =
        |(_, lower, upper): &Spelled<'_>| if lower.is_empty() { (*upper).to_owned() } else { (*lower).to_owned() };
    let of = |name: &str| variables.iter().find(|variable| variable.0 == name).map(value).unwrap_or_default();
    let set: Vec<_> =
        variables.iter().filter(|of| of.0 != "no_proxy" && !value(of).is_empty()).map(|of| of.0).collect();
    if set.is_empty() {
        return findings;
    }
    let no_proxy = of("no_proxy");
    let exceptions: Vec<_> = no_proxy.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let missing: Vec<_> =
        ["127.0.0.1", "localhost"].into_iter().filter(|host| !is_excepted(host, &exceptions)).collect();
    if !missing.is_empty() {
        let says = format!(
            "{} set, and no_proxy does not have {}: otela does not mind, but curl or a script that asks the engine goes \
             to the proxy",
            are(&set),
            missing.join(" and ")
        );
        findings.push(Finding::note(CHECK, says, "add localhost,127.0.0.1,::1 to no_proxy"));
    }
    let networks: Vec<_> = exceptions.iter().copied().filter(|word| is_network(word)).collect();
    if !networks.is_empty() {
        let says = format!(
            "no_proxy has networks ({}): otela knows them, and Python's urllib, wget and curl before 7.86 take them for \
             names",
            networks.join(", ")
        );
        findings.push(Finding::warn(
            CHECK,
            says,
            "add the addresses themselves, or names and domains, for what an engine is to reach",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{} set, and this machine itself is excepted", are(&set))));
    }
    findings
}

fn are(names: &[&str]) -> String {
    format!("{} {}", names.join(" and "), if names.len() == 1 { "is" } else { "are" })
}

/// Programs disagree on which of two spellings counts.
fn of_spelling((name, lower, upper): &Spelled<'_>) -> Option<Finding> {
    let capitals = name.to_uppercase();
    if !lower.is_empty() && !upper.is_empty() && lower != upper {
        // The values may have passwords in them.
        let says =
            format!("{name} and {capitals} say different things, and which of them counts differs between programs");
        return Some(Finding::warn(CHECK, says, format!("set both to the same, or unset {capitals}")));
    }
    // Because a web server passes a client's header `Proxy` on as this variable, curl and others do not read it.
    (*name == "http_proxy" && lower.is_empty() && !upper.is_empty()).then(|| {
        Finding::warn(
            CHECK,
            "HTTP_PROXY is set and http_proxy is not, which is the one that curl reads",
            "set http_proxy too",
        )
    })
}

/// Whether even simple programs take this host for one of the exceptions.
fn is_excepted(host: &str, exceptions: &[&str]) -> bool {
    exceptions.iter().any(|word| *word == "*" || word.trim_start_matches('.').eq_ignore_ascii_case(host))
}

fn is_network(word: &str) -> bool {
    word.split_once('/').is_some_and(|(ip, bits)| ip.parse::<IpAddr>().is_ok() && bits.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    const SITE: &str = "http://proxy.site:3128";

    fn told(http: (&'static str, &'static str), no_proxy: (&'static str, &'static str)) -> Vec<(Verdict, String)> {
        let variables = [
            ("http_proxy", http.0, http.1),
            ("https_proxy", "", ""),
            ("all_proxy", "", ""),
            ("no_proxy", no_proxy.0, no_proxy.1),
        ];
        judge(&variables).into_iter().map(|found| (found.verdict, found.says)).collect()
    }

    #[test]
    fn p52_a_proxy_that_takes_what_is_meant_for_this_machine_is_told() {
        assert_eq!(told(("", ""), ("10.0.0.0/8", "")), [], "without a proxy nothing is excepted");
        let all = told((SITE, ""), ("", ""));
        assert!(all.len() == 1 && all[0].0 == Verdict::Ok && all[0].1.contains("127.0.0.1 and localhost"), "{all:?}");
        let name = told((SITE, ""), ("localhost, .site", ""));
        assert!(name.len() == 1 && name[0].1.contains("does not have 127.0.0.1:"), "{name:?}");
        for no_proxy in ["127.0.0.1,localhost", "*", "127.0.0.1 LOCALHOST"] {
            let well = told((SITE, ""), (no_proxy, ""));
            assert!(well.len() == 1 && well[0].1.contains("is excepted"), "{well:?}");
        }
    }

    #[test]
    fn p52_networks_are_names_to_some() {
        let networks = told((SITE, ""), ("", "127.0.0.1,localhost,10.0.0.0/8,fd00::/8,a/b"));
        assert!(networks.len() == 1 && networks[0].0 == Verdict::Warn, "{networks:?}");
        assert!(networks[0].1.contains("(10.0.0.0/8, fd00::/8)"), "{networks:?}");
        let near = told((SITE, ""), ("127.0.0.0/8,localhost", ""));
        assert_eq!(near.len(), 2, "the network is not enough for simple programs: {near:?}");
    }

    #[test]
    fn spellings_that_differ_are_told_without_their_passwords() {
        let differ = told((SITE, "http://me:secret@other:1"), ("localhost,127.0.0.1", ""));
        assert!(differ.len() == 1 && differ[0].0 == Verdict::Warn && differ[0].1.contains("HTTP_PROXY"), "{differ:?}");
        assert!(!differ[0].1.contains("secret"));
        assert!(told((SITE, SITE), ("localhost,127.0.0.1", ""))[0].0 == Verdict::Ok);
        let capitals = told(("", SITE), ("localhost,127.0.0.1", ""));
        assert!(capitals.len() == 1 && capitals[0].1.contains("curl"), "{capitals:?}");
    }
}
