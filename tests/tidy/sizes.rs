//! Files that can be read in a sitting and functions that fit on a screen.

use crate::source::{Offence, Source, attributes, excused, only_in_tests};
use proc_macro2::Span;
use syn::{
    Attribute, Block, ImplItemFn, Item, ItemFn, Signature, TraitItemFn,
    spanned::Spanned,
    visit::{self, Visit},
};

/// Lines of a file, without its unit tests.
const FILE_LINES_MAX: usize = 500;
/// Lines of a file of tests.
const TEST_FILE_LINES_MAX: usize = 800;
/// Lines of a function from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Files and functions that are too long.
pub(crate) fn check(source: &Source) -> Vec<Offence> {
    let Some(syntax) = &source.syntax else { return Vec::new() };
    let mut offences = Vec::new();
    let is_test_file = source.is_outside_crates() || source.file_name() == "tests.rs";
    let (lines, lines_max) = if is_test_file {
        (source.text.lines().count(), TEST_FILE_LINES_MAX)
    } else {
        (lines_without_tests(source, syntax), FILE_LINES_MAX)
    };
    if lines > lines_max {
        let what = format!("{lines} lines where {lines_max} is the cap");
        offences.push(source.offence(1, what, "split it by what it is about"));
    }
    let mut functions = Functions { source, offences };
    functions.visit_file(syntax);
    functions.offences
}

fn lines_without_tests(source: &Source, syntax: &syn::File) -> usize {
    let of_tests = syntax.items.iter().filter(|item| only_in_tests(attributes(item))).map(|item| lines_of(item.span()));
    source.text.lines().count() - of_tests.sum::<usize>()
}

fn lines_of(span: Span) -> usize {
    span.end().line - span.start().line + 1
}

struct Functions<'a> {
    source: &'a Source,
    offences: Vec<Offence>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &Signature, block: &Block, attributes: &[Attribute]) {
        let first = signature.fn_token.span.start().line;
        let lines = block.span().end().line - first + 1;
        if lines > FUNCTION_LINES_MAX && !excused(attributes, "too_many_lines") {
            let what = format!("`{}` has {lines} lines where {FUNCTION_LINES_MAX} is the cap", signature.ident);
            self.offences.push(self.source.offence(first, what, "keep the control flow here and name its steps"));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !only_in_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.measure(&function.sig, &function.block, &function.attrs);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !only_in_tests(&function.attrs) {
            self.measure(&function.sig, &function.block, &function.attrs);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig, block, &function.attrs);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::sample;

    fn statements(count: usize) -> String {
        "    work();\n".repeat(count)
    }

    #[test]
    fn a_long_function_is_found_wherever_it_is() {
        let body = statements(FUNCTION_LINES_MAX - 1);
        for text in [
            format!("fn f() {{\n{body}}}"),
            format!("impl A {{\nfn f() {{\n{body}}}\n}}"),
            format!("trait A {{\nfn f() {{\n{body}}}\n}}"),
            format!("fn outer() {{\nstruct A;\nimpl A {{ fn f() {{\n{body}}} }}\n}}"),
        ] {
            assert!(!check(&sample("src/a.rs", &text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_function_of_the_cap_a_test_and_an_excused_table_pass() {
        let (fits, long) = (statements(FUNCTION_LINES_MAX - 2), statements(FUNCTION_LINES_MAX));
        for text in [
            format!("/// Says.\n/// More.\nfn f() {{\n{fits}}}"),
            format!("#[cfg(test)]\nmod tests {{\nfn f() {{\n{long}}}\n}}"),
            format!("#[expect(clippy::too_many_lines, reason = \"a table\")]\nfn f() {{\n{long}}}"),
        ] {
            assert_eq!(check(&sample("src/a.rs", &text)), [], "{text}");
        }
    }

    #[test]
    fn tests_do_not_count_for_the_file_and_have_a_cap_of_their_own() {
        let code = "const A: u8 = 0;\n".repeat(FILE_LINES_MAX);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const A: u8 = 0;\n".repeat(FILE_LINES_MAX));
        assert_eq!(check(&sample("src/a.rs", &format!("{code}{tests}"))), []);
        assert_eq!(check(&sample("src/a.rs", &format!("{code}const B: u8 = 0;\n"))).len(), 1);
        // A condition at the top of a file must not hide the rest of it.
        assert_eq!(check(&sample("src/a.rs", &format!("#[cfg(test)]\nuse a::b;\n{code}const B: u8 = 0;\n"))).len(), 1);
        assert_eq!(check(&sample("tests/a/main.rs", &code)), []);
        assert_eq!(check(&sample("src/a/tests.rs", &code.repeat(2))).len(), 1);
    }
}
