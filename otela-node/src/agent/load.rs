//! What the engine says of its load, read again and again: for whoever reads the node's metrics, and for the post-mortem.

use super::{Agent, health::Serving};
use crate::{engine::EngineLoad, telemetry::Metrics};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, SystemTime},
};
use tokio::time::{Instant, interval_at};

/// As often as Prometheus usually looks.
const READ_EVERY: Duration = Duration::from_secs(15);
/// Kept of an engine's page, for its post-mortem.
const PAGE_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// One that can be removed again.
type NoLabels = [(&'static str, &'static str); 0];

/// What an engine has told of itself last. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    requests: Family<State, Gauge<f64, AtomicU64>>,
    kv_cache: Family<NoLabels, Gauge<f64, AtomicU64>>,
    page: Arc<Mutex<Option<Page>>>,
}

/// Its own metrics.
#[derive(Debug, Clone)]
pub(super) struct Page {
    /// When they were read.
    pub(super) at: SystemTime,
    /// Without comments and the buckets of histograms, which are most of it.
    pub(super) text: String,
}

impl Account {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let account = Self::default();
        let shown = account.clone();
        metrics.register(|r| {
            let help = "Requests that run or wait in the engine, as it tells itself";
            r.register("otela_agent_engine_requests", help, shown.requests);
            let help = "The part of the engine's KV cache that is in use, 0 to 1, as it tells itself";
            r.register("otela_agent_engine_kv_cache_ratio", help, shown.kv_cache);
        });
        account
    }

    /// The last page, if the engine has told any.
    pub(super) fn page(&self) -> Option<Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tells(&self, load: EngineLoad, page: &str) {
        for (state, value) in [("running", load.running), ("waiting", load.waiting)] {
            match value {
                Some(value) => _ = self.requests.get_or_create(&State { state }).set(value),
                None => _ = self.requests.remove(&State { state }),
            }
        }
        match load.kv_cache {
            Some(value) => _ = self.kv_cache.get_or_create(&[]).set(value),
            None => _ = self.kv_cache.remove(&[]),
        }
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Page { at: SystemTime::now(), text: shortened(page) });
    }

    /// What is old is not shown as if it were so now.
    fn is_silent(&self) {
        self.requests.clear();
        self.kv_cache.clear();
    }
}

/// Forgets the load of an engine that is not read any more.
struct Reading<'a>(&'a Account);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.is_silent();
    }
}

impl Agent {
    /// Reads the engine's load for as long as this is waited for.
    pub(super) async fn read_load(&self, serving: &Serving) -> Infallible {
        let account = Reading(&self.account);
        let mut due = interval_at(Instant::now(), READ_EVERY);
        let mut said = false;
        loop {
            due.tick().await;
            match serving.watched().load().await {
                None => std::future::pending::<()>().await,
                Some(Ok((load, page))) => account.0.tells(load, &page),
                Some(Err(problem)) => {
                    account.0.is_silent();
                    if !std::mem::replace(&mut said, true) {
                        tracing::debug!("the engine does not tell its load: {problem}");
                    }
                }
            }
        }
    }
}

fn shortened(page: &str) -> String {
    let is_short =
        |line: &&str| !line.starts_with('#') && !line.split('{').next().is_some_and(|name| name.ends_with("_bucket"));
    let mut text = String::new();
    for line in page.lines().filter(is_short) {
        if text.len() + line.len() >= PAGE_BYTES_MAX {
            break;
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_shown_until_it_is_old() {
        let metrics = Metrics::new();
        let account = Account::new(&metrics);
        let load = EngineLoad { running: Some(2.0), waiting: None, kv_cache: Some(0.5) };
        account.tells(load, "# HELP a b\na_bucket{le=\"1\"} 1\na_sum 3\nb{c=\"x_bucket\"} 4\n");
        let shown = metrics.render();
        assert!(shown.contains("otela_agent_engine_requests{state=\"running\"} 2.0"), "{shown}");
        assert!(!shown.contains("waiting\"") && shown.contains("otela_agent_engine_kv_cache_ratio 0.5"), "{shown}");
        drop(Reading(&account));
        assert!(!metrics.render().contains("kv_cache_ratio 0.5"));
        assert_eq!(account.page().unwrap().text, "a_sum 3\nb{c=\"x_bucket\"} 4\n", "the last word stays");
        assert!(shortened(&"a 1\n".repeat(100_000)).len() <= PAGE_BYTES_MAX);
    }
}
