//! Goes on with a stream that broke, on another node: the engine there is given the request and what was said so far, and
//! continues it (`continue_final_message` for chats; for completions the text is part of the prompt).
//!
//! The same filters hold as for the first attempt. A place is taken whether or not the node is full: the answer had one.

use crate::{
    answer::Continues,
    attempt::{self, BegunBody},
    balance::InFlight,
    candidate::Candidate,
    forward::{App, candidates, note_failure},
    place::{self, Needs},
    request::{Endpoint, Inference, Outgoing},
    splice::{Edit, field, splice},
    stream::{Transcript, Usage},
    way::{Others, Unreached},
};
use bytes::Bytes;
use http::request;
use otela_node::peer::{Path, PooledBody, RequestBody};
use otela_proto::id::Session;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// What engines call it that they can continue a message.
const FEATURE: &str = "continue_final_message";
/// Counting tokens takes an engine a moment; without the count the answer goes on all the same.
const COUNTED_WITHIN: Duration = Duration::from_secs(2);

/// How a broken answer goes on.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// Another engine speaks.
    On(Box<Continued>),
    /// There is nothing left to say but how the answer ends.
    Closing {
        /// Why it ends, if that was not told yet.
        finish: Option<&'static str>,
        usage: Option<Usage>,
    },
}

/// An answer that another engine continues.
#[derive(Debug)]
pub(crate) struct Continued {
    pub(crate) in_flight: InFlight,
    pub(crate) path: Path,
    pub(crate) first: Bytes,
    pub(crate) rest: PooledBody,
    pub(crate) continues: Continues,
    pub(crate) asked_usage: bool,
}

/// Why it does not go on, as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotResumed(pub(crate) &'static str);

/// Finds an engine that goes on with what `said` tells. `tried` are those that need not be asked.
pub(crate) async fn resume(
    app: Arc<App>,
    request: Arc<Inference>,
    said: Transcript,
    mut tried: Vec<Session>,
) -> Result<Resumed, NotResumed> {
    let mut unreached = Unreached::default();
    for _ in 0..=request.settings.retries_max {
        let in_flight = match place(&app, &request, &tried) {
            Ok(in_flight) => in_flight,
            // As for a request that has no answer yet.
            Err(nobody) => {
                let (changes, all) = (app.peer.view_changes(), || candidates(&app, &request));
                if !unreached.another_way(changes, &mut tried, Others::Too, all).await {
                    return Err(nobody);
                }
                place(&app, &request, &tried)?
            }
        };
        tried.push(in_flight.candidate().session());
        let counts = Counts::of(&app, &request, in_flight.candidate(), &said).await;
        // Counted again, a text may have a token less than it was made of: where two of them meet as one.
        let completion_tokens = counts.map_or(0, |counts| counts.said).max(said.chunks);
        let usage = counts.map(|counts| Usage { prompt_tokens: counts.prompt, completion_tokens });
        if said.is_finished {
            return Ok(Resumed::Closing { finish: None, usage });
        }
        let spoken = said.text.trim_end();
        let left = request.scan.max_tokens().map(|most| most.saturating_sub(completion_tokens));
        if left == Some(0) {
            return Ok(Resumed::Closing { finish: Some("length"), usage });
        }
        // White space at the end is said once more.
        let again = u64::from(spoken.len() < said.text.len());
        let asks = Continuation { request: &request, said: spoken, left: left.map(|left| left + again) };
        let Some(outgoing) = asks.outgoing() else { return Err(NotResumed("not_text")) };
        match attempt::attempt(&app, &in_flight, &request, &outgoing).await {
            Err(failure) => {
                note_failure(&app, &in_flight, &request, &failure);
                if failure.is_unreached() {
                    unreached.note(in_flight.candidate());
                }
            }
            Ok(begun) => {
                let BegunBody::Events(first, rest) = begun.body else { return Err(NotResumed("refused")) };
                if !begun.head.status.is_success() {
                    return Err(NotResumed("refused"));
                }
                let skip = said.text[asks.said.len()..].to_owned();
                let prompt_tokens = counts.map(|counts| counts.prompt);
                let continues = Continues { prompt_tokens, completion_tokens, skip };
                let asked_usage = outgoing.asks_usage;
                let path = begun.path;
                return Ok(Resumed::On(Box::new(Continued { in_flight, path, first, rest, continues, asked_usage })));
            }
        }
    }
    Err(NotResumed("failed_again"))
}

/// A place on a candidate that can do it.
fn place(app: &Arc<App>, request: &Inference, tried: &[Session]) -> Result<InFlight, NotResumed> {
    let found = candidates(app, request).map_err(|_| NotResumed("no_candidate"))?;
    let can =
        |candidate: &&Arc<Candidate>| request.endpoint() == Endpoint::Completions || candidate.has_feature(FEATURE);
    let able: Vec<_> = found.iter().filter(can).cloned().collect();
    if able.is_empty() {
        return Err(NotResumed("no_candidate"));
    }
    let needs = Needs { in_flight_max: u32::MAX, ..Needs::of(app, request) };
    let (candidate, count) = place::take(&able, tried, &needs).map_err(|_| NotResumed("no_candidate"))?;
    let span = request.attempt_span();
    span.set("otela.resumed", true);
    Ok(InFlight::start(Arc::clone(needs.balancer), candidate, count, Arc::clone(&app.queues), span))
}

/// The client's request, with what was said so far.
struct Continuation<'a> {
    request: &'a Inference,
    said: &'a str,
    /// Tokens that the answer may still have.
    left: Option<u64>,
}

impl Continuation<'_> {
    fn outgoing(&self) -> Option<Outgoing> {
        let (request, scan) = (self.request, &self.request.scan);
        let mut edits: Vec<Edit> = request.usage_edit().into_iter().collect();
        let asks_usage = !edits.is_empty();
        if let Some(left) = self.left {
            edits.extend(scan.limits.iter().map(|(at, _)| Edit::replace(at.clone(), left.to_string())));
        }
        if !self.said.is_empty() {
            edits.push(self.said_edit()?);
            if request.endpoint() == Endpoint::Chat {
                edits.push(field(scan.opens_at, false, "continue_final_message", "true"));
                edits.push(field(scan.opens_at, false, "add_generation_prompt", "false"));
            }
        }
        Some(Outgoing { head: request.head(), body: splice(&request.body, edits), asks_usage })
    }

    /// What was said, put where an engine goes on from.
    fn said_edit(&self) -> Option<Edit> {
        let (scan, body) = (&self.request.scan, &self.request.body);
        let text = Value::from(self.said).to_string();
        match self.request.endpoint() {
            Endpoint::Chat => {
                let messages = scan.messages.clone().filter(|at| body[at.clone()].starts_with(b"["))?;
                let is_empty = body[messages.start + 1..messages.end - 1].trim_ascii().is_empty();
                let comma = if is_empty { "" } else { "," };
                let message = format!("{comma}{{\"role\":\"assistant\",\"content\":{text}}}");
                Some(Edit::insert(messages.end - 1, message))
            }
            Endpoint::Completions => {
                let prompt = scan.prompt.clone().filter(|at| body[at.clone()].starts_with(b"\""))?;
                Some(Edit::insert(prompt.end - 1, text[1..text.len() - 1].to_owned()))
            }
            Endpoint::Other => None,
        }
    }
}

/// Tokens as the engine that goes on counts them.
#[derive(Debug, Clone, Copy)]
struct Counts {
    prompt: u64,
    said: u64,
}

impl Counts {
    async fn of(app: &App, request: &Inference, candidate: &Candidate, said: &Transcript) -> Option<Self> {
        let (before, after) = Self::bodies(request, &said.text)?;
        let count = async |body: Vec<u8>| {
            let body = RequestBody::Whole(body.into());
            let head: request::Parts = request.own_head("/tokenize");
            let (response, _) = app.peer.send(&candidate.node(), head, body).await.ok()?;
            let (whole, _) = attempt::hold(response.into_body()).await.ok()?;
            serde_json::from_slice::<Value>(&whole).ok()?.get("count")?.as_u64()
        };
        let both = async { Some((count(before).await?, count(after).await?)) };
        let (prompt, all) = timeout(COUNTED_WITHIN, both).await.ok().flatten()?;
        Some(Self { prompt, said: all.saturating_sub(prompt) })
    }

    /// Requests to count the client's own prompt, and that with what was said.
    fn bodies(request: &Inference, said: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let model = Value::from(request.wanted.model.as_deref()?);
        let (scan, body) = (&request.scan, &request.body);
        let raw = |at: &std::ops::Range<usize>| String::from_utf8_lossy(&body[at.clone()]).into_owned();
        let edit = Continuation { request, said, left: None }.said_edit()?;
        let (name, at) = match request.endpoint() {
            Endpoint::Chat => ("messages", scan.messages.clone()?),
            _ => ("prompt", scan.prompt.clone()?),
        };
        let own = raw(&at);
        let inserted = edit.at.start - at.start;
        let longer = format!("{}{}{}", &own[..inserted], String::from_utf8_lossy(&edit.by), &own[inserted..]);
        let (before, after) = match request.endpoint() {
            Endpoint::Chat => {
                (",\"add_generation_prompt\":true", ",\"add_generation_prompt\":false,\"continue_final_message\":true")
            }
            _ => ("", ""),
        };
        let of = |value: &str, more: &str| format!("{{\"model\":{model},\"{name}\":{value}{more}}}").into_bytes();
        Some((of(&own, before), of(&longer, after)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;

    fn continued(path: &'static str, body: &'static str, said: &str, left: Option<u64>) -> Option<String> {
        let request = request(path, body);
        let outgoing = Continuation { request: &request, said, left }.outgoing()?;
        Some(String::from_utf8(outgoing.body.concat()).unwrap())
    }

    #[test]
    fn chats_go_on_from_their_last_message() {
        let body = r#"{"model":"m", "messages": [{"role":"user","content":"hi","big":12345678901234567}],"max_tokens":10,"stream":true}"#;
        let sent = continued("/v1/chat/completions", body, "so \"far\"\n", Some(7)).unwrap();
        let expected = r#"{"stream_options":{"include_usage":true},"continue_final_message":true,"add_generation_prompt":false,"model":"m", "messages": [{"role":"user","content":"hi","big":12345678901234567},{"role":"assistant","content":"so \"far\"\n"}],"max_tokens":7,"stream":true}"#;
        assert_eq!(sent, expected);
        let nothing = continued("/v1/chat/completions", body, "", None).unwrap();
        assert_eq!(nothing, body.replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1), "it begins anew");
        let empty = r#"{"messages":[ ],"stream":true,"stream_options":{"include_usage":true}}"#;
        let sent = continued("/v1/chat/completions", empty, "x", None).unwrap();
        assert!(sent.contains(r#""messages":[ {"role":"assistant","content":"x"}]"#), "{sent}");
    }

    #[test]
    fn completions_go_on_from_their_prompt() {
        let body = r#"{"prompt":"a\"b","stream":true,"stream_options":{"include_usage":true},"max_tokens":3}"#;
        let sent = continued("/v1/completions", body, "c\nd", Some(1)).unwrap();
        assert_eq!(sent, body.replace(r#"a\"b"#, r#"a\"bc\nd"#).replace(":3}", ":1}"));
        assert_eq!(continued("/v1/completions", r#"{"prompt":[1,2],"stream":true}"#, "x", None), None);
        assert_eq!(continued("/v1/responses", r#"{"input":"a","stream":true}"#, "x", None), None);
    }

    #[test]
    fn tokens_are_counted_before_and_after() {
        let chat = request("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"é"}]}"#);
        let (before, after) = Counts::bodies(&chat, "x").unwrap();
        let before: Value = serde_json::from_slice(&before).unwrap();
        let after: Value = serde_json::from_slice(&after).unwrap();
        assert_eq!((&before["messages"][0]["content"], &before["add_generation_prompt"]), (&"é".into(), &true.into()));
        assert_eq!((&after["messages"][1]["content"], &after["continue_final_message"]), (&"x".into(), &true.into()));
        let completion = request("/v1/completions", r#"{"prompt":"a"}"#);
        let (_, after) = Counts::bodies(&completion, "b").unwrap();
        assert_eq!(after, br#"{"model":"m","prompt":"ab"}"#);
    }
}
