//! How spans leave: a bounded queue, batches, and a collector that may be away.

use super::TraceError;
use crate::{
    telemetry::{Metrics, chain},
    web,
};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::Context;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter as Otlp, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Handle, sync::oneshot};
use url::Url;

/// Spans that wait for the collector: about 2 MB of them.
const WAITING_MAX: usize = 4_096;
/// The collector's own words are read as far as this.
const ANSWER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// What becomes of spans.
#[derive(Debug, Clone, Default)]
struct Counters {
    exported: Counter,
    dropped: Family<Reason, Counter>,
    /// Those that wait.
    waiting: Arc<AtomicUsize>,
}

impl Counters {
    fn register(metrics: &Metrics) -> Self {
        let counters = Self::default();
        metrics.register(|r| {
            let (exported, dropped) = (counters.exported.clone(), counters.dropped.clone());
            r.register("otela_trace_spans_exported", "Spans that the collector has taken", exported);
            r.register("otela_trace_spans_dropped", "Spans that no collector has seen, by reason", dropped);
        });
        counters
    }

    fn dropped(&self, reason: &'static str, spans: usize) {
        self.dropped.get_or_create(&Reason { reason }).inc_by(spans as u64);
    }
}

/// What takes spans that have ended, for the collector at `url`. Must be called within the runtime.
pub(super) fn processor(url: &Url, metrics: &Metrics) -> Result<impl SpanProcessor + use<>, TraceError> {
    // Keys in headers of our own are for nobody else: redirections are not followed.
    let client = web::client(url, 0)
        .map_err(|error| TraceError::Endpoint { endpoint: url.to_string(), reason: chain(&error) })?;
    let counters = Counters::register(metrics);
    let exporter = Otlp::builder()
        .with_http()
        .with_http_client(Web { client, runtime: Handle::current() })
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.as_str())
        .build()
        .map_err(|error| TraceError::Variables(error.to_string()))?;
    tracing::info!(collector = url.origin().ascii_serialization(), "traces of requests are sent");
    let exporter = Counted { exporter, counters: counters.clone(), is_away: AtomicBool::new(false) };
    let batches = BatchConfigBuilder::default().with_max_queue_size(WAITING_MAX).build();
    let inner = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
    Ok(Bounded { inner, counters })
}

/// A queue that tells what it drops.
#[derive(Debug)]
struct Bounded {
    inner: BatchSpanProcessor,
    counters: Counters,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.inner.on_start(span, cx);
    }

    fn on_end(&self, span: SpanData) {
        let is_room = |waiting| (waiting < WAITING_MAX).then_some(waiting + 1);
        match self.counters.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_room) {
            Ok(_) => self.inner.on_end(span),
            Err(_) => self.counters.dropped("queue_full", 1),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        let ended = self.inner.shutdown_with_timeout(timeout);
        let left = self.counters.waiting.swap(0, Ordering::Relaxed);
        if left > 0 {
            self.counters.dropped("ended", left);
            tracing::warn!(spans = left, "traces that the collector did not take in time are lost");
        }
        ended
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Sends batches and counts what becomes of them. That the collector is away is said once.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    counters: Counters,
    is_away: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        // Whoever ends meanwhile has counted them.
        let no_longer = |waiting: usize| Some(waiting.saturating_sub(spans));
        let _ = self.counters.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, no_longer);
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => {
                self.counters.exported.inc_by(spans as u64);
                if self.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!("the collector of traces takes spans again");
                }
            }
            Err(error) => {
                self.counters.dropped("not_taken", spans);
                if !self.is_away.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the collector of traces takes no spans; requests are not affected");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The exporter's thread asks, the runtime's tasks do the work.
#[derive(Debug)]
struct Web {
    client: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Web {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, (tell, told)) = (self.client.clone(), oneshot::channel());
        // The client's time-outs end it.
        self.runtime.spawn(async move {
            // Whoever asked may have gone.
            let _ = tell.send(send(&client, request).await);
        });
        told.await?
    }
}

async fn send(client: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let mut answer = client.execute(request.try_into()?).await.map_err(reqwest::Error::without_url)?;
    let mut response = Response::builder().status(answer.status());
    if let Some(headers) = response.headers_mut() {
        *headers = answer.headers().clone();
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_BYTES_MAX {
            return Err("the collector's answer has no end".into());
        }
    }
    Ok(response.body(body.into())?)
}
