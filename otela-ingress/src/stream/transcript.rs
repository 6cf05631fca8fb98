//! What an answer has said so far: enough to have it continued by another engine.

use super::chunk::{Chunk, Said, Usage};
use crate::defaults::TRANSCRIPT_BYTES_MAX;

/// The answer so far, as the client has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transcript {
    /// All text.
    pub(crate) text: String,
    /// The id and time of the first chunk, which all further ones have to show.
    pub(crate) id: Option<String>,
    pub(crate) created: Option<u64>,
    /// Whether the reason for the answer's end was told, and `[DONE]` after it.
    pub(crate) is_finished: bool,
    pub(crate) is_done: bool,
    /// The engine's last account.
    pub(crate) usage: Option<Usage>,
    /// Chunks with text: as many tokens, or a few less.
    pub(crate) chunks: u64,
    /// There was more than plain text, or too much of it.
    pub(crate) is_blocked: bool,
}

impl Transcript {
    /// Takes note of an event that the client is sent.
    pub(crate) fn note(&mut self, said: &Said) {
        match said {
            Said::Nothing => {}
            Said::Done => self.is_done = true,
            Said::Chunk(chunk) => self.note_chunk(chunk),
        }
    }

    fn note_chunk(&mut self, chunk: &Chunk) {
        self.usage = chunk.usage.or(self.usage);
        self.is_blocked |= chunk.is_more;
        self.is_finished |= chunk.finish.is_some();
        if self.id.is_none() {
            self.id.clone_from(&chunk.id);
            self.created = chunk.created;
        }
        if !chunk.text.is_empty() {
            self.chunks += 1;
            self.text.push_str(&chunk.text);
            self.is_blocked |= self.text.len() > TRANSCRIPT_BYTES_MAX;
            if self.is_blocked {
                // It will not be needed any more.
                self.text = String::new();
            }
        }
    }

    /// The answer cannot be continued from here on.
    pub(crate) fn block(&mut self) {
        self.is_blocked = true;
        self.text = String::new();
    }

    /// Tokens of the answer: what the engine told, or what was seen.
    pub(crate) fn tokens(&self) -> Option<u64> {
        self.usage.map(|usage| usage.completion_tokens).or((self.chunks > 0).then_some(self.chunks))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::chunk::said, *};

    fn note(transcript: &mut Transcript, data: &str) {
        transcript.note(&said(format!("data: {data}\n\n").as_bytes()));
    }

    #[test]
    fn p30_the_last_account_replaces_those_before() {
        let mut transcript = Transcript::default();
        for n in 1..=50 {
            note(
                &mut transcript,
                &format!(
                    r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}}}}],"usage":{{"prompt_tokens":3,"completion_tokens":{n}}}}}"#
                ),
            );
        }
        note(&mut transcript, r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":50}}"#);
        note(&mut transcript, r#"{"choices":[],"usage":null}"#);
        assert_eq!(transcript.usage, Some(Usage { prompt_tokens: 3, completion_tokens: 50 }));
        assert_eq!((transcript.tokens(), transcript.text.len()), (Some(50), 50));
    }

    #[test]
    fn what_was_said_first_is_kept() {
        let mut transcript = Transcript::default();
        note(
            &mut transcript,
            r#"{"id":"a","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
        );
        note(&mut transcript, r#"{"id":"b","created":2,"choices":[{"index":0,"delta":{"content":"hé"}}]}"#);
        assert_eq!(
            (transcript.id.as_deref(), transcript.created, transcript.text.as_str()),
            (Some("a"), Some(1), "hé")
        );
        assert!(!transcript.is_finished && transcript.tokens() == Some(1));
        note(&mut transcript, r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#);
        transcript.note(&Said::Done);
        assert!(transcript.is_finished && transcript.is_done && !transcript.is_blocked);
        note(&mut transcript, r#"{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}"#);
        assert!(transcript.is_blocked);
    }
}
