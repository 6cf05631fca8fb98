//! Bad input: one clear line on stderr, a documented exit code, and no hanging on the mesh.

use crate::support::{Mesh, Otela, eventually, get, post};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

/// Runs to the end: the exit code and the output.
async fn run(arguments: &[&str]) -> (i32, String) {
    let mut process = Otela::run(arguments);
    let code = process.ends().await;
    let output = eventually("its output", async || Some(process.output()).filter(|text| !text.is_empty())).await;
    (code, output)
}

#[tokio::test]
async fn wrong_flags_name_themselves() {
    for (arguments, says) in [
        (&["start", "--nonsense"][..], "--nonsense"),
        (&["start", "--bootstrap", "nowhere"], "HOST:PORT"),
        (&["start", "--bootstrap", "https://me:secret@example.org/list"], "password"),
        (&["start", "--bootstrap", "/dnsaddr/example.org/tcp/1"], "/dnsaddr/HOST"),
        (&["start", "--bootstrap", "/ip4/192.0.2.1"], "/tcp/PORT"),
        (&["start", "--membership", "m", "--key", "k"], "--mesh-file"),
        (&["sign", "--key", "k", "--from", "2026-12-01"], "2026-12-01T00:00:00Z"),
        (&["sign", "--key", "k", "--mesh", "m", "--member", "nobody"], "12D3KooW"),
        (&["start", "--mesh", "Not A Mesh"], "mesh name"),
        (&["ingress", "--policy", "clever"], "clever"),
        (&["ingress", "--keep-alive", "soon"], "soon"),
        (&["start", "--label", "x"], "KEY=VALUE"),
        (&["start", "--announce", "hsn0,10.0.0.0/33"], "10.0.0.0/33"),
        (&["relay", "--log", "otela=loud=much"], "--log"),
        (&["relay", "--traces-to", "collector:4318"], "http://localhost:4318"),
        (&["ingress", "--listen", "localhost:8080"], "127.0.0.1:8080"),
        (&["frobnicate"], "frobnicate"),
    ] {
        let (code, output) = run(arguments).await;
        assert!(code == 2 && output.contains(says), "{arguments:?}: {code} {output}");
    }
}

#[tokio::test]
async fn keys_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let key = path.to_str().unwrap();
    std::fs::write(&path, "not a key").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (code, output) = run(&["start", "--key", key]).await;
    assert!(code == 78 && output.contains("is not an otela key file") && output.contains(key), "{code} {output}");
    let missing = dir.path().join("no/key");
    let (code, output) = run(&["start", "--key", missing.to_str().unwrap()]).await;
    assert!(code == 78 && output.contains("No such file"), "{code} {output}");
    std::fs::remove_file(&path).unwrap();
    let first = Otela::run(["relay", "--key", key, "--peer-listen", "/ip4/127.0.0.1/tcp/0"]);
    first.says("others join").await;
    let (code, output) = run(&["relay", "--key", key, "--peer-listen", "/ip4/127.0.0.1/tcp/0"]).await;
    assert!(code == 69 && output.contains("in use by another otela process"), "p48: {code} {output}");
}

#[tokio::test]
async fn state_directories_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (state, near) = (state.to_str().unwrap(), "/ip4/127.0.0.1/tcp/0");
    let first = Otela::run(["relay", "--state", state, "--peer-listen", near]);
    first.says("others join").await;
    let (code, output) = run(&["relay", "--state", state, "--peer-listen", near]).await;
    assert!(
        code == 69 && output.contains("in use by another otela process") && output.contains(state),
        "{code} {output}"
    );
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, output) = run(&["relay", "--state", file.to_str().unwrap(), "--peer-listen", near]).await;
    assert!(code == 78 && output.contains("is not a directory"), "{code} {output}");
}

#[tokio::test]
async fn taken_ports_are_named() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let peer = format!("/ip4/127.0.0.1/tcp/{}", holder.local_addr().unwrap().port());
    let near = "/ip4/127.0.0.1/tcp/0";
    for arguments in [
        vec!["ingress", "--listen", &taken, "--peer-listen", near],
        vec!["relay", "--peer-listen", &peer],
        vec!["start", "--http", &taken, "--peer-listen", near],
    ] {
        let (code, output) = run(&arguments).await;
        let port = taken.rsplit(':').next().unwrap();
        assert!(code == 69 && output.contains(port) && output.contains("in use"), "{arguments:?}: {code} {output}");
    }
    let (code, output) = run(&["ingress", "--listen", "0.0.0.0:0"]).await;
    assert!(code == 78 && output.contains("--open"), "p29: {code} {output}");
}

#[tokio::test]
async fn engines_that_do_not_start() {
    let near = ["start", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--linger", "0s"];
    let with = |engine: &[&'static str]| {
        near.iter().copied().chain(["--process"]).chain(engine.iter().copied()).collect::<Vec<_>>()
    };
    let (code, output) = run(&with(&["no-such-engine", "serve"])).await;
    assert!(code == 127 && output.contains("no-such-engine"), "{code} {output}");
    let (code, output) = run(&with(&["/etc/passwd"])).await;
    assert!(code == 126 && output.contains("/etc/passwd"), "{code} {output}");
    let (code, output) = run(&with(&["sh", "-c", "echo out of memory >&2; exit 3"])).await;
    assert!(code == 3 && output.contains("ended by itself") && output.contains("out of memory"), "{code} {output}");
    let mut never = vec!["start", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--ready-within", "1s"];
    never.extend(["--process", "sleep", "1000"]);
    let (code, output) = run(&never).await;
    assert!(code == 75, "{code} {output}");
}

#[tokio::test]
async fn an_absent_bootstrap_does_not_hold_up_the_start() {
    let mesh = Mesh::ingress(&["--bootstrap", "127.0.0.1:1", "--bootstrap", "no-such-host.invalid:7411"]).await;
    assert_eq!(get(mesh.http, "/health").await.status, 200);
    let ready = get(mesh.http, "/ready").await;
    assert_eq!((ready.status, ready.json()["reason"].clone()), (503, json!("no bootstrap has answered yet")));
    // Who has not heard of the mesh cannot say that a model does not exist.
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "m"})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (503, json!("joining")));
    mesh.ingress.says("a bootstrap does not answer").await;
}

#[tokio::test]
async fn everything_after_process_is_the_engines() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let script = format!("printf '%s|' \"$@\" > {}; exit 0", seen.display());
    let near = "/ip4/127.0.0.1/tcp/0";
    let mut arguments = vec!["start", "--peer-listen", near, "--linger", "0s", "--process", "sh", "-c", &script, "sh"];
    arguments.extend(["serve", "a b", "--port", "9", "--mesh", "--help", "*", "", "$HOME"]);
    let (code, output) = run(&arguments).await;
    assert_eq!(code, 0, "{output}");
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), "serve|a b|--port|9|--mesh|--help|*||$HOME|");
}

#[tokio::test]
async fn a_scenario_has_numbers_and_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let (path, plot) = (dir.path().join("noon.toml"), dir.path().join("noon.svg"));
    let text = "seconds = 60\n[[models]]\nmodel = 'Llama-3.1-8B'\nworkload = { arrivals = { rates = [[0, 5.0]] }, \
                prompt = { fixed = 500 }, answer = { fixed = 100 } }\nreplicas = [{ accelerator = 'A100-80GB', count = 2 }]\n\
                [[losses]]\nat = 30\naccelerator = 'A100-80GB'\ncount = 1\n";
    std::fs::write(&path, text).unwrap();
    let (path, plot) = (path.to_str().unwrap(), plot.to_str().unwrap());
    let (code, told) = run(&["sched", "simulate", path, "--plot", plot]).await;
    assert!(code == 0 && told.contains("to last token") && told.contains("requests served"), "{code} {told}");
    let picture = std::fs::read_to_string(plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>") && picture.contains("Llama-3.1-8B"));
    let (code, told) = run(&["sched", "simulate", path, "--json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&told).unwrap();
    let model = &answer["models"][0];
    assert!(code == 0 && model["summary"]["latency"]["p95"].as_f64().unwrap() > 0.5, "{code} {told}");
    assert_eq!((&model["summary"]["not_served"], &model["replicas"][0]["lost"]), (&0.into(), &1.into()), "{told}");
    for (arguments, says) in [
        (&["sched", "simulate", "/nonexistent.toml"][..], "cannot read /nonexistent.toml"),
        (&["sched", "simulate", path, "--plot", "/nonexistent/x.svg"], "cannot draw /nonexistent/x.svg"),
        (&["sched", "simulate", path, "--plot", "x.png"], "name a file that ends in .svg"),
        (&["sched", "simulate", path, "--factors", path], "noon.toml: line 6: unknown field `losses`"),
    ] {
        let (code, output) = run(arguments).await;
        assert!(code == 2 && output.contains(says), "{arguments:?}: {code} {output}");
    }
}

#[tokio::test]
async fn a_problem_is_solved_and_what_cannot_be_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("problem.json");
    let problem = |requests: u64| {
        let text = json!({
            "accelerators": {"A100-80GB": 4, "H100": 2},
            "models": [
                {"model": "Qwen2.5-7B", "requests": requests, "prompt": 256, "answer": 512},
                {"model": "Qwen2.5-14B", "requests": 16, "prompt": 256, "answer": 512},
            ],
        });
        std::fs::write(&path, text.to_string()).unwrap();
    };
    let path = path.to_str().unwrap();
    problem(64);
    let (code, told) = run(&["sched", "solve", path]).await;
    assert!(code == 0 && told.contains("no placement takes less") && told.contains("1 H100 more: "), "{code} {told}");
    let (code, told) = run(&["sched", "solve", path, "--json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(code == 0 && answer["makespan"].as_f64().unwrap() > 0.1 && answer["makespan"] == answer["bound"], "{told}");
    assert_eq!(answer["models"].as_array().unwrap().len(), 2, "{told}");
    problem(1_000_000);
    let (code, told) = run(&["sched", "solve", path]).await;
    assert!(code == 1 && told.contains("problem.json: Qwen2.5-7B: its load cannot be served at once"), "{code} {told}");
}

#[tokio::test]
async fn problems_of_other_kinds_are_solved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("problem.toml");
    let models = "
        [[models]]
        model = 'Qwen2.5-7B'
        requests = 64
        rate = 3.0
        prompt = 256
        answer = 512
        [[models]]
        model = 'Qwen2.5-14B'
        requests = 16
        rate = 1.0
        prompt = 256
        answer = 512
    ";
    let accelerators = "[accelerators]\nA100-80GB = { nodes = [4, 3], price = 1.5 }\nH100 = { count = 2, price = 3 }\n";
    let running = "[[running]]\nmodel = 'Qwen2.5-14B'\naccelerator = 'H100'\ntp = 1\ncount = 1\n";
    let also = "[also.night]\nweight = 2\n[[also.night.models]]\nmodel = 'Qwen2.5-14B'\nrequests = 90\nprompt = 256\nanswer = 512\n";
    let (name, plot) = (path.to_str().unwrap(), dir.path().join("map.svg"));
    let plot = plot.to_str().unwrap();
    for (head, tail, says, key) in [
        ("", "", "no placement takes less", "makespan"),
        ("objective = 'latency'\n", "", "no placement has less, by this formula", "mean_seconds"),
        (
            "objective = 'latency'\njudge = 'simulate'\nload_seconds = 20\nseed = 7\n",
            "",
            "none is better unless",
            "judged",
        ),
        ("objective = 'largest-share'\n", "", "of its load: no placement has more", "share"),
        ("objective = 'largest-share'\njudge = 'simulate'\nengine = 'SGLang'\n", "", "has measured", "guessed"),
        ("spare = 'idle'\n", "", "are spare", "next_best"),
        ("objective = 'cost'\ndone_within = 20\n", "", "no placement costs less", "cost_per_hour"),
        ("", running, "as it was", "changes"),
        ("", also, "night", "workloads"),
    ] {
        std::fs::write(&path, format!("{head}{accelerators}{models}{tail}")).unwrap();
        let (code, told) = run(&["sched", "solve", name, "--plot", plot]).await;
        assert!(code == 0 && told.contains(says), "{says}: {code} {told}");
        let picture = std::fs::read_to_string(plot).unwrap();
        assert!(picture.trim_end().ends_with("</svg>") && picture.contains("Qwen2.5-14B: "), "{says}");
        std::fs::remove_file(plot).unwrap();
        let (code, told) = run(&["sched", "solve", name, "--json"]).await;
        let answer: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert!(code == 0 && !answer[key].is_null() && answer["models"].as_array().unwrap().len() == 2, "{told}");
    }
    std::fs::write(&path, format!("judge = 'simulate'\n{accelerators}{models}")).unwrap();
    let (code, told) = run(&["sched", "solve", name]).await;
    assert!(code == 2 && told.contains("is for the objectives latency and largest-share"), "{code} {told}");
    std::fs::write(&path, format!("objective = 'cost'\n{accelerators}{models}")).unwrap();
    let (code, told) = run(&["sched", "solve", name]).await;
    assert!(code == 2 && told.contains("done_within is missing"), "{code} {told}");
    std::fs::write(&path, format!("{accelerators}{models}{}", running.replace("count = 1", "count = 3"))).unwrap();
    let (code, told) = run(&["sched", "solve", name]).await;
    assert!(code == 2 && told.contains("1 replicas of Qwen2.5-14B over 1 H100 run"), "{code} {told}");
}

#[tokio::test]
async fn measurements_are_fitted_and_held_against() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let rows = "accelerator,engine,model,tp,batch,input_tokens,output_tokens,latency_s\n\
                H100,vLLM,phi-4,1,1,128,128,1.9\nH100,vLLM,phi-4,1,8,128,128,2.1\nH100,vLLM,ours,1,8,128,128,2.1\n\
                H100,vLLM,phi-4,1,1,128,128,0.1\n";
    let (rows, mine) = (file("rows.csv", rows), file("mine.toml", "[models.ours]\nlike = \"phi-4\"\n"));
    let out = dir.path().join("factors.toml");
    let out = out.to_str().unwrap();
    let (code, told) =
        run(&["sched", "calibrate", &rows, "--catalog", &mine, "--fit", "microsoft/phi-4", "--out", out]).await;
    assert!(code == 0 && told.contains("of 2") && told.contains("left out: 1 faster than possible"), "{code} {told}");
    let (code, told) = run(&["sched", "validate", &rows, "--catalog", &mine, "--factors", out, "--json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&told).unwrap();
    let batches = answer["batches"].as_array().unwrap();
    assert!(code == 0 && batches.len() == 2 && batches[0]["model"] == "ours", "{code} {told}");
    assert!(batches.iter().all(|row| row["mean_ratio"].as_f64().unwrap() < 0.1), "{told}");
    for (arguments, says) in [
        (&["sched", "validate", "/nonexistent.csv"][..], "cannot read /nonexistent.csv"),
        (&["sched", "validate", &mine], "no column accelerator"),
        (&["sched", "validate", &rows, "--factors", &mine], "mine.toml: line 1: unknown field"),
        (&["sched", "validate", &rows, "--catalog", &rows], "rows.csv: line 1: "),
        (&["sched", "calibrate", &rows, "--fit", "phi-5"], "the nearest are phi-4"),
        (&["sched", "calibrate"], "FILE|FOLDER"),
    ] {
        let (code, output) = run(arguments).await;
        assert!(code == 2 && output.contains(says), "{arguments:?}: {code} {output}");
    }
}
