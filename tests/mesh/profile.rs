//! `otela sched profile` against engines: what it measures is what they do, and what cannot be measured is told.

use crate::support::{Mesh, Otela};
use serde_json::Value;

/// Runs to the end: the exit code and the output.
async fn run(arguments: &[&str]) -> (i32, String) {
    let mut process = Otela::run(arguments);
    (process.ends().await, process.output())
}

/// A simulated engine, and its address.
async fn engine(flags: &[&str]) -> (Otela, String) {
    let engine = Otela::run(["engine", "meta-llama/Llama-3.1-8B", "--port", "0"].iter().chain(flags));
    let address = engine.says("address=").await;
    (engine, format!("http://{address}"))
}

/// A token takes 24 ms.
const L40S: [&str; 2] = ["--profile", "Llama-3.1-8B@L40S"];

#[tokio::test]
async fn an_engine_is_measured_and_the_model_it_runs_on_is_found_again() {
    let (_engine, url) = engine(&L40S).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("measured.csv");
    let path = path.to_str().unwrap();
    // The version that it tells is no engine's whose factors are known; the factors are those of vLLM.
    let mut arguments = vec!["sched", "profile", &url, "--accelerator", "NVIDIA L40S", "--engine", "vLLM"];
    arguments.extend(["--engine-version", "", "--batches", "1,4", "--prompts", "64,256", "--answers", "24"]);
    arguments.extend(["--within", "60s", "--out", path, "--json", "--log", "error"]);
    let (code, output) = run(&arguments).await;
    assert!(code == 0 && output.contains("otela: 1 of 3: 1 x 64 + 24 tokens: "), "{code} {output}");
    let told: Value = serde_json::from_str(&printed(&output)).unwrap();
    assert_eq!((&told["accelerator"], &told["model"]), (&"L40S".into(), &"Llama-3.1-8B".into()), "{output}");
    assert_eq!(told["points"].as_array().unwrap().len(), 4, "{output}");
    assert!(told["points"][0]["itl_seconds"].as_f64().unwrap() > 0.02, "{output}");
    // Whole batches, and two times to first token.
    let (code, output) = run(&["sched", "validate", path, "--json"]).await;
    let told: Value = serde_json::from_str(&output).unwrap();
    assert!(code == 0 && told["left_out"].as_array().unwrap().is_empty(), "{code} {output}");
    let rows = told["batches"].as_array().unwrap();
    let bias = |first: bool| {
        let row = rows.iter().find(|row| row["first_token"] == first).expect("there is one of each");
        (row["count"].as_u64().unwrap(), row["bias"].as_f64().unwrap())
    };
    let (batches, first_tokens) = (bias(false), bias(true));
    // A busy machine only adds to what is measured: it is never less than what the engine takes. How close it comes where
    // nothing else runs is a row of the benchmark `prompt`.
    assert!(batches.0 == 4 && batches.1 < 0.1, "{batches:?} {output}");
    assert!(first_tokens.0 == 2 && first_tokens.1 < 0.4, "{first_tokens:?} {output}");
}

/// What was printed, without what was said meanwhile.
fn printed(output: &str) -> String {
    output.lines().filter(|line| !line.starts_with("otela: ")).collect()
}

#[tokio::test]
async fn where_tokens_are_only_counted_prompts_are_words() {
    // An ingress has no /tokenize.
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("Llama-3.1-8B", &["--ttft", "5ms", "--itl", "2ms"]).await;
    let url = format!("http://{}/v1", mesh.http);
    let mut arguments = vec!["sched", "profile", &url, "--accelerator", "H100", "--engine-version", "1, later"];
    arguments.extend(["--batches", "3", "--prompts", "50", "--answers", "10", "--within", "20s"]);
    let (code, output) = run(&arguments).await;
    let rows: Vec<&str> = output.lines().filter(|line| line.starts_with("H100,")).collect();
    let [row] = rows[..] else { panic!("{code} {output}") };
    let fields: Vec<&str> = row.split(',').collect();
    assert!(code == 0 && fields[2..7] == ["Llama-3.1-8B", "1", "3", "50", "10"] && fields[8] == "1  later", "{output}");
}

#[tokio::test]
async fn what_cannot_be_measured_is_told_on_one_line() {
    let (_engine, url) = engine(&["--served-model-name", "phi-4", "gpt-like", "--ttft", "1ms", "--itl", "1ms"]).await;
    let (_late, silent) = engine(&["--warmup", "1h"]).await;
    let (_broken, broken) = engine(&["--fail", "500"]).await;
    let (_unknown, unknown) = engine(&["--served-model-name", "ours"]).await;
    let one = ["--batches", "1", "--prompts", "16", "--answers", "4", "--within", "10s"];
    for (url, flags, code, says) in [
        ("http://127.0.0.1:1", &["--accelerator", "H100"][..], 69, "cannot connect to http://127.0.0.1:1: name"),
        (&url, &["--accelerator", "H101"], 2, "the catalog has no accelerator \"H101\"; the nearest are H100"),
        (&url, &["--accelerator", "H100"], 2, "name one of them with --model: phi-4, gpt-like"),
        (&url, &["--accelerator", "H100", "--model", "x"], 2, "does not serve \"x\": it serves phi-4, gpt-like"),
        (&url, &["--accelerator", "H100", "--model", "phi-4", "--within", "1ms"], 69, "no time was left"),
        (&silent, &["--accelerator", "H100"], 69, "serves no model: wait until it is ready"),
        (&broken, &["--accelerator", "H100"], 69, "answered 500"),
        (&unknown, &["--accelerator", "H100"], 0, "1,1,16,4,"),
    ] {
        let once = one.iter().filter(|_| !flags.contains(&"--within"));
        let arguments: Vec<&str> = ["sched", "profile", url].iter().chain(flags).chain(once).copied().collect();
        let (ended, output) = run(&arguments).await;
        assert!(ended == code && output.contains(says), "{arguments:?}: {ended} {output}");
    }
}
