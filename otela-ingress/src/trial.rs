//! Ejection and the way back: a session that was taken out of rotation is tried with a small request of our own until
//! one succeeds, so that no client's request is the trial.

use crate::{
    attempt::hold,
    candidate::Candidate,
    defaults::TRIAL_WITHIN,
    forward::App,
    request::{Endpoint, Inference},
    standing::Strike,
};
use bytes::Bytes;
use http::request;
use otela_node::peer::RequestBody;
use serde_json::json;
use std::sync::Arc;
use tokio::time::{sleep, timeout};

/// A small request that shows whether an engine works.
#[derive(Debug)]
struct Trial {
    head: request::Parts,
    body: Bytes,
}

/// Takes note that a request has failed on `candidate`; if it is out of rotation now, trials begin.
pub(crate) fn strike(app: &Arc<App>, candidate: &Arc<Candidate>, request: &Inference, strike: Strike) {
    if !candidate.standing().health.failed(strike) {
        return;
    }
    let node = candidate.node();
    tracing::warn!(%node, model = request.wanted.name(), "requests fail there one after another: out of rotation until a trial succeeds");
    app.metrics.ejections.inc();
    app.metrics.ejected.inc();
    let (trial, tried, of) = (trial_like(request, candidate), Arc::clone(candidate), Arc::clone(app));
    app.tasks.spawn(async move {
        tokio::select! {
            () = bring_back(&of, &tried, trial.as_ref()) => {}
            () = of.tasks.draining() => {}
        }
        of.metrics.ejected.dec();
        of.queues.look_again();
    });
}

/// Tries until one succeeds or the session has ended.
async fn bring_back(app: &App, candidate: &Candidate, trial: Option<&Trial>) {
    let (node, session) = (candidate.node(), candidate.session());
    loop {
        sleep(candidate.standing().health.pause()).await;
        let view = app.peer.view();
        let runs = view.node(&node).is_some_and(|node| node.is_listed() && node.entry.session() == session);
        if !runs {
            return;
        }
        let succeeded = match trial {
            Some(trial) => timeout(TRIAL_WITHIN, succeeds(app, candidate, trial)).await.unwrap_or(false),
            // There is no small request of this kind: a client's shows whether it works.
            None => true,
        };
        candidate.standing().health.tried(succeeded);
        if succeeded {
            tracing::info!(%node, "back in rotation: a trial has succeeded");
            return;
        }
        tracing::debug!(%node, "a trial has failed");
    }
}

async fn succeeds(app: &App, candidate: &Candidate, trial: &Trial) -> bool {
    let body = RequestBody::Whole(trial.body.clone());
    let Ok((response, _)) = app.peer.send(&candidate.node(), trial.head.clone(), body).await else { return false };
    // An engine that says that the trial is wrong answers.
    let answers = !response.status().is_server_error();
    matches!(hold(response.into_body()).await, Ok((whole, _)) if answers && !whole.is_empty())
}

/// A request of one token of the kind that failed; embeddings for requests that are neither chats nor completions but
/// have an `input`.
fn trial_like(request: &Inference, candidate: &Candidate) -> Option<Trial> {
    let model = &candidate.replica().model().id;
    let (path, body) = match request.endpoint() {
        Endpoint::Completions => ("/v1/completions", json!({"model": model, "prompt": ".", "max_tokens": 1})),
        _ if request.path.path() == "/v1/embeddings" => ("/v1/embeddings", json!({"model": model, "input": "."})),
        Endpoint::Chat => chat(model),
        Endpoint::Other if ["/v1/responses", "/v1/messages"].contains(&request.path.path()) => chat(model),
        Endpoint::Other => return None,
    };
    Some(Trial { head: request.own_head(path), body: Bytes::from(body.to_string()) })
}

fn chat(model: &str) -> (&'static str, serde_json::Value) {
    let messages = json!([{"role": "user", "content": "."}]);
    ("/v1/chat/completions", json!({"model": model, "messages": messages, "max_tokens": 1}))
}
