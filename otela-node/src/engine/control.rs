//! What agent and guard say to each other: one JSON object per line on a socket pair.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How the engine's main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The code a shell would show: the engine's own, or 128 + the signal's number.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code & 0xff).unwrap_or(u8::MAX)
    }

    /// Whether the engine ended by itself and reported success.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    pub(super) fn from_status(status: rustix::process::WaitStatus) -> Option<Self> {
        status.exit_status().map(Self::Code).or_else(|| status.terminating_signal().map(Self::Signal))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    signal_hook::low_level::signal_name(signal)
}

/// From the guard.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// The engine's command runs under this process id.
    Started { pid: i32 },
    /// The command could not be run; nothing runs.
    Failed { errno: i32, message: String },
    /// The engine's main process has ended; others of its tree may still run.
    Exited(Exit),
    /// No process of the tree is left; this many had to be killed.
    Gone { killed: usize },
}

/// To the guard. The end of the stream means that the agent died.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// SIGTERM now, SIGKILL to what is left after the grace. A second one can only shorten the grace.
    Stop { grace_ms: u64 },
    /// SIGKILL now.
    Kill {},
}

/// A message as its line.
pub(super) fn line<M: Serialize>(message: &M) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_these() {
        let lines = [
            (line(&Report::Started { pid: 7 }), r#"{"started":{"pid":7}}"#),
            (line(&Report::Exited(Exit::Code(3))), r#"{"exited":{"code":3}}"#),
            (line(&Report::Exited(Exit::Signal(9))), r#"{"exited":{"signal":9}}"#),
            (line(&Report::Gone { killed: 2 }), r#"{"gone":{"killed":2}}"#),
            (line(&Order::Stop { grace_ms: 5000 }), r#"{"stop":{"grace_ms":5000}}"#),
            (line(&Order::Kill {}), r#"{"kill":{}}"#),
        ];
        for (line, expected) in lines {
            assert_eq!(String::from_utf8_lossy(&line), format!("{expected}\n"));
        }
    }

    #[test]
    fn an_exit_reads_like_a_shell_would_say_it() {
        assert_eq!(Exit::Code(3).to_string(), "exit code 3");
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(9).exit_code(), 137);
        assert_eq!(Exit::Code(256).exit_code(), 0);
    }
}
