//! `/metrics` while clients send what they like.

use crate::support::{Mesh, Way, get, sum_metric};
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use otela_testing::repetitions;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};
use tokio::net::TcpStream;

const CONNECTIONS: u64 = 16;
/// In every text that clients make up, and in nothing else.
const MARK: &str = "zqx";

/// All kinds of names come in the first few hundred; the long form is more than any limit that a map of names might have.
fn requests() -> u64 {
    repetitions(3_000, 50_000)
}

/// The n-th thing that a client puts where a name belongs, and whether it is one.
fn made_up(n: u64) -> Value {
    let word = format!("{MARK}{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    match n % 12 {
        _ if n % 500 == 7 => word.repeat(200_000 / word.len()).into(),
        0 => n.into(),
        1 => json!([word, n]),
        2 => json!({ word: n }),
        3 => format!("\"{word}\"").into(),
        4 => format!("{word}\n{word} 1\n# EOF\n").into(),
        5 => format!("{word}\0\0").into(),
        6 => format!("m\",reason=\"{word}\"}} 1").into(),
        7 => format!("\\{word}\\").into(),
        8 => format!("org/{word}:é読\u{202e}").into(),
        9 => json!(-1e300),
        _ => word.into(),
    }
}

fn is_right(n: u64) -> bool {
    n % 97 == 3
}

/// The n-th request: one of 97 is for the model that is there, another is not JSON.
fn request(n: u64) -> http::Request<Full<Bytes>> {
    let path =
        ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"][if is_right(n) { 0 } else { (n % 3) as usize }];
    let user = made_up(n.wrapping_mul(7) + 1);
    let body = match n % 97 {
        _ if is_right(n) => json!({"model": "m", "user": user, "prompt": "x", "max_tokens": 1}).to_string(),
        11 => format!("{{\"model\": \"{MARK}\n\0"),
        _ => json!({"model": made_up(n), "user": user, "prompt": "x", "max_tokens": 1}).to_string(),
    };
    http::Request::post(path)
        .header("host", format!("{MARK}{n}"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {MARK}{n}"))
        .header("user-agent", format!("{MARK}/{n}"))
        .header("x-request-id", format!("{MARK}-{n}"))
        .body(Full::new(Bytes::from(body)))
        .unwrap()
}

/// Sends every request whose number is `first` modulo the connections, on one connection. How often each status came.
#[expect(clippy::disallowed_methods, reason = "the connection's task ends with the connection")]
async fn send_all(to: SocketAddr, first: u64) -> BTreeMap<u16, u64> {
    let tcp = TcpStream::connect(to).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    let mut statuses = BTreeMap::new();
    for n in (first..requests()).step_by(CONNECTIONS as usize) {
        sender.ready().await.unwrap();
        let response = sender.send_request(request(n)).await.unwrap();
        *statuses.entry(response.status().as_u16()).or_default() += 1;
        response.into_body().collect().await.unwrap();
    }
    statuses
}

/// The series of a text in Prometheus' classic format; every line must be in it, and no series may come twice.
fn series(text: &str) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with("# HELP ") && !line.starts_with("# TYPE ")) {
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert!(
            name.starts_with("otela_")
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
            "{line}"
        );
        assert!(labels.ends_with('}') && labels.is_ascii(), "{line}");
        assert!(all.insert(series), "twice: {line}");
    }
    all
}

mod p56_metrics_stay_small_and_valid_whatever_requests_name {
    use super::{Way, stay_small_and_valid};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn soak_direct() {
        stay_small_and_valid(Way::Direct).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn relayed() {
        stay_small_and_valid(Way::Relayed).await;
    }
}

async fn stay_small_and_valid(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.simulated("m", &[]).await;
    let metrics = async || String::from_utf8(get(mesh.http, "/metrics").await.body.to_vec()).unwrap();
    let before = metrics().await;
    let statuses = join_all((0..CONNECTIONS).map(|first| send_all(mesh.http, first))).await;
    let statuses = statuses.iter().flatten().fold(BTreeMap::new(), |mut sum: BTreeMap<u16, u64>, (status, n)| {
        *sum.entry(*status).or_default() += n;
        sum
    });
    let right = (0..requests()).filter(|n| is_right(*n)).count() as u64;
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200, 400, 404]);
    assert_eq!((statuses[&200], statuses.values().sum::<u64>()), (right, requests()));
    let after = metrics().await;
    let (old, new) = (series(&before), series(&after));
    // A mesh with a relay goes on finding itself meanwhile: what it counts of that has no names of clients.
    let new: Vec<_> = new.difference(&old).copied().filter(|series| series.starts_with("otela_ingress_")).collect();
    assert_eq!(
        new,
        [
            "otela_ingress_model_answers_total{model=\"m\"}",
            "otela_ingress_model_requests_total{model=\"m\"}",
            "otela_ingress_refused_total{reason=\"invalid_body\"}",
            "otela_ingress_refused_total{reason=\"model_not_found\"}",
            "otela_ingress_requests_total{end=\"complete\"}",
            "otela_ingress_requests_total{end=\"rejected\"}",
            "otela_ingress_tokens_total{model=\"m\",kind=\"completion\"}",
            "otela_ingress_tokens_total{model=\"m\",kind=\"prompt\"}",
        ],
        "a series for each end, reason and model of the mesh, none for each name"
    );
    assert_eq!(sum_metric(&after, "otela_ingress_requests_total"), requests() as f64, "all were counted");
    assert!(!after.contains(MARK), "nothing of what a client said: {after}");
    assert!(after.len() < 16 * 1024, "{} bytes", after.len());
}
