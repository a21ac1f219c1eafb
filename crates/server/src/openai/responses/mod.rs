//! `POST /v1/responses` and `/v1/responses/input_tokens`: answers that nothing is stored of.

mod item;
mod object;
mod request;
mod stream;

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::object::Heading;
use self::request::{Accepted, Delivery, ResponsesRequest};
use self::stream::Events;
use crate::answer::Reader;
use crate::backend::Sender;
use crate::error::ApiError;
use crate::state::Shared;
use crate::{answer, body, intake, sse};

/// Answers the input, whole or as a stream.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let Begun { heading, delivery, reader } =
        intake::digest(&shared, &headers, body, queue).await?;
    match delivery {
        Delivery::Whole => {
            let answer = answer::one(events, reader, shared.cut()).await?;
            Ok(Json(heading.whole(&answer)).into_response())
        }
        Delivery::Stream => {
            let (cut, every) = (shared.cut(), shared.limits.ping_every);
            sse::respond(events, vec![reader], Events::new(heading), cut, every).await
        }
    }
}

/// Counts the tokens of the input.
pub(crate) async fn input_tokens(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    intake::digest(&shared, &headers, body, count).await.map(Json)
}

fn count(shared: &Shared, bytes: &[u8]) -> Result<Value, ApiError> {
    let request: ResponsesRequest = body::parse(bytes)?;
    let model = request.model(shared)?;
    let Accepted { ask, .. } = request.accept(&model, SystemTime::now())?;
    let count = answer::prompt_tokens(&*model.backend, &ask.chat)?;
    Ok(json!({"object": "response.input_tokens", "input_tokens": count}))
}

/// An answer whose events are on their way.
struct Begun {
    heading: Heading,
    delivery: Delivery,
    reader: Reader,
}

/// Takes a request from its bytes to the engine's queue.
fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let now = SystemTime::now();
    let request: ResponsesRequest = body::parse(bytes)?;
    let model = request.model(shared)?;
    let Accepted { ask, delivery, echo } = request.accept(&model, now)?;
    let reader = ask.reader();
    ask.start(&*model.backend, sender)?;
    Ok(Begun { heading: Heading::new(&model, echo, now), delivery, reader })
}
