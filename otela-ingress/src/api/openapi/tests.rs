use super::{super::routes, *};
use otela_node::{
    peer::{Identity, Peer, PeerConfig},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::engine_path;
use std::{collections::BTreeSet, sync::Arc};

/// Where a router keeps what it does with all other paths.
const FALLBACK: [&str; 2] = ["/", "/{*__private__axum_fallback}"];

/// The paths of a router, as it shows them to people.
fn paths_of(router: &impl std::fmt::Debug) -> BTreeSet<String> {
    let shown = format!("{router:?}");
    let paths = shown.split('"').skip(1).step_by(2).filter(|text| text.starts_with('/') && !FALLBACK.contains(text));
    paths.map(|path| path.replace("{*", "{")).collect()
}

fn described() -> Vec<(String, String, Value)> {
    let mut document = document();
    operations(&mut document).map(|(path, method, operation)| (path, method, operation.clone())).collect()
}

#[tokio::test]
async fn every_route_is_described_and_nothing_else() {
    let config = PeerConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        ..PeerConfig::new("lab".parse().unwrap(), Identity::ephemeral(), vec![])
    };
    let (tasks, metrics) = (Tasks::new(), Metrics::new());
    let (peer, _) = Peer::start(config, &tasks, &metrics).await.unwrap();
    let observed = observe::router(peer, metrics, Arc::new(|| Ok(())), tasks.draining_token());
    tasks.stop();
    let (own, observed) = (paths_of(&routes()), paths_of(&observed));
    assert!(own.contains("/v1/models/{id}") && observed.contains("/v1/registry/models/{id}"), "{own:?} {observed:?}");
    let mut there: BTreeSet<_> = own.into_iter().chain(observed).collect();
    there.extend(engine_path::inference().inspect(|path| assert!(engine_path::is_inference(path), "{path}")));
    there.extend(["/v1/service/{service}/{path}", "/v1/p2p/{peer}/{path}"].map(str::to_owned));
    let described: BTreeSet<_> = described().into_iter().map(|(path, ..)| path).collect();
    assert_eq!(described, there);
}

#[test]
fn names_are_given_once_and_references_lead_somewhere() {
    let described = described();
    let names: BTreeSet<_> = described.iter().map(|(.., operation)| operation["operationId"].to_string()).collect();
    assert_eq!(names.len(), described.len());
    let whole = Value::Object(document());
    let text = whole.to_string();
    let references = text.split(r##""$ref":"#"##).skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut count = 0;
    for reference in references {
        assert!(whole.pointer(reference).is_some(), "{reference}");
        count += 1;
    }
    assert!(count > 100, "{count}");
    let tags: BTreeSet<_> = whole["tags"].as_array().unwrap().iter().map(|tag| tag["name"].to_string()).collect();
    for (path, method, operation) in described {
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{method} {path}");
        assert!(tags.contains(&operation["tags"][0].to_string()), "{method} {path}");
        assert!(operation["responses"]["200"].is_object(), "{method} {path}");
    }
    assert_eq!(whole["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn parts_are_put_together() {
    let mut value = serde_json::json!({"a": [1], "b": {"c": 1}, "d": 1});
    merge(&mut value, serde_json::json!({"a": [2], "b": {"e": 2}, "d": 2}));
    assert_eq!(value, serde_json::json!({"a": [1, 2], "b": {"c": 1, "e": 2}, "d": 2}));
}

#[tokio::test]
async fn whoever_has_it_is_told_so() {
    let first = openapi(HeaderMap::new()).await;
    assert_eq!(
        (first.status().as_u16(), &first.headers()["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    let headers = HeaderMap::from_iter([(axum::http::header::IF_NONE_MATCH, first.headers()["etag"].clone())]);
    assert_eq!(openapi(headers).await.status().as_u16(), 304);
}
