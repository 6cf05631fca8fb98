//! What `deploy/` and its document tell otela is what otela understands: commands, flags, variables and their values.

use crate::support::Otela;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const OTELA: &str = env!("CARGO_BIN_EXE_otela");
/// Whatever such files may run.
const COMMANDS: [&str; 14] = [
    "start",
    "ingress",
    "relay",
    "engine",
    "demo",
    "nodes",
    "models",
    "status",
    "key",
    "sign",
    "doctor",
    "config check",
    "config show",
    "sched run",
];

/// Each file with its text.
fn files() -> Vec<(PathBuf, String)> {
    let walk = ignore::WalkBuilder::new("deploy").add("docs/deploy.md").build();
    let paths = walk.map(|entry| entry.unwrap().into_path()).filter(|path| path.is_file());
    paths.map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// Every flag that a text gives to a command of otela's, up to the engine's own command line.
fn flags(text: &str) -> BTreeSet<(&'static str, String)> {
    let mut found = BTreeSet::new();
    let joined = text.replace("\\\n", " ");
    // Prose goes on behind a command that it quotes.
    for line in joined.lines().flat_map(|line| line.split('`')) {
        let words: Vec<_> = line.split([' ', '[', ']', ',', '"']).filter(|word| !word.is_empty()).collect();
        for (at, word) in words.iter().enumerate() {
            if *word != "args:" && *word != "otela" && !word.ends_with("/otela") {
                continue;
            }
            let rest = &words[at + 1..];
            let named = |command: &&str| rest.starts_with(&command.split(' ').collect::<Vec<_>>());
            let Some(command) = COMMANDS.into_iter().find(named) else { continue };
            for word in rest.iter().take_while(|word| !["|", "&&", "#"].contains(word)) {
                if let Some(flag) = word.strip_prefix("--") {
                    let name: String = flag.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
                    found.insert((command, format!("--{name}")));
                }
                if *word == "--process" {
                    break;
                }
            }
        }
    }
    found
}

/// Every variable of otela's that a text names.
fn variables(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    // `OTELA_RELAY_` is the beginning of many.
    words.filter(|word| word.starts_with("OTELA_") && !word.ends_with('_')).collect()
}

/// Every variable that a file sets, with its value: lines of an environment file, also those that are commented out, and
/// containers' `env` in YAML.
fn settings(text: &str) -> Vec<(&str, &str)> {
    let lines: Vec<_> = text.lines().map(|line| line.trim().trim_start_matches('#')).collect();
    let plain = lines.iter().filter_map(|line| line.split_once('=')).filter(|(name, _)| name.starts_with("OTELA_"));
    let yaml = lines.windows(2).filter_map(|pair| {
        let name = pair[0].strip_prefix("- name: ").or(pair[0].strip_prefix("name: "))?;
        let value = pair[1].strip_prefix("value: ")?;
        name.starts_with("OTELA_").then_some((name, value.trim_matches('"')))
    });
    plain.chain(yaml).collect()
}

async fn run(words: &[&str]) -> (i32, String) {
    let mut process = Otela::run_program("env", words);
    let code = process.ends().await;
    (code, process.output())
}

async fn help(command: &str) -> String {
    let words: Vec<_> = [OTELA].into_iter().chain(command.split(' ')).chain(["--help"]).collect();
    let (code, text) = run(&words).await;
    assert_eq!(code, 0, "{command}: {text}");
    text
}

#[tokio::test]
async fn every_flag_and_variable_exists() {
    let mut texts = Vec::new();
    for command in COMMANDS {
        texts.push((command, help(command).await));
    }
    let knows = |command: &str, flag: &str| {
        let (_, text) = texts.iter().find(|(name, _)| *name == command).unwrap();
        text.split_whitespace().any(|word| word.trim_end_matches(',') == flag)
    };
    let (mut commands, mut names) = (BTreeSet::new(), 0);
    for (path, text) in files() {
        for (command, flag) in flags(&text) {
            assert!(knows(command, &flag), "{}: otela {command} has no {flag}", path.display());
            commands.insert(command);
        }
        for name in variables(&text) {
            let known = texts.iter().any(|(_, text)| text.contains(&format!("[env: {name}=")));
            assert!(known, "{}: no command reads {name}", path.display());
            names += 1;
        }
    }
    let used = BTreeSet::from(["start", "ingress", "relay"]);
    assert!(commands.is_superset(&used) && names > 20, "{commands:?} {names}");
}

#[tokio::test]
async fn every_value_is_taken() {
    let mut checked = 0;
    for (path, text) in files() {
        // What stands in OTELA_CONFIG is not there.
        let set: Vec<_> = settings(&text).into_iter().filter(|(name, _)| *name != "OTELA_CONFIG").collect();
        if set.is_empty() {
            continue;
        }
        let variables: Vec<_> = set.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let words: Vec<_> = variables.iter().map(String::as_str).chain([OTELA, "config", "show"]).collect();
        let (code, output) = run(&words).await;
        assert_eq!(code, 0, "{}: {output}", path.display());
        for (name, _) in set {
            assert!(output.contains(&format!(" # {name}")), "{}: {name} is not used\n{output}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

#[tokio::test]
async fn an_idle_worker_starts_with_its_templates() {
    let folder = Path::new("deploy/kubernetes/worker-idle");
    let text = fs::read_to_string(folder.join("worker.yaml")).unwrap();
    let set = settings(&text);
    let (_, scheduler) = set.iter().find(|(name, _)| *name == "OTELA_START_SCHEDULERS").unwrap();
    let templates = folder.join("templates.toml");
    let told = ["--scheduler", scheduler, "--templates", templates.to_str().unwrap()];
    let node = Otela::run(["start", "--peer-listen", "/ip4/127.0.0.1/tcp/0"].into_iter().chain(told));
    node.says("registry: http://").await;
}

#[test]
fn flags_variables_and_values_are_found() {
    let text = "args: [start, --no-such, x, --process, vllm, --host]\nExecStart=%h/bin/otela relay --http=1 # --x\n\
                run `otela sched run P --plans D` or otela key \\\n  --json | otela --help, otela itself --y";
    let found = flags(text);
    let expected = [
        ("key", "--json"),
        ("relay", "--http"),
        ("sched run", "--plans"),
        ("start", "--no-such"),
        ("start", "--process"),
    ];
    assert!(found.iter().map(|(command, flag)| (*command, flag.as_str())).eq(expected), "{found:?}");
    assert_eq!(variables("OTELA_A_B=1 $OTELA_C, OTELA_RELAY_, OTELA"), BTreeSet::from(["OTELA_A_B", "OTELA_C"]));
    let text = "#OTELA_A=b=c\nPATH=x\n  - name: OTELA_B\n    value: \"7\"\n- name: C\n  value: 1";
    assert_eq!(settings(text), [("OTELA_A", "b=c"), ("OTELA_B", "7")]);
}
