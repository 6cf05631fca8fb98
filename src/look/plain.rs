//! Text from the network for a terminal. Anybody in a mesh may put anything into a name, also what moves the cursor,
//! or turns the direction of writing; none of it is printed as it is.

use serde_json::Value;

/// Characters of one cell.
const CELL_CHARS_MAX: usize = 80;

/// Whether a terminal might do something with it, other than show it.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with everything unsafe written out, such as `\u{1b}`.
pub(crate) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// The same, and not too long for a table.
pub(super) fn cell(text: &str) -> String {
    let safe = self::text(text);
    match safe.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &safe[..end]),
        None => safe,
    }
}

/// The value as JSON on several lines, the same value and safe.
pub(super) fn json(value: &Value) -> String {
    let mut out = String::new();
    for c in format!("{value:#}\n").chars() {
        // Line ends are the form's own: in strings they are escaped already.
        if c != '\n' && is_unsafe(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NASTY: &str = "a\u{1b}[2J\r\n\u{9b}31m\u{202e}\u{7f}\u{e0041}é";

    #[test]
    fn nothing_that_moves_a_cursor_is_printed() {
        let safe = cell(NASTY);
        assert_eq!(safe, r"a\u{1b}[2J\u{d}\u{a}\u{9b}31m\u{202e}\u{7f}\u{e0041}é");
        assert_eq!(text("Qwen/Qwen3-8B:fp8 数"), "Qwen/Qwen3-8B:fp8 数");
        assert_eq!(cell(&"x".repeat(1_000)).chars().count(), CELL_CHARS_MAX + 1);
    }

    #[test]
    fn json_is_safe_and_the_same_value() {
        let value = json!({"name": NASTY, "number": 1, NASTY: [NASTY]});
        let text = json(&value);
        assert!(text.chars().all(|c| c == '\n' || !is_unsafe(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
