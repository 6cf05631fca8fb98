//! Reading the registry: filters, pages, tags, watching, and the commands that print it.

use crate::support::{Answer, Mesh, Otela, eventually, finishes, get, raw, read_until, send};
use bytes::Bytes;
use http_body_util::Full;
use otela_testing::ReservedPort;
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::SocketAddr, process::Stdio};
use tokio::{io::AsyncReadExt, net::TcpListener, process::Command};

const NODES: &str = "/v1/registry/nodes";

/// The listed nodes' ids that a query finds.
async fn ids(to: SocketAddr, query: &str) -> BTreeSet<String> {
    let answer = get(to, &format!("{NODES}?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {:?}", answer.body);
    let nodes = answer.json()["nodes"].as_array().unwrap().clone();
    nodes.iter().map(|node| node["id"].as_str().unwrap().to_owned()).collect()
}

/// Adds a node without an engine, and waits until `n` nodes are listed and this one has said all that it will say.
async fn idle(mesh: &mut Mesh, labels: &str, n: usize) {
    let node = Otela::run([
        "start",
        "--mesh",
        "test",
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
        "--bootstrap",
        &mesh.bootstrap,
        "--label",
        labels,
    ]);
    mesh.nodes.push(node);
    eventually("one more node", async || (mesh.listed().await.len() == n).then_some(())).await;
    // Addresses, labels and hardware are each said when they are known, in any order.
    let query = format!("{NODES}?label={}", labels.split(',').next().unwrap());
    eventually("its labels, addresses and hardware", async || {
        let found = get(mesh.http, &query).await.json()["nodes"].as_array().unwrap().clone();
        let whole = |node: &Value| node["hardware"].is_object() && node["addresses"][0].is_string();
        (!found.is_empty() && found.iter().all(whole)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn filters_find_nodes_and_models_and_departed_ones_if_asked() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    idle(&mut mesh, "team=vision,provider=eth", 2).await;
    let http = mesh.http;
    let vision = ids(http, "label=team=vision").await;
    assert_eq!(vision.len(), 1);
    assert_eq!(ids(http, "label=team").await, vision);
    assert_eq!(ids(http, "provider=eth").await, vision);
    assert_eq!(ids(http, "state=serving").await, ids(http, "model=m").await);
    assert!(ids(http, "state=serving&label=team").await.is_empty());
    assert!(ids(http, "gpu=no-such").await.is_empty());
    let one = get(http, &format!("{NODES}?provider=eth")).await.json();
    assert_eq!(
        one["nodes"][0]["provider"],
        json!({"name": "eth", "verified": false, "reason": "no_certificate", "claimed_id": null})
    );
    assert_eq!(one["nodes"][0]["belief"], json!({"state": "alive", "since_ms": null, "accusations": []}));
    let models = async |query: &str| get(http, &format!("/v1/registry/models?{query}")).await.json()["total"].clone();
    assert_eq!(models("state=ready").await, 1);
    assert_eq!(models("state=unready").await, 0);
    assert_eq!(models("label=team").await, 0);
    let left = vision.first().unwrap();
    mesh.nodes[1].signal("-TERM");
    assert_eq!(mesh.nodes[1].ends().await, 0);
    eventually("it is seen as left", async || ids(http, "state=left").await.contains(left).then_some(())).await;
    assert!(!ids(http, "").await.contains(left), "and is listed no more");
    for (path, says) in [
        ("/v1/registry/nodes?sate=join", "There is no parameter `sate` here: known are state, belief, model"),
        ("/v1/registry/nodes?state=dead", "state=dead is not understood: allowed are join, serving"),
        ("/v1/registry/nodes?limit=0", "limit=0 is not understood: allowed are 1 to 1000"),
        ("/v1/registry/nodes?sort=colour", "sort=colour is not understood: allowed are id, lifecycle"),
        ("/v1/registry/nodes?after=x", "after=x is not understood"),
        ("/v1/registry/models?state=join", "state=join is not understood: allowed are ready, unready"),
        ("/v1/registry/watch?since=1", "There is no parameter `since` here: known are last_event_id"),
    ] {
        let answer = get(http, path).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("invalid_parameter")), "{path}");
        assert!(error["message"].as_str().unwrap().starts_with(says), "{path}: {error}");
    }
}

#[tokio::test]
async fn pages_reach_the_end_while_nodes_come_and_go() {
    let mut mesh = Mesh::ingress(&[]).await;
    for n in 0..3 {
        idle(&mut mesh, &format!("stays=n{n}"), n + 1).await;
    }
    let stay = ids(mesh.http, "label=stays").await;
    assert_eq!(stay.len(), 3);
    for (sort, nth) in [("id", 3), ("-started_at", 4)] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = get(mesh.http, &format!("{NODES}?sort={sort}&limit=1{after}")).await.json();
            seen.extend(page["nodes"].as_array().unwrap().iter().map(|n| n["id"].as_str().unwrap().to_owned()));
            if seen.len() == 1 {
                // One comes while we read; wherever it falls, nobody is lost or seen twice.
                idle(&mut mesh, "comes=yes", nth + 1).await;
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        let unique: BTreeSet<_> = seen.iter().cloned().collect();
        assert_eq!(unique.len(), seen.len(), "{sort}: {seen:?}");
        assert!(stay.is_subset(&unique), "{sort}: {stay:?} in {seen:?}");
    }
}

async fn asked(to: SocketAddr, method: &str, path: &str, if_none_match: &str) -> Answer {
    let request = http::Request::builder().method(method).uri(path).header("host", "test");
    let request = request.header("if-none-match", if_none_match);
    send(to, request.body(Full::new(Bytes::new())).unwrap()).await.unwrap()
}

#[tokio::test]
async fn who_has_the_newest_answer_is_told_so() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    let id = mesh.listed().await[0]["id"].as_str().unwrap().to_owned();
    let mut tags = Vec::new();
    for path in [NODES, "/v1/registry/models", "/v1/registry/models/m", &format!("{NODES}/{id}")] {
        let first = get(mesh.http, path).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with('"') && first.header("cache-control") == "no-cache", "{path}: {tag}");
        for known in [&tag, &format!("W/{tag}"), "*", &format!("\"x,y\", {tag}")] {
            let again = asked(mesh.http, "GET", path, known).await;
            assert_eq!((again.status, again.header("etag"), again.body.len()), (304, &*tag, 0), "{path} {known}");
        }
        assert_eq!(asked(mesh.http, "GET", path, "\"0123456789abcdef\"").await.body, first.body, "{path}");
        let head = asked(mesh.http, "HEAD", path, "\"x\"").await;
        assert_eq!((head.status, head.header("etag"), head.body.len()), (200, &*tag, 0), "{path}");
        assert_eq!(head.header("content-length"), first.body.len().to_string());
        assert_eq!(asked(mesh.http, "POST", path, "*").await.status, 405, "{path}");
        tags.push((path.to_owned(), tag));
    }
    mesh.nodes[0].signal("-TERM");
    for (path, tag) in tags {
        eventually(&format!("a new tag of {path}"), async || {
            (asked(mesh.http, "GET", &path, &tag).await.status == 200).then_some(())
        })
        .await;
    }
    assert_eq!(asked(mesh.http, "GET", "/v1/registry/status", "\"x\"").await.status, 200);
}

fn watch_request(id: Option<&str>) -> Vec<u8> {
    let id = id.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
    format!("GET /v1/registry/watch HTTP/1.1\r\nhost: x\r\n{id}\r\n").into_bytes()
}

/// The last id in a stream.
fn last_id(stream: &str) -> &str {
    stream.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap()
}

#[tokio::test]
async fn watchers_that_come_back_get_the_difference_only() {
    let mut mesh = Mesh::ingress(&[]).await;
    idle(&mut mesh, "first=yes", 1).await;
    let mut watch = raw(mesh.http, &watch_request(None)).await;
    let seen = read_until(&mut watch, "\n\n").await;
    assert!(seen.contains("event: snapshot") && seen.contains("\"more\":false,"), "{seen}");
    assert!(seen.contains("\"first\":\"yes\""), "{seen}");
    let id = last_id(&seen).to_owned();
    drop(watch);
    // Nobody watches while this happens.
    idle(&mut mesh, "second=yes", 2).await;
    let again = read_until(&mut raw(mesh.http, &watch_request(Some(&id))).await, "\"second\":\"yes\"").await;
    assert!(again.contains("event: node") && !again.contains("event: snapshot"), "{again}");
    assert!(!again.contains("\"first\":\"yes\""), "what did not change is not told: {again}");
    let query = format!("GET /v1/registry/watch?last_event_id={id} HTTP/1.1\r\nhost: x\r\n\r\n");
    let again = read_until(&mut raw(mesh.http, query.as_bytes()).await, "\"second\":\"yes\"").await;
    assert!(!again.contains("event: snapshot"), "{again}");
    // Another run of the process has given this id, or nobody has.
    let (run, generation) = id.split_once('-').unwrap();
    let other_run = format!("{:016x}-{generation}", u64::from_str_radix(run, 16).unwrap() ^ 1);
    for unknown in [&*other_run, &format!("{run}-99999999"), "17", "what"] {
        let anew = read_until(&mut raw(mesh.http, &watch_request(Some(unknown))).await, "\n\n").await;
        assert!(anew.contains("event: snapshot"), "{unknown}: {anew}");
    }
}

#[tokio::test]
async fn too_many_watchers_are_refused_and_counted_and_an_end_sends_all_home() {
    // Nothing would end them but the end of the grace.
    let mut mesh = Mesh::ingress(&["--drain", "10h"]).await;
    let mut watchers = Vec::new();
    for _ in 0..128 {
        let mut watch = raw(mesh.http, &watch_request(None)).await;
        read_until(&mut watch, "event: snapshot").await;
        watchers.push(watch);
    }
    assert_eq!(mesh.metric("otela_observe_watchers ").await, 128.0);
    let refused = get(mesh.http, "/v1/registry/watch").await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("too_many_watchers")));
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(mesh.metric("otela_observe_watchers_refused_total").await, 1.0);
    watchers.pop();
    eventually("a place is given back", async || (mesh.metric("otela_observe_watchers ").await == 127.0).then_some(()))
        .await;
    mesh.ingress.signal("-TERM");
    assert_eq!(mesh.ingress.ends().await, 0);
}

/// Runs a command that looks: exit code, stdout, stderr.
async fn look(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_otela"));
    let output = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = finishes("the end of a command", output).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn commands_print_what_an_otela_knows() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("org/m", &[]).await;
    idle(&mut mesh, "provider=eth", 2).await;
    let url = format!("http://{}", mesh.http);
    let (code, table, said) = look(&["nodes", &url]).await;
    let rows: Vec<_> = table.lines().collect();
    assert!(code == 0 && said.is_empty() && rows.len() == 4, "{code} {table} {said}");
    assert!(rows[0].starts_with("NODE ") && rows[1..].iter().all(|row| row.starts_with("12D3KooW")), "{table}");
    let column = rows[0].find("BELIEVED").unwrap();
    assert!(rows[1..].iter().all(|row| row[column..].starts_with("alive ")), "aligned: {table}");
    let (_, serving, _) = look(&["nodes", "--url", &url, "--state", "serving", "--sort", "-started_at"]).await;
    assert!(serving.lines().count() == 2 && serving.contains("org/m"), "{serving}");
    let (code, json, _) = look(&["nodes", &url, "--provider", "eth", "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["total"], &json["next"]), (0, &json!(1), &Value::Null));
    assert_eq!(json["nodes"][0], get(mesh.http, &format!("{NODES}?provider=eth")).await.json()["nodes"][0]);
    let (_, models, _) = look(&["models", &format!("{url}/v1")]).await;
    assert!(models.starts_with("MODEL ") && models.lines().nth(1).unwrap().starts_with("org/m "), "{models}");
    let (code, status, _) = look(&["status", &mesh.http.to_string()]).await;
    assert!(code == 0 && status.contains("\nroles        ingress\n"), "{status}");
    assert!(status.contains("\nnodes        3 listed, 0 departed\n"), "{status}");
    assert!(status.contains("\nmodels       1 ready, 0 unready\n"), "{status}");
    assert!(status.contains("\nconnections  2 peers, 0 of them relayed"), "{status}");
    let (_, json, _) = look(&["status", &url, "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["joined"], &json["mesh"], &json["nodes"]["listed"]), (&json!(true), &json!("test"), &json!(3)));
    mesh.nodes[1].signal("-TERM");
    mesh.nodes[1].ends().await;
    eventually("who left is shown with --all only", async || {
        let (_, all, _) = look(&["nodes", &url, "--all"]).await;
        let (_, listed, _) = look(&["nodes", &url]).await;
        (all.lines().count() == 4 && listed.lines().count() == 3 && all.contains("left")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn commands_that_get_no_answer_say_why_on_one_line() {
    let mesh = Mesh::ingress(&[]).await;
    let url = format!("http://{}", mesh.http);
    let (code, out, said) = look(&["nodes", &url, "--state", "dead"]).await;
    assert!(code == 2 && out.is_empty() && said.contains("state=dead is not understood"), "{code} {said}");
    let port = ReservedPort::new();
    let nobody = port.address().to_string();
    let (code, _, said) = look(&["status", &nobody]).await;
    assert!(code == 69 && said.contains(&nobody) && said.contains("OTELA_URL"), "{code} {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let (code, _, said) = look(&["models", "https://a.example"]).await;
    assert!(code == 2 && said.contains("only http://"), "{code} {said}");
    let (code, _, said) = look(&["nodes", &url, "--all", "--state", "left"]).await;
    assert!(code == 2 && said.contains("--all"), "{code} {said}");
    for (answer, says) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "no JSON"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "no `nodes`"),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", "404"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "does not answer like an otela"),
        (
            "HTTP/1.1 500 No\r\ncontent-length: 41\r\n\r\n{\"error\":{\"message\":\"a\\u001b[31m\\nb\"}}    ",
            r"a\u{1b}[31m\u{a}b",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello", "broke off"),
    ] {
        let alien = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", alien.local_addr().unwrap());
        let answers = async {
            let (mut tcp, _) = alien.accept().await.unwrap();
            let mut asked = [0; 1024];
            assert!(tcp.read(&mut asked).await.unwrap() > 0);
            tokio::io::AsyncWriteExt::write_all(&mut tcp, answer.as_bytes()).await.unwrap();
        };
        let arguments = ["nodes", &url];
        let ((code, out, said), ()) = tokio::join!(look(&arguments), answers);
        assert!(code == 69 && out.is_empty() && said.contains(says), "{answer}: {code} {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[tokio::test]
async fn a_reader_that_has_enough_is_no_error() {
    let mesh = Mesh::ingress(&[]).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_otela"));
    let mut nodes = command
        .args(["nodes", "--json", &mesh.http.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // Closed before anything is printed.
    drop(nodes.stdout.take());
    let ended = finishes("the end of a command", nodes.wait_with_output()).await.unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}
