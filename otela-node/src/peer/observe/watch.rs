//! The registry as server-sent events: everything once, then each change.
//!
//! A watcher remembers only up to where it was told everything. What is new to it is looked up when it can take more,
//! and each node is shown as it is at that time: a slow reader gets the newest state of what has changed, and nobody
//! keeps a backlog for it. An event has an id only where all before it is told, so a reader that breaks off in between
//! comes back to the point before.

use super::{
    Observed, Refused,
    history::{News, Seen},
    json as render,
    query::{BadParameter, Parameters},
};
use axum::{
    extract::State,
    http::{HeaderMap, Uri},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::stream;
use libp2p::PeerId;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use std::{collections::BTreeSet, convert::Infallible, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Watchers at once; more are refused.
pub(super) const WATCHERS_MAX: usize = 128;
/// Nodes in one event of a snapshot.
const PART_NODES: usize = 256;
/// A comment is sent after so much silence.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// For clients that cannot set the header.
const LAST_EVENT_ID: &str = "last_event_id";

pub(super) async fn watch(State(observed): State<Observed>, uri: Uri, headers: HeaderMap) -> Result<Response, Refused> {
    let seen = last_seen(&uri, &headers)?;
    let Some(place) = Place::take(&observed) else {
        observed.counters.watchers_refused.inc();
        return Err(Refused::TooManyWatchers);
    };
    let watcher = Watcher::new(observed, seen, place);
    let events =
        stream::unfold(watcher, async |mut watcher| Some((Ok::<_, Infallible>(watcher.next().await?), watcher)));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_EVERY)).into_response())
}

/// What the client says it was told last. What cannot be read was told by somebody else: it starts anew.
fn last_seen(uri: &Uri, headers: &HeaderMap) -> Result<Option<Seen>, BadParameter> {
    let parameters = Parameters::parse(uri, &[LAST_EVENT_ID])?;
    // The header is the later word: a client that connects again by itself repeats the query.
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let id = header.or(parameters.single(LAST_EVENT_ID)?);
    Ok(id.and_then(|id| id.trim().parse().ok()))
}

/// A place among the watchers, given back when it is dropped.
#[derive(Debug)]
struct Place {
    watchers: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn take(observed: &Observed) -> Option<Self> {
        let permit = observed.places.clone().try_acquire_owned().ok()?;
        let watchers = observed.counters.watchers.clone();
        watchers.inc();
        Some(Self { watchers, _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.watchers.dec();
    }
}

/// What is being told, one event at a time.
#[derive(Debug)]
enum Telling {
    /// All nodes in the order of their ids, from behind `after` on.
    Everything { after: Option<PeerId>, part: usize, upto: Seen },
    /// These nodes.
    Changed { left: BTreeSet<PeerId>, upto: Seen },
}

struct Watcher {
    observed: Observed,
    changes: watch::Receiver<u64>,
    /// Up to where it was told everything.
    seen: Option<Seen>,
    telling: Option<Telling>,
    _place: Place,
}

impl Watcher {
    fn new(observed: Observed, seen: Option<Seen>, place: Place) -> Self {
        Self { changes: observed.peer.view_changes(), observed, seen, telling: None, _place: place }
    }

    /// The next event; `None` ends the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(telling) = self.telling.take() {
                return Some(self.tell(telling));
            }
            self.changes.mark_unchanged();
            match self.observed.history.news(self.seen, self.observed.peer.view()) {
                News::Everything(upto) => self.telling = Some(Telling::Everything { after: None, part: 1, upto }),
                News::Changed(left, upto) if left.is_empty() => {
                    self.seen = Some(upto);
                    tokio::select! {
                        changed = self.changes.changed() => changed.ok()?,
                        () = self.observed.ending.cancelled() => return None,
                    }
                }
                News::Changed(left, upto) => self.telling = Some(Telling::Changed { left, upto }),
            }
        }
    }

    fn tell(&mut self, telling: Telling) -> Event {
        match telling {
            Telling::Everything { after, part, upto } => self.tell_part(after, part, upto),
            Telling::Changed { mut left, upto } => {
                let id = left.pop_first().expect("an empty set is not told");
                let is_last = left.is_empty();
                self.telling = (!is_last).then_some(Telling::Changed { left, upto });
                let view = self.observed.peer.view();
                match view.node(&id) {
                    Some(node) => {
                        self.event("node", &render::node(&self.observed.peer, &id, node), is_last.then_some(upto))
                    }
                    None => self.event("gone", &json!({"id": id.to_string()}), is_last.then_some(upto)),
                }
            }
        }
    }

    /// The next part of a snapshot. Nothing is kept for it: what changes between two parts is told after the last.
    fn tell_part(&mut self, after: Option<PeerId>, part: usize, upto: Seen) -> Event {
        let view = self.observed.peer.view();
        let listed = view.nodes().filter(|(_, node)| node.is_listed());
        let mut rest = listed.skip_while(|(id, _)| after.is_some_and(|after| **id <= after));
        let nodes: Vec<_> = rest.by_ref().take(PART_NODES).collect();
        let more = rest.next().is_some();
        let after = nodes.last().map(|(id, _)| **id);
        self.telling = more.then_some(Telling::Everything { after, part: part + 1, upto });
        let nodes: Vec<_> = nodes.into_iter().map(|(id, node)| render::node(&self.observed.peer, id, node)).collect();
        let data = json!({"part": part, "more": more, "nodes": nodes});
        self.event("snapshot", &data, (!more).then_some(upto))
    }

    /// An event; `upto` is given to the last one on the way there.
    fn event(&mut self, name: &str, data: &Value, upto: Option<Seen>) -> Event {
        let mut event = Event::default().event(name);
        if let Some(upto) = upto {
            self.seen = Some(upto);
            event = event.id(upto.to_string());
        }
        event.data(data.to_string())
    }
}

#[cfg(test)]
mod tests;
