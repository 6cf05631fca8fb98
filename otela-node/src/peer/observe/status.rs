//! What this peer is and how it stands: the answer behind `otela status`.

use super::{
    Observed,
    json::{self as render, roles},
};
use crate::peer::{
    Peer, Reach,
    defaults::{EXPIRES_SOON, SKEW_WARN},
    gossip::unix_ms,
};
use otela_proto::{
    admission::{Credentials, Refused, Validity},
    entry::Refusal,
    lifecycle::Lifecycle,
    provider::{Provider, Unproven},
    registry::{Node, View},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

/// This peer, from its own view, connections and counters.
pub(super) fn status(observed: &Observed) -> Value {
    let peer = &observed.peer;
    let view = peer.view();
    let node = view.node(&peer.id());
    let own = node.map(|node| &node.entry);
    let refusals = peer.refusals();
    let reach = peer.reach();
    let mut warnings = warnings(peer.not_joined().as_deref(), &refusals);
    let troubles = peer.troubles();
    let is_alone = peer.has_joined() && peer.connections().is_empty() && !troubles.is_empty();
    warnings.extend(alone_warning(is_alone));
    warnings.extend(refused_warning(&peer.refuses_us()));
    warnings.extend(
        peer.unusable_mesh_file().map(|error| {
            ("mesh_file", format!("The mesh file cannot be used, and the rules of before count: {error}."))
        }),
    );
    warnings.extend(choice_warning(&reach));
    warnings.extend(reach_warning(&reach, peer.has_joined()));
    warnings.extend(clock_warning(peer.skew_ms()));
    warnings.extend(expiry_warnings(&peer.admission().1, unix_ms()));
    warnings.extend(peer.tls().and_then(|tls| expiry_warning("The TLS certificate of this peer", tls, unix_ms())));
    let provider = node.map(|node| node.provider).unwrap_or_default();
    warnings.extend(provider_warning(provider, peer.inner.provider_of_file, unix_ms()));
    json!({
        "id": peer.id().to_string(),
        "session": peer.session(),
        "mesh": peer.mesh().as_str(),
        "software": own.map(|entry| &entry.payload().software),
        "roles": own.map_or_else(Vec::new, |entry| roles(entry.payload())),
        "lifecycle": own.map(|entry| entry.rank().lifecycle),
        "started_at_ms": own.map(|entry| entry.payload().started_at_ms),
        "provider": node.and_then(render::provider),
        "joined": peer.has_joined(),
        "clock_skew_ms": peer.skew_ms(),
        "reach": {
            "reachable": reach.is_reachable() && !is_alone,
            "dialled": reach.is_dialled,
            "relays": reach.relays.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "relays_known": reach.relays_known,
            "left_out": reach.left_out.iter().map(|left| json!({
                "address": left.address.to_string(),
                "interface": left.interface,
                "reason": left.reason.text(),
            })).collect::<Vec<_>>(),
        },
        "addresses": peer.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "nodes": nodes(&view),
        "models": models(&view),
        "connections": connections(peer),
        "troubles": troubles.iter().map(|(bootstrap, error)| json!({"bootstrap": bootstrap, "error": error})).collect::<Vec<_>>(),
        "admission": admission(peer),
        "watchers": observed.counters.watchers.get(),
        "refused": refusals.iter().map(|(what, reason, count)| json!({"what": what, "reason": reason, "count": count})).collect::<Vec<_>>(),
        "warnings": warnings.iter().map(|(code, message)| json!({"code": code, "message": message})).collect::<Vec<_>>(),
    })
}

/// Whom the mesh admits, and what this peer shows.
fn admission(peer: &Peer) -> Value {
    let (rules, shown) = peer.admission();
    json!({
        "open": rules.is_open(),
        "require_signed": rules.require_signed,
        "members_only": !rules.authorities.is_empty(),
        "release": shown.release.map(|release| json!({
            "version": release.version.to_string(),
            "digest": release.digest.to_string(),
            "key": release.key.to_string(),
            "expires_at_ms": release.validity.until_ms,
        })),
        "membership": shown.membership.map(|membership| json!({
            "key": membership.authority.to_string(),
            "expires_at_ms": membership.validity.until_ms,
        })),
    })
}

/// How many nodes the view holds, and of those that are listed, how many by what they say and by what is believed.
fn nodes(view: &View) -> Value {
    let listed: Vec<&Node> = view.nodes().map(|(_, node)| node).filter(|node| node.is_listed()).collect();
    let mut by_lifecycle: Map<_, _> =
        Lifecycle::ALL.iter().filter(|s| **s != Lifecycle::Left).map(|s| (s.name().to_owned(), json!(0))).collect();
    let mut by_belief: Map<_, _> =
        ["alive", "unreachable", "suspect"].into_iter().map(|name| (name.to_owned(), json!(0))).collect();
    for node in &listed {
        count(&mut by_lifecycle, node.entry.rank().lifecycle.name());
        count(&mut by_belief, node.belief.name());
    }
    json!({
        "listed": listed.len(),
        "departed": view.nodes().count() - listed.len(),
        "by_lifecycle": by_lifecycle,
        "by_belief": by_belief,
    })
}

fn count(counts: &mut Map<String, Value>, name: &str) {
    let before = counts.get(name).and_then(Value::as_u64).unwrap_or(0);
    counts.insert(name.to_owned(), json!(before + 1));
}

fn models(view: &View) -> Value {
    let (mut ready, mut unready) = (0, 0);
    for (_, state) in view.models() {
        *if state.ready.is_empty() { &mut unready } else { &mut ready } += 1;
    }
    json!({"ready": ready, "unready": unready})
}

/// One element for each connected peer: the connection that a request would take.
fn connections(peer: &Peer) -> Vec<Value> {
    let peers: BTreeMap<_, _> = peer.connections().iter().map(|c| (c.peer(), ())).collect();
    let best = peers.keys().filter_map(|id| peer.connection(id));
    best.map(|connection| {
        let rtt_ms = connection.rtt().map(|rtt| rtt.as_secs_f64() * 1e3);
        json!({
            "peer": connection.peer().to_string(),
            "path": connection.path().name(),
            "address": connection.remote().to_string(),
            "carrier": connection.carrier().name(),
            "proxied": connection.is_proxied(),
            "rtt_ms": rtt_ms,
        })
    })
    .collect()
}

/// What somebody should look at: a code, and a line that says what to do.
fn warnings(not_joined: Option<&str>, refusals: &[(&'static str, &'static str, u64)]) -> Vec<(&'static str, String)> {
    let mut warnings = Vec::new();
    if let Some(reason) = not_joined {
        let message = format!(
            "Not part of the mesh: {reason}. Check the addresses given with --bootstrap, and the clock against a time server."
        );
        warnings.push(("not_joined", message));
    }
    let future =
        |(what, reason, _): &&(&str, &str, u64)| *what == "entries" && *reason == Refusal::FromTheFuture.reason();
    if let Some((_, _, count)) = refusals.iter().find(future) {
        let message = format!(
            "{count} entries were refused because they come from the future: either this machine's clock is late or theirs is early. Compare it with a time server."
        );
        warnings.push(("from_the_future", message));
    }
    if let Some((_, _, count)) = refusals.iter().find(|(what, _, _)| *what == "strangers") {
        let message = format!(
            "{count} connections were closed because the peer does not speak this version's gossip: compare the versions on both sides."
        );
        warnings.push(("strangers", message));
    }
    warnings
}

/// It was there, and knows what it knew then.
fn alone_warning(is_alone: bool) -> Option<(&'static str, String)> {
    is_alone.then(|| {
        let message = "No peer is connected, so that what is shown of the mesh is of earlier. It goes on trying.";
        ("alone", message.to_owned())
    })
}

/// An interface that is not there is no error; but it may be a slip.
fn choice_warning(reach: &Reach) -> Option<(&'static str, String)> {
    (!reach.unmatched.is_empty()).then(|| {
        let names = reach.unmatched.join(", ");
        let message =
            format!("--announce names what this machine does not have now: {names}. `ip address` shows what it has.");
        ("announce_unmatched", message)
    })
}

/// The words are those that the other side logs.
fn refused_warning(refuses_us: &[Refused]) -> Option<(&'static str, String)> {
    let refused = refuses_us.first()?;
    Some(("refused_by_peers", format!("Other peers refuse this one: {refused}.")))
}

fn reach_warning(reach: &Reach, has_joined: bool) -> Option<(&'static str, String)> {
    (has_joined && !reach.is_reachable()).then(|| {
        let known = reach.relays_known.unwrap_or(0);
        let message = format!(
            "Nobody who has not met this peer can reach it: none of the {known} known relays relays for it, and nobody has connected to an address of its own. See its log for why relays refuse, start another relay, or tell it --external."
        );
        ("unreachable", message)
    })
}

/// What this peer shows will soon be worth nothing.
fn expiry_warnings(shown: &Credentials, now_ms: u64) -> Vec<(&'static str, String)> {
    let release = shown.release.as_ref().map(|release| ("The signature of this binary", release.validity));
    let membership = shown.membership.as_ref().map(|membership| ("The membership of this peer", membership.validity));
    let all = release.into_iter().chain(membership);
    all.filter_map(|(what, validity)| expiry_warning(what, validity, now_ms)).collect()
}

fn expiry_warning(what: &str, validity: Validity, now_ms: u64) -> Option<(&'static str, String)> {
    let left = Duration::from_millis(validity.until_ms.saturating_sub(now_ms));
    if validity.begins_after(now_ms) {
        Some(("not_yet_valid", format!("{what} is not valid yet: compare the clock with a time server, or wait.")))
    } else if validity.has_ended(now_ms) {
        Some(("expired", format!("{what} has expired: have it renewed. Others refuse this peer.")))
    } else if left < EXPIRES_SOON {
        let left = shown(left);
        Some(("expires_soon", format!("{what} ends in {left}: have it renewed, or others will refuse this peer.")))
    } else {
        None
    }
}

/// `of_file`: whether somebody else has to renew the certificate.
fn provider_warning(provider: Provider, of_file: bool, now_ms: u64) -> Option<(&'static str, String)> {
    match provider {
        Provider::Unverified { why, .. } if why != Unproven::NoCertificate => {
            let message = format!(
                "The provider of this node is not verified: {why}. Whoever asks for trusted providers passes it over."
            );
            Some(("provider_unverified", message))
        }
        Provider::Verified { until_ms, .. } if of_file => {
            let left = Duration::from_millis(until_ms.saturating_sub(now_ms));
            (left < EXPIRES_SOON).then(|| {
                let left = shown(left);
                let message = format!(
                    "The provider certificate of this node ends in {left}: have it renewed, or its provider will not be verified any more."
                );
                ("expires_soon", message)
            })
        }
        Provider::Unverified { .. } | Provider::Verified { .. } | Provider::None => None,
    }
}

/// A time in whole minutes.
fn shown(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(time.as_secs() / 60 * 60))
}

/// `skew_ms`: how far the neighbours' clocks are ahead of ours.
fn clock_warning(skew_ms: Option<i64>) -> Option<(&'static str, String)> {
    let off = Duration::from_millis(skew_ms?.unsigned_abs());
    let direction = if skew_ms? > 0 { "behind" } else { "ahead of" };
    (off > SKEW_WARN).then(|| {
        let seconds = off.as_secs();
        let message = format!(
            "This machine's clock is {seconds} s {direction} its neighbours' (median): set it. Beyond two hours what one side says is refused by the other."
        );
        ("clock_skew", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;
    use libp2p::identity::Keypair;
    use otela_proto::{
        admission::{BinaryDigest, Release},
        provider::ProviderId,
    };

    #[test]
    fn warnings_say_what_to_do_and_are_silent_when_all_is_well() {
        assert!(warnings(None, &[("entries", "malformed", 3)]).is_empty());
        let codes =
            |warnings: Vec<(&'static str, String)>| warnings.into_iter().map(|(code, _)| code).collect::<Vec<_>>();
        assert_eq!(codes(warnings(Some("no bootstrap has answered yet"), &[])), ["not_joined"]);
        let refused = [("entries", "from_the_future", 3), ("strangers", "no_gossip", 1)];
        assert_eq!(codes(warnings(None, &refused)), ["from_the_future", "strangers"]);
        assert!(refused_warning(&[]).is_none());
        let (_, line) = refused_warning(&[Refused::TooOld, Refused::Unsigned]).unwrap();
        assert!(line.contains("refuse this one: its version is older"), "{line}");
    }

    #[test]
    fn p45_a_peer_that_nobody_could_reach_is_warned_of_once_that_is_known() {
        let mut reach = Reach::default();
        assert!(!reach.is_reachable() && reach_warning(&reach, false).is_none(), "it has not been told yet");
        reach.relays_known = Some(2);
        assert!(reach_warning(&reach, true).is_some_and(|(_, line)| line.contains("2 known relays")));
        assert!(Reach { relays_known: Some(0), ..Reach::default() }.is_reachable(), "nothing better can be had");
        assert!(Reach { is_dialled: true, ..reach.clone() }.is_reachable());
        assert!(Reach { relays: vec![PeerId::random()], ..reach }.is_reachable());
    }

    #[test]
    fn what_ends_within_days_is_said_before_it_does() {
        let day_ms = 86_400_000;
        let release = |until_ms| Release {
            digest: BinaryDigest::of(b"x"),
            version: "1.0.0".parse().unwrap(),
            validity: Validity { from_ms: 0, until_ms },
            key: PeerId::random(),
        };
        let warnings =
            |until_ms| expiry_warnings(&Credentials { release: Some(release(until_ms)), membership: None }, 0);
        assert!(warnings(30 * day_ms).is_empty());
        let told = |until_ms| warnings(until_ms).remove(0);
        assert!(told(2 * day_ms).1.contains("ends in 2days:"), "{:?}", told(2 * day_ms));
        assert!(told(600_000).1.contains("ends in 10m:"));
        assert_eq!(told(0).0, "expired");
        let later = Release { validity: Validity { from_ms: day_ms, until_ms: 9 * day_ms }, ..release(0) };
        let later = Credentials { release: Some(later), membership: None };
        assert_eq!(expiry_warnings(&later, 0)[0].0, "not_yet_valid");
    }

    #[test]
    fn what_a_node_shows_of_its_provider_is_warned_of_when_it_does_not_count_or_ends_soon() {
        let id = ProviderId::of(&Keypair::generate_ed25519()).unwrap();
        let code = |provider, of_file| provider_warning(provider, of_file, 0).map(|(code, _)| code);
        let day_ms = 86_400_000;
        let verified = |until_ms| Provider::Verified { id, until_ms };
        let unverified = |why| Provider::Unverified { claimed: None, why };
        assert_eq!(code(verified(2 * day_ms), false), None, "it is renewed by itself");
        assert_eq!(code(verified(2 * day_ms), true), Some("expires_soon"));
        assert_eq!(code(verified(30 * day_ms), true), None);
        assert_eq!(code(unverified(Unproven::RevokedKey), false), Some("provider_unverified"));
        assert_eq!(code(unverified(Unproven::NoCertificate), false), None, "a label is nobody's fault");
        assert_eq!(code(Provider::None, true), None);
    }

    #[test]
    fn p53_a_choice_that_matches_nothing_is_warned_of() {
        assert!(choice_warning(&Reach::default()).is_none());
        let reach = Reach { unmatched: vec!["hsn0".into(), "!10.0.0.0/8".into()], ..Reach::default() };
        assert!(choice_warning(&reach).is_some_and(|(_, line)| line.contains("hsn0, !10.0.0.0/8")));
    }

    #[test]
    fn p41_a_clock_that_is_off_is_said_by_how_much_and_which_way() {
        assert_eq!(clock_warning(None), None);
        assert_eq!(clock_warning(Some(-30_000)), None);
        let (_, line) = clock_warning(Some(-3_600_000)).unwrap();
        assert!(line.contains("3600 s ahead of"), "{line}");
        let (_, line) = clock_warning(Some(600_000)).unwrap();
        assert!(line.contains("600 s behind"), "{line}");
    }
}
