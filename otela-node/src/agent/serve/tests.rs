//! The door, asked over HTTP as a peer would.

use super::*;
use crate::{
    agent::{Assignable, Ending},
    http1::{BoxError, Connect, Pool, PoolLimits},
    tasks::Tasks,
};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use otela_proto::{
    PeerId,
    id::{Epoch, Session},
};
use otela_testing::ReservedPort;
use tokio::{
    io::DuplexStream,
    sync::{Mutex, mpsc},
};

/// Hands out the near ends of pipes whose far ends are served.
struct Pipes(Mutex<mpsc::Receiver<DuplexStream>>);

impl Connect for Pipes {
    type Io = DuplexStream;

    async fn connect(&self) -> Result<DuplexStream, BoxError> {
        self.0.lock().await.recv().await.ok_or_else(|| "no more pipes".into())
    }
}

/// A closed door of a node that takes no orders.
fn gate() -> Gate {
    let me = Session { peer: PeerId::random(), epoch: Epoch(1) };
    let (metrics, tasks) = (Metrics::new(), Tasks::new());
    let ending = Ending::new(&tasks, Duration::from_secs(20));
    let orders = Orders::new("lab".parse().unwrap(), move || me, Assignable::default(), tasks, &metrics);
    let in_flight = watch::Sender::default();
    let operations = Operations::new(Vec::new(), ending, in_flight.subscribe(), &metrics);
    let others = Others { orders: Arc::new(orders), operations };
    Gate::new(&metrics, Opening::default(), Traces::default(), (others, in_flight))
}

/// The status and code with which `gate` answers a POST to `path`, and whether it says that no engine had it.
async fn ask(gate: &Gate, path: &str) -> (u16, String, bool) {
    let (status, free, error) = whole(gate, path).await;
    (status, error["error"]["code"].as_str().unwrap_or_default().to_owned(), free)
}

/// The status with which `gate` answers a POST to `path`, whether it says that no engine had it, and the body.
async fn whole(gate: &Gate, path: &str) -> (u16, bool, Value) {
    let (near, far) = tokio::io::duplex(4096);
    let (pipes, waiting) = mpsc::channel(1);
    pipes.send(near).await.unwrap();
    let tasks = Tasks::new();
    let served = http1::Builder::new().serve_connection(TokioIo::new(far), gate.clone());
    tasks.spawn(async move {
        let _ = served.await;
    });
    let wait = Duration::from_secs(20);
    let limits = PoolLimits {
        in_use_max: 1,
        idle_max: 1,
        idle_for_max: wait,
        connect_within: wait,
        queue_within: wait,
        resend_delivered: false,
    };
    let pool = Pool::new(Pipes(Mutex::new(waiting)), limits, tasks);
    let head = Request::post(path).header("host", "x").header(REQUEST_ID, "r1").body(()).unwrap().into_parts().0;
    let response = pool.send(head, RequestBody::Whole(Bytes::from_static(b"{}"))).await.unwrap();
    let (status, free) = (response.status().as_u16(), response.headers().contains_key(NOT_DELIVERED));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, free, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn p25_the_node_itself_lets_nothing_but_inference_through() {
    let gate = gate();
    for path in ["/sleep", "/v1/load_lora_adapter", "/metrics", "/v1/../sleep", "//sleep", "/v1/models"] {
        assert_eq!(ask(&gate, path).await, (404, "unknown_url".into(), true), "{path}");
    }
    assert_eq!(ask(&gate, "/v1/completions").await, (503, "not_ready".into(), true));
}

#[tokio::test]
async fn refusals_are_in_the_words_of_the_endpoint() {
    let gate = gate();
    let message = "The engine is not ready.";
    let (.., error) = whole(&gate, "/v1/messages").await;
    let inner = json!({"type": "overloaded_error", "message": message, "code": "not_ready"});
    assert_eq!(error, json!({"type": "error", "error": inner, "request_id": "r1"}));
    let (.., error) = whole(&gate, "/v1/responses").await;
    let inner =
        json!({"message": message, "type": "server_error", "param": null, "code": "not_ready", "request_id": "r1"});
    assert_eq!(error, json!({"error": inner}));
}

#[tokio::test]
async fn an_engine_that_is_gone_has_not_had_the_request() {
    let gate = gate();
    let nobody = ReservedPort::new();
    let client = Client::new(nobody.address(), None, Tasks::new()).into();
    gate.open(Open { client, pulse: Pulse::new(Duration::from_secs(60)) });
    assert_eq!(ask(&gate, "/v1/completions").await, (503, "engine_unreachable".into(), true));
    gate.close();
    assert_eq!(ask(&gate, "/v1/completions").await, (503, "not_ready".into(), true));
    gate.idle().await;
}

#[tokio::test]
async fn orders_are_answered_with_a_reason() {
    let (status, _, said) = whole(&gate(), DIRECTIVE_PATH).await;
    assert_eq!((status, said["taken"].as_bool(), said["reason"].as_str()), (403, Some(false), Some("not_offered")));
}
