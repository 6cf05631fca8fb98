//! What an engine says of its own load: requests that it runs, requests that wait in it, and how full its KV cache is.
//!
//! Engines tell it in Prometheus' text format, each under names of its own; some only when they are started with a flag
//! (`--enable-metrics` of SGLang, `--metrics` of llama.cpp).

use super::kind::Engine;

/// Where an engine tells its load, and under which names. Of several names for one thing the first that is there counts:
/// they changed from version to version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoadNames {
    pub(super) path: &'static str,
    running: &'static [&'static str],
    waiting: &'static [&'static str],
    kv_cache: &'static [&'static str],
}

impl Engine {
    /// Where it tells its load, if it does on the port that it serves at.
    pub(super) fn load_names(self) -> Option<LoadNames> {
        match self {
            Self::Vllm | Self::Otela => Some(LoadNames {
                path: "/metrics",
                running: &["vllm:num_requests_running"],
                waiting: &["vllm:num_requests_waiting"],
                kv_cache: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
            }),
            Self::Sglang => Some(LoadNames {
                path: "/metrics",
                running: &["sglang:num_running_reqs"],
                waiting: &["sglang:num_queue_reqs"],
                kv_cache: &["sglang:token_usage"],
            }),
            Self::LlamaServer => Some(LoadNames {
                path: "/metrics",
                running: &["llamacpp:requests_processing"],
                waiting: &["llamacpp:requests_deferred"],
                kv_cache: &["llamacpp:kv_cache_usage_ratio"],
            }),
            Self::TensorRtLlm => Some(LoadNames {
                path: "/prometheus/metrics",
                running: &[],
                waiting: &[],
                kv_cache: &["trtllm_kv_cache_utilization"],
            }),
            // Triton tells it on another port, Ollama nowhere.
            Self::Triton | Self::Ollama | Self::Generic => None,
        }
    }
}

/// How much an engine has to do; `None` for what it does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineLoad {
    /// Requests in its batch.
    pub running: Option<f64>,
    /// Requests that wait for a place in it.
    pub waiting: Option<f64>,
    /// The part of the KV cache that is in use, 0 to 1; where there are several, of the fullest.
    pub kv_cache: Option<f64>,
}

impl EngineLoad {
    pub(super) fn read(page: &str, names: LoadNames) -> Self {
        // What cannot be is not told.
        let first = |names: &[&str], joined: fn(f64, f64) -> f64, most: f64| {
            let told = names.iter().find_map(|name| samples(page, name).reduce(joined));
            told.filter(|value| value.is_finite() && (0.0..=most).contains(value))
        };
        let sum = |a, b| a + b;
        Self {
            running: first(names.running, sum, f64::MAX),
            waiting: first(names.waiting, sum, f64::MAX),
            kv_cache: first(names.kv_cache, f64::max, 1.0),
        }
    }
}

/// The values of a metric, whatever its labels.
fn samples<'a>(page: &'a str, name: &str) -> impl Iterator<Item = f64> {
    let after_name = move |line: &'a str| line.strip_prefix(name);
    page.lines().filter_map(after_name).filter_map(|rest| {
        let value = match rest.strip_prefix('{') {
            // The values of labels may have braces too; what comes behind the last one has none.
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(engine: Engine, page: &str) -> EngineLoad {
        EngineLoad::read(page, engine.load_names().unwrap())
    }

    #[test]
    fn each_engine_is_read_by_its_own_names() {
        let vllm = "# HELP vllm:num_requests_running x\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a}b\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 2.0 1700000000\n\
            vllm:num_requests_running_total{engine=\"0\"} 99.0\n\
            vllm:num_requests_waiting{engine=\"0\"} 1.0\n\
            vllm:gpu_cache_usage_perc{engine=\"0\"} 0.9\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n";
        let all = EngineLoad { running: Some(5.0), waiting: Some(1.0), kv_cache: Some(0.75) };
        assert_eq!(load(Engine::Vllm, vllm), all);
        let older = "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n";
        let some = EngineLoad { running: Some(1.0), waiting: None, kv_cache: Some(0.5) };
        assert_eq!(load(Engine::Vllm, older), some);
        let llama = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 4\nllamacpp:kv_cache_usage_ratio nan\n";
        assert_eq!(
            load(Engine::LlamaServer, llama),
            EngineLoad { running: Some(2.0), waiting: Some(4.0), kv_cache: None }
        );
        assert_eq!(load(Engine::Sglang, "sglang:token_usage 7\nsglang:num_queue_reqs -1\n"), EngineLoad::default());
        assert_eq!(load(Engine::Sglang, "sglang:token_usage{a=\"b\"} x\nsglang:token_usage{"), EngineLoad::default());
    }
}
