//! A tokenizer without a vocabulary: text to tokens and back, exactly.
//!
//! A token is up to six bytes of text that begin at a white space or inside a word, so that a short word with the
//! space before it is one token, as in real tokenizers. Its id is those bytes and their number packed into 51 bits:
//! ids survive JSON readers that hold numbers as doubles. Counts come close to a real model's, ids mean nothing to it.

use std::fmt;

/// The most bytes of text in one token: six bytes and a length stay below 2^53.
const PIECE_BYTES: usize = 6;

/// Splits text into the texts of its tokens, in order. Every piece is whole characters.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = 0;
        for (at, character) in rest.char_indices() {
            let next = at + character.len_utf8();
            if next > PIECE_BYTES || (at > 0 && character.is_whitespace()) {
                break;
            }
            end = next;
        }
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}

/// How many tokens a text has.
pub(crate) fn count(text: &str) -> u32 {
    u32::try_from(pieces(text).count()).unwrap_or(u32::MAX)
}

/// The id of a token's text.
pub(crate) fn id(piece: &str) -> u64 {
    piece.bytes().fold(piece.len() as u64, |id, byte| (id << 8) | u64::from(byte))
}

/// An id that stands for no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoToken(pub(crate) u64);

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token id {} is not one that this engine's /tokenize gives", self.0)
    }
}

/// The text of a list of ids.
pub(crate) fn text(ids: &[u64]) -> Result<String, NoToken> {
    let mut text = String::with_capacity(ids.len() * 5);
    for &token in ids {
        text.push_str(&piece(token).ok_or(NoToken(token))?);
    }
    Ok(text)
}

fn piece(token: u64) -> Option<String> {
    let bytes = token.to_be_bytes();
    // The length stands right before the text; a length cannot be 0, so leading zero bytes are padding.
    let at = bytes.iter().position(|&byte| byte != 0)?;
    let length = usize::from(bytes[at]);
    let text = bytes.get(at + 1..)?;
    (length == text.len()).then(|| String::from_utf8(text.to_vec()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_way_there_and_back() {
        for whole in ["", "Hello world", "  two\n\nlines", "读写😀é and mixed", "\0zero", "extraordinarily long"] {
            let ids: Vec<u64> = pieces(whole).map(id).collect();
            assert_eq!(text(&ids).unwrap(), whole);
            assert!(ids.iter().all(|&id| id < 1 << 53), "{ids:?}");
        }
    }

    #[test]
    fn a_short_word_with_its_space_is_one_token() {
        assert_eq!(pieces("The river is wide").collect::<Vec<_>>(), ["The", " river", " is", " wide"]);
        assert_eq!(pieces("mountains").collect::<Vec<_>>(), ["mounta", "ins"]);
        assert_eq!(count("读写😀"), 2);
    }

    #[test]
    fn ids_that_mean_nothing_are_refused() {
        for wrong in [0, 1, 255, 0x02_41, u64::MAX, 0x01_FF] {
            assert_eq!(text(&[id("a"), wrong]), Err(NoToken(wrong)));
        }
    }
}
