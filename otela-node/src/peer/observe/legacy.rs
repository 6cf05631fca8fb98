//! The registry in the JSON shape of OpenTela's Go implementation: an object from `/<peer id>` to a peer.

use super::{Observed, json::roles};
use axum::{Json, extract::State};
use libp2p::PeerId;
use otela_proto::{
    lifecycle::Lifecycle,
    payload::{Payload, Role},
    registry::{Belief, Node},
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

const MIB: u64 = 1024 * 1024;

/// Present nodes only, as there.
pub(super) async fn table(State(observed): State<Observed>) -> Json<Value> {
    let view = observed.peer.view();
    let connected = view.nodes().filter(|(_, node)| node.is_listed() && node.belief == Belief::Alive);
    Json(Value::Object(connected.map(|(id, node)| (format!("/{id}"), peer(id, node))).collect::<Map<_, _>>()))
}

/// Addresses of the peers that others can join through.
pub(super) async fn bootstraps(State(observed): State<Observed>) -> Json<Value> {
    let view = observed.peer.view();
    let public = view.nodes().filter(|(_, node)| {
        let payload = node.entry.payload();
        node.is_listed() && (payload.has_role(Role::Relay) || payload.has_role(Role::Ingress))
    });
    let addresses: Vec<_> = public
        .flat_map(|(id, node)| {
            node.entry.payload().multiaddrs().map(move |address| format!("{address}/p2p/{id}")).collect::<Vec<_>>()
        })
        .collect();
    Json(json!({"bootstraps": addresses}))
}

fn peer(id: &PeerId, node: &Node) -> Value {
    let payload = node.entry.payload();
    let services = services(payload);
    let count = services.len();
    let hostname = payload.hardware.as_ref().map_or("", |h| h.hostname.as_str());
    json!({
        "id": id.to_string(),
        "latency": 0,
        "privileged": false,
        "owner": "",
        // There, as here, it is what routing by trust goes by: only what is proven.
        "provider_id": node.provider.verified().map(ToString::to_string).unwrap_or_default(),
        "current_offering": [],
        "role": legacy_roles(payload),
        "status": status(node),
        "available_offering": [],
        "service": services,
        "last_seen": node.entry.issued_at_ms() / 1000,
        "version": payload.software,
        "public_address": "",
        "public_port": "",
        "hardware": hardware(payload),
        "relay_peer": "",
        "connected": true,
        "load": [],
        "capabilities": [],
        "service_name_counts": if count == 0 { json!({}) } else { json!({"llm": count}) },
        "labels": labels(payload),
        "hostname": hostname,
    })
}

/// The labelled fork that production tools read tells by labels also what we have fields for. What the provider says wins.
fn labels(payload: &Payload) -> BTreeMap<String, String> {
    let at = |ms: u64| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(ms)).to_string();
    let service = payload.services.first();
    let known = [
        ("framework", service.map(|service| service.engine.clone())),
        ("served_model_name", service.and_then(|service| service.models.first()).map(|model| model.id.clone())),
        ("started_at", (payload.started_at_ms > 0).then(|| at(payload.started_at_ms))),
        ("expires_at", payload.ends_at_ms.map(at)),
    ];
    let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    known.chain(payload.labels.clone()).collect()
}

/// The labelled fork that production tools read says `pending`, `ready` or `left`.
fn status(node: &Node) -> &'static str {
    match node.entry.rank().lifecycle {
        Lifecycle::Join => "pending",
        Lifecycle::Serving => "ready",
        Lifecycle::Down | Lifecycle::Left => "left",
    }
}

fn legacy_roles(payload: &Payload) -> Vec<&'static str> {
    let rename = |role| match role {
        "node" => "worker",
        "ingress" => "head",
        other => other,
    };
    roles(payload).into_iter().map(rename).collect()
}

fn services(payload: &Payload) -> Vec<Value> {
    let ready = payload.services.iter().filter(|service| service.loading.is_empty());
    ready
        .map(|service| {
            let groups: Vec<_> = service.models.iter().map(|model| format!("model={}", model.id)).collect();
            // Engines are never reachable from outside their host, so neither host nor port is told.
            json!({
                "name": service.name,
                "hardware": {"gpus": null, "host_memory": 0, "host_memory_bandwidth": 0, "host_memory_used": 0},
                "status": "connected",
                "host": "localhost",
                "port": "",
                "identity_group": groups,
            })
        })
        .collect()
}

fn hardware(payload: &Payload) -> Value {
    let Some(hardware) = &payload.hardware else { return json!({"gpus": []}) };
    let gpus: Vec<_> = hardware
        .accelerators
        .iter()
        .flat_map(|a| {
            let gpu = json!({"name": a.name, "total_memory": a.memory_bytes / MIB, "used_memory": 0});
            std::iter::repeat_n(gpu, a.count as usize)
        })
        .collect();
    json!({"gpus": gpus, "host_memory": hardware.memory_bytes / MIB, "host_memory_bandwidth": 0, "host_memory_used": 0})
}
