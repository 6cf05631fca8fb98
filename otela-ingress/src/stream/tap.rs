//! What the end of a stream shows whose bytes are passed on as they come: whether an event has just ended, so that a comment
//! or an error may be put in, and whether it was the last one.

use std::collections::VecDeque;

/// Enough for the end of any last event.
const TAIL: usize = 48;

/// The end of a stream so far.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    tail: VecDeque<u8>,
}

impl Tap {
    /// Takes note of bytes that are passed on.
    pub(crate) fn note(&mut self, data: &[u8]) {
        self.tail.extend(&data[data.len().saturating_sub(TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    /// Whether something may be put in here: at the start, or after the blank line that ends an event. A line feed
    /// that might still follow two carriage returns would be one more blank line, which says nothing.
    pub(crate) fn between_events(&self) -> bool {
        let ends = |end: &[u8]| self.tail.iter().rev().take(end.len()).eq(end.iter().rev());
        self.tail.is_empty() || [&b"\n\n"[..], b"\r\r", b"\n\r\n"].into_iter().any(ends)
    }

    /// Whether the event that has just ended is the one after which engines say nothing more, in the dialects that have
    /// one.
    pub(crate) fn is_done(&self) -> bool {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let said = tail.trim_ascii_end();
        let closed = said.strip_suffix(b"}").unwrap_or(said).trim_ascii_end();
        self.between_events() && (said.ends_with(b"[DONE]") || closed.ends_with(br#""message_stop""#))
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
    fn the_last_event_is_known_wherever_reads_are_cut() {
        let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        for (text, done) in [
            ("", false),
            ("data: [DONE]\n\n", true),
            ("data: {\"text\":\"x\"}\r\n\r\ndata:[DONE]\r\n\r\n", true),
            (stop, true),
            (&stop.replace('}', " }"), true),
            ("data: [DONE]\n", false),
            ("data: {\"text\":\"[DONE]\"}\n\n", false),
            ("data: [DONE]\n\ndata: {\"error\":{}}\n\n", false),
        ] {
            for cut in 0..=text.len() {
                let mut tap = Tap::default();
                tap.note(&text.as_bytes()[..cut]);
                tap.note(&text.as_bytes()[cut..]);
                assert_eq!(tap.is_done(), done, "{text:?} cut at {cut}");
            }
        }
    }
}
