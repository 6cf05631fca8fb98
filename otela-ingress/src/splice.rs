//! Changes single values of a body and leaves every other byte as it is: what is unchanged is not copied, and large
//! numbers, floats, escapes and the order of keys survive, because nobody reads them.

use bytes::Bytes;
use std::{ops::Range, sync::Arc};

/// The bytes at a place are replaced by others; an empty place is one where something is put in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) at: Range<usize>,
    pub(crate) by: Bytes,
}

impl Edit {
    /// Replaces what is at `at`.
    pub(crate) fn replace(at: Range<usize>, by: impl Into<Bytes>) -> Self {
        Self { at, by: by.into() }
    }

    /// Puts something in before `at`.
    pub(crate) fn insert(at: usize, by: impl Into<Bytes>) -> Self {
        Self { at: at..at, by: by.into() }
    }
}

/// `body` with all `edits`, which must not overlap, as parts that follow each other.
pub(crate) fn splice(body: &Bytes, mut edits: Vec<Edit>) -> Arc<[Bytes]> {
    edits.sort_by_key(|edit| edit.at.start);
    let mut parts = Vec::with_capacity(2 * edits.len() + 1);
    let mut done = 0;
    for edit in edits {
        parts.push(body.slice(done..edit.at.start));
        parts.push(edit.by);
        done = edit.at.end;
    }
    parts.push(body.slice(done..));
    parts.retain(|part| !part.is_empty());
    parts.into()
}

/// One more field at the beginning of an object.
pub(crate) fn field(opens_at: usize, is_empty: bool, name: &str, value: &str) -> Edit {
    let comma = if is_empty { "" } else { "," };
    Edit::insert(opens_at, format!("\"{name}\":{value}{comma}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_changes() {
        let body = Bytes::from_static(br#"{"a":1e-7, "b":[2],"c":12345678901234567}"#);
        let edits = vec![Edit::replace(15..18, "null"), field(1, false, "x", "true"), Edit::insert(41, "\n")];
        let text = splice(&body, edits).concat();
        assert_eq!(text, b"{\"x\":true,\"a\":1e-7, \"b\":null,\"c\":12345678901234567}\n");
        assert_eq!(&*splice(&body, Vec::new()), std::slice::from_ref(&body));
        assert_eq!(splice(&Bytes::from_static(b"{}"), vec![field(1, true, "x", "1")]).concat(), b"{\"x\":1}");
    }
}
