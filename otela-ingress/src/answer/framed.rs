//! A chat's or a completion's stream, event by event: what is remembered of it, what is left out, what is rewritten.
//!
//! Bytes of whole events go on as they came. Two things are kept from the client: the account of tokens that it did not
//! ask for, and after a break the opening of the answer that continues the first one.

use crate::{
    request::{Endpoint, Inference},
    stream::{Fault, Faults, Framer, Piece, Said, Transcript, Usage, chunk, chunk::Rewrite},
};
use bytes::Bytes;
use serde_json::json;
use std::collections::VecDeque;

/// What has become of bytes that were taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// They are on their way.
    Well,
    /// An event says that the engine has failed, in an answer that could be continued: it is kept from the client.
    Failed,
}

/// The state of such a stream.
#[derive(Debug)]
pub(super) struct Framed {
    framer: Framer,
    transcript: Transcript,
    /// The account at the end was our wish.
    hides_usage: bool,
    /// The answer may be continued, as far as the request goes.
    may_continue: bool,
    /// This is not the first engine: how its account and its names are changed.
    continues: Option<Continues>,
    out: VecDeque<Bytes>,
}

/// What an engine continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Continues {
    /// Tokens of the client's own prompt.
    pub(crate) prompt_tokens: Option<u64>,
    /// Tokens of the answer before this engine.
    pub(crate) completion_tokens: u64,
    /// White space at the end of what was said. The engine was not given it, since chat templates cut it off; it will
    /// most likely say it again.
    pub(crate) skip: String,
}

impl Continues {
    /// The account of the whole answer, from the engine's of its part: its prompt was the client's and all that had been
    /// said.
    fn whole(&self, part: Usage) -> Usage {
        let said_before = part.prompt_tokens.saturating_sub(self.completion_tokens);
        Usage {
            prompt_tokens: self.prompt_tokens.unwrap_or(said_before),
            completion_tokens: self.completion_tokens + part.completion_tokens,
        }
    }
}

impl Framed {
    pub(super) fn new(asked_usage: bool, may_continue: bool) -> Self {
        Self {
            framer: Framer::default(),
            transcript: Transcript::default(),
            hides_usage: asked_usage,
            may_continue,
            continues: None,
            out: VecDeque::new(),
        }
    }

    /// Takes in what came.
    pub(super) fn take_in(&mut self, data: Bytes) -> Taken {
        self.framer.push(data);
        while let Some(piece) = self.framer.next() {
            let event = match piece {
                Piece::Event(event) => event,
                Piece::Part(part) => {
                    self.transcript.block();
                    self.out.push_back(part);
                    continue;
                }
            };
            if self.can_continue() && Faults::of(&event) == Some(Fault::Engine) {
                return Taken::Failed;
            }
            self.take_event(event);
        }
        Taken::Well
    }

    fn take_event(&mut self, event: Bytes) {
        let said = chunk::said(&event);
        let Some(continues) = &mut self.continues else {
            self.transcript.note(&said);
            let is_hidden = self.hides_usage && matches!(&said, Said::Chunk(chunk) if chunk.is_usage_only);
            if !is_hidden {
                self.out.push_back(event);
            }
            return;
        };
        let Said::Chunk(mut chunk) = said else {
            self.transcript.note(&said);
            self.out.push_back(event);
            return;
        };
        chunk.usage = chunk.usage.map(|part| continues.whole(part));
        let mut is_hidden = chunk.is_opening || (self.hides_usage && chunk.is_usage_only);
        let mut event = event;
        if !chunk.text.is_empty() && !continues.skip.is_empty() {
            let again = common_prefix(&chunk.text, &continues.skip);
            continues.skip = if again == chunk.text.len() { continues.skip.split_off(again) } else { String::new() };
            if again > 0 {
                event = chunk::without_prefix(&event, again).unwrap_or(event);
                chunk.text.drain(..again);
                // A token that was said before, and is accounted for again.
                let is_repeated = chunk.text.is_empty();
                continues.completion_tokens = continues.completion_tokens.saturating_sub(u64::from(is_repeated));
                is_hidden |= is_repeated && chunk.finish.is_none() && chunk.usage.is_none();
            }
        }
        let rewrite = Rewrite { id: self.transcript.id.clone(), created: self.transcript.created, usage: chunk.usage };
        self.transcript.note(&Said::Chunk(chunk));
        if !is_hidden {
            self.out.push_back(chunk::rewritten(&event, &rewrite).unwrap_or(event));
        }
    }

    /// The next bytes for the client.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    /// What is held of an event whose end will not come: for a stream that has ended well.
    pub(super) fn take_rest(&mut self) -> Option<Bytes> {
        Some(self.framer.take_held()).filter(|rest| !rest.is_empty())
    }

    /// Whether something may be put in.
    pub(super) fn is_between(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether another engine could go on from here.
    pub(super) fn can_continue(&self) -> bool {
        self.may_continue && !self.transcript.is_blocked && !self.transcript.is_done
    }

    /// Whether all was said that matters.
    pub(super) fn is_done(&self) -> bool {
        self.transcript.is_done
    }

    pub(super) fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    /// From here on another engine goes on.
    pub(super) fn continues(&mut self, continues: Continues, asked_usage: bool) {
        self.framer = Framer::default();
        self.hides_usage = asked_usage;
        self.continues = Some(continues);
    }

    /// The closing events of an answer whose text and end were told, and then the engine broke: nothing is left to say
    /// but this.
    pub(super) fn close(&mut self, request: &Inference, finish: Option<&str>, usage: Option<Usage>) {
        let is_chat = request.endpoint() == Endpoint::Chat;
        let mut chunk = json!({
            "id": self.transcript.id,
            "object": if is_chat { "chat.completion.chunk" } else { "text_completion" },
            "created": self.transcript.created,
            "model": request.wanted.name(),
        });
        if let Some(finish) = finish {
            let mut choice = if is_chat { json!({"index": 0, "delta": {}}) } else { json!({"index": 0, "text": ""}) };
            choice["finish_reason"] = finish.into();
            chunk["choices"] = json!([choice]);
            self.out.push_back(format!("data: {chunk}\n\n").into());
        }
        if let Some(usage) = usage.filter(|_| request.wants_usage()) {
            chunk["choices"] = json!([]);
            chunk["usage"] = json!({
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            });
            self.out.push_back(format!("data: {chunk}\n\n").into());
        }
        self.transcript.usage = usage.or(self.transcript.usage);
        self.transcript.is_done = true;
        self.out.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }

    /// A comment, or an error event.
    pub(super) fn put_in(&mut self, event: Bytes) {
        self.out.push_back(event);
    }
}

/// How many bytes at their begin two texts have in common.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(char, _)| char.len_utf8()).sum()
}

#[cfg(test)]
mod tests;
