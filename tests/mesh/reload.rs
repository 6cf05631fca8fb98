//! Models with settings of their own, an ingress that rereads them while it serves, and what the others make of SIGHUP.

use crate::support::{Answer, Mesh, Otela, eventually, finishes, get, post};
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tokio::net::TcpStream;

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

/// An ingress that is told by a file.
struct Told {
    mesh: Mesh,
    file: PathBuf,
    _dir: TempDir,
}

impl Told {
    async fn ingress(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("otela.toml");
        std::fs::write(&file, text).unwrap();
        let mesh = Mesh::ingress(&["--config", file.to_str().unwrap()]).await;
        Self { mesh, file, _dir: dir }
    }

    /// What the ingress logs when it is told to reread its file, which says `text`.
    async fn reread(&self, text: &str) -> String {
        std::fs::write(&self.file, text).unwrap();
        hangup(&self.mesh.ingress).await
    }

    async fn ask(&self, model: &str) -> Answer {
        post(self.mesh.http, "/v1/completions", &completion(model)).await
    }
}

fn completion(model: &str) -> Value {
    json!({"model": model, "prompt": "x", "max_tokens": 1})
}

/// The next line about SIGHUP after it was sent.
async fn hangup(otela: &Otela) -> String {
    let lines =
        || otela.output().lines().filter(|line| line.contains("SIGHUP: ")).map(str::to_owned).collect::<Vec<_>>();
    let before = lines().len();
    otela.signal("-HUP");
    eventually("a word about SIGHUP", async || lines().into_iter().nth(before)).await
}

#[tokio::test]
async fn a_model_has_a_policy_and_limits_of_its_own() {
    let text = "[ingress]\nqueue_within = '30s'\n[ingress.models.hurried]\nanswer_within = '100ms'\n\
                [ingress.models.alone]\nin_flight_max = 1\nqueue_max = 0\n[ingress.models.turns]\npolicy = 'round-robin'";
    let mut told = Told::ingress(text).await;
    // Two names of the same slow engine.
    let names = ["--served-model-name", "hurried", "patient", "alone", "--ttft", "5s"];
    told.mesh.add(&[], &[&[OTELA, "engine", "slow", "--port", "0"][..], &names].concat());
    for model in ["hurried", "patient", "alone"] {
        told.mesh.serves(model, 1).await;
    }
    let (hurried, patient) = tokio::join!(told.ask("hurried"), told.ask("patient"));
    assert_eq!((hurried.status, &hurried.json()["error"]["code"]), (504, &json!("upstream_timeout")));
    assert_eq!(patient.status, 200);
    // One has the place; there is no queue for the other.
    let (one, other) = tokio::join!(told.ask("alone"), told.ask("alone"));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503]);
    let (one, other) = tokio::join!(told.ask("patient"), told.ask("patient"));
    assert_eq!([one.status, other.status], [200, 200]);
    for _ in 0..3 {
        told.mesh.simulated("turns", &[]).await;
    }
    let mut nodes = Vec::new();
    for _ in 0..9 {
        nodes.push(told.ask("turns").await.header("x-otela-node").to_owned());
    }
    assert!(nodes.windows(4).all(|turn| turn[0] == turn[3] && turn[0] != turn[1] && turn[1] != turn[2]), "{nodes:?}");
}

/// One client on one connection: how many answers it had until `stop`.
async fn client(told: &Told, stop: &Cell<bool>) -> usize {
    let tcp = TcpStream::connect(told.mesh.http).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(tcp)).await.unwrap();
    tokio::select! {
        ended = connection => panic!("the connection was closed: {ended:?}"),
        answers = requests(sender, stop) => answers,
    }
}

async fn requests(mut sender: SendRequest<Full<Bytes>>, stop: &Cell<bool>) -> usize {
    let mut pace = tokio::time::interval(Duration::from_millis(3));
    let mut answers = 0;
    while !stop.get() {
        pace.tick().await;
        let request = http::Request::post("/v1/completions").header("host", "test");
        let request = request.header("content-type", "application/json");
        let body = Full::new(Bytes::from(completion("m").to_string()));
        let response =
            finishes("the head of an answer", sender.send_request(request.body(body).unwrap())).await.unwrap();
        let (head, body) = response.into_parts();
        let body = finishes("the body of an answer", body.collect()).await.unwrap().to_bytes();
        assert_eq!(head.status, 200, "{body:?}");
        assert_ne!(head.headers.get("connection").map(http::HeaderValue::as_bytes), Some(&b"close"[..]));
        answers += 1;
    }
    answers
}

#[tokio::test]
async fn reloads_under_load_are_noticed_by_nobody() {
    const RELOADS: usize = 20;
    let mut told = Told::ingress("").await;
    for _ in 0..2 {
        told.mesh.simulated("m", &["--ttft", "1ms"]).await;
    }
    let policies = ["random", "round-robin", "weighted", "least-loaded", "p2c", "affinity"];
    let stop = Cell::new(false);
    let reloads = async {
        for n in 0..RELOADS {
            let policy = policies[n % policies.len()];
            let text = format!(
                "[ingress]\nretries_max = {n}\nbody_mib_max = {}\n[ingress.models.m]\npolicy = '{policy}'\nin_flight_max = {}",
                n + 1,
                64 + n
            );
            let said = told.reread(&text).await;
            assert!(said.contains("the configuration was reread") && said.contains(policy), "{said}");
        }
        // Each client is answered under the last of them too.
        let all = "otela_ingress_requests_total";
        let answered = told.mesh.metric(all).await;
        eventually("more answers", async || (told.mesh.metric(all).await >= answered + 8.0).then_some(())).await;
        stop.set(true);
    };
    let clients = join_all((0..4).map(|_| client(&told, &stop)));
    let ((), answers) = tokio::join!(reloads, clients);
    assert!(answers.iter().all(|answers| *answers > 0), "{answers:?}");
    assert!(told.mesh.metric("otela_ingress_reloads_total").await as usize == RELOADS);
    assert!(told.mesh.metric("otela_ingress_attempts_failed_total").await == 0.0);
}

#[tokio::test]
async fn a_reload_is_of_what_comes_after_it() {
    let mut told = Told::ingress("").await;
    told.mesh.simulated("m", &["--ttft", "5s"]).await;
    let hurried = "[ingress.models.m]\nanswer_within = '100ms'";
    let reload = async {
        eventually("a request", async || (told.mesh.metric("otela_ingress_in_flight").await > 0.0).then_some(())).await;
        told.reread(hurried).await
    };
    let (before, said) = tokio::join!(told.ask("m"), reload);
    assert!(said.contains(r#"[ingress.models."m"] answer_within: as usual -> "100ms""#), "{said}");
    assert_eq!((before.status, told.ask("m").await.status), (200, 504));
    assert!(told.reread(hurried).await.contains("nothing has changed"));
    // A file that is not right, and settings that need a restart.
    let said = told.reread("[ingress.models.m]\nanswer_within = 'soon'").await;
    let reason = format!("stays as it was: {}:2: [ingress.models.\"m\"] answer_within", told.file.display());
    assert!(said.contains("WARN") && said.contains(&reason), "{said}");
    assert_eq!(told.ask("m").await.status, 504);
    let said = told.reread(&format!("{hurried}\n[peer]\nsite = 'elsewhere'\n[ingress]\ndrain = '1s'")).await;
    assert!(said.contains("WARN") && said.contains("only a restart takes over"), "{said}");
    assert!(said.contains("[peer] site: not set -> \"elsewhere\"; [ingress] drain: \"30s\" -> \"1s\""), "{said}");
    assert_eq!(told.ask("m").await.status, 504);
    assert!(told.reread("").await.contains(r#"answer_within: "100ms" -> as usual"#));
    assert_eq!(told.ask("m").await.status, 200);
    let counted = (
        told.mesh.metric("otela_ingress_reloads_total").await,
        told.mesh.metric("otela_ingress_reloads_refused_total").await,
    );
    assert_eq!(counted, (2.0, 1.0));
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_reread() {
    let mesh = Mesh::ingress(&[]).await;
    let said = hangup(&mesh.ingress).await;
    assert!(said.contains("WARN") && said.contains("no configuration file"), "{said}");
    assert_eq!(get(mesh.http, "/health").await.status, 200);
}

/// Runs a command at a terminal of its own, which SIGUSR1 closes; it says how the command has ended.
const AT_A_TERMINAL: &str = "
import os, pty, signal, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
signal.signal(signal.SIGUSR1, lambda *_: os.close(terminal))
print('process', pid, flush=True)
print('ended', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
";

/// Runs `arguments` of otela at a terminal, with its log in a file, once it has said `mark`.
async fn at_a_terminal(log: &Path, before: &str, arguments: &[&str], mark: &str) -> Otela {
    let script = format!("{before} exec \"$@\" 2>'{}'", log.display());
    let words = ["-c", AT_A_TERMINAL, "sh", "-c", &script, "sh", OTELA];
    let terminal = Otela::run_program("python3", words.iter().chain(arguments));
    let said = || std::fs::read_to_string(log).unwrap_or_default();
    eventually(mark, async || said().contains(mark).then_some(())).await;
    terminal
}

#[tokio::test]
async fn whoever_closes_the_terminal_ends_a_node_and_a_relay_in_good_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = |name: &str| dir.path().join(name);
    let near = ["--peer-listen", "/ip4/127.0.0.1/tcp/0"];
    let start = [&["start"][..], &near, &["--process", OTELA, "engine", "m", "--port", "0"]].concat();
    let relay = [&["relay"][..], &near].concat();
    for (name, arguments, mark) in [("start", start, "registry: "), ("relay", relay.clone(), "others join")] {
        let terminal = at_a_terminal(&log(name), "", &arguments, mark).await;
        terminal.signal("-USR1");
        let code = terminal.says("ended ").await;
        let said = std::fs::read_to_string(log(name)).unwrap();
        assert!(code == "0" && said.contains("SIGHUP: the terminal is closed"), "{name}: {code}\n{said}");
    }
    // As nohup does.
    let terminal = at_a_terminal(&log("kept"), "trap '' HUP;", &relay, "others join").await;
    let pid = terminal.says("process ").await;
    terminal.signal("-USR1");
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let code = terminal.says("ended ").await;
    let said = std::fs::read_to_string(log("kept")).unwrap();
    assert!(code == "0" && said.contains("SIGTERM: ") && !said.contains("SIGHUP"), "{code}\n{said}");
}

#[tokio::test]
async fn without_a_terminal_sighup_ends_nobody() {
    let near = ["--peer-listen", "/ip4/127.0.0.1/tcp/0"];
    for (arguments, mark) in [
        ([&["relay"][..], &near].concat(), "others join"),
        ([&["start"][..], &near].concat(), "registry: "),
        (vec!["engine", "m", "--port", "0"], "listens"),
    ] {
        let mut otela = Otela::run_program("setsid", [OTELA].iter().chain(&arguments));
        otela.says(mark).await;
        for _ in 0..2 {
            let said = hangup(&otela).await;
            assert!(said.contains("nothing is done"), "{said}");
        }
        otela.signal("-TERM");
        assert_eq!(otela.ends().await, 0, "{}", otela.output());
    }
}
