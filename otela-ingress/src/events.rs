//! What the ingress must know of an event stream that it passes on untouched: whether an event has just ended, so
//! that a comment or an error may be put in, and whether the stream began with a failure.

use otela_node::peer::Path;

/// The end of a stream so far.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    tail: [u8; 3],
    length: u64,
}

impl Tap {
    /// Takes note of bytes that are passed on.
    pub(crate) fn note(&mut self, data: &[u8]) {
        self.length += data.len() as u64;
        for byte in data.iter().skip(data.len().saturating_sub(self.tail.len())) {
            self.tail.rotate_left(1);
            self.tail[2] = *byte;
        }
    }

    /// Whether something may be put in here: at the start, or after the blank line that ends an event. A line feed
    /// that might still follow two carriage returns would be one more blank line, which says nothing.
    pub(crate) fn between_events(&self) -> bool {
        self.length == 0 || matches!(&self.tail[1..], b"\n\n" | b"\r\r") || self.tail == *b"\n\r\n"
    }
}

/// Looks for events that say that the answer has failed, in streams that began as a success.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The head of the line that is being read.
    line: Vec<u8>,
    seen: bool,
}

impl Failures {
    /// As much of a line as is looked at: events that tell of a failure say so early.
    const LINE_BYTES_MAX: usize = 256;

    /// Whether any event so far tells of a failure.
    pub(crate) fn seen(&self) -> bool {
        self.seen
    }

    /// Takes note of bytes that are passed on, however they are cut.
    pub(crate) fn note(&mut self, data: &[u8]) {
        for piece in data.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let room = Self::LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") || piece.ends_with(b"\r") {
                self.seen |= tells_of_failure(&self.line);
                self.line.clear();
            }
        }
    }
}

/// Quotes inside of a JSON string are escaped, so these can only be keys and values of the event itself.
fn tells_of_failure(line: &[u8]) -> bool {
    if let Some(name) = line.strip_prefix(b"event:") {
        return matches!(name.trim_ascii(), b"error" | b"response.failed");
    }
    let Some(data) = line.strip_prefix(b"data:") else { return false };
    const MARKS: [&[u8]; 5] = [
        b"\"error\":{",
        b"\"error\":\"",
        b"\"object\":\"error\"",
        b"\"type\":\"error\"",
        b"\"type\":\"response.failed\"",
    ];
    if !data.windows(7).any(|part| part == b"\"error\"" || part == b".failed") {
        return false;
    }
    let dense: Vec<u8> = data.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    MARKS.iter().any(|mark| dense.windows(mark.len()).any(|part| part == *mark))
}

/// The dialect in which a broken stream is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A `data:` line with an error object: chat, completions.
    OpenAi,
    /// A named `error` event: the Responses API.
    Responses,
    /// A named `error` event with Anthropic's object.
    Anthropic,
}

impl Dialect {
    /// The dialect of a path.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// The event that says that the answer, which came over `path`, is not whole.
    pub(crate) fn broken(self, request: &str, path: Path) -> String {
        let relayed = match path {
            Path::Direct => "",
            Path::Relayed => " It came through a relay, which may have stopped or reached a limit of its own.",
        };
        let message = format!("The stream broke off before the answer was complete (request {request}).{relayed}");
        match self {
            Self::OpenAi => {
                let error = serde_json::json!({"error": {
                    "message": message, "type": "upstream_error", "param": null, "code": "stream_broken",
                }});
                format!("data: {error}\n\n")
            }
            Self::Responses => {
                let error = serde_json::json!({
                    "type": "error", "code": "stream_broken", "message": message, "param": null,
                });
                format!("event: error\ndata: {error}\n\n")
            }
            Self::Anthropic => {
                let error = serde_json::json!({"type": "error", "error": {"type": "api_error", "message": message}});
                format!("event: error\ndata: {error}\n\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p14_ends_of_events_are_found_wherever_reads_are_cut() {
        for (text, between) in [
            ("", true),
            ("data: x\n\n", true),
            ("data: x\r\n\r\n", true),
            ("data: x\n", false),
            ("data: x\r\n", false),
            ("data: x\r\n\r", false),
            ("data: x\r\r", true),
            ("data: x\n\n\n\n", true),
            (": comment\n\ndata: y", false),
        ] {
            for cut in 0..=text.len() {
                let mut tap = Tap::default();
                tap.note(&text.as_bytes()[..cut]);
                tap.note(&text.as_bytes()[cut..]);
                assert_eq!(tap.between_events(), between, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn p17_failures_in_events_are_seen_however_they_are_written_and_cut() {
        for (stream, failed) in [
            ("data: {\"error\":{}}\n\n", true),
            ("data:{ \"error\": \"x\"}\n\n", true),
            ("event: error\ndata: {}\n\n", true),
            ("event: response.created\ndata: {}\n\nevent: error\ndata: {}\n\n", true),
            ("data: {\"object\": \"error\", \"message\": \"x\"}\n\n", true),
            (": ping\n\ndata: {\"id\":1,\"error\":{\"code\":1}}\r\n\r\n", true),
            ("data: {\"type\":\"response.failed\"}\n\n", true),
            ("data: {\"id\":\"error\"}\n\n", false),
            ("data: {\"error\":null}\n\n", false),
            ("data: {\"content\":\"say \\\"error\\\":{ twice\"}\n\n", false),
            ("data: [DONE]\n\n", false),
            (": error\n\n", false),
        ] {
            for cut in 0..=stream.len() {
                let mut failures = Failures::default();
                failures.note(&stream.as_bytes()[..cut]);
                failures.note(&stream.as_bytes()[cut..]);
                assert_eq!(failures.seen(), failed, "{stream:?} cut at {cut}");
            }
        }
    }
}
