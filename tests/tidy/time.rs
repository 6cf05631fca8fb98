//! Time in tests: waits have one limit, and claims about durations compare. Both are in otela-testing.

use crate::source::{Offence, Source, attributes, only_in_tests};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::RangeInclusive;
use syn::{
    Attribute, ImplItemFn, Item, ItemFn, Meta,
    spanned::Spanned,
    visit::{self, Visit},
};

/// The crate that measures and waits for all others.
const HOME: &str = "otela-testing/";
/// Tests whose time is real: an assertion that names a duration there holds on some machines only. Elsewhere time is
/// virtual, or an argument.
const REAL_TIME: [&str; 3] = ["tests/mesh/", "otela-node/tests/", "otela-sched/tests/engine/"];
const DURATIONS: [&str; 5] = ["from_micros", "from_millis", "from_secs", "from_mins", "from_hours"];
/// A method that reads a clock, and functions with a limit of their own.
const READS: &str = "elapsed";
const LIMITS: [&str; 2] = ["timeout", "timeout_at"];

/// Clocks that tests read, limits of their own, and assertions that name a duration.
pub(crate) fn check(source: &Source) -> Vec<Offence> {
    let Some(syntax) = source.syntax.as_ref().filter(|_| !source.path.starts_with(HOME)) else { return Vec::new() };
    let Ok(tokens) = source.text.parse::<TokenStream>() else { return Vec::new() };
    let mut regions = Regions::default();
    let is_test_file = source.path.split('/').any(|part| part == "tests") || source.file_name() == "tests.rs";
    if is_test_file {
        regions.add_tests(1..=usize::MAX, &source.text);
    }
    let mut reader = Reader { text: &source.text, regions };
    reader.visit_file(syntax);
    let regions = reader.regions;
    let real_time = REAL_TIME.iter().any(|folder| source.path.starts_with(folder));
    let mut finder = Finder { source, regions, real_time, offences: Vec::new() };
    finder.look(tokens, false);
    finder.offences
}

/// Attribute of a test whose clock stands still unless it is moved.
const PAUSED: &str = "start_paused = true";

/// Lines of test code.
#[derive(Default)]
struct Regions {
    tests: Vec<RangeInclusive<usize>>,
    /// Regions with at least one paused clock: their helpers may serve that test.
    with_paused: Vec<RangeInclusive<usize>>,
    /// Tests with a paused clock.
    paused: Vec<RangeInclusive<usize>>,
    /// Functions that are no tests.
    called: Vec<RangeInclusive<usize>>,
}

impl Regions {
    fn covers(&self, line: usize) -> bool {
        let within = |lines: &[RangeInclusive<usize>]| lines.iter().any(|lines| lines.contains(&line));
        let is_virtual = within(&self.paused) || (within(&self.with_paused) && within(&self.called));
        within(&self.tests) && !is_virtual
    }

    fn add_tests(&mut self, lines: RangeInclusive<usize>, text: &str) {
        let mut within = text.lines().enumerate().filter(|(n, _)| lines.contains(&(n + 1)));
        if within.any(|(_, line)| line.contains(PAUSED)) {
            self.with_paused.push(lines.clone());
        }
        self.tests.push(lines);
    }

    fn add_function(&mut self, attributes: &[Attribute], lines: RangeInclusive<usize>) {
        let is_test = |attribute: &Attribute| attribute.path().segments.last().is_some_and(|last| last.ident == "test");
        match attributes.iter().find(|attribute| is_test(attribute)).map(|attribute| &attribute.meta) {
            None => self.called.push(lines),
            Some(Meta::List(list)) if list.tokens.to_string().contains(PAUSED) => self.paused.push(lines),
            Some(_) => {}
        }
    }
}

/// Fills the regions of a file.
struct Reader<'a> {
    text: &'a str,
    regions: Regions,
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if only_in_tests(attributes(item)) {
            self.regions.add_tests(lines_of(item), self.text);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.regions.add_function(&function.attrs, lines_of(function));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.regions.add_function(&function.attrs, lines_of(function));
        visit::visit_impl_item_fn(self, function);
    }
}

fn lines_of(node: &impl Spanned) -> RangeInclusive<usize> {
    node.span().start().line..=node.span().end().line
}

struct Finder<'a> {
    source: &'a Source,
    regions: Regions,
    real_time: bool,
    offences: Vec<Offence>,
}

impl Finder<'_> {
    fn look(&mut self, tokens: TokenStream, in_assertion: bool) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        // `assert`, then `!`, then what is asserted.
        let (mut named, mut asserts) = (false, false);
        for (n, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) => {
                    let (name, line) = (ident.to_string(), ident.span().start().line);
                    let is_called = matches!(tokens.get(n + 1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
                    let is_declared = n > 0 && matches!(&tokens[n - 1], TokenTree::Ident(before) if before == "fn");
                    (named, asserts) = (name.starts_with("assert"), false);
                    if is_called && !is_declared {
                        self.judge_call(&name, line);
                    }
                    if in_assertion && DURATIONS.contains(&name.as_str()) {
                        self.judge_assertion(line);
                    }
                }
                TokenTree::Group(group) => {
                    self.look(group.stream(), in_assertion || asserts);
                    (named, asserts) = (false, false);
                }
                TokenTree::Punct(punct) => (named, asserts) = (false, named && punct.as_char() == '!'),
                TokenTree::Literal(_) => (named, asserts) = (false, false),
            }
        }
    }

    fn judge_call(&mut self, name: &str, line: usize) {
        let instead = match name {
            READS => "take otela_testing::Stopwatch: a lower bound, or a ratio to a control of the same test",
            _ if LIMITS.contains(&name) => {
                "wait with otela_testing::{eventually, finishes}, or look with stays_pending"
            }
            _ => return,
        };
        if self.regions.covers(line) {
            self.offences.push(self.source.offence(line, format!("a test calls `{name}`"), instead));
        }
    }

    fn judge_assertion(&mut self, line: usize) {
        if self.real_time && self.regions.covers(line) {
            let instead = "await the event, compare with a control, or measure it in a benchmark";
            self.offences.push(self.source.offence(line, "an assertion names a duration", instead));
        }
    }
}

#[test]
fn clocks_and_limits_of_tests_are_found() {
    let offences = |path: &str, text: &str| check(&crate::source::sample(path, text)).len();
    let (clock, limit) = ("fn f() { assert!(begun.elapsed() < SOON); }", "fn f() { tokio::time::timeout(SOON, x); }");
    let asserts = "fn f() { assert!(took < Duration::from_secs(1), \"{took:?}\"); }";
    for text in [clock, limit, asserts] {
        assert_eq!(offences("tests/mesh/a.rs", text), 1, "{text}");
        assert_eq!(offences("otela-testing/src/lib.rs", text), 0, "{text}");
        let paused = format!("#[tokio::test(start_paused = true)] {text}");
        assert_eq!(offences("tests/mesh/a.rs", &paused), 0, "{text}");
    }
    for text in [clock, limit] {
        assert_eq!(offences("otela-node/src/a.rs", text), 0, "{text}");
        assert_eq!(offences("otela-node/src/a/tests.rs", text), 1, "{text}");
        assert_eq!(offences("otela-node/src/a.rs", &format!("#[cfg(test)] mod tests {{ {text} }}")), 1, "{text}");
    }
    assert_eq!(offences("otela-proto/tests/simulation/a.rs", asserts), 0, "virtual time");
    let helper = format!("#[tokio::test(start_paused = true)] async fn t() {{ f() }}\n{clock}");
    assert_eq!(offences("otela-node/src/a/tests.rs", &helper), 0, "called by a test with a paused clock");
    let both = format!("{helper}\n#[test]\n{}", clock.replace("fn f", "fn g"));
    assert_eq!(offences("otela-node/src/a/tests.rs", &both), 1, "another test in the same place");
    let bound = "fn f() { watch.assert_at_least(Duration::from_secs(1), \"so long\"); }";
    assert_eq!(offences("tests/mesh/a.rs", bound), 0, "a lower bound");
}
