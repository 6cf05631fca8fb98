//! What ingress and node keep in memory: for streams that are silent, and while a large body goes through.

use crate::{measure::connect, mesh::Mesh, report::Row};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

/// Reach of an ingress with [`STREAMS`] silent streams, in MB.
const IDLE_MB: f64 = 150.0;
const STREAMS: usize = 2_000;
/// A large body, and how many of it an ingress may come to hold.
const BODY_BYTES: usize = 31 << 20;
const BODIES: f64 = 2.0;

fn more_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// A line of a process' status in bytes.
fn status(pid: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

fn request(body: Bytes) -> Request<Full<Bytes>> {
    let request = Request::post("/v1/completions").header("host", "bench").header("content-type", "application/json");
    request.body(Full::new(body)).unwrap()
}

pub(crate) async fn rows() -> Vec<Row> {
    more_files();
    // More streams than one replica is given.
    let mesh = Mesh::start(2).await;
    let (ingress, node) = (mesh.ingress.id().unwrap(), mesh.nodes[0].id().unwrap());
    let mut rows = Vec::new();
    let before = (status(ingress, "VmRSS"), status(node, "VmRSS"));
    let mut held = Vec::new();
    for _ in 0..STREAMS {
        let mut sender = connect(mesh.ways.mesh).await;
        let body = Bytes::from_static(br#"{"model":"bench","prompt":"x","idle":true,"stream":true}"#);
        let response = sender.send_request(request(body)).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        held.push((sender, body));
    }
    // The comments that keep a silent stream alive are part of what it costs.
    for (_, body) in &mut held {
        body.frame().await.unwrap().unwrap();
    }
    let mb = |pid| status(pid, "VmRSS") / 1e6;
    rows.push(Row::number("2,000 silent streams: memory of the ingress", "RSS", mb(ingress), "MB").at_most(IDLE_MB));
    rows.push(Row::number("the same before them", "RSS", before.0 / 1e6, "MB"));
    rows.push(Row::number("the same: one of two nodes", "RSS", mb(node), "MB"));
    rows.push(Row::number("the same before them", "RSS", before.1 / 1e6, "MB"));
    drop(held);
    rows.extend(large_body(&mesh, ingress).await);
    rows
}

/// How much more memory than before an ingress has at most while a large body goes through.
async fn large_body(mesh: &Mesh, ingress: u32) -> Vec<Row> {
    let body = Bytes::from(format!(r#"{{"model":"bench","prompt":"{}"}}"#, "z".repeat(BODY_BYTES)));
    let bodies = body.len() as f64;
    // The first makes room in pools and the allocator that stays.
    let mut grown = 0.0_f64;
    for _ in 0..3 {
        let before = status(ingress, "VmRSS");
        // Sets the high-water mark back.
        fs::write(format!("/proc/{ingress}/clear_refs"), "5").unwrap();
        let mut sender = connect(mesh.ways.mesh).await;
        let response = sender.send_request(request(body.clone())).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap();
        grown = grown.max(status(ingress, "VmHWM") - before);
    }
    vec![
        Row::number("a body of 31 MiB: memory of the ingress, over before", "peak", grown / bodies, "bodies")
            .at_most(BODIES),
    ]
}
