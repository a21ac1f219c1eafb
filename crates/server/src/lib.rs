//! The HTTP server: OpenAI-compatible routes, and those of other APIs, over models that it loads and unloads.
//!
//! HTTP ends at [`toko_engine::Chat`], [`toko_engine::Prompt`] and [`toko_engine::Params`]; everything behind them is
//! reached through [`Backend`]. Every answer that is an error is written by one table (`error.rs`), panics and unknown paths included.
//! The crate reads no environment and no file, chooses no address and no default value: the caller passes them in.
#![forbid(unsafe_code)]

mod access;
mod admin;
mod answer;
mod anthropic;
mod backend;
mod body;
mod catalog;
mod connections;
mod error;
mod health;
mod ids;
mod intake;
mod keys;
mod llama;
mod memory;
mod metrics;
mod ndjson;
mod ollama;
mod openai;
mod openapi;
mod relay;
mod sampling;
mod sse;
mod state;
mod text_or;
mod thinking;
mod tools;
mod validate;
mod vectors;
mod voice;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post, put};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{PropagateRequestIdLayer, SetRequestIdLayer};

use crate::catalog::Catalog;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::state::{Phase, Shared};

pub use backend::{Backend, Sink};
pub use keys::{ApiKey, UnusableKey};
pub use state::{Access, Defaults, Explain, Limits, Load, LoadError, Proposal, ServedModel, State};

/// The value of the `server` header.
const SERVER: &str = concat!("tokonoma/", env!("CARGO_PKG_VERSION"));

/// How often it is looked for models that were idle for long enough.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

/// Loads the first model and answers requests on `listener` until `shutdown` completes, then lets running answers end.
/// The other models are loaded when they are asked for.
///
/// After `shutdown` readiness is withdrawn, and new and waiting requests get a 503; answers that still run after
/// [`Limits::drain`] are cut: streams get an error frame, whole answers a 503. Returns once all connections are
/// closed, or [`Limits::cut_grace`] after the cut if a client does not take its last bytes. Dropping the future stops
/// accepting at once.
pub async fn serve(
    listener: TcpListener,
    state: State,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let is_loopback = listener.local_addr()?.ip().is_loopback();
    let State { models, limits, access, steward } = state;
    let (phase, watched) = watch::channel(Phase::Open);
    let shared = Arc::new(Shared {
        catalog: Catalog::new(models),
        limits: limits.clone(),
        metrics: Metrics::new(),
        steward,
        phase: watched.clone(),
    });
    let first = Arc::clone(&shared);
    let loaded = tokio::task::spawn_blocking(move || first.model_or_default(None).map(drop)).await;
    loaded?.map_err(io::Error::other)?;
    let app = router(Arc::clone(&shared), &access, is_loopback);
    tokio::spawn(expire(Arc::clone(&shared)));

    let stopping = phase.clone();
    let server = connections::serve(listener, app, limits.client_silence, async move {
        shutdown.await;
        stopping.send_replace(Phase::Draining);
        shared.catalog.close();
    });
    let mut server = std::pin::pin!(server);

    let drained = async {
        state::reached(watched, Phase::Draining).await;
        tokio::time::sleep(limits.drain).await;
    };
    tokio::select! {
        () = &mut server => return Ok(()),
        () = drained => {}
    }
    phase.send_replace(Phase::Cut);
    // Whoever has not taken the last bytes by then does not get them.
    drop(tokio::time::timeout(limits.cut_grace, server).await);
    Ok(())
}

/// Lets models go that nobody has used for as long as they are kept, until the shutdown begins.
async fn expire(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(EXPIRE_EVERY);
    while shared.is_open() {
        ticks.tick().await;
        let work = |shared: &Shared| {
            shared.catalog.expire(shared);
            Ok(())
        };
        if let Err(error) = intake::blocking(&shared, work).await {
            log::warn!("idle models could not be unloaded: {error}");
        }
    }
}

/// Lays out the routes and what every request passes through, outermost last.
fn router(shared: Arc<Shared>, access: &Access, is_loopback: bool) -> Router {
    let request_id = HeaderName::from_static("x-request-id");
    let router = Router::new()
        .route("/", get(health::index))
        .route("/version", get(health::version))
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/healthz", get(health::health))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::scrape))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*id}", get(openai::models::retrieve))
        .route("/v1/chat/completions", get(openai::chat::stored))
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/models", get(openai::models::list))
        .route("/models/sse", get(admin::events))
        .route("/models/load", post(admin::load))
        .route("/models/unload", post(admin::unload))
        .route("/api/models/unload", post(admin::unload_all))
        .route("/api/models/unload/{*id}", post(admin::unload_named))
        .route("/running", get(admin::running))
        .route("/admin/v1/queue", get(admin::queue))
        .route("/admin/v1/memory", get(memory::memory))
        .route("/admin/v1/events", get(memory::events))
        .route("/admin/v1/policy", get(memory::policy))
        .route("/admin/v1/policy", put(memory::set_policy))
        .route("/admin/v1/explain", post(memory::explain))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/responses/input_tokens", post(openai::responses::input_tokens))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
        .merge(ollama::routes())
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/tokenize", post(llama::tokenize))
        .route("/detokenize", post(llama::detokenize))
        .route("/apply-template", post(llama::apply_template))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(error::answer_panic));
    access::guard(router, access, is_loopback)
        .layer(middleware::from_fn(voice::speak))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), metrics::count))
        .layer(middleware::from_fn(sign))
        .layer(PropagateRequestIdLayer::new(request_id.clone()))
        .layer(SetRequestIdLayer::new(request_id, ids::RequestIds))
        .with_state(shared)
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::UnknownPath { path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::WrongMethod { method, path: uri.path().to_owned() }
}

/// Adds the headers that name the server and the time until the answer began.
async fn sign(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
    let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    headers.insert("openai-processing-ms", HeaderValue::from(elapsed_ms));
    response
}
