//! Cuts a byte stream into events, wherever its reads end.

use bytes::{Bytes, BytesMut};

/// An event may be this long; what is longer is passed on in parts as it comes.
const EVENT_BYTES_MAX: usize = 256 * 1024;

/// What comes out of a [`Framer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// One whole event with the blank line that ends it; or blank lines, or comments.
    Event(Bytes),
    /// A part of an event that is too long to be held.
    Part(Bytes),
}

impl Piece {
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Event(bytes) | Self::Part(bytes) => bytes,
        }
    }
}

/// Finds where events end: at a blank line, whatever line ends are used.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    /// The begin of an event whose end has not come.
    held: BytesMut,
    /// What came and has not been looked at.
    rest: Bytes,
    /// The last bytes before `rest`.
    line: LineEnd,
    /// The event is passed on in parts.
    too_long: bool,
}

/// How the bytes so far end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LineEnd {
    /// Within a line, or at its begin after something else.
    #[default]
    Within,
    /// After `\r`, which may be followed by `\n` as one line end.
    Cr,
    /// After a line end.
    Full,
    /// After a line end and `\r`: the event is over, but a `\n` may belong to it.
    FullCr,
}

impl Framer {
    /// More of the stream.
    pub(crate) fn push(&mut self, data: Bytes) {
        debug_assert!(self.rest.is_empty(), "what came before has been taken");
        self.rest = data;
    }

    /// The next piece that is complete.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        match self.end() {
            Some(end) => {
                let tail = self.rest.split_to(end);
                let whole = if self.held.is_empty() {
                    tail
                } else {
                    self.held.extend_from_slice(&tail);
                    self.held.split().freeze()
                };
                self.line = LineEnd::Within;
                let ends_long = std::mem::take(&mut self.too_long);
                Some(if ends_long { Piece::Part(whole) } else { Piece::Event(whole) })
            }
            None => {
                let rest = std::mem::take(&mut self.rest);
                self.held.extend_from_slice(&rest);
                if self.held.len() <= EVENT_BYTES_MAX && !self.too_long {
                    return None;
                }
                self.too_long = true;
                Some(Piece::Part(self.held.split().freeze())).filter(|piece| *piece != Piece::Part(Bytes::new()))
            }
        }
    }

    /// What is held of an event that has not ended: at the end of a stream, for whoever passes that on.
    pub(crate) fn take_held(&mut self) -> Bytes {
        self.line = LineEnd::Within;
        self.too_long = false;
        self.held.split().freeze()
    }

    /// Where in `rest` the event ends, if it does.
    fn end(&mut self) -> Option<usize> {
        let mut line = self.line;
        for (at, byte) in self.rest.iter().enumerate() {
            line = match (line, byte) {
                (LineEnd::Within, b'\r') => LineEnd::Cr,
                (LineEnd::Within | LineEnd::Cr, b'\n') => LineEnd::Full,
                (LineEnd::Cr, b'\r') | (LineEnd::Full | LineEnd::FullCr, b'\n') => return Some(at + 1),
                (LineEnd::Full, b'\r') => LineEnd::FullCr,
                // The `\n` did not come: the event ended before this byte.
                (LineEnd::FullCr, _) if at > 0 => return Some(at),
                (LineEnd::FullCr, _) => return Some(0),
                _ => LineEnd::Within,
            };
        }
        self.line = line;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(framer: &mut Framer, data: &[u8]) -> Vec<Piece> {
        framer.push(Bytes::copy_from_slice(data));
        std::iter::from_fn(|| framer.next()).collect()
    }

    fn events(pieces: &[Piece]) -> Vec<String> {
        let text = |piece: &Piece| match piece {
            Piece::Event(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            Piece::Part(_) => panic!("none is too long"),
        };
        pieces.iter().map(text).collect()
    }

    #[test]
    fn p10_events_end_where_they_end_however_they_are_cut() {
        for (stream, expected) in [
            ("data: a\n\ndata: b\n\n", &["data: a\n\n", "data: b\n\n"][..]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", &["data: a\r\n\r\n", "data: b\r\n\r\n"]),
            ("data: a\r\rdata: b\r\r", &["data: a\r\r", "data: b\r\r"]),
            ("event: x\r\ndata: a\n\r\n: c\n\n", &["event: x\r\ndata: a\n\r\n", ": c\n\n"]),
            ("data: 读写😀é\n\ndata: half", &["data: 读写😀é\n\n"]),
            (":\n\n\n\ndata: a\n\n", &[":\n\n", "\n\n", "data: a\n\n"]),
        ] {
            for cut in 0..=stream.len() {
                let mut framer = Framer::default();
                let (a, b) = stream.as_bytes().split_at(cut);
                let found = [pieces(&mut framer, a), pieces(&mut framer, b)].concat();
                assert_eq!(events(&found), expected, "{stream:?} cut at {cut}");
                let held = framer.take_held();
                assert_eq!(String::from_utf8_lossy(&held), stream[expected.concat().len()..]);
            }
            let mut framer = Framer::default();
            let each: Vec<_> = stream.bytes().flat_map(|byte| pieces(&mut framer, &[byte])).collect();
            assert_eq!(events(&each), expected, "{stream:?} byte by byte");
        }
    }

    #[test]
    fn p10_what_is_too_long_to_be_held_is_passed_on() {
        let mut framer = Framer::default();
        let long = vec![b'x'; EVENT_BYTES_MAX];
        assert_eq!(pieces(&mut framer, &long), []);
        assert_eq!(pieces(&mut framer, b"yy").len(), 1);
        assert_eq!(pieces(&mut framer, b"z"), [Piece::Part(Bytes::from_static(b"z"))]);
        let rest = pieces(&mut framer, b"\n\ndata: a\n\n");
        let expected = [Piece::Part(Bytes::from_static(b"\n\n")), Piece::Event(Bytes::from_static(b"data: a\n\n"))];
        assert_eq!(rest, expected);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_whatever_comes(chunks in prop::collection::vec(prop::collection::vec(prop::sample::select(b"a:\r\n".to_vec()), 0..9), 0..20)) {
            let mut framer = Framer::default();
            let mut out = Vec::new();
            for chunk in &chunks {
                for piece in pieces(&mut framer, chunk) {
                    out.extend_from_slice(&piece.into_bytes());
                }
            }
            out.extend_from_slice(&framer.take_held());
            prop_assert_eq!(out, chunks.concat());
        }
    }
}
