//! The files of the tree, parsed where they are Rust, and what an offence looks like.

use ignore::WalkBuilder;
use std::{fmt, fs, path::Path};
use syn::{Attribute, ImplItem, Item, Meta};

/// One breach of one rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Offence {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) instead: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.what, self.instead)
    }
}

/// A text file of the tree.
pub(crate) struct Source {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Set for Rust.
    pub(crate) syntax: Option<syn::File>,
}

impl Source {
    /// Parses `text` if `path` says it is Rust.
    pub(crate) fn new(path: &str, text: &str) -> Result<Self, Offence> {
        let is_rust = Path::new(path).extension().is_some_and(|extension| extension == "rs");
        let syntax = is_rust.then(|| syn::parse_file(text)).transpose().map_err(|error| Offence {
            path: path.to_owned(),
            line: error.span().start().line,
            what: format!("cannot be parsed ({error})"),
            instead: "make it valid Rust".to_owned(),
        })?;
        Ok(Self { path: path.to_owned(), text: text.to_owned(), syntax })
    }

    pub(crate) fn offence(&self, line: usize, what: impl Into<String>, instead: impl Into<String>) -> Offence {
        Offence { path: self.path.clone(), line, what: what.into(), instead: instead.into() }
    }

    pub(crate) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether this is a test or a benchmark of its own rather than part of a crate.
    pub(crate) fn is_outside_crates(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "benches"))
    }

    /// The crate's name in code and the module's path in it, for files below a crate's `src/`.
    pub(crate) fn module(&self) -> Option<(String, Vec<String>)> {
        let (folder, inside) = match self.path.split_once("/src/") {
            Some((folder, inside)) if !folder.contains('/') => (folder, inside),
            _ => ("otela", self.path.strip_prefix("src/")?),
        };
        let mut module = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect::<Vec<_>>();
        if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
            module.pop();
        }
        Some((folder.replace('-', "_"), module))
    }
}

/// Reads what git would commit below `root`: everything that is not ignored.
pub(crate) fn read_tree(root: &Path) -> (Vec<Source>, Vec<Offence>) {
    let (mut sources, mut offences) = (Vec::new(), Vec::new());
    let mut walk = WalkBuilder::new(root);
    walk.hidden(false).require_git(false).filter_entry(|entry| entry.file_name() != ".git");
    for entry in walk.build() {
        let entry = entry.expect("the tree can be listed");
        // Not a text: a picture or a recorded wire message.
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        let path = entry.path().strip_prefix(root).expect("the walk starts at the root").to_string_lossy();
        match Source::new(&path.replace('\\', "/"), &text) {
            Ok(source) => sources.push(source),
            Err(offence) => offences.push(offence),
        }
    }
    (sources, offences)
}

/// The attributes of any item that can carry them.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The attributes of a member of an `impl` block.
pub(crate) fn member_attributes(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Const(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether the attributes say `#[cfg(test)]`, alone or among conditions that must all hold.
pub(crate) fn only_in_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test"
                || (condition.starts_with("all") && condition.contains("test") && !condition.contains("not"))
        }
        _ => false,
    })
}

/// Whether the attributes expect `lint` and give a reason: an exception made in the open.
pub(crate) fn excused(attributes: &[Attribute], lint: &str) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("expect") => {
            let said = list.tokens.to_string();
            said.contains(lint) && said.contains("reason")
        }
        _ => false,
    })
}

/// A sample for the tests of the rules.
#[cfg(test)]
pub(crate) fn sample(path: &str, text: &str) -> Source {
    Source::new(path, text).unwrap_or_else(|offence| panic!("{offence}"))
}

#[test]
fn modules_are_named_as_the_compiler_names_them() {
    let module = |path: &str| sample(path, "").module();
    let found = |name: &str, path: &[&str]| Some((name.to_owned(), path.iter().map(|&part| part.to_owned()).collect()));
    assert_eq!(module("otela-node/src/lib.rs"), found("otela_node", &[]));
    assert_eq!(module("otela-node/src/peer/mod.rs"), found("otela_node", &["peer"]));
    assert_eq!(module("otela-node/src/peer/swarm.rs"), found("otela_node", &["peer", "swarm"]));
    assert_eq!(module("src/main.rs"), found("otela", &[]));
    assert_eq!(module("tests/tidy/main.rs"), None);
    assert_eq!(module("otela-node/tests/mesh.rs"), None);
}

#[test]
fn rust_that_is_none_is_an_offence_at_its_line() {
    let offence = Source::new("src/a.rs", "\nfn (").err().expect("that is no Rust");
    assert_eq!((offence.path.as_str(), offence.line), ("src/a.rs", 2));
}

#[test]
fn an_exception_needs_its_reason() {
    let attributes = |text: &str| syn::parse_str::<syn::ItemFn>(text).expect("a function").attrs;
    assert!(excused(
        &attributes("#[expect(clippy::too_many_lines, reason = \"a table\")] fn f() {}"),
        "too_many_lines"
    ));
    assert!(!excused(&attributes("#[expect(clippy::too_many_lines)] fn f() {}"), "too_many_lines"));
    assert!(!excused(&attributes("#[allow(clippy::too_many_lines, reason = \"a\")] fn f() {}"), "too_many_lines"));
}
