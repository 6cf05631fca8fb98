//! The rules of docs/style.md that neither the compiler nor clippy checks, as a test over the whole tree.
//!
//! Rust is parsed, so comments and strings cannot trip a rule about code. Each rule has a test beside it that
//! shows it firing on a small bad sample. The tree is the working directory, which cargo sets to the workspace's
//! root; the built test can thus be run in any other checkout.

mod arrows;
mod calls;
mod crates;
mod leftovers;
mod paths;
mod shape;
mod sizes;
mod source;
mod time;

use source::{Offence, Source};

/// What one rule says of one file.
type Rule = fn(&Source) -> Vec<Offence>;

const RULES: [Rule; 6] = [arrows::check, calls::check, shape::check, sizes::check, leftovers::check, time::check];

#[test]
fn the_tree_is_tidy() {
    let root = std::env::current_dir().expect("a test has a working directory");
    let (sources, mut offences) = source::read_tree(&root);
    for expected in ["src/main.rs", "otela-proto/src/lib.rs", "otela-sched/src/lib.rs", "Cargo.toml"] {
        assert!(sources.iter().any(|source| source.path == expected), "{expected} was not found below {root:?}");
    }
    offences.extend(crates::check(&root));
    offences.extend(sources.iter().flat_map(|source| RULES.iter().flat_map(|rule| rule(source))));
    offences.sort();
    offences.dedup();
    let list = offences.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(offences.is_empty(), "{} offences against docs/style.md\n{list}\n", offences.len());
}
