//! When an engine truly serves.
//!
//! Ready means all of: a socket that belongs to the engine's own processes, a model list with a model in it, and
//! one generated token. An engine may take an hour for that; meanwhile [`Progress`] tells how far it is.

use super::{
    control::Exit,
    fatal::Belief,
    kind::Kind,
    listening::{Holder, Listening, holder, listening},
    process::Process,
    serving::{ModelInfo, Place, Problem, Task},
};
use std::{
    collections::HashMap,
    convert::Infallible,
    fmt, io,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How patient to be.
#[derive(Debug, Clone)]
pub struct ReadyOptions {
    /// From the start of the wait to giving up. Large models load for the better part of an hour.
    pub limit: Duration,
    /// The pause after the first look; it doubles up to `poll_max`.
    pub poll_min: Duration,
    /// The longest pause between two looks.
    pub poll_max: Duration,
    /// For a TCP connection to the engine, which is on this host.
    pub connect_limit: Duration,
    /// For the first token: a large model on CPUs takes minutes.
    pub generate_limit: Duration,
    /// How long other ports of the engine must be open without the expected one before they are tried. Engines
    /// open ports for their own workers first.
    pub other_port_patience: Duration,
}

impl Default for ReadyOptions {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(2 * 3600),
            poll_min: Duration::from_millis(50),
            poll_max: Duration::from_secs(1),
            connect_limit: Duration::from_secs(2),
            generate_limit: Duration::from_secs(600),
            other_port_patience: Duration::from_secs(60),
        }
    }
}

/// How far the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// Runs, but listens on no port that we may use.
    #[default]
    Starting,
    /// Listens, but lists no model.
    PortOpen,
    /// Lists a model.
    ModelsListed,
    /// Is making the first token.
    Generating,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::PortOpen => "port open",
            Self::ModelsListed => "models listed",
            Self::Generating => "generating",
        })
    }
}

/// What to show while an engine loads; renewed at least every second.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// How far it is now; it can fall back.
    pub stage: Stage,
    /// Since the wait began.
    pub elapsed: Duration,
    /// What the engine printed last.
    pub last_line: Option<String>,
    /// What the last look found missing.
    pub problem: Option<String>,
}

/// An engine that serves.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The literal address to dial.
    pub endpoint: SocketAddr,
    /// The models, as the engine names them; at least one.
    pub models: Vec<ModelInfo>,
    /// What the first model was seen to do.
    pub task: Task,
    /// What `GET /version` says.
    pub version: Option<String>,
    /// The port that the command line led us to expect, if the engine listens on another.
    pub expected_port: Option<u16>,
}

/// Why an engine will not serve.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// The engine ended.
    #[error(
        "the engine ended with {exit} before it served{}; run its command by itself to see more",
        quoted(last_lines)
    )]
    Exited {
        /// How.
        exit: Exit,
        /// What it printed last, oldest first.
        last_lines: Vec<String>,
    },
    /// The engine ended because an address was taken.
    #[error(
        "the engine ended with {exit}: {}; stop that, or give the engine a free port with --port",
        holder.as_ref().map_or_else(
            || format!("an address it wanted is in use{}", quoted(last_lines)),
            |holder| format!("port {} is in use by {holder}", holder.port),
        ),
    )]
    AddressInUse {
        /// How the engine ended.
        exit: Exit,
        /// Who has the expected port now; `None` if nobody does: it was freed, or another one was meant.
        holder: Option<Holder>,
        /// What the engine printed last, oldest first.
        last_lines: Vec<String>,
    },
    /// The engine printed that it is lost, and did not end by that. It still runs.
    #[error("the engine printed before it served: {line}")]
    Fatal {
        /// What.
        line: String,
    },
    /// The time is over. The engine still runs.
    #[error(
        "the engine did not serve within {} (stage: {}{}){}; if it only loads slowly, raise the limit",
        humantime::format_duration(*limit),
        progress.stage,
        progress.problem.as_ref().map(|problem| format!("; {problem}")).unwrap_or_default(),
        quoted(progress.last_line.as_slice()),
    )]
    TimedOut {
        /// How long it had.
        limit: Duration,
        /// How far it came.
        progress: Progress,
    },
}

/// An engine that finds itself lost while it loads ends by itself within this, as a rule.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// Lines kept for a post-mortem.
const LAST_LINES: usize = 50;
/// The model list of a port that may be for something else.
const STRANGE_PORT_LIMIT: Duration = Duration::from_secs(5);
/// A port that does not speak HTTP is left alone this long: it belongs to the engine's workers.
const STRANGE_PORT_PAUSE: Duration = Duration::from_secs(60);

fn quoted(lines: &[String]) -> String {
    let last = lines.iter().rev().find(|line| !line.trim().is_empty());
    last.map(|line| format!("; its last line: {}", line.trim())).unwrap_or_default()
}

/// Waits until `process` serves, and tells `progress` about it.
///
/// # Errors
/// The engine ended, or `options.limit` is over; stopping it is the caller's.
pub async fn wait_ready(
    process: &Process,
    kind: &Kind,
    options: &ReadyOptions,
    progress: &watch::Sender<Progress>,
) -> Result<Ready, NotReady> {
    let started = Instant::now();
    let wait = Wait { process, kind, options, progress, others_since: None, strange: HashMap::new() };
    let tick = async || -> Infallible {
        loop {
            progress.send_modify(|progress| {
                progress.elapsed = started.elapsed();
                progress.last_line = process.output().last_line();
            });
            tokio::time::sleep(options.poll_max.min(Duration::from_secs(1))).await;
        }
    };
    let tick = tick();
    tokio::select! {
        exit = process.exited() => Err(ended(process, kind, exit).await),
        ready = wait.until_ready() => Ok(ready),
        line = lost(process) => Err(NotReady::Fatal { line }),
        () = tokio::time::sleep(options.limit) => {
            let mut progress = progress.borrow().clone();
            progress.elapsed = started.elapsed();
            progress.last_line = process.output().last_line();
            Err(NotReady::TimedOut { limit: options.limit, progress })
        }
        never = tick => match never {},
    }
}

/// An engine of whose process nothing is known.
#[derive(Debug)]
pub struct Reached;

impl Reached {
    /// Asks whether what listens at `address` serves: it lists a model, and makes a token of it.
    ///
    /// # Errors
    /// What is missing, in words.
    pub async fn at(address: SocketAddr, kind: &Kind, options: &ReadyOptions) -> Result<Ready, String> {
        let place = Place { address, api_key: kind.api_key.as_deref(), connect_limit: options.connect_limit };
        let models = place.models(None).await.map_err(|problem| problem.text)?;
        let first = models.first().ok_or("no model")?;
        let task = place.generate(&first.id, options.generate_limit).await.map_err(|problem| problem.text)?;
        let version = place.version().await;
        Ok(Ready { endpoint: address, models, task, version, expected_port: None })
    }
}

struct Wait<'a> {
    process: &'a Process,
    kind: &'a Kind,
    options: &'a ReadyOptions,
    progress: &'a watch::Sender<Progress>,
    /// Since when other ports have been open without the expected one.
    others_since: Option<Instant>,
    /// Sockets that did not speak HTTP, and until when to leave them alone.
    strange: HashMap<u64, Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    address: SocketAddr,
    inode: u64,
    expected: bool,
}

impl Wait<'_> {
    async fn until_ready(mut self) -> Ready {
        let mut pause = self.options.poll_min;
        loop {
            match self.look().await {
                Ok(ready) => return ready,
                Err(problem) => self.note(problem),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(self.options.poll_max);
        }
    }

    fn note(&self, problem: String) {
        self.progress.send_modify(|progress| {
            if progress.problem.as_ref() != Some(&problem) {
                tracing::debug!(stage = %progress.stage, problem, "engine not ready yet");
            }
            progress.problem = Some(problem);
        });
    }

    fn stage(&self, stage: Stage) {
        self.progress.send_if_modified(|progress| std::mem::replace(&mut progress.stage, stage) != stage);
    }

    async fn look(&mut self) -> Result<Ready, String> {
        let found = self.listening().await?;
        let candidates = self.candidates(&found);
        if candidates.is_empty() {
            self.stage(Stage::Starting);
            return Err(self.why_none(&found));
        }
        self.stage(Stage::PortOpen);
        let mut first_problem = None;
        for candidate in candidates {
            match self.ask(candidate).await {
                Ok(ready) => return Ok(ready),
                Err(problem) => {
                    if !problem.http && !candidate.expected {
                        self.strange.insert(candidate.inode, Instant::now() + STRANGE_PORT_PAUSE);
                    }
                    first_problem.get_or_insert(problem.text);
                }
            }
        }
        Err(first_problem.unwrap_or_default())
    }

    async fn listening(&self) -> Result<Listening, String> {
        let guard = self.process.guard_pid();
        let found = tokio::task::spawn_blocking(move || listening(guard)).await.map_err(io::Error::other);
        found.and_then(|found| found).map_err(|error| format!("cannot see who listens on which port: {error}"))
    }

    /// The addresses to ask: on the expected port, or if that stays closed, on any.
    fn candidates(&mut self, found: &Listening) -> Vec<Candidate> {
        let expected = self.kind.expected_port();
        let opened = found.listeners.iter().any(|listener| Some(listener.bound.port()) == expected);
        if opened || found.listeners.is_empty() {
            self.others_since = None;
        } else {
            self.others_since.get_or_insert_with(Instant::now);
        }
        let patient = expected.is_some()
            && self.others_since.is_none_or(|since| since.elapsed() < self.options.other_port_patience);
        let now = Instant::now();
        self.strange.retain(|_, until| *until > now);
        let all = found.listeners.iter().flat_map(|listener| {
            let expected = Some(listener.bound.port()) == expected;
            listener.dial.iter().map(move |address| Candidate { address: *address, inode: listener.inode, expected })
        });
        all.filter(
            |candidate| {
                if opened || patient { candidate.expected } else { !self.strange.contains_key(&candidate.inode) }
            },
        )
        .collect()
    }

    fn why_none(&self, found: &Listening) -> String {
        let shared = found.listeners.iter().find(|listener| {
            listener.dial.is_empty() && self.kind.expected_port().is_none_or(|port| port == listener.bound.port())
        });
        if let Some(listener) = shared {
            let bound = listener.bound;
            return format!("another process listens on {bound} as well and may get the engine's requests: stop it");
        }
        if let Some(pid) = found.unreadable.first() {
            return format!("cannot see the ports of the engine's process {pid}: it runs with other rights than otela");
        }
        match self.kind.expected_port() {
            Some(port) => format!("port {port} is not open yet"),
            None => "no port is open yet".to_owned(),
        }
    }

    async fn ask(&self, candidate: Candidate) -> Result<Ready, Problem> {
        let place = Place {
            address: candidate.address,
            api_key: self.kind.api_key.as_deref(),
            connect_limit: self.options.connect_limit,
        };
        let models = place.models((!candidate.expected).then_some(STRANGE_PORT_LIMIT)).await?;
        self.stage(Stage::ModelsListed);
        let Some(first) = models.first() else {
            return Err(Problem { text: "no model".to_owned(), http: true });
        };
        self.stage(Stage::Generating);
        let task = place.generate(&first.id, self.options.generate_limit).await.inspect_err(|_| {
            self.stage(Stage::ModelsListed);
        })?;
        if task == Task::Other {
            tracing::warn!(model = first.id, "the engine neither generates nor embeds: readiness is its word alone");
        }
        let version = place.version().await;
        // The answers are the engine's only if it had the port from the first question to the last.
        let found = self.listening().await.map_err(|text| Problem { text, http: true })?;
        let still = |l: &super::Listener| l.inode == candidate.inode && l.dial.contains(&candidate.address);
        if !found.listeners.iter().any(still) {
            return Err(Problem {
                text: format!("{} changed hands while it was asked", candidate.address),
                http: true,
            });
        }
        let expected_port = self.kind.expected_port().filter(|_| !candidate.expected);
        if let Some(port) = expected_port {
            tracing::warn!(expected = port, endpoint = %candidate.address, "the engine serves on another port than its command line says");
        }
        Ok(Ready { endpoint: candidate.address, models, task, version, expected_port })
    }
}

/// Resolves when an engine has printed that it is lost. What is not certain leaves it time to end by that, which tells more.
async fn lost(process: &Process) -> String {
    let line = process.output().fatal().await;
    if line.belief == Belief::AfterAsking {
        tokio::time::sleep(ENDS_WITHIN).await;
    }
    line.text
}

/// What an engine's end before readiness means.
async fn ended(process: &Process, kind: &Kind, exit: Exit) -> NotReady {
    // Its last words are complete when its whole tree is gone; a worker that lingers must not hold up the news.
    let _lingers = tokio::time::timeout(Duration::from_millis(500), process.gone()).await;
    let last_lines = process.output().last_lines(LAST_LINES);
    let holder = match kind.expected_port() {
        Some(port) => tokio::task::spawn_blocking(move || holder(port)).await.ok().flatten(),
        None => None,
    };
    let text = last_lines.join("\n").to_lowercase();
    let says_so = ["address already in use", "address in use", "eaddrinuse", "port is already", "errno 98"];
    // llama.cpp only says that it could not bind.
    let cannot_bind = text.contains("bind") && holder.is_some();
    if says_so.iter().any(|words| text.contains(words)) || cannot_bind {
        return NotReady::AddressInUse { exit, holder, last_lines };
    }
    NotReady::Exited { exit, last_lines }
}
