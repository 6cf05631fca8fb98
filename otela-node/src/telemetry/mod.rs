//! Logs, the metrics registry, traces, and how an error is told.
//!
//! Metrics are registered in one [`Metrics`] per process, handed down at start; there are no global statics, so
//! several peers of a local mesh keep their numbers apart.

pub mod trace;

use prometheus_client::{encoding::text::encode, registry::Registry};
use std::{
    error::Error,
    fmt::Write as _,
    io::IsTerminal,
    sync::{Arc, Mutex, PoisonError},
};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that may wait for whoever reads stderr; room for them is made at the start.
const LINES_WAITING_MAX: usize = 16_384;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Logs that wait to be written; dropping it writes them, as far as stderr takes them.
#[must_use]
#[derive(Debug)]
pub struct Logs(#[expect(dead_code, reason = "held for its drop")] WorkerGuard);

/// Sends logs to stderr, from a thread of their own: when nobody reads stderr, lines are dropped and nothing else
/// waits. `filter` is in the syntax of `tracing_subscriber::EnvFilter`, for example
/// `info,otela_node=debug`. A second call in one process changes nothing.
///
/// # Errors
/// The filter cannot be parsed.
pub fn init(filter: &str, format: LogFormat) -> Result<Logs, tracing_subscriber::filter::ParseError> {
    let filter = filter.parse::<EnvFilter>()?;
    let (writer, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(LINES_WAITING_MAX).finish(std::io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal());
    let _already_set = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(Logs(guard))
}

/// Whether a filter for [`init`] can be used.
///
/// # Errors
/// It cannot be parsed.
pub fn check_filter(filter: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    filter.parse::<EnvFilter>().map(drop)
}

/// An error with its causes on one line, outermost first: `cannot listen on 1.2.3.4:80: permission denied`.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Wrappers that repeat their source say nothing new.
        if !line.ends_with(&text) {
            let _ = write!(line, ": {text}");
        }
        cause = error.source();
    }
    line
}

/// The metrics of one process. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers metrics: `metrics.register(|registry| registry.register("otela_x", "What x is", x.clone()))`.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics in Prometheus' classic text format (`text/plain; version=0.0.4`), which every scraper reads.
    #[must_use]
    pub fn render(&self) -> String {
        let mut open = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if encode(&mut open, &registry).is_err() {
            return String::new();
        }
        classic(&open)
    }
}

/// The content type of [`Metrics::render`].
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// OpenMetrics names a counter's family without `_total` and ends with `# EOF`; the classic format wants the
/// sample's own name in HELP and TYPE, no UNIT and no EOF.
fn classic(open: &str) -> String {
    let counters: std::collections::HashSet<&str> =
        open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(open.len());
    for line in open.lines() {
        if line.starts_with("# EOF") || line.starts_with("# UNIT") {
            continue;
        }
        let described = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let name = described.and_then(|rest| rest.split(' ').next());
        match name {
            Some(name) if counters.contains(name) => {
                let (head, tail) = line.split_at(line.len() - described.map_or(0, str::len));
                let _ = writeln!(out, "{head}{name}_total{}", &tail[name.len()..]);
            }
            _ => {
                let _ = writeln!(out, "{line}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

    #[test]
    fn counters_are_named_as_their_samples() {
        let metrics = Metrics::new();
        let requests = Counter::<u64>::default();
        let open = Gauge::<i64>::default();
        requests.inc();
        metrics.register(|r| {
            r.register("otela_requests", "Requests seen", requests.clone());
            r.register("otela_open", "Open now", open.clone());
        });
        let text = metrics.render();
        assert!(text.contains("# HELP otela_requests_total Requests seen.\n"), "{text}");
        assert!(text.contains("# TYPE otela_requests_total counter\notela_requests_total 1\n"), "{text}");
        assert!(text.contains("# TYPE otela_open gauge\notela_open 0\n"), "{text}");
        assert!(!text.contains("EOF"));
    }

    #[test]
    fn a_chain_does_not_repeat_itself() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read the key: {source}")]
        struct Outer {
            source: std::io::Error,
        }
        let source = std::io::Error::other("disk on fire");
        assert_eq!(chain(&Outer { source }), "cannot read the key: disk on fire");
    }
}
