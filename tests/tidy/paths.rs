//! Every path that a file names, as absolute as its text allows.
//!
//! `crate`, `self` and `super` are resolved; names brought in by `use` are reported at the `use` and not followed.

use crate::source::{Source, attributes, excused, member_attributes};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, ImplItem, Item, ItemMod, ItemUse, Local, Macro, MetaList, Path, UseTree,
    spanned::Spanned,
    visit::{self, Visit},
};

/// A path, where it stands, and whether an `#[expect(clippy::disallowed_methods, reason = …)]` covers it.
pub(crate) struct Named {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
    pub(crate) excused: bool,
}

impl Named {
    /// The path as it would be written.
    pub(crate) fn text(&self) -> String {
        self.segments.join("::")
    }

    /// Whether the path ends in these segments.
    pub(crate) fn ends_with(&self, tail: &[&str]) -> bool {
        self.segments.len() >= tail.len() && self.segments.iter().rev().zip(tail.iter().rev()).all(|(a, b)| a == b)
    }
}

/// The paths of a Rust file, inside macro calls too.
pub(crate) fn named(source: &Source) -> Vec<Named> {
    let Some(syntax) = &source.syntax else { return Vec::new() };
    let (name, module) = source.module().unwrap_or_else(|| ("crate".to_owned(), Vec::new()));
    let excuses = usize::from(excused(&syntax.attrs, "disallowed_methods"));
    let mut collector = Collector { name, module, excuses, found: Vec::new() };
    collector.visit_file(syntax);
    collector.found
}

struct Collector {
    name: String,
    module: Vec<String>,
    excuses: usize,
    found: Vec<Named>,
}

impl Collector {
    fn add(&mut self, mut segments: Vec<String>, line: usize) {
        if segments.last().is_some_and(|last| last == "self") && segments.len() > 1 {
            segments.pop();
        }
        let ups = segments.iter().take_while(|segment| *segment == "super").count();
        let base = match segments[0].as_str() {
            "crate" => Some(Vec::new()),
            "self" => Some(self.module.clone()),
            "super" => Some(self.module[..self.module.len().saturating_sub(ups)].to_vec()),
            _ => None,
        };
        if let Some(base) = base {
            let rest = segments.split_off(ups.max(1));
            segments = [vec![self.name.clone()], base, rest].concat();
        }
        self.found.push(Named { segments, line, excused: self.excuses > 0 });
    }

    fn add_use(&mut self, prefix: &[String], tree: &UseTree) {
        let line = tree.span().start().line;
        let joined = |ident: String| [prefix, &[ident]].concat();
        match tree {
            UseTree::Path(path) => self.add_use(&joined(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.add(joined(name.ident.to_string()), line),
            UseTree::Rename(rename) => self.add(joined(rename.ident.to_string()), line),
            UseTree::Glob(_) => self.add(joined("*".to_owned()), line),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.add_use(prefix, item)),
        }
    }

    /// Paths of two or more segments in what a macro is given: syn leaves that unparsed.
    fn add_tokens(&mut self, tokens: &TokenStream) {
        let mut path = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens.clone() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.add_if_long(std::mem::take(&mut path), line);
                    }
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.add_if_long(std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(&group.stream());
                    }
                }
            }
        }
        self.add_if_long(path, line);
    }

    fn add_if_long(&mut self, path: Vec<String>, line: usize) {
        if path.len() > 1 {
            self.add(path, line);
        }
    }

    /// Visits what `attributes` belong to, excused if they say so.
    fn under(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let excuse = usize::from(excused(attributes, "disallowed_methods"));
        self.excuses += excuse;
        visit(self);
        self.excuses -= excuse;
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        self.under(attributes(item), |this| visit::visit_item(this, item));
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        self.under(member_attributes(item), |this| visit::visit_impl_item(this, item));
    }

    fn visit_local(&mut self, local: &'ast Local) {
        self.under(&local.attrs, |this| visit::visit_local(this, local));
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(segments, path.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.add_tokens(&call.tokens);
    }

    fn visit_meta_list(&mut self, list: &'ast MetaList) {
        visit::visit_meta_list(self, list);
        self.add_tokens(&list.tokens);
    }
}

#[test]
fn paths_are_found_wherever_they_hide() {
    let text = "
        use crate::agent::{self, serve::Serve};
        use super::engine;
        mod inner { use super::super::tasks::Tasks; }
        fn f() { tokio::select! { () = crate::agent::run() => {} } }
        #[derive(clap::Parser)] struct S(otela_node::agent::Agent);
    ";
    let source = crate::source::sample("otela-node/src/peer/swarm.rs", text);
    let found = named(&source).iter().map(Named::text).collect::<Vec<_>>();
    for path in [
        "otela_node::agent",
        "otela_node::agent::serve::Serve",
        "otela_node::peer::engine",
        "otela_node::peer::tasks::Tasks",
        "tokio::select",
        "otela_node::agent::run",
        "clap::Parser",
        "otela_node::agent::Agent",
    ] {
        assert!(found.iter().any(|found| found == path), "{path} is not among {found:?}");
    }
}
