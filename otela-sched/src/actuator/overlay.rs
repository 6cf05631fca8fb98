//! Orders to nodes, over the mesh.

use super::{Actuator, NotApplied};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use otela_node::{
    peer::{Peer, RequestBody},
    telemetry::chain,
};
use otela_proto::{
    Keypair,
    assignment::{DIRECTIVE_PATH, Directive},
};
use prost::Message;
use serde::Deserialize;
use std::time::Duration;
use tokio::time::timeout;

/// A node answers at once; the way to it may have to be found.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// Signs orders and sends them to nodes.
#[derive(Debug, Clone)]
pub struct Overlay {
    peer: Peer,
    key: Keypair,
}

/// What a node says.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl Overlay {
    /// By `peer`, with its own key.
    pub fn new(peer: Peer, key: Keypair) -> Self {
        Self { peer, key }
    }

    async fn send(&self, order: &Directive) -> Result<(StatusCode, Bytes), NotApplied> {
        let not_reached = |what: String| NotApplied::NotReached(what);
        let signed = order.sign(&self.key, self.peer.mesh()).map_err(|invalid| NotApplied::Refused {
            reason: invalid.reason().to_owned(),
            message: invalid.to_string(),
        })?;
        let head = Request::builder().method(Method::POST).uri(DIRECTIVE_PATH).body(());
        let head = head.map_err(|error| not_reached(error.to_string()))?.into_parts().0;
        let body = RequestBody::Whole(signed.encode_to_vec().into());
        let sent = self.peer.send(&order.to.peer, head, body).await;
        let (answer, _) = sent.map_err(|error| not_reached(chain(&error)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| not_reached(error.to_string()))?.to_bytes()))
    }
}

impl Actuator for Overlay {
    async fn apply(&self, order: &Directive) -> Result<(), NotApplied> {
        let sent = timeout(ANSWER_WITHIN, self.send(order)).await;
        let (status, body) =
            sent.map_err(|_| NotApplied::NotReached(format!("no answer within {ANSWER_WITHIN:?}")))??;
        if status == StatusCode::ACCEPTED {
            return Ok(());
        }
        let answer = serde_json::from_slice(&body);
        let Answer { reason, message } =
            answer.unwrap_or_else(|_| Answer { reason: String::new(), message: String::new() });
        // Whoever does not know of orders answers as for any path that is not there.
        let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
        let told = or(message, "the node takes no orders: it is of an older version");
        Err(NotApplied::Refused { reason: or(reason, "not_understood"), message: format!("{status}: {told}") })
    }
}
