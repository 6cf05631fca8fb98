//! Lines of an engine's output after which it is of no use any more, though its process may live on.
//!
//! Engines also print what clients have written. The usual patterns therefore want a line that begins as an error does, and
//! whoever finds one asks the engine before it believes it; patterns of the operator's own are believed at once.

use regex::bytes::{Regex, RegexSet};

/// What a line of an error begins with: names of processes in parentheses or brackets, a level with its place and time, and
/// the names of exceptions. Then comes one of [`CAUSES`].
const BEGINS: &str = concat!(
    r"(?-u)^\s*(?:\([^()]+\)[:\s]*|\[[^\[\]]+\][:\s]*)*",
    r"(?:(?:ERROR|CRITICAL|FATAL)\b[^\]]{0,120}\]?[:\s]*)?",
    r"(?:[\w.]*(?:Error|Exception|terminate called after throwing an instance of '[^']+'|what\(\)):\s*)?",
);

/// What is fatal: the device is lost, or its memory; a collective operation hangs; the engine's own core has died.
const CAUSES: [&str; 12] = [
    r"CUDA error: ",
    r"CUDA driver error",
    r"CUDA out of memory",
    r"HIP error: ",
    r"HIP out of memory",
    r"NCCL error",
    r"nccl(?:UnhandledCudaError|SystemError|InternalError|RemoteError)",
    r"(?:\[[^\[\]]+\][:\s]*)*Watchdog caught collective operation timeout",
    r"(?:\[[^\[\]]+\][:\s]*)*NCCL watchdog thread terminated with exception",
    r"Engine ?[Cc]ore (?:proc|process|initialization) .*(?:died|failed)",
    r"[\w.]*EngineDeadError",
    r"Fatal Python error: ",
];

/// What every one of [`CAUSES`] has in it. Found in much text at once, where lines are looked at one by one.
const HINTS: &str = r"(?-u)CUDA|HIP |NCCL|nccl|Watchdog|[Cc]ore (?:proc|init)|EngineDead|Fatal Python";

/// What makes a line fatal.
#[derive(Debug, Clone)]
pub struct FatalPatterns {
    hints: Regex,
    usual: Regex,
    own: RegexSet,
}

/// A pattern that is no regular expression.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PatternError(#[from] regex::Error);

/// How far a fatal line is to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    /// An engine that still makes tokens has survived it.
    AfterAsking,
    /// The operator says so.
    AtOnce,
}

/// A line that tells of a fatal fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatalLine {
    /// What was printed.
    pub text: String,
    /// How far to believe it.
    pub belief: Belief,
}

impl Default for FatalPatterns {
    fn default() -> Self {
        Self::new::<&str>(&[]).expect("the usual patterns are well formed")
    }
}

impl FatalPatterns {
    /// The usual ones, and `own` regular expressions besides.
    ///
    /// # Errors
    /// One of them is none, or is too large.
    pub fn new<S: AsRef<str>>(own: &[S]) -> Result<Self, PatternError> {
        // One expression: as many as there are causes would take megabytes.
        let usual = Regex::new(&format!("{BEGINS}(?:{})", CAUSES.join("|")))?;
        Ok(Self { hints: Regex::new(HINTS)?, usual, own: RegexSet::new(own)? })
    }

    /// Whether one of the lines in `text` may be fatal: if not, none is. A line that began before it is another matter.
    pub(super) fn may_be_in(&self, text: &[u8]) -> bool {
        !self.own.is_empty() || self.hints.is_match(text)
    }

    /// Whether this line tells of a fatal fault.
    pub(super) fn belief(&self, line: &[u8]) -> Option<Belief> {
        if self.own.is_match(line) {
            return Some(Belief::AtOnce);
        }
        self.usual.is_match(line).then_some(Belief::AfterAsking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_devices_are_fatal_and_what_clients_write_is_not() {
        let patterns = FatalPatterns::new(&["^Xid 79"]).unwrap();
        let fatal = [
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
            "(EngineCore_DP0 pid=77) ERROR 11-29 10:00:00 [core.py:718] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "(Worker_TP1 pid=78) (EngineCore_DP0 pid=77) ERROR 11-29 10:00:00 [multiproc_executor.py:597] CUDA error: unspecified launch failure",
            "[rank1]:[E1129 10:00:00.123 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
            "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled cuda error",
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            "(APIServer pid=1) ERROR 11-29 10:00:00 [core_client.py:600] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
            "Fatal Python error: Segmentation fault",
        ];
        for line in fatal {
            assert_eq!(patterns.belief(line.as_bytes()), Some(Belief::AfterAsking), "{line}");
            assert!(FatalPatterns::default().may_be_in(line.as_bytes()), "{line}");
        }
        for line in [
            "INFO 11-29 10:00:00 [logger.py:43] Received request cmpl-1: prompt: 'RuntimeError: CUDA error: an illegal memory access'",
            "INFO:     127.0.0.1:1 - \"POST /v1/completions HTTP/1.1\" 200 OK",
            "I asked why CUDA out of memory happens",
            "prompt = NCCL error in: x",
            "WARNING CUDA out of memory is handled",
        ] {
            assert_eq!(patterns.belief(line.as_bytes()), None, "{line}");
        }
        assert!(patterns.may_be_in(b"anything"), "who knows what one's own patterns are");
        let usual = b"INFO 11-29 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 1.0 tokens/s\n";
        assert!(!FatalPatterns::default().may_be_in(usual));
        assert_eq!(patterns.belief(b"Xid 79: fallen off the bus"), Some(Belief::AtOnce));
        assert!(FatalPatterns::new(&["("]).is_err());
    }
}
