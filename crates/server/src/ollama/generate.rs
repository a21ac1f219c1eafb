//! `POST /api/generate`: one question, or a text that is to be continued as it stands.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use toko_engine::{Chat, Error, Message, Params};

use super::line::Shape;
use super::request::{self, Begun, Common};
use crate::answer::{Ask, Reader, Reading};
use crate::backend::{self, Sender};
use crate::body;
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::off;

/// The fields that only a continuation has.
#[derive(Debug, Deserialize)]
struct GenerateRequest {
    prompt: Option<String>,
    system: Option<String>,
    /// Whether the prompt is the whole text that the model sees.
    raw: Option<bool>,

    // What follows is refused unless it asks for what happens anyway.
    suffix: Option<Value>,
    template: Option<Value>,
    context: Option<Value>,
    images: Option<Value>,
}

/// Answers a prompt, whole or line by line; without one it only has the model ready.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    request::answer(shared, headers, body, start).await
}

fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let common: Common = body::parse(bytes)?;
    let request: GenerateRequest = body::parse(bytes)?;
    common.check()?;
    request.check()?;
    let prompt = request.prompt.unwrap_or_default();
    if prompt.is_empty() {
        return common.prepare(shared, Shape::Generate);
    }
    let model = common.model(shared)?;
    let params = common.params(&model)?;
    let backend = &*model.backend;
    if request.raw == Some(true) {
        let params = Params { constraint: common.format()?.map(|it| it.form.into()), ..params };
        let at_prompt = |error| match error {
            Error::Constraint { reason } => {
                ApiError::Constraint { param: "format".to_owned(), reason }
            }
            error => ApiError::Prompt { param: "prompt".to_owned(), error },
        };
        backend::start_choice(backend, 0, backend.text_prompt(&prompt), params, sender)
            .map_err(at_prompt)?;
        let reader = Reader::new(&Reading::Plain);
        return Ok(common.begun(&model, Shape::Generate, reader));
    }
    let system = request.system.filter(|system| !system.is_empty());
    let system = system.map(|system| Message::new("system", system));
    let messages = system.into_iter().chain([Message::new("user", prompt)]).collect();
    let mut chat = Chat::new(messages, SystemTime::now());
    common.think(backend.chat_template(), &mut chat)?;
    let format = common.format()?;
    let ask = Ask::new(chat, vec![params], None, format, backend.chat_template())?;
    let reader = ask.reader();
    ask.start(backend, sender)?;
    Ok(common.begun(&model, Shape::Generate, reader))
}

impl GenerateRequest {
    fn check(&self) -> Result<(), ApiError> {
        let rest = [
            ("suffix", &self.suffix),
            ("template", &self.template),
            ("context", &self.context),
            ("images", &self.images),
        ];
        rest.into_iter().try_for_each(|(param, value)| off(param, value.as_ref()))
    }
}
