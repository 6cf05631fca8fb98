//! The registry as server-sent events: everything once, then each change.
//!
//! A slow reader gets the newest state of what has changed since it last read, not a backlog.

use super::{Observed, json as render};
use axum::{
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, StreamExt, stream};
use otela_proto::registry::{Node, View};
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};

pub(super) async fn watch(State(observed): State<Observed>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changes = observed.peer.view_changes();
    let first = observed.peer.view();
    let snapshot = snapshot(&observed, &first);
    let rest = stream::unfold((observed, changes, first), async |(observed, mut changes, old)| {
        changes.changed().await.ok()?;
        let new = observed.peer.view();
        let events = difference(&observed, &old, &new);
        Some((stream::iter(events), (observed, changes, new)))
    });
    let events = stream::once(async { snapshot }).chain(rest.flatten()).map(Ok);
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}

fn snapshot(observed: &Observed, view: &View) -> Event {
    let listed = view.nodes().filter(|(_, node)| node.is_listed());
    let nodes: Vec<_> = listed.map(|(id, node)| render::node(&observed.peer, id, node)).collect();
    event("snapshot", view, &json!({"nodes": nodes}))
}

fn difference(observed: &Observed, old: &View, new: &Arc<View>) -> Vec<Event> {
    let changed = |id, node: &Node| {
        old.node(id).is_none_or(|before| before.entry.hash() != node.entry.hash() || before.belief != node.belief)
    };
    new.nodes()
        .filter(|(id, node)| changed(id, node))
        .map(|(id, node)| event("node", new, &render::node(&observed.peer, id, node)))
        .collect()
}

fn event(name: &str, view: &View, data: &Value) -> Event {
    Event::default().event(name).id(view.generation.to_string()).data(data.to_string())
}
