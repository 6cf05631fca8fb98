//! How many bytes of headers a request and its answer carry between ingress and node that neither client nor engine
//! sent. This program is the node that an ingress sends to, and then the ingress that a node answers.

use crate::{
    measure::connect,
    mesh::{Mesh, NAME},
    report::Row,
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use otela_node::{
    peer::{Announcement, Identity, Peer, PeerConfig, RequestBody, tunnel},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::{
    lifecycle::Lifecycle,
    payload::{ModelCard, Role, Service},
};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Reach of what is added to a request and to its answer, in bytes.
const UP_BYTES: f64 = 150.0;
const DOWN_BYTES: f64 = 60.0;

/// What the official client for Python sends beside what HTTP needs.
const CLIENT_HEADERS: [(&str, &str); 6] = [
    ("accept", "application/json"),
    ("accept-encoding", "gzip, deflate"),
    ("authorization", "Bearer sk-0123456789abcdef"),
    ("content-type", "application/json"),
    ("user-agent", "OpenAI/Python 2.0.0"),
    ("x-stainless-retry-count", "0"),
];

/// The bytes, as HTTP/1.1 has them, of those headers that `before` does not have.
fn added(after: &HeaderMap, before: &HeaderMap) -> f64 {
    let is_new = |name: &http::HeaderName, value: &http::HeaderValue| before.get(name) != Some(value);
    let lines = after.iter().filter(|(name, value)| is_new(name, value));
    lines.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum::<usize>() as f64
}

fn request(model: &str) -> Request<Full<Bytes>> {
    let mut request = Request::post("/v1/completions").header("host", "bench");
    for (name, value) in CLIENT_HEADERS {
        request = request.header(name, value);
    }
    request.body(Full::new(format!(r#"{{"model":"{model}","prompt":"x"}}"#).into())).unwrap()
}

pub(crate) async fn rows(mesh: &Mesh) -> Vec<Row> {
    let tasks = Tasks::new();
    let config = PeerConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        bootstrap: vec![mesh.bootstrap.parse().unwrap()],
        ..PeerConfig::new(NAME.parse().unwrap(), Identity::ephemeral(), vec![Role::Node])
    };
    let (peer, requests) = Peer::start(config, &tasks, &Metrics::new()).await.unwrap();
    let up = to_node(mesh, &peer, requests, &tasks).await;
    let (down, to_client) = from_node(mesh, &peer).await;
    tasks.shutdown(Duration::ZERO).await;
    let row = |what: &str, bytes| Row::number(what, "", bytes, "bytes");
    vec![
        row("headers added to a request on its way to a node", up).at_most(UP_BYTES),
        row("headers added to an answer on its way to the ingress", down).at_most(DOWN_BYTES),
        row("headers added to an answer for the client (id, node, session, path)", to_client),
    ]
}

/// What an ingress adds for a node.
async fn to_node(
    mesh: &Mesh,
    peer: &Peer,
    requests: tokio::sync::mpsc::Receiver<otela_node::peer::Inbound>,
    tasks: &Tasks,
) -> f64 {
    let seen: Arc<Mutex<HeaderMap>> = Arc::default();
    let sees = Arc::clone(&seen);
    let answers = service_fn(move |request: Request<Incoming>| {
        *sees.lock().unwrap() = request.headers().clone();
        async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}")))) }
    });
    tasks.spawn(tunnel::serve(requests, answers, tasks.clone()));
    let models = vec![ModelCard { id: "hop".into(), ..ModelCard::default() }];
    let service = Service { name: "llm".into(), models, ..Service::default() };
    let announcement =
        Announcement { lifecycle: Lifecycle::Serving, services: vec![service], ..Announcement::default() };
    peer.announce(announcement).await.unwrap();
    let mut sender = connect(mesh.ways.mesh).await;
    loop {
        let response = sender.send_request(request("hop")).await.unwrap();
        let status = response.status();
        response.into_body().collect().await.unwrap();
        if status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = seen.lock().unwrap();
    added(&seen, request("hop").headers())
}

/// What a node adds for its ingress, and what that adds for its client.
async fn from_node(mesh: &Mesh, peer: &Peer) -> (f64, f64) {
    let whole = |body: Incoming| async { body.collect().await.unwrap() };
    let response = connect(mesh.ways.direct).await.send_request(request("bench")).await.unwrap();
    let engine = response.headers().clone();
    whole(response.into_body()).await;
    let view = peer.view();
    let (_, model) = view.model("bench").unwrap();
    let node = model.ready[0].session().peer;
    let body = RequestBody::Whole(Bytes::from_static(br#"{"model":"bench","prompt":"x"}"#));
    let (response, _) = peer.send(&node, request("bench").into_parts().0, body).await.unwrap();
    let down = added(response.headers(), &engine);
    drop(response);
    let response = connect(mesh.ways.mesh).await.send_request(request("bench")).await.unwrap();
    (down, added(response.headers(), &engine))
}
