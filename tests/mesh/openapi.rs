//! `/openapi.json` against an ingress: everything that it describes is there, and answers with a status that it names.

use crate::support::{Answer, Mesh, get, raw, read_until, send};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::Value;

/// Path, method and description of each operation.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters");
            methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        })
        .collect()
}

/// How many operations `document` describes.
pub(crate) fn count(document: &Value) -> usize {
    operations(document).len()
}

async fn ask(mesh: &Mesh, method: &str, path: &str, body: &str) -> Answer {
    let request = http::Request::builder().method(method).uri(path).header("host", "test");
    let request = request.header("content-type", "application/json");
    send(mesh.http, request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await.unwrap()
}

#[tokio::test]
async fn everything_described_is_there() {
    let mut mesh = Mesh::ingress(&[]).await;
    let engine = [env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
    mesh.add(&["--open-path", "/custom/"], &engine);
    mesh.serves("m", 1).await;
    let node = mesh.listed().await[0]["id"].as_str().unwrap().to_owned();
    let document = get(mesh.http, "/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."));
    for (path, method, operation) in operations(&document) {
        let id = if path == "/v1/registry/nodes/{id}" { node.as_str() } else { "m" };
        let filled = [("{service}", "llm"), ("{peer}", node.as_str()), ("{path}", "custom/x"), ("{id}", id)];
        let asked = filled.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
        if path == "/v1/registry/watch" {
            let mut stream = raw(mesh.http, format!("GET {asked} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await;
            assert!(read_until(&mut stream, "event: snapshot").await.starts_with("HTTP/1.1 200"));
            continue;
        }
        let method = method.to_uppercase();
        let answer = ask(&mesh, &method, &asked, r#"{"model":"m"}"#).await;
        let what = format!("{method} {asked}: {} {:?}", answer.status, answer.body);
        assert!(operation["responses"][answer.status.to_string()].is_object(), "not described: {what}");
        if answer.status >= 400 {
            // What has not reached the engine would have ours.
            let code = &answer.json()["error"]["code"];
            assert!(!["unknown_url", "method_not_allowed"].iter().any(|ours| code == ours), "{what}");
        }
        if method == "GET" && !path.contains("{path}") {
            let head = ask(&mesh, "HEAD", &asked, "").await;
            assert_eq!((head.status, head.body.len()), (answer.status, 0), "{what}");
        }
    }
}

#[tokio::test]
async fn the_description_is_kept_by_its_tag() {
    let (mesh, other) = (Mesh::ingress(&[]).await, Mesh::ingress(&[]).await);
    let first = get(mesh.http, "/openapi.json").await;
    let request = http::Request::get("/openapi.json").header("host", "t").header("if-none-match", first.header("etag"));
    let again = send(mesh.http, request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    assert_eq!((first.status, again.status, again.body.len()), (200, 304, 0));
    assert_eq!(get(other.http, "/openapi.json").await.header("etag"), first.header("etag"), "the same everywhere");
}
