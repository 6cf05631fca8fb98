//! What the engine counts: vLLM's own metric names, so that scrapers written for vLLM read this one too, and
//! `otela_sim_*` for what only tests want to know.

use super::{batch::Load, prose::Finish};
use otela_node::telemetry::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{borrow::Cow, sync::atomic::AtomicU64, time::Duration};

/// vLLM's bounds, so that dashboards made for it fit.
const TTFT_BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const ITL_BOUNDS: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST_BOUNDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const TOKENS_BOUNDS: [f64; 14] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fault {
    fault: &'static str,
}

type Number = Gauge<f64, AtomicU64>;

/// The engine's own metrics.
#[derive(Debug)]
pub(crate) struct Meters {
    pub(crate) all: Metrics,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Number,
    pub(crate) preemptions: Counter,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    success: Family<Finished, Counter>,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    queue_time: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    received: Family<Route, Counter>,
    aborted: Family<Route, Counter>,
    refused: Family<Route, Counter>,
    faults: Family<Fault, Counter>,
    pub(crate) connections: Gauge,
}

impl Meters {
    pub(crate) fn new(model: &str, block_tokens: u32, blocks: u32) -> Self {
        let meters = Self {
            all: Metrics::new(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            kv_usage: Number::default(),
            preemptions: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            success: Family::default(),
            ttft: Histogram::new(TTFT_BOUNDS),
            itl: Histogram::new(ITL_BOUNDS),
            e2e: Histogram::new(REQUEST_BOUNDS),
            queue_time: Histogram::new(REQUEST_BOUNDS),
            request_prompt_tokens: Histogram::new(TOKENS_BOUNDS),
            request_generation_tokens: Histogram::new(TOKENS_BOUNDS),
            received: Family::default(),
            aborted: Family::default(),
            refused: Family::default(),
            faults: Family::default(),
            connections: Gauge::default(),
        };
        // Present from the start: a rate over a counter that appears later misses its first step.
        for finished_reason in ["stop", "length", "abort"] {
            let _ = meters.success.get_or_create(&Finished { finished_reason });
        }
        meters.all.register(|registry| {
            let labels = [("engine", "0".to_owned()), ("model_name", model.to_owned())];
            let owned = |(name, value)| (Cow::Borrowed(name), Cow::Owned(value));
            meters.register_vllm(registry.sub_registry_with_labels(labels.clone().into_iter().map(owned)));
            let sizes = [("block_size", block_tokens.to_string()), ("num_gpu_blocks", blocks.to_string())];
            let cache: Gauge = Gauge::default();
            cache.set(1);
            registry.sub_registry_with_labels(labels.into_iter().chain(sizes).map(owned)).register(
                "vllm:cache_config_info",
                "Size of the KV cache",
                cache,
            );
            meters.register_own(registry);
        });
        meters
    }

    fn register_vllm(&self, r: &mut Registry) {
        r.register("vllm:num_requests_running", "Requests in the batch", self.running.clone());
        r.register("vllm:num_requests_waiting", "Requests that wait for room", self.waiting.clone());
        r.register("vllm:kv_cache_usage_perc", "KV blocks in use, 1 is all", self.kv_usage.clone());
        r.register("vllm:num_preemptions", "Sequences put back into the queue", self.preemptions.clone());
        r.register("vllm:prompt_tokens", "Prompt tokens computed", self.prompt_tokens.clone());
        r.register("vllm:generation_tokens", "Tokens generated", self.generation_tokens.clone());
        r.register("vllm:request_success", "Requests by how they ended", self.success.clone());
        r.register("vllm:time_to_first_token_seconds", "From arrival to the first token", self.ttft.clone());
        r.register("vllm:inter_token_latency_seconds", "Between two tokens", self.itl.clone());
        r.register("vllm:e2e_request_latency_seconds", "From arrival to the last token", self.e2e.clone());
        r.register("vllm:request_queue_time_seconds", "From arrival to admission", self.queue_time.clone());
        r.register("vllm:request_prompt_tokens", "Prompt tokens per request", self.request_prompt_tokens.clone());
        r.register("vllm:request_generation_tokens", "Tokens per request", self.request_generation_tokens.clone());
    }

    fn register_own(&self, r: &mut Registry) {
        r.register("otela_sim_requests_received", "Requests received by route", self.received.clone());
        r.register("otela_sim_requests_aborted", "Requests whose client left early", self.aborted.clone());
        r.register("otela_sim_requests_refused", "Requests answered with an error", self.refused.clone());
        r.register("otela_sim_faults", "Faults done on purpose", self.faults.clone());
        r.register("otela_sim_connections", "Open client connections", self.connections.clone());
    }

    /// The page of `/metrics`, with the load as it is now.
    pub(crate) fn render(&self, load: Load) -> String {
        self.running.set(i64::try_from(load.running).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(load.waiting).unwrap_or(i64::MAX));
        self.kv_usage.set(f64::from(load.blocks_used) / f64::from(load.blocks.max(1)));
        self.all.render()
    }

    pub(crate) fn received(&self, route: &'static str) {
        self.received.get_or_create(&Route { route }).inc();
        // Both exist from the first request on, so that "no aborts" reads as 0 and not as nothing.
        let _ = self.aborted.get_or_create(&Route { route });
    }

    pub(crate) fn aborted(&self, route: &'static str) {
        self.aborted.get_or_create(&Route { route }).inc();
    }

    pub(crate) fn refused(&self, route: &'static str) {
        self.refused.get_or_create(&Route { route }).inc();
    }

    pub(crate) fn fault(&self, fault: &'static str) {
        self.faults.get_or_create(&Fault { fault }).inc();
    }

    pub(crate) fn queued(&self, time: Duration) {
        self.queue_time.observe(time.as_secs_f64());
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    pub(crate) fn next_token(&self, after: Duration) {
        self.itl.observe(after.as_secs_f64());
    }

    pub(crate) fn finished(&self, finish: Finish, took: Duration, prompt: u32, output: u32) {
        self.success.get_or_create(&Finished { finished_reason: finish.as_str() }).inc();
        self.e2e.observe(took.as_secs_f64());
        self.request_prompt_tokens.observe(f64::from(prompt));
        self.request_generation_tokens.observe(f64::from(output));
    }

    pub(crate) fn sequence_aborted(&self) {
        self.success.get_or_create(&Finished { finished_reason: "abort" }).inc();
    }
}
