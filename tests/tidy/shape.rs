//! Modules that say what they are: by their name and by their head; tests that say why they are left out; docs without tests.

use crate::source::{Offence, Source};
use std::path::Path;
use syn::{
    AttrStyle, Attribute, Expr, ExprLit, File, ItemMod, Lit, Meta,
    spanned::Spanned,
    visit::{self, Visit},
};

/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["common", "utils", "util", "helpers", "helper", "types", "misc"];

/// Empty names, missing heads and tests ignored without a word.
pub(crate) fn check(source: &Source) -> Vec<Offence> {
    let Some(syntax) = &source.syntax else { return Vec::new() };
    let mut shape = Shape { source, in_block: false, offences: Vec::new() };
    for name in Path::new(&source.path).with_extension("").iter().filter_map(|part| part.to_str()) {
        shape.judge_name(name, 1);
    }
    // The head of a module's tests is the module's own.
    if source.file_name() != "tests.rs" && !has_head(syntax) {
        shape.offences.push(source.offence(1, "no `//!` head", "say in a few lines what, why, and what not"));
    }
    shape.visit_file(syntax);
    shape.offences
}

fn has_head(syntax: &File) -> bool {
    syntax
        .attrs
        .iter()
        .any(|attribute| matches!(attribute.style, AttrStyle::Inner(_)) && attribute.path().is_ident("doc"))
}

struct Shape<'a> {
    source: &'a Source,
    in_block: bool,
    offences: Vec<Offence>,
}

impl Shape<'_> {
    /// A block in the docs that rustdoc would compile and run. The lines of docs come one by one.
    fn judge_docs(&mut self, attribute: &Attribute) {
        let Meta::NameValue(pair) = &attribute.meta else { return };
        let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &pair.value else { return };
        let text = text.value();
        let Some(language) = text.trim().strip_prefix("```") else { return };
        self.in_block = !self.in_block;
        if self.in_block && (language.is_empty() || language.starts_with("rust")) {
            let line = attribute.span().start().line;
            let instead = "make it a unit test, or say the language of what is no Rust (```text)";
            self.offences.push(self.source.offence(line, "a doc test", instead));
        }
    }

    fn judge_name(&mut self, name: &str, line: usize) {
        if EMPTY_NAMES.contains(&name) {
            let what = format!("a module called `{name}`");
            self.offences.push(self.source.offence(line, what, "name it after what it holds"));
        }
    }
}

impl<'ast> Visit<'ast> for Shape<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.judge_name(&module.ident.to_string(), module.ident.span().start().line);
        visit::visit_item_mod(self, module);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.judge_docs(attribute);
        if matches!(&attribute.meta, Meta::Path(path) if path.is_ident("ignore")) {
            let line = attribute.span().start().line;
            let instead = "write #[ignore = \"what it needs\"], or let it run";
            self.offences.push(self.source.offence(line, "a test ignored without a reason", instead));
        }
    }
}

#[test]
fn shapeless_modules_are_found() {
    let offences = |path: &str, text: &str| check(&crate::source::sample(path, text)).len();
    assert_eq!(offences("otela-node/src/util.rs", "//! Head."), 1);
    assert_eq!(offences("tests/common/mod.rs", "//! Head."), 1);
    assert_eq!(offences("src/a.rs", "//! Head.\nmod helpers {}"), 1);
    assert_eq!(offences("src/a.rs", "/// Not a head.\nfn f() {}"), 1);
    assert_eq!(offences("src/a.rs", "//! Head.\n#[test]\n#[ignore]\nfn f() {}"), 1);
    assert_eq!(offences("src/a.rs", "//! Head.\n#[test]\n#[ignore = \"needs a GPU\"]\nfn f() {}"), 0);
    assert_eq!(offences("src/a/tests.rs", "#[test]\nfn f() {}"), 0);
    assert_eq!(offences("src/a.rs", "//! Head.\n//! ```\n//! f();\n//! ```\n//! ```text\n//! a\n//! ```"), 1);
}
