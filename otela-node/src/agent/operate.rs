//! What operators ask of a running node: to drain it, and what its engine prints.
//!
//! Over the mesh those may whom the provider names by their peer ids, which connections prove. On this machine it is whoever
//! may open the node's [control socket](super::control).

use super::ending::Ending;
use crate::{engine::Output, telemetry::Metrics};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header, request};
use http_body_util::Full;
use otela_proto::PeerId;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use url::form_urlencoded;

/// Drains the node: POST, with how long requests may run on as `within`.
pub const DRAIN_PATH: &str = "/otela/drain";
/// What the engine prints: GET, with the number of the first line as `after` and how many as `lines`.
pub const LOGS_PATH: &str = "/otela/logs";

/// Lines of one answer, unless fewer are asked for.
const LINES_MAX: usize = 1_000;
/// Bytes of lines in one answer; what is longer is asked for with the next.
const LINES_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// What operators may ask of one node. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Operations {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    operators: Vec<PeerId>,
    ending: Ending,
    in_flight: watch::Receiver<usize>,
    output: ArcSwapOption<Output>,
    refused: Family<Reason, Counter>,
}

/// Why an operation is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Denied {
    #[error("this node does not know peer {0} as an operator: its provider names one with --operator")]
    NotAnOperator(PeerId),
    #[error("nobody knows who asks: the connection proves no peer")]
    Nameless,
    #[error("{0} is no method for this: drain with POST, logs with GET")]
    Method(Method),
    #[error("`{0}` cannot be read: {1}")]
    Parameter(&'static str, String),
    #[error("no engine has been started here yet")]
    NoEngine,
}

impl Denied {
    fn reason(&self) -> (&'static str, StatusCode) {
        match self {
            Self::NotAnOperator(_) | Self::Nameless => ("not_an_operator", StatusCode::FORBIDDEN),
            Self::Method(_) => ("method", StatusCode::METHOD_NOT_ALLOWED),
            Self::Parameter(..) => ("parameter", StatusCode::BAD_REQUEST),
            Self::NoEngine => ("no_engine", StatusCode::NOT_FOUND),
        }
    }
}

impl Operations {
    /// Of a node that lets these peers operate it.
    pub(super) fn new(
        operators: Vec<PeerId>,
        ending: Ending,
        in_flight: watch::Receiver<usize>,
        metrics: &Metrics,
    ) -> Self {
        let refused = Family::<Reason, Counter>::default();
        let shown = refused.clone();
        metrics.register(|r| {
            r.register("otela_agent_operations_refused", "Operators' wishes that were refused, by reason", shown);
        });
        let output = ArcSwapOption::empty();
        Self { shared: Arc::new(Shared { operators, ending, in_flight, output, refused }) }
    }

    /// Whether this path is for operators.
    pub(super) fn is_one(path: &str) -> bool {
        path == DRAIN_PATH || path == LOGS_PATH
    }

    /// From now on this is what the engine prints.
    pub(super) fn shows(&self, output: Output) {
        self.shared.output.store(Some(Arc::new(output)));
    }

    /// Answers a peer of the mesh.
    pub(super) fn answer(&self, caller: Option<PeerId>, asked: &request::Parts) -> Response<Full<Bytes>> {
        let entitled = match caller {
            Some(peer) if self.shared.operators.contains(&peer) => Ok(peer.to_string()),
            Some(peer) => Err(Denied::NotAnOperator(peer)),
            None => Err(Denied::Nameless),
        };
        self.said(entitled.and_then(|who| self.carry_out(&who, asked)))
    }

    /// Answers somebody on this machine, who may whatever can be asked.
    pub(super) fn answer_here(&self, asked: &request::Parts) -> Response<Full<Bytes>> {
        self.said(self.carry_out("somebody on this machine", asked))
    }

    fn carry_out(&self, who: &str, asked: &request::Parts) -> Result<Value, Denied> {
        let parameter = |name: &str| {
            let query = asked.uri.query().unwrap_or_default();
            form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
        };
        match (asked.uri.path(), &asked.method) {
            (DRAIN_PATH, &Method::POST) => {
                let within = parameter("within").map(|text| humantime::parse_duration(&text)).transpose();
                let within = within.map_err(|error| Denied::Parameter("within", error.to_string()))?;
                Ok(self.drain(who, within))
            }
            (LOGS_PATH, &Method::GET) => {
                let number = |name: &'static str| {
                    let number = parameter(name).map(|text| text.parse::<u64>()).transpose();
                    number.map_err(|error| Denied::Parameter(name, error.to_string()))
                };
                self.logs(number("after")?, number("lines")?)
            }
            (_, method) => Err(Denied::Method(method.clone())),
        }
    }

    fn drain(&self, who: &str, within: Option<Duration>) -> Value {
        if !self.shared.ending.is_draining() {
            tracing::info!("asked to drain by {who}: this node takes no new requests, finishes what runs, and leaves");
        }
        self.shared.ending.drain(within);
        json!({"draining": true, "in_flight": *self.shared.in_flight.borrow()})
    }

    fn logs(&self, after: Option<u64>, lines: Option<u64>) -> Result<Value, Denied> {
        let output = self.shared.output.load_full().ok_or(Denied::NoEngine)?;
        let most = lines.and_then(|lines| usize::try_from(lines).ok()).unwrap_or(LINES_MAX).min(LINES_MAX);
        let mut page = output.page(after, most);
        let mut bytes = 0;
        let fit = page.lines.iter().take_while(|line| {
            bytes += line.len();
            bytes <= LINES_BYTES_MAX
        });
        let fit = fit.count();
        page.lines.truncate(fit);
        let next = page.first + page.lines.len() as u64;
        Ok(json!({"first": page.first, "next": next, "lines": page.lines}))
    }

    fn said(&self, answer: Result<Value, Denied>) -> Response<Full<Bytes>> {
        let (status, body) = match answer {
            Ok(body) => (StatusCode::OK, body),
            Err(denied) => {
                let (reason, status) = denied.reason();
                self.shared.refused.get_or_create(&Reason { reason }).inc();
                (status, json!({"error": {"code": reason, "message": denied.to_string()}}))
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Tasks;
    use futures::FutureExt;
    use http::Request;
    use http_body_util::BodyExt;

    fn asked(method: &str, uri: &str) -> request::Parts {
        Request::builder().method(method).uri(uri).body(()).unwrap().into_parts().0
    }

    fn read(response: Response<Full<Bytes>>) -> (u16, Value) {
        let status = response.status().as_u16();
        let body = response.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn only_operators_are_heard_and_only_what_can_be_asked() {
        let (tasks, metrics) = (Tasks::new(), Metrics::new());
        let operator = PeerId::random();
        let ending = Ending::new(&tasks, Duration::from_secs(20));
        let operations = Operations::new(vec![operator], ending, watch::channel(3).1, &metrics);
        let drain = asked("POST", DRAIN_PATH);
        let (status, said) = read(operations.answer(Some(PeerId::random()), &drain));
        assert_eq!((status, &said["error"]["code"]), (403, &json!("not_an_operator")));
        assert_eq!(read(operations.answer(None, &drain)).0, 403);
        for (method, uri, status) in [
            ("GET", DRAIN_PATH.to_owned(), 405),
            ("POST", LOGS_PATH.to_owned(), 405),
            ("GET", LOGS_PATH.to_owned(), 404),
            ("POST", format!("{DRAIN_PATH}?within=soon"), 400),
            ("GET", format!("{LOGS_PATH}?after=-1"), 400),
        ] {
            assert_eq!(read(operations.answer(Some(operator), &asked(method, &uri))).0, status, "{method} {uri}");
        }
        assert!(!tasks.is_draining(), "nothing of this has done anything");
        assert!(metrics.render().contains("otela_agent_operations_refused_total{reason=\"not_an_operator\"} 2"));
        let (status, said) =
            read(operations.answer(Some(operator), &asked("POST", &format!("{DRAIN_PATH}?within=5m"))));
        assert_eq!((status, said), (200, json!({"draining": true, "in_flight": 3})));
        assert!(tasks.is_draining());
    }
}
