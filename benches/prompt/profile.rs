//! How close `otela sched profile` comes to what an engine takes.

use crate::process::Otela;
use serde_json::Value;

/// Profiles an engine that takes 24 ms for a token, and compares what was measured with what that engine computes with. The
/// mean difference of whole answers, as a share of what they take.
pub(crate) async fn error_of_batches() -> f64 {
    let model = ["engine", "meta-llama/Llama-3.1-8B", "--port", "0", "--profile", "Llama-3.1-8B@L40S"];
    let engine = Otela::run(model);
    let url = format!("http://{}", engine.says("address=").await);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("measured.csv");
    let path = path.to_str().unwrap();
    let what = ["--accelerator", "NVIDIA L40S", "--engine", "vLLM", "--engine-version", ""];
    let much = ["--batches", "1,4", "--prompts", "64,256", "--answers", "24", "--within", "5m", "--log", "error"];
    let profile = ["sched", "profile", &url, "--out", path];
    let (code, output) = run(profile.iter().chain(&what).chain(&much)).await;
    assert_eq!(code, 0, "{output}");
    let (code, output) = run(&["sched", "validate", path, "--json"]).await;
    assert_eq!(code, 0, "{output}");
    let told: Value = serde_json::from_str(&output).unwrap();
    let rows = told["batches"].as_array().unwrap();
    let whole = rows.iter().find(|row| row["first_token"] == false).unwrap();
    whole["bias"].as_f64().unwrap().abs()
}

/// Runs to the end: the exit code and the output.
async fn run<'a>(arguments: impl IntoIterator<Item = &'a &'a str>) -> (i32, String) {
    let mut process = Otela::run(arguments);
    (process.ends().await, process.output())
}
