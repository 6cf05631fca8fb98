//! Texts that were not meant to be committed: marks for later, prints for oneself, paths of one's own machine.
//!
//! The marks are written in two halves here, so that this file does not find itself.

use crate::source::{Offence, Source};

/// Looked for in Rust only, at the start of a word.
const UNFINISHED_CALLS: &[(&str, &str)] = &[("todo", "!("), ("unimplemented", "!("), ("dbg", "!(")];

/// Looked for everywhere, as whole words.
const MARKS: &[(&str, &str)] = &[("FIX", "ME"), ("XX", "X")];

/// Looked for everywhere, where a path starts.
const MACHINE_PATHS: &[(&str, &str)] = &[("/ro", "ot/"), ("/wo", "rk/"), ("/ho", "me/"), ("/Us", "ers/")];

/// Not written by us.
const GIVEN_FILES: &[&str] = &["Cargo.lock", "LICENSE"];

/// Leftovers, line by line.
pub(crate) fn check(source: &Source) -> Vec<Offence> {
    if GIVEN_FILES.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let lines = source.text.lines().zip(1..);
    lines.flat_map(|(text, line)| check_line(source, text, line)).collect()
}

fn check_line(source: &Source, text: &str, line: usize) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut find = |marks: &[(&str, &str)], whole_word: bool, instead: &str| {
        for mark in marks.iter().map(|(head, tail)| format!("{head}{tail}")) {
            if stands_alone(text, &mark, whole_word) {
                offences.push(source.offence(line, format!("`{mark}` was left here"), instead));
            }
        }
    };
    if source.syntax.is_some() {
        find(UNFINISHED_CALLS, false, "finish it, or leave the feature out");
    }
    find(MARKS, true, "do it now, or say in prose what is missing");
    find(MACHINE_PATHS, false, "use a relative path, $HOME or a temporary directory");
    offences
}

/// Whether `mark` occurs with no word running into its start (nor, for a whole word, into its end).
fn stands_alone(text: &str, mark: &str, whole_word: bool) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '~' | '}' | ')' | '*');
    text.match_indices(mark).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + mark.len()..].chars().next();
        let joined = before.is_some_and(in_word) || (whole_word && after.is_some_and(in_word));
        !joined
    })
}

#[test]
fn leftovers_are_found() {
    let offences = |path: &str, text: &str| check(&crate::source::sample(path, text)).len();
    for (head, tail) in UNFINISHED_CALLS {
        assert_eq!(offences("src/a.rs", &format!("fn f() {{ {head}{tail}) }}")), 1, "{head}");
    }
    for (head, tail) in MARKS {
        assert_eq!(offences("docs/a.md", &format!("{head}{tail}: later")), 1, "{head}");
        assert_eq!(offences("scripts/a.sh", &format!("mktemp -d a.{head}{tail}{tail}")), 0, "{head}");
    }
    for (head, tail) in MACHINE_PATHS {
        assert_eq!(offences("Makefile", &format!("A = {head}{tail}a")), 1, "{head}");
        assert_eq!(
            offences("Makefile", &format!("A = $(HOME){head}{tail}a ~{head}{tail}a")),
            usize::from(false),
            "{head}"
        );
    }
    assert_eq!(offences("LICENSE", &format!("{}{}", MARKS[0].0, MARKS[0].1)), 0);
}
