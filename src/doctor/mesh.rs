//! Whether the mesh is heard, and whether this machine's clock agrees with it.

use super::{bootstraps::Met, finding::Finding};
use crate::cli::As;
use otela_node::peer::Peer;
use otela_proto::entry::CLOCK_SLACK;
use std::time::Duration;
use tokio::time::timeout;

/// A clock that is off by more is worth a line.
const SKEW_WARN: Duration = Duration::from_secs(60);
/// Neighbours' clocks are compared every few seconds.
const COMPARED_WITHIN: Duration = Duration::from_secs(12);

/// Whether what the mesh knows has come here.
pub(super) async fn joined(peer: &Peer, met: &[Met], role: As, within: Duration) -> Finding {
    let check = "mesh";
    if met.is_empty() {
        let says = "no --bootstrap was given";
        return match role {
            As::Relay => Finding::ok(check, format!("{says}: this relay begins a mesh of its own")),
            As::Node | As::Ingress => {
                Finding::fail(check, says, "give the address that a relay of the mesh logs at its start")
            }
        };
    }
    if met.iter().all(|met| met.outcome.is_err()) {
        let advice = "see above what is in the way to each of them";
        let refused = met.iter().any(|met| met.outcome.as_ref().is_err_and(|why| why.contains("refuses")));
        let says =
            if refused { "whoever answers refuses this peer" } else { "no bootstrap is reached over any transport" };
        return Finding::fail(check, says, advice);
    }
    let mut changes = peer.view_changes();
    let heard = async { while peer.view().nodes().next().is_none() && changes.changed().await.is_ok() {} };
    if timeout(within, heard).await.is_err() {
        let says = format!("a bootstrap is reached, and has said nothing of the mesh within {within:?}");
        return Finding::fail(check, says, "see its log for why entries are refused; compare the clocks of both");
    }
    let nodes = peer.view().nodes().filter(|(_, node)| node.is_listed()).count();
    Finding::ok(check, format!("{} is heard; peers: {nodes}, models: {}", peer.mesh(), peer.view().models().count()))
}

/// How far this machine's clock is off its neighbours'.
pub(super) async fn clock(peer: &Peer, met: &[Met]) -> Option<Finding> {
    if met.iter().all(|met| met.outcome.is_err()) {
        return None;
    }
    let skew_ms = timeout(COMPARED_WITHIN, peer.skew_measured()).await.ok();
    Some(of_skew(skew_ms))
}

fn of_skew(skew_ms: Option<i64>) -> Finding {
    let check = "clock";
    let Some(skew_ms) = skew_ms else {
        return Finding::ok(check, "no neighbour has told the time yet");
    };
    let off = Duration::from_millis(skew_ms.unsigned_abs());
    if off <= Duration::from_secs(1) {
        return Finding::ok(check, "agrees with the mesh's");
    }
    let direction = if skew_ms > 0 { "behind" } else { "ahead of" };
    let says = format!("{} {direction} the mesh's", humantime::format_duration(off));
    let advice = "set it against a time server";
    if off > CLOCK_SLACK {
        Finding::fail(check, format!("{says}: what this machine says is refused"), advice)
    } else if off > SKEW_WARN {
        Finding::warn(check, says, advice)
    } else {
        Finding::ok(check, says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn p41_a_clock_that_is_off_is_judged_by_how_much() {
        for (skew_ms, verdict, says) in [
            (Some(-20), Verdict::Ok, "agrees"),
            (Some(-20_000), Verdict::Ok, "20s ahead of"),
            (Some(90_000), Verdict::Warn, "1m 30s behind"),
            (Some(10_800_000), Verdict::Fail, "refused"),
            (None, Verdict::Ok, "no neighbour"),
        ] {
            let finding = of_skew(skew_ms);
            assert!(finding.verdict == verdict && finding.says.contains(says), "{finding:?}");
        }
    }
}
