//! Events that say that an answer has failed, in streams that began as a success.

/// Whose fault a failed answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The request's: any other engine would say the same.
    Request,
    /// The engine's.
    Engine,
}

/// Looks for events that tell of a failure, in bytes however they are cut.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The head of the line that is being read.
    line: Vec<u8>,
    seen: Option<Fault>,
}

impl Faults {
    /// As much of a line as is looked at: events that tell of a failure say so early.
    const LINE_BYTES_MAX: usize = 1024;

    /// What any event so far tells.
    pub(crate) fn seen(&self) -> Option<Fault> {
        self.seen
    }

    /// Takes note of bytes that are passed on.
    pub(crate) fn note(&mut self, data: &[u8]) {
        for piece in data.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let room = Self::LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") || piece.ends_with(b"\r") {
                self.seen = self.seen.max(told_by(&self.line));
                self.line.clear();
            }
        }
    }

    /// What one whole event tells.
    pub(crate) fn of(event: &[u8]) -> Option<Fault> {
        let mut faults = Self::default();
        faults.note(event);
        faults.seen()
    }
}

/// Quotes inside of a JSON string are escaped, so these can only be keys and values of the event itself.
fn told_by(line: &[u8]) -> Option<Fault> {
    if let Some(name) = line.strip_prefix(b"event:") {
        return matches!(name.trim_ascii(), b"error" | b"response.failed").then_some(Fault::Request);
    }
    let data = line.strip_prefix(b"data:")?;
    const MARKS: [&[u8]; 5] = [
        b"\"error\":{",
        b"\"error\":\"",
        b"\"object\":\"error\"",
        b"\"type\":\"error\"",
        b"\"type\":\"response.failed\"",
    ];
    if !data.windows(7).any(|part| part == b"\"error\"" || part == b".failed") {
        return None;
    }
    let dense: Vec<u8> = data.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let has = |mark: &[u8]| dense.windows(mark.len()).any(|part| part == mark);
    if !MARKS.iter().any(|mark| has(mark)) {
        return None;
    }
    // A status below 500, as a number or in the name of its kind.
    let is_of_the_request = [&b"\"code\":4"[..], b"\"status\":4", b"BadRequest", b"invalid_request", b"\"code\":\"4"];
    Some(if is_of_the_request.iter().any(|mark| has(mark)) { Fault::Request } else { Fault::Engine })
}

/// Whether an event only announces an answer, so that the next one may still say that it has failed.
pub(crate) fn is_prelude(event: &[u8]) -> bool {
    let Some(data) = super::chunk::data(event) else { return true };
    if let super::Said::Chunk(chunk) = super::chunk::said(event)
        && chunk.is_opening
    {
        return true;
    }
    const KINDS: [&[u8]; 5] = [
        b"\"type\":\"response.created\"",
        b"\"type\":\"response.queued\"",
        b"\"type\":\"response.in_progress\"",
        b"\"type\":\"message_start\"",
        b"\"type\":\"ping\"",
    ];
    // The kind of an event stands at its head.
    let head: Vec<u8> = data.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).take(512).collect();
    KINDS.iter().any(|kind| head.windows(kind.len()).any(|part| part == *kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p17_failures_in_events_are_seen_however_they_are_written_and_cut() {
        use Fault::{Engine, Request};
        for (stream, fault) in [
            ("data: {\"error\":{}}\n\n", Some(Engine)),
            ("data:{ \"error\": \"x\"}\n\n", Some(Engine)),
            ("event: error\ndata: {}\n\n", Some(Request)),
            ("event: error\ndata: {\"type\":\"error\"}\n\n", Some(Engine)),
            ("event: response.created\ndata: {}\n\nevent: error\ndata: {\"error\":{}}\n\n", Some(Engine)),
            ("data: {\"object\": \"error\", \"message\": \"x\"}\n\n", Some(Engine)),
            ("data: {\"object\": \"error\", \"message\": \"x\", \"code\": 400}\n\n", Some(Request)),
            ("data: {\"error\":{\"type\":\"BadRequestError\"}}\n\n", Some(Request)),
            (": ping\n\ndata: {\"id\":1,\"error\":{\"code\":1}}\r\n\r\n", Some(Engine)),
            ("data: {\"type\":\"response.failed\"}\n\n", Some(Engine)),
            ("data: {\"id\":\"error\"}\n\n", None),
            ("data: {\"error\":null}\n\n", None),
            ("data: {\"content\":\"say \\\"error\\\":{ twice\"}\n\n", None),
            ("data: [DONE]\n\n", None),
            (": error\n\n", None),
        ] {
            for cut in 0..=stream.len() {
                let mut faults = Faults::default();
                faults.note(&stream.as_bytes()[..cut]);
                faults.note(&stream.as_bytes()[cut..]);
                assert_eq!(faults.seen(), fault, "{stream:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn p17_what_only_announces_an_answer_is_known() {
        for prelude in [
            ": ping\n\n",
            "event: response.created\ndata: {\"type\": \"response.created\",\"response\":{}}\n\n",
            "event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ] {
            assert!(is_prelude(prelude.as_bytes()), "{prelude}");
        }
        for telling in [
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n",
            "data: [DONE]\n\n",
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n",
            "data: {\"error\":{}}\n\n",
        ] {
            assert!(!is_prelude(telling.as_bytes()), "{telling}");
        }
    }
}
