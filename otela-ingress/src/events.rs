//! What the ingress must know of an event stream that it passes on untouched: whether an event has just ended, so
//! that a comment or an error may be put in, and whether the stream began with a failure.

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

    /// Whether something may be put in here: at the start, or after the blank line that ends an event. After a lone
    /// carriage return it is not known yet whether a line feed belongs to it.
    pub(crate) fn between_events(&self) -> bool {
        self.length == 0 || self.tail[1..] == *b"\n\n" || self.tail == *b"\n\r\n"
    }
}

/// Whether the first bytes of a stream are a failure in the dress of a success.
pub(crate) fn begins_with_error(first: &[u8]) -> bool {
    first.split(|byte| *byte == b'\n').take(4).any(|line| {
        let line = line.trim_ascii();
        let data = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii_start);
        line == b"event: error" || line == b"event:error" || data.is_some_and(is_error_object)
    })
}

fn is_error_object(data: &[u8]) -> bool {
    let inside = data.strip_prefix(b"{").map(<[u8]>::trim_ascii_start).unwrap_or_default();
    inside.starts_with(b"\"error\"") || inside.starts_with(b"\"object\":\"error\"")
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

    /// The event that says that the answer is not whole.
    pub(crate) fn broken(self, request: &str) -> String {
        let message = format!("The stream broke off before the answer was complete (request {request}).");
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
    fn p17_failures_in_the_first_event_are_seen() {
        for bad in ["data: {\"error\":{}}\n\n", "data:{ \"error\": 1}\n\n", "event: error\ndata: {}\n\n"] {
            assert!(begins_with_error(bad.as_bytes()), "{bad}");
        }
        for good in ["data: {\"id\":\"error\"}\n\n", "data: [DONE]\n\n", ": error\n\n", ""] {
            assert!(!begins_with_error(good.as_bytes()), "{good}");
        }
    }
}
