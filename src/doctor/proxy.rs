//! Whether the environment names a proxy, and whether one seems to be needed.

use super::{
    bootstraps::{Met, Over},
    finding::Finding,
};
use otela_node::peer::{Proxy, ProxyError};

/// One is named that peers cannot use.
pub(super) fn unusable((variable, error): (&str, ProxyError)) -> Finding {
    let advice = "peers go without it; if nothing else gets out, name an HTTP proxy there";
    Finding::warn("proxy", format!("what {variable} names is not used: {error}"), advice)
}

/// `proxy` is the one that peers would use.
pub(super) fn check(proxy: Option<&Proxy>, met: &[Met]) -> Finding {
    let check = "proxy";
    let reached = |through: bool| met.iter().any(|met| (met.over == Over::Proxy) == through && met.is_answered());
    match proxy.map(Proxy::place) {
        None if reached(false) || met.is_empty() => Finding::ok(check, "none is set in the environment"),
        None => {
            let advice = "if only a proxy leads out of this site, set https_proxy to its address";
            Finding::warn(check, "none is set in the environment, and no bootstrap is reached without one", advice)
        }
        Some(proxy) if reached(false) => {
            Finding::ok(check, format!("{proxy} is set, and not needed for the bootstraps"))
        }
        Some(proxy) if reached(true) => Finding::ok(check, format!("{proxy} is the way out")),
        Some(proxy) => {
            let advice = "see that the proxy is up, that it lets CONNECT through to the bootstraps' port (many allow 443 alone), \
                          and that no_proxy does not name them";
            Finding::warn(check, format!("{proxy} is set, and no bootstrap is reached"), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn no_proxy_and_nobody_to_reach_is_well() {
        assert_eq!(check(None, &[]).verdict, Verdict::Ok);
        let proxy = Proxy::new("http://me:secret@proxy.site:3128", "").unwrap();
        let said = check(Some(&proxy), &[]).says;
        assert!(said.contains("proxy.site:3128") && !said.contains("secret"), "{said}");
    }
}
