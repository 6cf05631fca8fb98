//! Whether an event has just ended, in a stream whose bytes are passed on as they come: so that a comment or an error may
//! be put in.

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
}
