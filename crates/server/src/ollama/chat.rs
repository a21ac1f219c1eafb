//! `POST /api/chat`: a conversation that is to be answered.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use toko_engine::{Chat, Message};

use super::line::Shape;
use super::message::WireMessage;
use super::request::{self, Begun, Common};
use crate::answer::{Ask, Limit, Offer};
use crate::backend::Sender;
use crate::body::{self, Object};
use crate::error::ApiError;
use crate::openai::tools::WireTool;
use crate::state::Shared;
use crate::tools::{Choice, Tools};

/// The fields that only a chat has.
#[derive(Debug, Deserialize)]
struct ChatRequest {
    messages: Option<Vec<Object<WireMessage>>>,
    tools: Option<Vec<Object<WireTool>>>,
}

/// Answers a conversation, whole or line by line; without messages it only has the model ready.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    request::answer(shared, headers, body, start).await
}

fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let common: Common = body::parse(bytes)?;
    let request: ChatRequest = body::parse(bytes)?;
    common.check()?;
    let messages = request.messages.unwrap_or_default();
    if messages.is_empty() {
        return common.prepare(shared, Shape::Chat);
    }
    let model = common.model(shared)?;
    let params = common.params(&model)?;
    let (mut chat, offer) = conversation(messages, request.tools)?;
    let template = model.backend.chat_template();
    common.think(template, &mut chat)?;
    let ask = Ask::new(chat, vec![params], offer.as_ref(), common.format()?, template)?;
    let reader = ask.reader();
    ask.start(&*model.backend, sender)?;
    Ok(common.begun(&model, Shape::Chat, reader))
}

/// Returns the conversation, and the functions that its answer may call.
fn conversation(
    messages: Vec<Object<WireMessage>>,
    tools: Option<Vec<Object<WireTool>>>,
) -> Result<(Chat, Option<Offer>), ApiError> {
    let messages: Result<Vec<Message>, _> = messages
        .into_iter()
        .enumerate()
        .map(|(index, Object(message))| message.accept(&format!("messages[{index}]")))
        .collect();
    let chat = Chat::new(messages?, SystemTime::now());
    let mut offered = Vec::new();
    for (index, Object(tool)) in tools.into_iter().flatten().enumerate() {
        offered.push(tool.accept(&format!("tools[{index}]"))?);
    }
    let tools = Tools::accept("tools", offered, "tools", Choice::Auto, Limit::Any)?;
    Ok((chat, tools.map(|tools| Offer { tools, param: "tools" })))
}
