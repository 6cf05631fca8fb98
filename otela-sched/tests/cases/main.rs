//! Numeric cases of the papers' equations, `sched_cases.json` beside this file and any file that `OTELA_SCHED_CASES` names:
//! a list of `{id, kind, input, expected, rel_tol}`. Each run reports by kind, and fails on a kind that nothing computes.

mod compute;
mod place;
mod policies;
mod table1;
mod validation;

use otela_sched::catalog::Catalog;
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

#[derive(Debug, Deserialize)]
struct Case {
    id: String,
    kind: String,
    input: Value,
    expected: Value,
    rel_tol: f64,
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

/// Runs a file's cases; the report, and whether all are right.
fn run(name: &str, text: &str) -> (String, bool) {
    let cases: Vec<Case> = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let catalog = Catalog::builtin();
    let mut kinds: BTreeMap<String, Tally> = BTreeMap::new();
    for case in &cases {
        let tally = kinds.entry(case.kind.clone()).or_default();
        match compute::of(&catalog, &case.kind, &case.input) {
            None => tally.failed.push(format!("{}: a kind that nothing computes", case.id)),
            Some(Err(problem)) => tally.failed.push(format!("{}: {problem}", case.id)),
            Some(Ok(found)) if agrees(&found, &case.expected, case.rel_tol) => tally.passed += 1,
            Some(Ok(found)) => {
                tally
                    .failed
                    .push(format!("{}: {found} where {} is right (± {:e})", case.id, case.expected, case.rel_tol));
            }
        }
    }
    let mut report = format!("{name}:\n");
    for (kind, tally) in &kinds {
        report += &format!("  {kind}: {} right, {} wrong\n", tally.passed, tally.failed.len());
        for failed in &tally.failed {
            report += &format!("    {failed}\n");
        }
    }
    (report, kinds.values().all(|tally| tally.failed.is_empty()))
}

/// Whether two values are the same, numbers up to a relative tolerance.
fn agrees(found: &Value, expected: &Value, tolerance: f64) -> bool {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => {
            let (found, expected) = (found.as_f64().expect("JSON's"), expected.as_f64().expect("JSON's"));
            (found - expected).abs() <= tolerance * expected.abs()
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| agrees(f, e, tolerance))
        }
        (Value::Object(found), Value::Object(expected)) => {
            // Of several placements that are equally good a case shows one.
            let expected: Vec<_> = expected.iter().filter(|(key, _)| *key != "example_plan").collect();
            found.len() == expected.len()
                && expected.into_iter().all(|(key, e)| found.get(key).is_some_and(|f| agrees(f, e, tolerance)))
        }
        _ => found == expected,
    }
}

#[test]
fn every_case_that_comes_with_the_repository() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/sched_cases.json");
    let (report, right) = run("sched_cases.json", &fs::read_to_string(path).unwrap());
    println!("{report}");
    assert!(right, "{report}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whoever has cases of their own names the file so")]
fn every_case_of_the_file_that_is_named() {
    let Ok(path) = std::env::var("OTELA_SCHED_CASES") else { return };
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (report, right) = run(&path, &text);
    println!("{report}");
    assert!(right, "{report}");
}

#[test]
fn a_wrong_answer_and_an_unknown_kind_are_reported() {
    let text = r#"[
        {"id": "a", "kind": "weight_bytes", "input": {"model": "Qwen2.5-7B"}, "expected": 15230566400.0, "rel_tol": 1e-12},
        {"id": "b", "kind": "weight_bytes", "input": {"model": "Qwen2.5-7B"}, "expected": 15230566401.0, "rel_tol": 1e-12},
        {"id": "c", "kind": "weight_bytes", "input": {"model": "Qwen9-7B"}, "expected": 1.0, "rel_tol": 1e-12},
        {"id": "d", "kind": "serve", "input": {}, "expected": 1.0, "rel_tol": 0},
        {"id": "e", "kind": "surf", "input": {}, "expected": 1.0, "rel_tol": 0}
    ]"#;
    let (report, right) = run("these", text);
    assert!(!right);
    for line in [
        "weight_bytes: 1 right, 2 wrong",
        "b: 15230566400",
        "c: the catalog has no model",
        "serve: 0 right, 1 wrong",
        "e: a kind",
    ] {
        assert!(report.contains(line), "{report}");
    }
}
