//! Peers that are told everything by one file, and files that are not as they should be.

use crate::support::{Otela, eventually, get, post};
use serde_json::json;
use std::{net::SocketAddr, path::Path};

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

/// Runs to the end with some variables: the exit code and the output.
async fn run(variables: &[&str], arguments: &[&str]) -> (i32, String) {
    let words = variables.iter().copied().chain([OTELA]).chain(arguments.iter().copied());
    let mut process = Otela::run_program("env", words);
    let code = process.ends().await;
    (code, process.output())
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_ingress_and_a_node_are_told_everything_by_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("otela.toml");
    let text = "threads = 1\n[peer]\nmesh = 'filed'\nlisten = ['/ip4/127.0.0.1/tcp/0']\n[ingress]\nlisten = '127.0.0.1:0'\n\
                [start]\nlabels = ['team=vision', 'rack=4']\nlinger = '0s'\n[observe]\nlisten = '127.0.0.1:0'\n";
    let file = write(&path, text);
    let ingress = Otela::run(["ingress", "--config", &file]);
    assert_eq!(ingress.says("configuration: ").await, file);
    let base = ingress.says("OpenAI base URL: http://").await;
    let http: SocketAddr = base.trim_end_matches("/v1").parse().unwrap();
    let bootstrap = eventually("the ingress' own address", async || {
        Some(get(http, "/v1/dnt/bootstraps").await.json()["bootstraps"][0].as_str()?.to_owned())
    })
    .await;
    // It is of no use to the ingress, which has begun.
    write(&path, &text.replace("[peer]", &format!("[peer]\nbootstrap = [{bootstrap:?}]")));
    let node = format!("OTELA_CONFIG={file}");
    let node = Otela::run_program("env", [&node, OTELA, "start", "--process", OTELA, "engine", "m", "--port", "0"]);
    eventually(&format!("an answer\n{}", node.output()), async || {
        let answer = post(http, "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 1})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    let nodes = get(http, "/v1/registry/nodes?label=team=vision").await.json();
    let labels = &nodes["nodes"][0]["labels"];
    assert!(labels["team"] == "vision" && labels["rack"] == "4", "{nodes}");
    node.writes("mesh=filed", 1).await;
}

#[tokio::test]
async fn bad_files_stop_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("otela.toml");
    for (text, line, says) in [
        ("[ingress]\n\nlisten = 'here'\n", 3, "[ingress] listen cannot be \"here\""),
        (
            "[ingress]\nlisten = '127.0.0.1:0'\nlisten_on = 1\n[start]\ndrian = 1\n",
            3,
            "[ingress] listen_on is not known",
        ),
        ("[peer]\nmembership = 'm'\n", 2, "[peer] membership needs [peer] key and [peer] mesh_file too"),
        ("[peer\n", 1, "not TOML"),
    ] {
        let file = write(&path, text);
        let (code, output) = run(&[], &["ingress", "--config", &file]).await;
        assert!(code == 2 && output.starts_with(&format!("otela: {file}:{line}: {says}")), "{code} {output}");
        assert_eq!(output.lines().count(), 1, "{output}");
    }
    let missing = dir.path().join("missing");
    let (code, output) = run(&[], &["relay", "--config", missing.to_str().unwrap()]).await;
    assert!(code == 2 && output.contains("No such file") && output.lines().count() == 1, "{code} {output}");
    // What only the whole can tell is as with flags.
    let file = write(&path, "[ingress]\nlisten = '0.0.0.0:0'");
    let (code, output) = run(&[], &["ingress", "--config", &file]).await;
    assert!(code == 78 && output.contains("--open"), "{code} {output}");
}

#[tokio::test]
async fn a_check_tells_everything() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(&dir.path().join("otela.toml"), "[ingres]\n[peer]\ngrace = '1ms'\nmesh_fil = 'm'\n");
    let (code, output) = run(&[], &["config", "check", &file]).await;
    let lines: Vec<_> = output.lines().collect();
    assert!(code == 2 && lines.len() == 3, "{code} {output}");
    assert!(lines[0].contains(":1: section [ingres] is not known; the nearest that is: [ingress]"), "{output}");
    assert!(lines[1].contains(":3: [peer] grace cannot be \"1ms\": shorter than 1s"), "{output}");
    assert!(lines[2].contains(":4: [peer] mesh_fil is not known; the nearest that is: [peer] mesh_file"), "{output}");
    write(Path::new(&file), "[peer]\ngrace = '1m'\n[ingress.models.'a/b']\n");
    assert_eq!(run(&[], &["config", "check", &file]).await, (0, format!("{file} is good")));
    assert_eq!(run(&[&format!("OTELA_CONFIG={file}")], &["config", "check"]).await.0, 0);
    let (code, output) = run(&[], &["config", "check"]).await;
    assert!(code == 2 && output.contains("which file"), "{code} {output}");
    // A key that the environment supplies is there.
    write(Path::new(&file), "[peer]\nmembership = 'm'\nmesh_file = 'f'");
    assert_eq!(run(&[], &["config", "check", &file]).await.0, 2);
    assert_eq!(run(&["OTELA_PEER_KEY=k"], &["config", "check", &file]).await.0, 0);
}

#[tokio::test]
async fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[peer]\nmesh = 'filed'\nsite = 'filed'\nbootstrap = ['a:1']\nvia = ['a:1']\n[ingress]\nopen = true\nlisten = '127.0.0.1:1'\n";
    let file = write(&dir.path().join("otela.toml"), text);
    let variables =
        ["OTELA_PEER_MESH=set", "OTELA_PEER_SITE=set", "OTELA_PEER_BOOTSTRAP=b:2,c:3", "OTELA_INGRESS_OPEN=no"];
    let (code, output) = run(&variables, &["config", "show", "--config", &file, "ingress", "--site", "named"]).await;
    assert_eq!(code, 0, "{output}");
    for line in [
        "mesh = \"set\" # OTELA_PEER_MESH",
        "site = \"named\" # --site",
        "bootstrap = [\"b:2\", \"c:3\"] # OTELA_PEER_BOOTSTRAP",
        &format!("via = [\"a:1\"] # {file}:5"),
        "open = false # OTELA_INGRESS_OPEN",
        &format!("listen = \"127.0.0.1:1\" # {file}:8"),
        "drain = \"30s\" # default",
    ] {
        assert!(output.lines().any(|shown| shown == line), "{line}\n{output}");
    }
    // A wrong variable does not make way for the file.
    let (code, output) = run(&["OTELA_PEER_MESH=Not A Mesh"], &["ingress", "--config", &file]).await;
    assert!(code == 2 && output.contains("--mesh"), "{code} {output}");
}
