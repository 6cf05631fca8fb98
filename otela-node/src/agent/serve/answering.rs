//! What an answer tells of its engine while it goes by.
//!
//! Engines of several processes have a front end that goes on when what is behind it hangs: it refuses bad requests, counts
//! tokens, begins streams and keeps them alive with comments. None of that is a sign of life. A token is.

use crate::agent::pulse::Asked;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header, response};

/// What event streams are called.
const EVENT_STREAM: &[u8] = b"text/event-stream";
/// How much of a line is looked at.
const LOOKED_AT_BYTES: usize = 48;
/// How the data of events begin that are errors, and that only keep the connection alive.
const ERROR: &[u8] = b"{\"error\"";
const PINGS: [&[u8]; 2] = [b"{\"type\":\"ping\"", b"{\"type\": \"ping\""];

/// An answer, from its head on.
#[derive(Debug)]
pub(in crate::agent) struct Answering {
    /// None for what no model works at.
    asked: Option<Asked>,
    /// Of what is, or may be, an event stream: how far its lines are read.
    lines: Option<Box<Lines>>,
}

impl Answering {
    /// With this head.
    pub(super) fn new(mut asked: Option<Asked>, head: &response::Parts) -> Self {
        let is_stream = head.status == StatusCode::OK && may_be_event_stream(head);
        if let Some(asked) = asked.as_mut().filter(|_| !is_stream) {
            match head.status {
                status if status.is_server_error() => asked.failed(),
                status if status.is_success() => asked.answered(),
                _ => asked.heard(),
            }
        }
        Self { asked, lines: is_stream.then(Box::default) }
    }

    /// With these bytes.
    pub(super) fn goes_on(&mut self, bytes: &Bytes) {
        let sign = match &mut self.lines {
            None => (!bytes.is_empty()).then_some(Sign::Life),
            Some(lines) => lines.read(bytes),
        };
        self.tells(sign);
    }

    /// To its end, or until the engine broke it off.
    pub(super) fn ends(&mut self, broken: bool) {
        let last = self.lines.as_mut().and_then(|lines| lines.end_of_line());
        self.tells(last);
        match &mut self.asked {
            Some(asked) if broken => asked.failed(),
            Some(asked) => asked.heard(),
            None => {}
        }
    }

    fn tells(&mut self, sign: Option<Sign>) {
        match (&mut self.asked, sign) {
            (Some(asked), Some(Sign::Life)) => asked.answered(),
            (Some(asked), Some(Sign::Error)) => asked.failed(),
            _ => {}
        }
    }
}

/// Whether it says that it is one, or nothing of what it is.
fn may_be_event_stream(head: &response::Parts) -> bool {
    let Some(kind) = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes) else { return true };
    // What is compressed cannot be looked into.
    let is_plain = !head.headers.contains_key(header::CONTENT_ENCODING);
    is_plain && kind.get(..EVENT_STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
}

/// What lines of an event stream tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Life,
    Error,
}

/// The line that is being read, and the event that it is of.
#[derive(Debug, Default)]
struct Lines {
    /// How it begins.
    begin: Vec<u8>,
    /// It has told what it is.
    told: bool,
    /// Its event calls itself an error.
    of_an_error: bool,
}

impl Lines {
    /// What these bytes tell. A line tells when it ends, or is longer than what is looked at of it.
    fn read(&mut self, bytes: &[u8]) -> Option<Sign> {
        let mut sign = None;
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let text = line.strip_suffix(b"\n").or(line.strip_suffix(b"\r")).unwrap_or(line);
            let room = LOOKED_AT_BYTES - self.begin.len();
            self.begin.extend_from_slice(&text[..text.len().min(room)]);
            let told = if text.len() < line.len() {
                self.end_of_line()
            } else if self.begin.len() == LOOKED_AT_BYTES {
                self.tell()
            } else {
                None
            };
            // One error among tokens does not unmake them.
            sign = if sign == Some(Sign::Life) { sign } else { told.or(sign) };
        }
        sign
    }

    fn end_of_line(&mut self) -> Option<Sign> {
        let told = self.tell();
        self.of_an_error &= !self.begin.is_empty();
        self.begin.clear();
        self.told = false;
        told
    }

    fn tell(&mut self) -> Option<Sign> {
        if std::mem::replace(&mut self.told, true) || self.begin.is_empty() {
            return None;
        }
        if let Some(event) = self.begin.strip_prefix(b"event:") {
            self.of_an_error = event.trim_ascii() == b"error";
            return None;
        }
        if [&b":"[..], b"id:", b"retry:"].iter().any(|other| self.begin.starts_with(other)) {
            return None;
        }
        let data = self.begin.strip_prefix(b"data:").map(<[u8]>::trim_ascii_start);
        match data {
            Some(data) if data.is_empty() || PINGS.iter().any(|ping| data.starts_with(ping)) => None,
            Some(data) if self.of_an_error || data.starts_with(ERROR) => Some(Sign::Error),
            _ => Some(Sign::Life),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: &[&str]) -> Vec<Option<Sign>> {
        let mut lines = Lines::default();
        chunks.iter().map(|chunk| lines.read(chunk.as_bytes())).collect()
    }

    #[test]
    fn comments_and_pings_are_no_sign_of_life_wherever_they_are_cut() {
        let life = Some(Sign::Life);
        assert_eq!(read(&[": ping\n\n", ":", " pi", "ng\r\n", "\r\n", ""]), [None; 6]);
        assert_eq!(
            read(&[&":x".repeat(100), "\n", &"y".repeat(LOOKED_AT_BYTES), "z", "\n"]),
            [None, None, life, None, None]
        );
        assert_eq!(read(&["event: ping\ndata: {\"type\": \"ping\"}\n\n", "id: 7\nretry: 5\ndata:\n\n"]), [None; 2]);
        assert_eq!(read(&[": ping\n\ndata: {}\n\n", ": x\n", "data", ": {}\n"]), [life, None, None, life]);
    }

    #[test]
    fn errors_are_no_sign_of_life_unless_tokens_are_beside_them() {
        let (life, error) = (Some(Sign::Life), Some(Sign::Error));
        assert_eq!(read(&["data: {\"error\": {\"message\": \"EngineDeadError\"}}\n\n"]), [error]);
        assert_eq!(read(&["data: {\"err", "or\": 1}\n"]), [None, error]);
        assert_eq!(read(&["data: {\"id\": 1}\n\ndata: {\"error\": 1}\n\n", "data:{\"error\":1}\n"]), [life, error]);
        assert_eq!(read(&["event: error\ndata: {\"type\": 1}\n\n", "data: {\"type\": 1}\n"]), [error, life]);
    }

    #[test]
    fn what_ends_without_the_end_of_a_line_has_told_all_the_same() {
        let mut lines = Lines::default();
        assert_eq!((lines.read(b"{\"id\": 1}"), lines.end_of_line()), (None, Some(Sign::Life)));
    }
}
