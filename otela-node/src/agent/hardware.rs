//! What this machine offers: accelerators, processors, memory.
//!
//! Accelerators are asked from the vendors' own tools. A tool that is missing, fails, hangs or prints nonsense
//! means no accelerator and one line in the log: a machine without a GPU is a fine node.

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

mod amd;
mod nvidia;

/// A healthy driver answers within a second, also on a cold start of eight GPUs.
const TOOL_LIMIT: Duration = Duration::from_secs(5);
/// Eight GPUs print 2 KiB.
const TOOL_BYTES_MAX: u64 = 1024 * 1024;

/// A machine, as it is shown to others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Hardware {
    /// What computes, equal ones counted together; empty without any.
    pub accelerators: Vec<Accelerator>,
    /// Version of the accelerators' driver.
    pub driver: Option<String>,
    /// Processors this process may use.
    pub cpus: usize,
    /// Main memory of the machine.
    pub memory_bytes: u64,
    /// The machine's own name.
    pub hostname: String,
}

/// Equal accelerators of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accelerator {
    /// A short name that is the same wherever the card is found: `A100-80GB`, `GH200`, `RTX3090`, `MI250X`.
    pub kind: String,
    /// The name that the tool reported.
    pub name: String,
    /// How many.
    pub count: usize,
    /// Memory of each; unknown where it is shared with the processor.
    pub memory_bytes: Option<u64>,
}

/// Which accelerators this process may use, in the words of the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visible {
    /// `CUDA_VISIBLE_DEVICES`: indices or UUIDs.
    pub cuda: Option<String>,
    /// `ROCR_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`: indices.
    pub rocm: Option<String>,
}

/// The vendors' tools.
#[derive(Debug, Clone)]
pub struct Tools {
    /// NVIDIA's.
    pub nvidia_smi: PathBuf,
    /// AMD's.
    pub rocm_smi: PathBuf,
    /// For one run of one tool.
    pub limit: Duration,
}

impl Default for Tools {
    fn default() -> Self {
        Self { nvidia_smi: "nvidia-smi".into(), rocm_smi: "rocm-smi".into(), limit: TOOL_LIMIT }
    }
}

/// Looks at this machine. Takes as long as the slowest tool, at most twice `tools.limit`.
pub async fn detect(tools: &Tools, visible: &Visible) -> Hardware {
    let (nvidia, amd) =
        tokio::join!(nvidia::detect(tools, visible.cuda.as_deref()), amd::detect(tools, visible.rocm.as_deref()));
    let mut accelerators = nvidia.accelerators;
    accelerators.extend(amd.accelerators);
    Hardware {
        accelerators,
        driver: nvidia.driver.or(amd.driver),
        cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_bytes: memory_bytes(),
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

fn memory_bytes() -> u64 {
    use procfs::Current;
    procfs::Meminfo::current().map_or(0, |memory| memory.mem_total)
}

/// What one vendor's tool told.
#[derive(Debug, Default)]
struct Found {
    accelerators: Vec<Accelerator>,
    driver: Option<String>,
}

impl Found {
    /// Adds one card to its equals.
    fn add(&mut self, kind: String, name: String, memory_bytes: Option<u64>) {
        let same = |a: &&mut Accelerator| a.kind == kind && a.name == name && a.memory_bytes == memory_bytes;
        match self.accelerators.iter_mut().find(same) {
            Some(accelerator) => accelerator.count += 1,
            None => self.accelerators.push(Accelerator { kind, name, count: 1, memory_bytes }),
        }
    }
}

/// Why a tool told nothing.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// There is no such program.
    #[error("it is not installed")]
    Missing,
    /// The system would not run it.
    #[error("it cannot be run: {0}")]
    Run(io::Error),
    /// It was ended at its limit.
    #[error("it did not end within {0:?}")]
    Hangs(Duration),
    /// It ended otherwise than well.
    #[error("it failed ({status}): {said}")]
    Failed {
        /// How.
        status: std::process::ExitStatus,
        /// The first words of its standard output, where these tools tell of errors too.
        said: String,
    },
    /// What it printed is of another form; its first words.
    #[error("it printed what cannot be understood: {0}")]
    Garbage(String),
}

/// Says once that a vendor's accelerators will not be shown, louder if there might be some.
fn told_nothing(tool: &Path, error: &ToolError) -> Found {
    let tool = tool.display();
    match error {
        ToolError::Missing => tracing::debug!("no accelerators from {tool}: {error}"),
        _ => tracing::warn!("no accelerators from {tool}: {error}"),
    }
    Found::default()
}

/// Runs a tool to its end or its limit and returns its standard output; nothing of it is left behind.
///
/// # Errors
/// [`ToolError`], but never [`ToolError::Garbage`].
pub async fn run(tool: &Path, arguments: &[&str], limit: Duration) -> Result<String, ToolError> {
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(
            |error| if error.kind() == io::ErrorKind::NotFound { ToolError::Missing } else { ToolError::Run(error) },
        )?;
    let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let mut said = Vec::new();
    let ended = timeout(limit, async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(TOOL_BYTES_MAX).read_to_end(&mut said).await?;
        }
        child.wait().await
    })
    .await;
    let Ok(status) = ended else {
        if let Some(group) = group {
            let _ended_just_now = kill_process_group(group, Signal::KILL);
        }
        return Err(ToolError::Hangs(limit));
    };
    let status = status.map_err(ToolError::Run)?;
    let said = String::from_utf8_lossy(&said).into_owned();
    if status.success() { Ok(said) } else { Err(ToolError::Failed { status, said: first_words(&said) }) }
}

fn first_words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(120).collect()
}

/// The devices a list of indices or identifiers leaves visible, in its order. As the drivers have it, the first
/// entry that names none ends the list.
fn visible_of<T: Copy>(devices: &[T], list: Option<&str>, is: impl Fn(usize, &T, &str) -> bool) -> Vec<T> {
    let Some(list) = list else { return devices.to_vec() };
    list.split(',')
        .map(str::trim)
        .map_while(|word| {
            let matches = |(index, device): &(usize, &T)| !word.is_empty() && is(*index, device, word);
            devices.iter().enumerate().find(matches).map(|(_, device)| *device)
        })
        .collect()
}

#[cfg(test)]
mod tests;
