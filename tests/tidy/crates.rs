//! Arrows between the crates of the workspace, and the dependencies that only some of them may have, by manifest.

use crate::source::Offence;
use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use std::{fs, path::Path};

/// Each crate and the crates of the workspace it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("otela-testing", &[]),
    ("otela-proto", &[]),
    ("otela-node", &["otela-proto"]),
    ("otela-ingress", &["otela-proto", "otela-node"]),
    ("otela-sched", &["otela-proto", "otela-node"]),
    ("otela", &["otela-proto", "otela-node", "otela-ingress", "otela-sched"]),
];

/// Dependencies that only the named crates may have.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("anyhow", &["otela"], "only src/main.rs may drop an error's type: use thiserror"),
    ("clap", &["otela"], "only the command line knows flags: take a validated config"),
    ("tokio", &["otela", "otela-node", "otela-ingress", "otela-sched", "otela-testing"], "otela-proto does no I/O"),
    ("libp2p", &["otela", "otela-node"], "peers are reached through otela_node::peer"),
];

/// One dependency of one crate.
#[derive(Clone, Copy)]
struct Dependency<'a> {
    from: &'a str,
    to: &'a str,
    for_tests: bool,
}

/// Reads the manifests below `root` and judges every dependency.
pub(crate) fn check(root: &Path) -> Vec<Offence> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec();
    let metadata = metadata.expect("cargo can read the workspace's manifests");
    metadata.packages.iter().flat_map(|package| check_package(root, package)).collect()
}

fn check_package(root: &Path, package: &Package) -> Vec<Offence> {
    let manifest = fs::read_to_string(&package.manifest_path).expect("cargo has just read this manifest");
    let path = package.manifest_path.as_std_path().strip_prefix(root).unwrap_or(package.manifest_path.as_std_path());
    let line_of = |name: &str| manifest.lines().position(|line| line.starts_with(name)).map_or(1, |line| line + 1);
    let offence = |name: &str, what: String, instead: String| Offence {
        path: path.display().to_string(),
        line: line_of(name),
        what,
        instead,
    };
    package
        .dependencies
        .iter()
        .filter_map(|dependency| {
            let for_tests = dependency.kind == DependencyKind::Development;
            let judged = Dependency { from: &package.name, to: &dependency.name, for_tests };
            let instead = wrong(judged)?;
            Some(offence(&dependency.name, format!("{} depends on {}", judged.from, judged.to), instead))
        })
        .collect()
}

/// Why a dependency is wrong and what to do, or nothing if it is right.
fn wrong(dependency: Dependency<'_>) -> Option<String> {
    let Dependency { from, to, for_tests } = dependency;
    if for_tests && from == "otela" {
        return None;
    }
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else {
        return Some(format!("{from} has no place in the house: give it one in tests/tidy/crates.rs and docs/"));
    };
    if to == "otela-testing" {
        return (!for_tests).then(|| "tests alone wait with otela-testing: move it to [dev-dependencies]".to_owned());
    }
    if ARROWS.iter().any(|(name, _)| *name == to) && !allowed.contains(&to) {
        return Some(format!(
            "the arrows are otela-proto <- otela-node <- {{otela-ingress, otela-sched}} <- otela: it may depend on {allowed:?}"
        ));
    }
    let (_, _, instead) = RESERVED.iter().find(|(name, holders, _)| *name == to && !holders.contains(&from))?;
    (!for_tests).then(|| (*instead).to_owned())
}

#[test]
fn arrows_point_one_way() {
    let is_wrong = |from, to, for_tests| wrong(Dependency { from, to, for_tests }).is_some();
    assert!(is_wrong("otela-proto", "otela-node", false));
    assert!(is_wrong("otela-node", "otela-ingress", true));
    assert!(is_wrong("otela-ingress", "otela-sched", false));
    assert!(is_wrong("otela-extra", "serde", false));
    assert!(!is_wrong("otela-sched", "otela-node", false));
    assert!(!is_wrong("otela", "otela-sched", true));
    assert!(is_wrong("otela-node", "otela-testing", false));
    assert!(!is_wrong("otela-node", "otela-testing", true));
}

#[test]
fn some_dependencies_have_one_home() {
    let is_wrong = |from, to| wrong(Dependency { from, to, for_tests: false }).is_some();
    assert!(is_wrong("otela-proto", "tokio"));
    assert!(is_wrong("otela-node", "anyhow"));
    assert!(is_wrong("otela-ingress", "clap"));
    assert!(is_wrong("otela-ingress", "libp2p"));
    assert!(!is_wrong("otela", "clap"));
    assert!(!is_wrong("otela-node", "libp2p"));
}
