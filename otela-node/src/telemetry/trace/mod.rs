//! Traces of requests for OpenTelemetry, from the client's own context to the engine: spans that are sent to a collector
//! by OTLP over HTTP, and W3C trace context on every hop.
//!
//! Without a collector there are no spans, and a client's context is passed on as it came. What a span says is of the
//! request's way: never of its content, its caller, or their addresses.

mod export;

use crate::telemetry::Metrics;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context, KeyValue, Value,
    propagation::TextMapPropagator,
    trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use std::{borrow::Cow, sync::Arc, time::Duration};
use url::Url;

const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What is left when a process ends is sent within this time.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// Where spans are sent, and whose they are.
#[derive(Debug, Clone)]
pub struct TraceSettings {
    /// Where the collector takes traces, see [`collector`].
    pub collector: Url,
    /// `service.name`.
    pub service: String,
    /// `service.instance.id`.
    pub instance: String,
    /// The mesh's name.
    pub mesh: String,
}

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The URL of the collector, or another variable of OpenTelemetry.
    #[error(
        "traces cannot be sent to {endpoint:?}: {reason}; give the URL of a collector that takes OTLP over HTTP, for example http://localhost:4318"
    )]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// Another protocol is asked for.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL is {0:?}, and only http/protobuf is spoken: set it so, or give --traces-to")]
    Protocol(String),
    /// Something else that OpenTelemetry's own variables say.
    #[error("OpenTelemetry's variables: {0}")]
    Variables(String),
}

/// The URL for traces of the collector at `base`, for example `http://localhost:4318`.
///
/// # Errors
/// It is not a URL of http or https.
pub fn collector(base: &str) -> Result<Url, TraceError> {
    let mut url = whole_url(base)?;
    let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

/// The URL at which a collector takes traces, as it is.
///
/// # Errors
/// It is not a URL of http or https.
pub fn whole_url(text: &str) -> Result<Url, TraceError> {
    let wrong = |reason: String| TraceError::Endpoint { endpoint: text.to_owned(), reason };
    let url: Url = text.parse().map_err(|error: url::ParseError| wrong(error.to_string()))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(wrong("it is not a URL of http or https".to_owned())),
    }
}

/// Where the spans of one process go. Cloning shares it; the default sends none.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<Arc<Sending>>);

#[derive(Debug)]
struct Sending {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Begins to send spans. Must be called within the runtime. Sampling, batches and headers are as OpenTelemetry's own variables
    /// say (`OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_HEADERS`, …).
    ///
    /// # Errors
    /// [`TraceError`]. That nobody answers at the collector's URL is none.
    pub fn start(settings: TraceSettings, metrics: &Metrics) -> Result<Self, TraceError> {
        let processor = export::processor(&settings.collector, metrics)?;
        let resource = Resource::builder()
            .with_service_name(settings.service)
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", settings.instance))
            .with_attribute(KeyValue::new("otela.mesh", settings.mesh));
        let provider =
            SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(processor).build();
        let tracer = provider.tracer("otela");
        Ok(Self(Some(Arc::new(Sending { provider, tracer }))))
    }

    /// A span for a request that was received, within the trace that its headers name, if they do.
    #[must_use]
    pub fn received(&self, name: impl Into<Cow<'static, str>>, headers: &HeaderMap) -> Span {
        let Some(sending) = &self.0 else { return Span::default() };
        // Lists may come in parts.
        let states: Vec<_> = headers.get_all(TRACESTATE).iter().filter_map(|part| part.to_str().ok()).collect();
        let whole = (states.len() > 1).then(|| {
            let mut whole = headers.clone();
            if let Ok(state) = HeaderValue::from_str(&states.join(",")) {
                whole.insert(TRACESTATE, state);
            }
            whole
        });
        let headers = HeaderExtractor(whole.as_ref().unwrap_or(headers));
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        Span::begin(sending, name.into(), SpanKind::Server, &parent)
    }

    /// Sends what is left. Waits for the collector, but not for long.
    pub async fn end(&self) {
        let Some(sending) = self.0.clone() else { return };
        let last = tokio::task::spawn_blocking(move || sending.provider.shutdown_with_timeout(LAST_WITHIN));
        // What could not be sent is counted and told.
        let _ = tokio::time::timeout(2 * LAST_WITHIN, last).await;
    }
}

/// One step of a request. It ends with [`Span::end`], or when its last copy is dropped. The default is of no trace, and
/// costs nothing.
#[derive(Debug, Clone, Default)]
pub struct Span(Option<(Arc<Sending>, Context)>);

impl Span {
    fn begin(sending: &Arc<Sending>, name: Cow<'static, str>, kind: SpanKind, parent: &Context) -> Self {
        let builder = sending.tracer.span_builder(name).with_kind(kind);
        let span = sending.tracer.build_with_context(builder, parent);
        // An unsampled span still hands its trace's name on.
        Self(Some((Arc::clone(sending), parent.with_span(span))))
    }

    /// A step within this one: something that is asked of another process.
    #[must_use]
    pub fn asking(&self, name: &'static str) -> Self {
        self.child(name, SpanKind::Client)
    }

    /// A step within this one, in this process.
    #[must_use]
    pub fn step(&self, name: &'static str) -> Self {
        self.child(name, SpanKind::Internal)
    }

    fn child(&self, name: &'static str, kind: SpanKind) -> Self {
        let Some((sending, context)) = &self.0 else { return Self::default() };
        Self::begin(sending, name.into(), kind, context)
    }

    /// Whether anybody will see what is said of it: worth asking before making long values.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, context)| context.span().is_recording())
    }

    /// Says something of it.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some((_, context)) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// It has failed.
    pub fn failed(&self, reason: &'static str) {
        if let Some((_, context)) = &self.0 {
            context.span().set_attribute(KeyValue::new("error.type", reason));
            context.span().set_status(Status::error(reason));
        }
    }

    /// It is over, whoever still has a copy.
    pub fn end(&self) {
        if let Some((_, context)) = &self.0 {
            context.span().end();
        }
    }

    /// Names it as the parent of what is sent with `headers`. Without a trace they stay as they are.
    pub fn name_in(&self, headers: &mut HeaderMap) {
        if let Some((_, context)) = &self.0 {
            TraceContextPropagator::new().inject_context(context, &mut HeaderInjector(headers));
            // An empty one says nothing, and takes room on each hop.
            if headers.get(TRACESTATE).is_some_and(HeaderValue::is_empty) {
                headers.remove(TRACESTATE);
            }
        }
    }
}

#[cfg(test)]
mod tests;
