use super::*;
use http::HeaderValue;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn settings(base: &str) -> TraceSettings {
    TraceSettings {
        collector: collector(base).unwrap(),
        service: "otela-test".to_owned(),
        instance: "1".to_owned(),
        mesh: "lab".to_owned(),
    }
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

#[test]
fn without_a_collector_a_clients_context_stays_as_it_is() {
    let traces = Traces::default();
    let mut sent = headers(&[("traceparent", TRACEPARENT), ("tracestate", "a=1")]);
    let span = traces.received("x", &sent);
    span.asking("y").name_in(&mut sent);
    assert!(!span.is_recorded());
    assert_eq!((&sent["traceparent"], &sent["tracestate"]), (&TRACEPARENT.parse().unwrap(), &"a=1".parse().unwrap()));
}

#[tokio::test]
async fn a_clients_trace_is_continued_and_one_that_is_not_sampled_is_named_but_not_recorded() {
    let traces = Traces::start(settings("http://127.0.0.1:9"), &Metrics::new()).unwrap();
    let client = headers(&[("traceparent", TRACEPARENT), ("tracestate", "a=1")]);
    let (received, mut sent) = (traces.received("x", &client), HeaderMap::new());
    received.asking("y").name_in(&mut sent);
    let parent = sent["traceparent"].to_str().unwrap();
    assert!(received.is_recorded());
    assert_eq!(&parent[..36], &TRACEPARENT[..36], "the trace is the client's");
    assert_ne!(&parent[36..52], &TRACEPARENT[36..52], "the parent is our own span");
    assert_eq!(sent["tracestate"], "a=1");

    let unsampled = format!("{}00", &TRACEPARENT[..53]);
    let client = HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), unsampled.parse().unwrap())]);
    let received = traces.received("x", &client);
    received.name_in(&mut sent);
    assert!(!received.is_recorded());
    let parent = sent["traceparent"].to_str().unwrap();
    assert!(parent.starts_with(&TRACEPARENT[..36]) && parent.ends_with("-00"), "{parent}");
    traces.end().await;
}

#[test]
fn what_is_not_the_url_of_a_collector_is_said() {
    assert_eq!(collector("http://h:4318").unwrap().as_str(), "http://h:4318/v1/traces");
    assert_eq!(collector("https://h/otlp/").unwrap().as_str(), "https://h/otlp/v1/traces");
    assert_eq!(whole_url("http://h/x").unwrap().as_str(), "http://h/x");
    for wrong in ["localhost:4318", "grpc://localhost:4317", "not a url"] {
        let error = collector(wrong).unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_nobody_takes_are_counted_and_wait_for_nobody() {
    let metrics = Metrics::new();
    // Nobody listens at this port: it was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let traces = Traces::start(settings(&format!("http://127.0.0.1:{port}")), &metrics).unwrap();
    for _ in 0..10_000 {
        drop(traces.received("x", &HeaderMap::new()));
    }
    traces.end().await;
    let dropped: u64 = metrics
        .render()
        .lines()
        .filter(|line| line.starts_with("otela_trace_spans_dropped_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    // The batch that is under way when time is up is not counted yet.
    assert!((9_488..=10_000).contains(&dropped), "{}", metrics.render());
}
