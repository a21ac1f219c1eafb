//! From a request that has just arrived to what a route makes of it.
//!
//! Knows no route and no field. What takes as long as a body is large runs where no connection waits for it.

use std::panic;
use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;

use crate::body;
use crate::error::ApiError;
use crate::state::Shared;

/// Reads the body and returns what `work` makes of it; once the shutdown has begun, refuses.
pub(crate) async fn digest<T: Send + 'static>(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    body: Body,
    work: impl FnOnce(&Shared, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if !shared.is_open() {
        return Err(ApiError::ShuttingDown);
    }
    let bytes = body::read(headers, body, &shared.limits).await?;
    // Parsing and tokenizing a long text takes too long for a thread that serves connections.
    blocking(shared, move |shared| work(shared, &bytes)).await
}

/// Returns what `work` makes of a request without a body; once the shutdown has begun, refuses.
pub(crate) async fn work<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if !shared.is_open() {
        return Err(ApiError::ShuttingDown);
    }
    blocking(shared, work).await
}

/// Returns what `work` makes on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let shared = Arc::clone(shared);
    let worked = tokio::task::spawn_blocking(move || work(&shared)).await;
    worked.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(payload) => panic::resume_unwind(payload),
        Err(_) => Err(ApiError::ShuttingDown),
    })
}
