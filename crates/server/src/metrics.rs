//! What the server counts, and `GET /metrics`, which tells it in the text format of Prometheus.
//!
//! Labels have few values: the pattern of a route, never a path, and a status. Knows no dialect: an answer is measured
//! by the events that its engine sends.

mod memory;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use toko_engine::{Event, FinishReason, Metrics as Tokens};

use crate::catalog::Catalog;
use crate::error::ApiError;
use crate::intake;
use crate::metrics::memory::MemoryMetrics;
use crate::state::Shared;

/// The content type of what [`scrape`] answers.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends in seconds; a long prompt on a slow processor takes minutes.
const FIRST_TOKEN_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Upper ends in seconds.
const INTER_TOKEN_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Texts that an answer may have beyond one per token, all at its end: what the decoder and the stop texts held back.
const TEXTS_BEYOND_TOKENS: usize = 2;

/// Route pattern and status, or model and state.
type Labels = [(&'static str, String); 2];

/// The model, or how a request ended.
type Label = [(&'static str, String); 1];

/// Registers a metric and returns it.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Everything that is counted. Clones count into the same numbers.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    requests: Family<Labels, Counter>,
    in_flight: Gauge,
    replicas: Family<Labels, Gauge>,
    waiting: Family<Label, Gauge>,
    tokens: Arc<Tokens>,
    cached_tokens: Counter,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    first_token: Histogram,
    inter_token: Histogram,
    queue: Histogram,
    whole: Histogram,
    ended: Family<Label, Counter>,
    memory: MemoryMetrics,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut all = Registry::with_prefix("toko");
        let [request_ends, token_ends] = [&FIRST_TOKEN_SECONDS[..], &INTER_TOKEN_SECONDS[..]];
        let seconds = |ends: &[f64]| Histogram::new(ends.iter().copied());
        let to_first = "From the arrival of a request at the engine to its first token";
        let to_replica = "From the arrival of a request at the engine to its replica";
        let to_end = "From the arrival of a request at the engine to its end";
        let cached = "Prompt tokens that had been computed for an earlier request";
        let replicas =
            "Replicas of a loaded model by state: idle, leased (requests that run), lost";
        let ended = "Requests by how they ended: stop, length, failed, cancelled";
        Self {
            requests: add(&mut all, "http_requests", "HTTP requests answered", Family::default()),
            in_flight: add(
                &mut all,
                "http_requests_in_flight",
                "HTTP requests whose answer is not complete",
                Gauge::default(),
            ),
            replicas: add(&mut all, "pool_replicas", replicas, Family::default()),
            waiting: add(
                &mut all,
                "requests_waiting",
                "Requests that wait for a replica of a loaded model",
                Family::default(),
            ),
            tokens: Arc::default(),
            cached_tokens: add(&mut all, "prompt_tokens_cached", cached, Counter::default()),
            prompt_tokens: add(
                &mut all,
                "prompt_tokens",
                "Prompt tokens computed",
                Counter::default(),
            ),
            generated_tokens: add(
                &mut all,
                "generated_tokens",
                "Tokens generated",
                Counter::default(),
            ),
            first_token: add(
                &mut all,
                "time_to_first_token_seconds",
                to_first,
                seconds(request_ends),
            ),
            inter_token: add(
                &mut all,
                "inter_token_latency_seconds",
                "Between two tokens of an answer",
                seconds(token_ends),
            ),
            queue: add(&mut all, "request_queue_seconds", to_replica, seconds(request_ends)),
            whole: add(&mut all, "request_seconds", to_end, seconds(request_ends)),
            ended: add(&mut all, "requests_ended", ended, Family::default()),
            memory: MemoryMetrics::new(&mut all),
            registry: Arc::new(all),
        }
    }

    /// Returns where replicas count their tokens.
    pub(crate) fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Returns what is counted about memory.
    pub(crate) fn memory(&self) -> &MemoryMetrics {
        &self.memory
    }

    /// Takes down what the pools and the replicas say at this moment; models that are not loaded have no pool.
    fn observe(&self, catalog: &Catalog) {
        self.replicas.clear();
        self.waiting.clear();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for entry in catalog.entries() {
            let Some(backend) = entry.loaded() else { continue };
            let occupancy = backend.occupancy();
            let states =
                [("idle", occupancy.idle), ("leased", occupancy.leased), ("lost", occupancy.lost)];
            for (state, count) in states {
                let labels = [("model", entry.id.clone()), ("state", state.to_owned())];
                self.replicas.get_or_create(&labels).set(gauge(count));
            }
            let label = [("model", entry.id.clone())];
            self.waiting.get_or_create(&label).set(gauge(occupancy.waiting));
        }
        self.cached_tokens.inner().store(self.tokens.cached_tokens(), Ordering::Relaxed);
    }

    /// Starts to measure one answer.
    pub(crate) fn meter(&self) -> Meter {
        Meter {
            metrics: self.clone(),
            began: Instant::now(),
            has_begun: false,
            end: Some("cancelled"),
            last: Instant::now(),
            prompt_tokens: 0,
            texts: 0,
            observed: 0,
            pending: VecDeque::new(),
        }
    }
}

/// Writes down everything that was counted up to now.
pub(crate) async fn scrape(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let metrics = &shared.metrics;
    metrics.observe(&shared.catalog);
    let work = |shared: &Shared| {
        shared.metrics.memory.observe(&shared.catalog, &shared.steward);
        Ok(())
    };
    intake::blocking(&shared, work).await?;
    let mut text = String::new();
    // Writing into a text cannot fail.
    encode(&mut text, &metrics.registry).map_err(|_| ApiError::Panicked)?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// Counts a request by its route and status, and keeps it in flight until its body is gone.
pub(crate) async fn count(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let metrics = shared.metrics.clone();
    let route =
        request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let flight = Flight::begin(&metrics.in_flight);
    let response = next.run(request).await;
    let status = response.status().as_str().to_owned();
    metrics.requests.get_or_create(&[("route", route), ("status", status)]).inc();
    response.map(|body| Body::new(Flying { body, _flight: flight }))
}

/// One request in flight.
struct Flight(Gauge);

impl Flight {
    fn begin(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A body whose end ends the flight.
struct Flying {
    body: Body,
    _flight: Flight,
}

impl HttpBody for Flying {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Measures one answer by its events; what is not accounted for by then is counted when it is dropped.
pub(crate) struct Meter {
    metrics: Metrics,
    /// When the request came.
    began: Instant,
    /// Whether it has a replica.
    has_begun: bool,
    /// How it ended, as far as is known; `None` once that is counted.
    end: Option<&'static str>,
    /// When the request came, then when its last token did.
    last: Instant,
    prompt_tokens: usize,
    texts: usize,
    /// Intervals between tokens that were observed.
    observed: usize,
    /// The last intervals between texts, which may not all belong to tokens.
    pending: VecDeque<Duration>,
}

impl Meter {
    /// Takes note of an event before its receiver does.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Prefilled { tokens } => {
                self.prompt_tokens = *tokens;
                if !std::mem::replace(&mut self.has_begun, true) {
                    self.metrics.queue.observe(self.began.elapsed().as_secs_f64());
                }
            }
            Event::Waiting | Event::Prompt { .. } | Event::Embedded { .. } => {}
            Event::Text { .. } => self.text(Instant::now()),
            Event::Finished(summary) => {
                if self.texts == 0 && summary.completion_tokens > 0 {
                    self.text(Instant::now());
                }
                (self.prompt_tokens, self.texts) =
                    (summary.prompt_tokens, summary.completion_tokens);
                self.end(match summary.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                });
            }
            Event::Failed(_) => self.end("failed"),
        }
    }

    fn text(&mut self, now: Instant) {
        let interval = now - self.last;
        self.last = now;
        self.texts += 1;
        if self.texts == 1 {
            self.metrics.first_token.observe(interval.as_secs_f64());
            return;
        }
        self.pending.push_back(interval);
        if self.pending.len() > TEXTS_BEYOND_TOKENS {
            self.observe_pending(1);
        }
    }

    fn observe_pending(&mut self, count: usize) {
        for interval in self.pending.drain(..count.min(self.pending.len())) {
            self.metrics.inter_token.observe(interval.as_secs_f64());
            self.observed += 1;
        }
    }

    fn end(&mut self, end: &'static str) {
        self.end = self.end.map(|_| end);
        self.close();
    }

    /// Counts what is known; there is nothing left to count after it.
    fn close(&mut self) {
        let intervals = self.texts.saturating_sub(1);
        self.observe_pending(intervals.saturating_sub(self.observed));
        self.pending.clear();
        let count = |tokens: &mut usize| u64::try_from(std::mem::take(tokens)).unwrap_or(u64::MAX);
        self.metrics.prompt_tokens.inc_by(count(&mut self.prompt_tokens));
        self.metrics.generated_tokens.inc_by(count(&mut self.texts));
        if let Some(end) = self.end.take() {
            self.metrics.ended.get_or_create(&[("reason", end.to_owned())]).inc();
            self.metrics.whole.observe(self.began.elapsed().as_secs_f64());
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.close();
    }
}
