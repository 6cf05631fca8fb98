//! Keeps what nodes write down of engines that failed: a relay or an ingress does, for an operator who cannot log in to them.
//!
//! Any peer that the mesh admits may send some, so there is a bound on everything: the size of each, how many of one peer in a
//! minute, and how many files, of which the oldest make room.

use crate::{
    agent::{POST_MORTEM_PATH, keep},
    peer::{Inbound, tunnel, tunnel::Caller},
    tasks::Tasks,
    telemetry::Metrics,
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, service::Service};
use otela_proto::PeerId;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    convert::Infallible,
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

/// Of one post-mortem.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Files that are kept.
const FILES_MAX: usize = 1_000;
/// Of one peer, in [`EVERY`].
const BY_PEER_MAX: u32 = 5;
const EVERY: Duration = Duration::from_mins(1);
/// A body comes at once.
const READ_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// Takes post-mortems from the mesh.
#[derive(Debug, Clone)]
struct Collector {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    lately: Mutex<HashMap<PeerId, (Instant, u32)>>,
    taken: Family<Outcome, Counter>,
}

/// Keeps in `folder` what comes by `requests`, until the queue closes.
pub async fn serve(folder: PathBuf, requests: mpsc::Receiver<Inbound>, tasks: Tasks, metrics: Metrics) {
    let taken = Family::<Outcome, Counter>::default();
    let shown = taken.clone();
    metrics.register(|r| {
        r.register("otela_post_mortems_received", "Post-mortems that nodes sent, by what became of them", shown);
    });
    let collector = Collector { shared: Arc::new(Shared { folder, lately: Mutex::default(), taken }) };
    tunnel::serve(requests, collector, tasks).await;
}

impl Collector {
    async fn take(&self, request: Request<Incoming>) -> (StatusCode, &'static str, Value) {
        let refuse = |status, outcome: &'static str, why: &str| (status, outcome, json!({"error": {"message": why}}));
        let Some(Caller(peer)) = request.extensions().get::<Caller>().copied() else {
            return refuse(StatusCode::FORBIDDEN, "nameless", "nobody knows who sends this");
        };
        if request.uri().path() != POST_MORTEM_PATH || request.method() != Method::POST {
            return refuse(StatusCode::NOT_FOUND, "unknown", "only post-mortems are taken here");
        }
        if !self.may_send(peer) {
            return refuse(StatusCode::TOO_MANY_REQUESTS, "too_many", "too many of this peer in a minute");
        }
        let body = timeout(READ_WITHIN, Limited::new(request.into_body(), BYTES_MAX).collect()).await;
        let Ok(Ok(body)) = body else {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "unreadable", "it is too large, or broke off");
        };
        let body = body.to_bytes();
        if !serde_json::from_slice::<Value>(&body).is_ok_and(|value| value.is_object()) {
            return refuse(StatusCode::BAD_REQUEST, "malformed", "it is no JSON object");
        }
        let folder = self.shared.folder.clone();
        let kept = tokio::task::spawn_blocking(move || {
            make_room(&folder, FILES_MAX)?;
            keep(&folder, &peer.to_string(), SystemTime::now(), &body)
        });
        match kept.await.map_err(io::Error::other).and_then(|kept| kept) {
            Ok(path) => {
                tracing::info!(node = %peer, "an engine has failed there: {}", path.display());
                (StatusCode::CREATED, "kept", json!({"kept": true}))
            }
            Err(error) => {
                tracing::error!(node = %peer, "its post-mortem cannot be kept: {error}");
                refuse(StatusCode::INSUFFICIENT_STORAGE, "not_kept", "it cannot be kept here")
            }
        }
    }

    fn may_send(&self, peer: PeerId) -> bool {
        let (mut lately, now) = (self.shared.lately.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        lately.retain(|_, (since, _)| since.elapsed() < EVERY);
        let (_, times) = lately.entry(peer).or_insert((now, 0));
        *times += 1;
        *times <= BY_PEER_MAX
    }
}

impl Service<Request<Incoming>> for Collector {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let collector = self.clone();
        Box::pin(async move {
            let (status, outcome, body) = collector.take(request).await;
            collector.shared.taken.get_or_create(&Outcome { outcome }).inc();
            let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
            *response.status_mut() = status;
            Ok(response)
        })
    }
}

/// Removes the oldest post-mortems, so that one more is at most `most`. Names begin with the time.
fn make_room(folder: &Path, most: usize) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("post-mortem-") && name.ends_with(".json")) && path.is_file()
    };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_one).collect();
    found.sort();
    let too_many = (found.len() + 1).saturating_sub(most);
    found.iter().take(too_many).try_for_each(|path| match std::fs::remove_file(path) {
        // Whoever came at the same time has made room too.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room_and_nothing_else_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        for millis in 100..110 {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            keep(dir.path(), "n", at, b"{}").unwrap();
        }
        std::fs::write(dir.path().join("aaa"), "").unwrap();
        std::fs::create_dir(dir.path().join("post-mortem-0-d.json")).unwrap();
        make_room(dir.path(), 4).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(
            left,
            [
                "aaa",
                "post-mortem-0-d.json",
                "post-mortem-107-n.json",
                "post-mortem-108-n.json",
                "post-mortem-109-n.json"
            ]
        );
        make_room(&dir.path().join("none"), 4).unwrap();
    }
}
