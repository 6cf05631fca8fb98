//! Whether the environment names a proxy, and whether one seems to be needed.

use super::{bootstraps::Met, finding::Finding};
use crate::cli::ProxyArgs;

pub(super) fn check(proxies: &ProxyArgs, met: &[Met]) -> Finding {
    let check = "proxy";
    let is_reached = met.iter().any(|met| met.outcome.is_ok());
    let except = proxies.exceptions().map_or_else(String::new, |hosts| format!(", except for {hosts}"));
    match proxies.proxy() {
        None if is_reached || met.is_empty() => Finding::ok(check, "none is set in the environment"),
        None => {
            let advice = "if only a proxy leads out of this site, set https_proxy to its address";
            Finding::warn(check, "none is set in the environment, and no bootstrap is reached without one", advice)
        }
        Some(proxy) if is_reached => {
            Finding::ok(check, format!("{proxy} is set{except}, and not needed for the bootstraps"))
        }
        Some(proxy) => {
            let advice = "see that the proxy is up, that it lets CONNECT through to the bootstraps' port (many allow 443 alone), \
                          and that no_proxy does not name them";
            Finding::warn(check, format!("{proxy} is set{except}, and no bootstrap is reached"), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn no_proxy_and_nobody_to_reach_is_well() {
        assert_eq!(check(&ProxyArgs::default(), &[]).verdict, Verdict::Ok);
    }
}
