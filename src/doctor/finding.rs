//! What a check has found.

use serde_json::{Value, json};

/// How well it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Ok,
    /// Something works less well than it could, or may break later.
    Warn,
    /// A mesh cannot be joined or served like this.
    Fail,
}

/// What one check has found: a line, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) says: String,
    pub(super) advice: Option<String>,
}

impl Finding {
    /// All is well.
    pub(super) fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, says: says.into(), advice: None }
    }

    /// Nothing is wrong, and there is something to know.
    pub(super) fn note(check: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, says: says.into(), advice: Some(advice.into()) }
    }

    pub(super) fn warn(check: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, says: says.into(), advice: Some(advice.into()) }
    }

    pub(super) fn fail(check: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, says: says.into(), advice: Some(advice.into()) }
    }

    pub(super) fn json(&self) -> Value {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        };
        json!({"check": self.check, "verdict": verdict, "says": self.says, "advice": self.advice})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_read_stays_the_same() {
        for (finding, json) in [
            (Finding::ok("key", "a"), json!({"check": "key", "verdict": "ok", "says": "a", "advice": null})),
            (Finding::note("key", "a", "b"), json!({"check": "key", "verdict": "ok", "says": "a", "advice": "b"})),
            (Finding::warn("key", "a", "b"), json!({"check": "key", "verdict": "warn", "says": "a", "advice": "b"})),
            (Finding::fail("key", "a", "b"), json!({"check": "key", "verdict": "fail", "says": "a", "advice": "b"})),
        ] {
            assert_eq!(finding.json(), json);
        }
    }
}
