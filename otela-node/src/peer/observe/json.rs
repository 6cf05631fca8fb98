//! Nodes and models as JSON.

use crate::peer::Peer;
use libp2p::PeerId;
use otela_proto::{
    assignment::{Assigned, Offer},
    lifecycle::Lifecycle,
    payload::{Hardware, Payload, Role, Service},
    provider::{PROVIDER_LABEL, Provider},
    registry::{ModelState, Node},
};
use serde_json::{Value, json};

/// A node: what its owner said, and under `belief` what this peer thinks of it. Nothing here changes between two views,
/// so that two answers without a change between them are equal; round trips and paths are in `status`.
pub(super) fn node(peer: &Peer, id: &PeerId, node: &Node) -> Value {
    let entry = &node.entry;
    let payload = entry.payload();
    json!({
        "id": id.to_string(),
        "session": entry.session(),
        "lifecycle": entry.rank().lifecycle,
        "version": entry.rank().version,
        "draining": payload.draining,
        "roles": roles(payload),
        "hardware": payload.hardware.as_ref().map(hardware),
        "services": payload.services.iter().map(service).collect::<Vec<_>>(),
        "labels": payload.labels,
        "provider": provider(node),
        "ends_at_ms": payload.ends_at_ms,
        "started_at_ms": payload.started_at_ms,
        "issued_at_ms": entry.issued_at_ms(),
        "offer": payload.offer.as_ref().map(offer),
        "assigned": payload.assigned.as_ref().map(assigned),
        "claim": payload.claim.map(|claim| json!({"generation": claim.generation, "plan": claim.plan})),
        "software": payload.software,
        "addresses": payload.multiaddrs().map(|a| a.to_string()).collect::<Vec<_>>(),
        "belief": belief(peer, node),
    })
}

/// A model and the sessions that serve it.
pub(super) fn model(id: &str, state: &ModelState) -> Value {
    let replicas: Vec<_> = state
        .ready
        .iter()
        .map(|replica| {
            json!({
                "session": replica.session(),
                "node": replica.session().peer.to_string(),
                "engine": replica.service().engine,
                "engine_version": replica.service().engine_version,
                "context_length": unless_zero(replica.model().context_length),
                "root": replica.model().root,
            })
        })
        .collect();
    json!({"id": id, "ready": replicas.len(), "unready": state.unready, "replicas": replicas})
}

pub(super) fn roles(payload: &Payload) -> Vec<&'static str> {
    payload.roles.iter().filter_map(|role| Role::try_from(*role).ok()).map(Role::name).collect()
}

fn hardware(hardware: &Hardware) -> Value {
    let accelerators: Vec<_> = hardware
        .accelerators
        .iter()
        .map(|a| json!({"kind": a.kind, "name": a.name, "count": a.count, "memory_bytes": a.memory_bytes}))
        .collect();
    json!({
        "accelerators": accelerators,
        "hostname": hardware.hostname,
        "cpus": hardware.cpus,
        "memory_bytes": hardware.memory_bytes,
        "driver": hardware.driver,
    })
}

fn service(service: &Service) -> Value {
    let models: Vec<_> = service
        .models
        .iter()
        .map(|m| json!({"id": m.id, "context_length": unless_zero(m.context_length), "root": m.root}))
        .collect();
    json!({
        "name": service.name,
        "engine": service.engine,
        "engine_version": service.engine_version,
        "features": service.features,
        "loading": (!service.loading.is_empty()).then_some(&service.loading),
        "models": models,
    })
}

fn offer(offer: &Offer) -> Value {
    let templates = offer.templates.iter().map(|template| json!({"name": template.name, "models": template.models}));
    let schedulers = offer.schedulers.iter().filter_map(|key| PeerId::from_bytes(key).ok()).map(|key| key.to_string());
    json!({"templates": templates.collect::<Vec<_>>(), "schedulers": schedulers.collect::<Vec<_>>()})
}

fn assigned(assigned: &Assigned) -> Value {
    json!({
        "scheduler": PeerId::from_bytes(&assigned.scheduler).ok().map(|key| key.to_string()),
        "generation": assigned.generation,
        "plan": assigned.plan,
        "model": assigned.model,
        "template": assigned.template,
        "state": assigned.stage().name(),
        "reason": (!assigned.reason.is_empty()).then_some(&assigned.reason),
    })
}

/// For whom the node is run. What only it says has other names than what is proven, so that nobody takes the one for
/// the other by looking at a field too few.
pub(super) fn provider(node: &Node) -> Option<Value> {
    let name = node.entry.payload().labels.get(PROVIDER_LABEL);
    match node.provider {
        Provider::None => None,
        Provider::Unverified { claimed, why } => Some(json!({
            "verified": false,
            "reason": why.reason(),
            "claimed_id": claimed,
            "name": name,
        })),
        Provider::Verified { id, until_ms } => {
            Some(json!({"verified": true, "id": id, "until_ms": until_ms, "name": name}))
        }
    }
}

fn belief(peer: &Peer, node: &Node) -> Value {
    let mut accusations: Vec<_> = node.accusations.iter().collect();
    accusations.sort_unstable_by_key(|accusation| accusation.accuser());
    let accusations: Vec<_> = accusations
        .into_iter()
        .map(|accusation| {
            json!({
                "accuser": accusation.accuser().to_string(),
                "verdict": accusation.charge().verdict.name(),
                "issued_at_ms": accusation.issued_at_ms(),
            })
        })
        .collect();
    // Of one that has left by its own word there is nothing to believe.
    let has_left = node.entry.rank().lifecycle == Lifecycle::Left;
    json!({
        "state": (!has_left).then(|| node.belief.name()),
        "since_ms": node.belief.since().map(|since| peer.unix_ms_at(since)),
        "accusations": accusations,
    })
}

fn unless_zero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}
