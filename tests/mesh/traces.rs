//! Traces of requests, as a collector sees them.

use crate::support::{Mesh, Way, eventually, send};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value::Value, trace::v1::Span,
};
use prost::Message;
use serde_json::json;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, task::JoinSet};

each_way![one_trace_leads_from_the_client_to_the_engine, a_second_attempt_is_a_span_of_its_own];

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// Another one, of which nobody wants to hear.
const UNSAMPLED: &str = "1af7651916cd43dd8448eb211c80319d";
const CLIENT: &str = "b7ad6b7169203331";

/// Takes spans by OTLP over HTTP, with the service that each is of.
struct Collector {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(String, Span)>>>,
    _serving: JoinSet<()>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<_>>>::default());
        let (mut serving, kept) = (JoinSet::new(), Arc::clone(&seen));
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let take = service_fn(move |request: Request<Incoming>| take(request, Arc::clone(&kept)));
                let serve = http1::Builder::new().serve_connection(TokioIo::new(tcp), take);
                connections.spawn(async move { drop(serve.await) });
            }
        });
        Self { address, seen, _serving: serving }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of one trace, once there are as many.
    async fn trace(&self, id: &str, spans: usize) -> Vec<(String, Span)> {
        eventually(&format!("{spans} spans of {id}"), async || {
            let seen = self.seen.lock().unwrap();
            let of: Vec<_> = seen.iter().filter(|(_, span)| hex(&span.trace_id) == id).cloned().collect();
            (of.len() >= spans).then_some(of)
        })
        .await
    }
}

async fn take(
    request: Request<Incoming>,
    kept: Arc<Mutex<Vec<(String, Span)>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().path(), "/v1/traces");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    for of_resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
        let attributes = of_resource.resource.unwrap().attributes;
        let service = attributes.into_iter().find(|attribute| attribute.key == "service.name").unwrap();
        let Some(Value::StringValue(service)) = service.value.unwrap().value else { panic!("a name is text") };
        let spans = of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans);
        kept.lock().unwrap().extend(spans.map(|span| (service.clone(), span)));
    }
    Ok(Response::new(Full::default()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a span says of `key`, as text.
fn says(span: &Span, key: &str) -> Option<String> {
    let value = span.attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(is) => is.to_string(),
        other => panic!("{other:?}"),
    })
}

fn request(body: &serde_json::Value, trace: &str, flags: &str) -> Request<Full<Bytes>> {
    Request::post("/v1/completions")
        .header("host", "ingress")
        .header("content-type", "application/json")
        .header("authorization", "Bearer canary")
        .header("traceparent", format!("00-{trace}-{CLIENT}-{flags}"))
        .body(Full::new(body.to_string().into()))
        .unwrap()
}

async fn one_trace_leads_from_the_client_to_the_engine(way: Way) {
    let collector = Collector::start().await;
    let url = collector.url();
    let mut mesh = Mesh::by(way, &["--traces-to", &url]).await;
    let log = mesh.scripted_with("m", &["--traces-to", &url], &[]).await;
    let body = json!({"model": "m", "prompt": "canary"});
    // One that is not sampled is named to the engine, and not collected.
    assert_eq!(send(mesh.http, request(&body, UNSAMPLED, "00")).await.unwrap().status, 200);
    assert_eq!(send(mesh.http, request(&body, TRACE, "01")).await.unwrap().status, 200);
    let spans = collector.trace(TRACE, 4).await;
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let of = |service: &str, name: &str| {
        let found = spans.iter().find(|(of, span)| of == service && span.name == name);
        &found.unwrap_or_else(|| panic!("{service} {name}: {spans:#?}")).1
    };
    let received = of("otela-ingress", "otela.request");
    let attempt = of("otela-ingress", "otela.attempt");
    let node = of("otela-node", "otela.node");
    let engine = of("otela-node", "otela.engine");
    assert_eq!(hex(&received.parent_span_id), CLIENT);
    for (child, parent) in [(attempt, received), (node, attempt), (engine, node)] {
        assert_eq!(child.parent_span_id, parent.span_id, "{} is within {}", child.name, parent.name);
        assert!(child.end_time_unix_nano >= child.start_time_unix_nano);
    }
    let path = if way == Way::Direct { "direct" } else { "relayed" };
    assert_eq!(says(attempt, "otela.path").as_deref(), Some(path));
    assert_eq!(says(received, "gen_ai.request.model").as_deref(), Some("m"));
    assert_eq!(says(received, "http.response.status_code").as_deref(), Some("200"));
    assert!(!format!("{spans:?}").contains("canary"), "nothing of the client's");
    let parent = async |nth| {
        let head = log.nth("request", nth).await["head"].as_str().unwrap().to_owned();
        head.lines().find_map(|line| line.strip_prefix("traceparent: ")).map(str::to_owned).unwrap()
    };
    // Spans of one process leave in order: the others would have come before.
    assert!(collector.seen.lock().unwrap().iter().all(|(_, span)| hex(&span.trace_id) != UNSAMPLED));
    let named = parent(2).await;
    assert_eq!(named, format!("00-{TRACE}-{}-01", hex(&engine.span_id)));
    let unsampled = parent(1).await;
    assert!(unsampled.starts_with(&format!("00-{UNSAMPLED}-")) && unsampled.ends_with("-00"), "{unsampled}");
}

async fn a_second_attempt_is_a_span_of_its_own(way: Way) {
    let collector = Collector::start().await;
    let mut mesh = Mesh::by(way, &["--traces-to", &collector.url()]).await;
    mesh.scripted("m").await;
    mesh.scripted("m").await;
    let empty = json!({"model": "m", "script": [["send", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]]});
    assert_eq!(send(mesh.http, request(&empty, TRACE, "01")).await.unwrap().status, 502);
    let spans = collector.trace(TRACE, 3).await;
    let attempts: Vec<_> = spans.iter().filter(|(_, span)| span.name == "otela.attempt").collect();
    assert_eq!(attempts.len(), 2, "{spans:#?}");
    assert!(attempts.iter().all(|(_, span)| says(span, "error.type").as_deref() == Some("empty")), "{attempts:#?}");
    let nodes: std::collections::BTreeSet<_> = attempts.iter().map(|(_, span)| says(span, "otela.node")).collect();
    assert_eq!(nodes.len(), 2, "one on each node");
}

#[tokio::test]
async fn whoever_loses_a_race_says_so() {
    let collector = Collector::start().await;
    let flags = ["--traces-to", &collector.url(), "--hedge-after", "50ms", "--policy", "round-robin"];
    let mut mesh = Mesh::ingress(&flags).await;
    mesh.scripted("m").await;
    let wins = mesh.scripted("m").await;
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let body = json!({"model": "m", "script": [["await", "run"], ["send", ok]]});
    let run = eventually("both run", async || (mesh.metric("otela_ingress_hedges_total").await >= 1.0).then_some(()));
    let (answer, ()) = tokio::join!(send(mesh.http, request(&body, TRACE, "01")), async {
        run.await;
        wins.allow("run");
    });
    assert_eq!(answer.unwrap().status, 200);
    let spans = collector.trace(TRACE, 3).await;
    let attempts = || spans.iter().map(|(_, span)| span).filter(|span| span.name == "otela.attempt");
    let outcomes: std::collections::BTreeSet<_> = attempts().map(|span| says(span, "otela.outcome")).collect();
    assert_eq!(outcomes, [Some("cancelled".into()), Some("ok".into())].into(), "{spans:#?}");
    assert!(attempts().all(|span| says(span, "otela.policy").as_deref() == Some("round-robin")), "{spans:#?}");
}

#[tokio::test]
async fn requests_do_not_care_whether_their_traces_are_taken() {
    let mut mesh = Mesh::ingress(&["--traces-to", "http://127.0.0.1:9"]).await;
    mesh.scripted("m").await;
    let body = json!({"model": "m", "prompt": "x"});
    for _ in 0..20 {
        assert_eq!(send(mesh.http, request(&body, TRACE, "01")).await.unwrap().status, 200);
    }
    eventually("they are counted", async || {
        (mesh.metric("otela_trace_spans_dropped_total{").await >= 40.0).then_some(())
    })
    .await;
    mesh.ingress.writes("takes no spans", 1).await;
    let said = mesh.ingress.output();
    assert_eq!(said.matches("takes no spans").count(), 1, "{said}");
}
