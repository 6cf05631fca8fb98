//! Requests at a steady rate, and what their answers should have been.

use crate::{fleet::MODEL, support};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::MissedTickBehavior};

/// Requests that differ; each comes again and again.
const KINDS: u64 = 24;

/// What has come of the requests.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) different: u64,
    pub(crate) failures: Vec<String>,
}

/// Requests that go on until they are stopped.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Clients {
    #[expect(clippy::disallowed_methods, reason = "the task ends with the measurement")]
    pub(crate) async fn start(http: SocketAddr, reference: SocketAddr, rate: f64) -> Self {
        let mut right = HashMap::new();
        for kind in 0..KINDS {
            let answer = support::post(reference, route(kind), &body(kind, false)).await.json();
            right.insert(kind, text(&answer["choices"][0]));
        }
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
        let (stopped, noted) = (Arc::clone(&stop), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let (mut running, right) = (JoinSet::new(), Arc::new(right));
            for n in 0_u64.. {
                ticks.tick().await;
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (right, seen) = (Arc::clone(&right), Arc::clone(&noted));
                running.spawn(async move {
                    let (kind, stream) = (n % KINDS, n.is_multiple_of(2));
                    let told = ask(http, kind, stream).await;
                    let mut seen = seen.lock().unwrap();
                    seen.requests += 1;
                    match told {
                        Ok(told) if told == right[&kind] => {}
                        Ok(told) => {
                            seen.different += 1;
                            seen.failures
                                .push(format!("{kind}, stream {stream}: {told:?} instead of {:?}", right[&kind]));
                        }
                        Err(error) => seen.failures.push(format!("{kind}, stream {stream}: {error}")),
                    }
                });
                while running.try_join_next().is_some() {}
            }
            while running.join_next().await.is_some() {}
        });
        Self { stop, seen, task }
    }

    /// Lets those that run end; what has come of all.
    pub(crate) async fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn route(kind: u64) -> &'static str {
    if kind.is_multiple_of(3) { "/v1/completions" } else { "/v1/chat/completions" }
}

fn body(kind: u64, stream: bool) -> Value {
    let mut body = json!({"model": MODEL, "temperature": 0, "stream": stream, "max_tokens": 20 + 5 * kind});
    let about = format!("question number {kind}");
    if route(kind) == "/v1/completions" {
        body["prompt"] = about.into();
    } else {
        body["messages"] = json!([{"role": "user", "content": about}]);
    }
    body
}

fn text(choice: &Value) -> String {
    let text =
        choice["message"]["content"].as_str().or(choice["delta"]["content"].as_str()).or(choice["text"].as_str());
    text.unwrap_or_default().to_owned()
}

/// The text of a request's answer, or what went wrong.
async fn ask(http: SocketAddr, kind: u64, stream: bool) -> Result<String, String> {
    let request = http::Request::post(route(kind)).header("host", "bench").header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body(kind, stream).to_string()))).unwrap();
    let answer = support::send(http, request).await?;
    let whole = std::str::from_utf8(&answer.body).map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Err(format!("{} {whole}", answer.status));
    }
    if !stream {
        return Ok(text(&answer.json()["choices"][0]));
    }
    if !whole.ends_with("data: [DONE]\n\n") {
        return Err(format!("it does not end: {whole}"));
    }
    let chunks = whole.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    chunks.map(|data| serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))).try_fold(
        String::new(),
        |told, chunk| {
            let chunk: Value = chunk?;
            if chunk.get("error").is_some() { Err(chunk.to_string()) } else { Ok(told + &text(&chunk["choices"][0])) }
        },
    )
}
