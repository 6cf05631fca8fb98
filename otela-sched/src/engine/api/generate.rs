//! Running sequences, and their tokens on the way to the client: as one object or as events, with the faults asked for.

use super::{Posted, Received, error::ApiError, parameters::Usage};
use crate::engine::{
    Sim,
    connection::Call,
    faults::{Faults, How},
    prose::Answer,
    runner::Ticket,
};
use axum::{
    Json,
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt as _, stream};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Faults that come before any byte of an answer. Also where a request learns that the engine still starts.
pub(super) async fn before_headers(posted: &Posted, faults: &Faults) -> Result<(), ApiError> {
    if let Some(left) = posted.sim.ready_in() {
        return Err(ApiError::starting(left));
    }
    let meters = &posted.sim.meters;
    if let Some(failure) = faults.fail {
        meters.fault("fail");
        return Err(ApiError::on_purpose(failure));
    }
    if faults.hang {
        meters.fault("hang");
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Running sequences and what they will say.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) answers: Arc<[Answer]>,
    pub(super) tickets: Vec<Ticket>,
    pub(super) prompt_tokens: u32,
    /// Answers per prompt.
    pub(super) choices: usize,
}

/// The next token of one answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) index: usize,
    pub(super) token: u32,
}

/// How an endpoint writes tokens as events.
pub(super) trait Script: Send + 'static {
    /// Events that need no token.
    fn begin(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    /// Events for a token.
    fn step(&mut self, step: Step) -> Vec<Bytes>;

    /// Events after the last token.
    fn end(&mut self) -> Vec<Bytes>;

    /// Events that tell of a failure, instead of all others.
    fn error(&self, error: &ApiError) -> Vec<Bytes> {
        vec![event(&error.json()), DONE]
    }
}

/// The end of a stream of chat or completions.
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// One event.
pub(super) fn event(data: &Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

impl Generation {
    pub(super) fn usage(&self) -> Usage {
        Usage::new(self.prompt_tokens, self.answers.iter().map(Answer::tokens).sum())
    }

    /// Waits for all tokens.
    pub(super) async fn finished(&mut self) {
        for ticket in std::mem::take(&mut self.tickets) {
            ticket.all().await;
        }
    }

    fn steps(self) -> impl Stream<Item = Step> + Send + use<> {
        let each = self.tickets.into_iter().enumerate().map(|(index, ticket)| {
            Box::pin(stream::unfold(ticket, move |mut ticket| async move {
                let token = ticket.next().await?;
                Some((Step { index, token }, ticket))
            }))
        });
        stream::select_all(each)
    }

    /// Answers with events as tokens come.
    pub(super) fn streamed(self, posted: Posted, faults: &Faults, mut script: impl Script) -> Response {
        let Posted { sim, call, received, .. } = posted;
        let first = if faults.error_event {
            sim.meters.fault("error_event");
            script.error(&ApiError::broken())
        } else {
            script.begin()
        };
        // With an error event nothing is computed: dropping the steps gives the room back.
        let steps = if faults.error_event { stream::empty().right_stream() } else { self.steps().left_stream() };
        let failed = faults.error_event;
        let marks = steps.map(Some).chain(stream::once(async { None }));
        let rest = marks.flat_map(move |step| {
            stream::iter(match step {
                Some(step) => script.step(step),
                None if failed => Vec::new(),
                None => script.end(),
            })
        });
        let events = stream::iter(first).chain(rest);
        let body = Body::from_stream(sent(&sim, &call, received, faults, events).map(Ok::<_, std::io::Error>));
        ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
    }
}

/// Answers with one object.
pub(super) async fn whole(posted: Posted, faults: &Faults, answer: &Value) -> Result<Response, ApiError> {
    if faults.error_event {
        posted.sim.meters.fault("error_event");
        return Err(ApiError::broken());
    }
    if !faults.silence.is_zero() {
        tokio::time::sleep(faults.silence).await;
    }
    let Posted { sim, call, received, .. } = posted;
    // Two halves and nothing after them: a later break would never be seen.
    if faults.break_off.is_none_or(|broken| broken.events >= 2) {
        received.done();
        return Ok(Json(answer).into_response());
    }
    let text = Bytes::from(answer.to_string());
    let length = text.len();
    let halves = stream::iter([text.slice(..length / 2), text.slice(length / 2..)]);
    let unsilenced = Faults { silence: Duration::ZERO, ..*faults };
    let body = sent(&sim, &call, received, &unsilenced, halves).map(Ok::<_, std::io::Error>);
    let mut response = ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response();
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

/// Events as they go out, faults included; the request counts as done when the last one has gone.
fn sent<S>(
    sim: &Arc<Sim>,
    call: &Call,
    received: Arc<Received>,
    faults: &Faults,
    events: S,
) -> impl Stream<Item = Bytes> + Send + use<S>
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let (meters, broken) = (Arc::clone(&sim.meters), Arc::clone(&received));
    let last = stream::once(async move { received.done() }).filter_map(|()| async { None });
    faults.inflict(events.chain(last), Arc::clone(&call.connection), move |how| {
        meters.fault(how.as_str());
        // A stalled answer still ends by its client's leaving.
        if how != How::Stall {
            broken.done();
        }
    })
}
