//! What is written down of an engine that failed, before the rest of it is gone, and where: the log sink.

use super::Agent;
use crate::{
    engine::{Launch, Process},
    peer::RequestBody,
    telemetry::{Metrics, chain},
    web,
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use otela_proto::PeerId;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use regex::{Captures, Regex};
use serde_json::{Map, Value, json};
use std::{
    ffi::OsString,
    fmt,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::time::timeout;
use url::Url;

/// Where a peer takes what others write down.
pub const POST_MORTEM_PATH: &str = "/otela/post-mortem";

/// Lines of output in it.
const LINES_MAX: usize = 500;
/// Bytes of them.
const LINES_BYTES_MAX: usize = 512 * 1024;
/// What fails is not kept waiting by whoever keeps its story.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 4 * 1024;

/// Beginnings of the names of variables that say how an engine was run.
const TELLING: [&str; 22] = [
    "SLURM",
    "CUDA",
    "NVIDIA",
    "NCCL",
    "ROCR",
    "HIP",
    "HSA",
    "RCCL",
    "GPU",
    "VLLM",
    "SGLANG",
    "SGL_",
    "TRT",
    "OLLAMA",
    "HF_",
    "TORCH",
    "OMP_",
    "MASTER_",
    "RAY_",
    "LD_LIBRARY_PATH",
    "PATH",
    "VIRTUAL_ENV",
];
/// In the place of what is not told.
const HIDDEN: &str = "...";
/// Parts of the names of variables and flags whose values are nobody's business.
const SECRET: [&str; 8] = ["TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "COOKIE", "AUTH", "JWT"];

/// Where post-mortems go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogSink {
    /// A file each in this folder.
    Folder(PathBuf),
    /// A POST each to this address.
    Web(Url),
    /// To this peer of the mesh, which keeps them.
    Peer(PeerId),
}

impl FromStr for LogSink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(peer) = text.strip_prefix("peer:") {
            return peer.parse().map(Self::Peer).map_err(|_| format!("{peer} is no peer id: peer:12D3KooW…"));
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return text.parse().map(Self::Web).map_err(|error: url::ParseError| error.to_string());
        }
        if text.contains("://") {
            return Err("only http:// and https:// are known; or a folder, or peer:ID".to_owned());
        }
        match text {
            "" => Err("name a folder, a URL or peer:ID".to_owned()),
            folder => Ok(Self::Folder(folder.into())),
        }
    }
}

impl fmt::Display for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Web(url) => write!(f, "{url}"),
            Self::Peer(peer) => write!(f, "peer:{peer}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// How engines were started, for their post-mortems, and what became of these.
#[derive(Debug)]
pub(super) struct Coroner {
    metrics: Metrics,
    written: Family<Outcome, Counter>,
    started: Mutex<Value>,
}

impl Coroner {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let written = Family::<Outcome, Counter>::default();
        let shown = written.clone();
        metrics.register(|r| {
            r.register("otela_agent_post_mortems", "Post-mortems of engines, by what became of them", shown);
        });
        Self { metrics: metrics.clone(), written, started: Mutex::default() }
    }
}

impl Agent {
    /// Remembers how an engine was started.
    pub(super) fn started(&self, process: &Process, launch: &Launch) {
        let environment = telling(launch.whole_environment());
        let how = json!({"command": masked(&launch.argv), "environment": environment, "pid": process.pid()});
        *self.coroner.started.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    /// Writes down what is known of an engine that has failed, where the provider wants that.
    pub(super) async fn post_mortem(&self, process: &Process, cause: &str) {
        let Some(sink) = &self.config.log_sink else { return };
        let now = SystemTime::now();
        let account = self.account.page();
        let account =
            account.map(|page| json!({"at": humantime::format_rfc3339_millis(page.at).to_string(), "text": page.text}));
        let report = json!({
            "cause": cause,
            "at": humantime::format_rfc3339_millis(now).to_string(),
            "mesh": self.peer.mesh().to_string(),
            "node": self.peer.id().to_string(),
            "epoch": self.peer.session().epoch.0,
            "host": self.voice.host().await,
            "labels": self.voice.labels().await,
            "engine": *self.coroner.started.lock().unwrap_or_else(PoisonError::into_inner),
            "exit": process.exit().map(|exit| exit.to_string()),
            "last_lines": last_lines(process),
            "metrics": self.coroner.metrics.render(),
            "engine_metrics": account,
        });
        let written = timeout(WRITTEN_WITHIN, self.write(sink, &report, now)).await;
        let written = written.unwrap_or_else(|_| Err(format!("not done within {WRITTEN_WITHIN:?}")));
        let outcome = match written {
            Ok(at) => {
                tracing::info!("what is known of the engine's failure: {at}");
                "written"
            }
            Err(why) => {
                tracing::warn!("what is known of the engine's failure cannot be written to {sink}: {why}");
                "failed"
            }
        };
        self.coroner.written.get_or_create(&Outcome { outcome }).inc();
    }

    /// Where it is now.
    async fn write(&self, sink: &LogSink, report: &Value, now: SystemTime) -> Result<String, String> {
        match sink {
            LogSink::Folder(folder) => {
                let node = self.peer.id().to_string();
                let (folder, text) = (folder.clone(), format!("{report:#}\n"));
                let written = tokio::task::spawn_blocking(move || keep(&folder, &node, now, text.as_bytes()));
                let path = written.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                Ok(path.display().to_string())
            }
            LogSink::Web(url) => {
                let (at, body) = (url.clone(), report.to_string());
                // Reading the system's roots takes a moment.
                let client = tokio::task::spawn_blocking(move || web::client(&at, 0)).await;
                let client = client.map_err(|error| error.to_string())?.map_err(|error| chain(&error))?;
                let request = client.post(url.clone()).header(header::CONTENT_TYPE, "application/json").body(body);
                let answer = request.send().await.map_err(|error| chain(&error))?;
                let status = answer.status();
                if status.is_success() { Ok(url.to_string()) } else { Err(format!("it answered {status}")) }
            }
            LogSink::Peer(peer) => {
                let head = Request::builder().method(Method::POST).uri(POST_MORTEM_PATH).body(());
                let head = head.map_err(|error| error.to_string())?.into_parts().0;
                let body = RequestBody::Whole(report.to_string().into());
                let sent = self.peer.send(peer, head, body).await;
                let hint = "it keeps some if it was started with --post-mortems FOLDER";
                let (answer, _) = sent.map_err(|error| format!("{}; {hint}", chain(&error)))?;
                let status = answer.status();
                let said = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
                let said = said.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                match status {
                    StatusCode::CREATED => Ok(format!("with peer {peer}")),
                    _ => Err(format!("it answered {status}: {}", String::from_utf8_lossy(&said))),
                }
            }
        }
    }
}

/// What engines print, and how they were started, is nobody else's business.
fn make(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Makes the folder if it is not there, and tries whether post-mortems can be kept in it.
///
/// # Errors
/// Those of making it, and of writing a file to it.
pub fn writable(folder: &Path) -> std::io::Result<()> {
    make(folder)?;
    let trial = folder.join(format!(".otela-{}", std::process::id()));
    std::fs::write(&trial, b"otela tries whether it can write here\n")?;
    std::fs::remove_file(trial)
}

/// Writes a post-mortem of a node to a file of its own; where that is.
pub(crate) fn keep(folder: &Path, node: &str, at: SystemTime, text: &[u8]) -> std::io::Result<PathBuf> {
    make(folder)?;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("post-mortem-{}-{node}", since.as_millis());
    let (draft, path) = (folder.join(format!(".{name}")), folder.join(format!("{name}.json")));
    // Whoever reads the folder sees whole files.
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?.write_all(text)?;
    std::fs::rename(&draft, &path)?;
    Ok(path)
}

fn last_lines(process: &Process) -> Vec<String> {
    let lines = process.output().last_lines(LINES_MAX);
    let mut bytes = 0;
    let mut kept: Vec<String> = lines
        .into_iter()
        .rev()
        .take_while(|line| {
            bytes += line.len();
            bytes <= LINES_BYTES_MAX
        })
        .collect();
    kept.reverse();
    kept
}

fn is_secret(name: &str) -> bool {
    // The two that are meant for models.
    let name = name.to_uppercase().replace("TOKENIZER", "").replace("TOKENS", "");
    SECRET.iter().any(|part| name.contains(part))
}

/// The variables that say how an engine was run.
fn telling(environment: impl IntoIterator<Item = (String, String)>) -> Map<String, Value> {
    let is_telling = |name: &str| {
        let begins = TELLING.iter().any(|beginning| name.starts_with(beginning));
        (begins || name.ends_with("_VISIBLE_DEVICES")) && !is_secret(name)
    };
    environment
        .into_iter()
        .filter(|(name, _)| is_telling(name))
        .map(|(name, value)| (name, without_secrets(&value).into()))
        .collect()
}

/// A text without what follows secret names in it, or stands for a user and a password in an address.
fn without_secrets(text: &str) -> String {
    let (Ok(assigned), Ok(flagged), Ok(users)) = (
        Regex::new(r#"((?:[A-Za-z0-9_-]+=)+)("[^"]*"|'[^']*'|[^ \t\r\n;&|"']*)"#),
        Regex::new(r#"(--?[A-Za-z0-9_-]+)[ \t]+("[^"]*"|'[^']*'|[^ \t\r\n;&|"'-][^ \t\r\n;&|"']*)"#),
        Regex::new(r"://[^/@ \t\r\n]+@"),
    ) else {
        // They are well formed; if not, nothing is told rather than too much.
        return HIDDEN.to_owned();
    };
    let hide = |found: &Captures<'_>, between: &str| match (found.get(1), found.get(0)) {
        (Some(name), _) if is_secret(name.as_str()) => format!("{}{between}{HIDDEN}", name.as_str()),
        (_, Some(whole)) => whole.as_str().to_owned(),
        _ => String::new(),
    };
    let text = assigned.replace_all(text, |found: &Captures<'_>| hide(found, ""));
    let text = flagged.replace_all(&text, |found: &Captures<'_>| hide(found, " "));
    users.replace_all(&text, "://...@").into_owned()
}

/// A command line without what is secret in it.
fn masked(argv: &[OsString]) -> Vec<String> {
    let mut hides_next = false;
    let mask = |word: &OsString| {
        let word = word.to_string_lossy();
        if std::mem::take(&mut hides_next) {
            return HIDDEN.to_owned();
        }
        hides_next = word.starts_with('-') && !word.contains(['=', ' ']) && is_secret(&word);
        without_secrets(&word)
    };
    argv.iter().map(mask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn secrets_are_not_written_down() {
        let argv = [
            "env",
            "HF_TOKEN=hf_1",
            "A=b",
            "vllm",
            "--api-key",
            "hunter2",
            "--hf-token=hf_2",
            "--tokenizer",
            "t",
            "--port",
            "1",
        ];
        let shown = masked(&argv.map(OsString::from)).join(" ");
        assert_eq!(shown, "env HF_TOKEN=... A=b vllm --api-key ... --hf-token=... --tokenizer t --port 1");
        let environment =
            [("HF_HOME", "/h"), ("HF_TOKEN", "t"), ("SLURM_JOB_ID", "7"), ("MAIL", "x"), ("NCCL_DEBUG", "INFO")];
        let kept = telling(environment.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(kept.keys().cloned().collect::<Vec<_>>().join(" "), "HF_HOME NCCL_DEBUG SLURM_JOB_ID");
    }

    #[test]
    fn sinks_are_folders_addresses_or_peers() {
        let peer = PeerId::random();
        assert_eq!(format!("peer:{peer}").parse(), Ok(LogSink::Peer(peer)));
        assert!(matches!("https://a.example/x".parse(), Ok(LogSink::Web(_))));
        assert_eq!("/var/log/otela".parse(), Ok(LogSink::Folder("/var/log/otela".into())));
        assert!("peer:x".parse::<LogSink>().unwrap_err().contains("peer:12D3KooW"));
        for bad in ["http://", "", "ftp://x/"] {
            assert!(bad.parse::<LogSink>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_234);
        let path = keep(&dir.path().join("new"), "node", at, b"{}").unwrap();
        assert_eq!(path, dir.path().join("new/post-mortem-1234-node.json"));
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
        for made in [path, dir.path().join("new")] {
            assert_eq!(std::fs::metadata(made).unwrap().mode() & 0o077, 0, "nobody else reads them");
        }
    }
}
