//! What an answer tells of its engine while it goes by.
//!
//! Engines of several processes have a front end that goes on when what is behind it hangs: it refuses bad requests, counts
//! tokens, begins streams and keeps them alive with comments. None of that is a sign of life. A token is.

use crate::agent::pulse::Asked;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header, response};

/// What event streams are called.
const EVENT_STREAM: &[u8] = b"text/event-stream";
/// How an event begins that is an error, behind the field's name.
const ERROR: &[u8] = b"{\"error\"";

/// An answer, from its head on.
#[derive(Debug)]
pub(in crate::agent) struct Answering {
    /// None for what no model works at.
    asked: Option<Asked>,
    /// Of an event stream: how far its lines are read.
    lines: Option<Lines>,
}

impl Answering {
    /// With this head.
    pub(super) fn new(mut asked: Option<Asked>, head: &response::Parts) -> Self {
        let is_stream = head.status == StatusCode::OK && is_event_stream(head);
        if let Some(asked) = asked.as_mut().filter(|_| !is_stream) {
            match head.status {
                status if status.is_server_error() => asked.failed(),
                status if status.is_success() => asked.answered(),
                _ => asked.heard(),
            }
        }
        Self { asked, lines: is_stream.then(Lines::default) }
    }

    /// With these bytes.
    pub(super) fn goes_on(&mut self, bytes: &Bytes) {
        let Some(asked) = &mut self.asked else { return };
        match self.lines.as_mut().map(|lines| lines.read(bytes)) {
            None if bytes.is_empty() => {}
            None => asked.goes_on(),
            Some(Some(Sign::Life)) => asked.answered(),
            Some(Some(Sign::Error)) => asked.failed(),
            Some(None) => {}
        }
    }

    /// To its end, or until the engine broke it off.
    pub(super) fn ends(&mut self, broken: bool) {
        match &mut self.asked {
            Some(asked) if broken => asked.failed(),
            Some(asked) => asked.heard(),
            None => {}
        }
    }
}

fn is_event_stream(head: &response::Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..EVENT_STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
}

/// What lines of an event stream tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Life,
    Error,
}

/// Where reading has come to: within a comment, or elsewhere.
#[derive(Debug, Default)]
struct Lines {
    in_comment: bool,
    in_line: bool,
}

impl Lines {
    /// What these bytes tell, if they are more than comments and the ends of events.
    fn read(&mut self, bytes: &[u8]) -> Option<Sign> {
        let mut sign = None;
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let begins = !self.in_line;
            let is_ended = line.ends_with(b"\n") || line.ends_with(b"\r");
            let text = if is_ended { &line[..line.len() - 1] } else { line };
            self.in_comment = if begins { text.first() == Some(&b':') } else { self.in_comment };
            self.in_line = !is_ended;
            if text.is_empty() || self.in_comment {
                continue;
            }
            // One error among tokens does not unmake them.
            sign = match (sign, begins && is_error(text)) {
                (Some(Sign::Life), _) | (_, false) => Some(Sign::Life),
                (_, true) => Some(Sign::Error),
            };
        }
        sign
    }
}

fn is_error(line: &[u8]) -> bool {
    line.strip_prefix(b"data:").is_some_and(|data| data.trim_ascii_start().starts_with(ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: &[&str]) -> Vec<Option<Sign>> {
        let mut lines = Lines::default();
        chunks.iter().map(|chunk| lines.read(chunk.as_bytes())).collect()
    }

    #[test]
    fn comments_are_no_sign_of_life_wherever_they_are_cut() {
        let (life, error) = (Some(Sign::Life), Some(Sign::Error));
        assert_eq!(read(&[": ping\n\n", ":", " pi", "ng\r\n", "\r\n", ""]), [None; 6]);
        assert_eq!(read(&[": ping\n\ndata: {}\n\n", ": x\n", "data", ": {}"]), [life, None, life, life]);
        assert_eq!(read(&["data: {\"error\": {\"message\": \"EngineDeadError\"}}\n\n"]), [error]);
        assert_eq!(read(&["data: {\"id\": 1}\n\ndata: {\"error\": 1}\n\n", "data:{\"error\":1}\n"]), [life, error]);
        assert_eq!(read(&["event: error\ndata: {\"error\": 1}\n\n"]), [life], "cannot be told without more");
    }
}
