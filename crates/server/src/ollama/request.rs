//! What requests for a chat and for a continuation have in common: fields, rules, and the way to an answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toko_engine::{Chat, ChatTemplate, Form, Params};

use super::keep_alive::KeepAlive;
use super::line::{Lines, Readiness, Shape};
use super::options::Options;
use crate::answer::{self, Format, Reader};
use crate::backend::Sender;
use crate::body::Object;
use crate::catalog::{Entry, Model};
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::{invalid, missing, off, unsupported};
use crate::{intake, ndjson, thinking};

/// The common fields; `null` is the same as absent everywhere.
///
/// They are read from the body a second time, beside the request that has the prompt.
#[derive(Debug, Deserialize)]
pub(super) struct Common {
    model: Option<String>,
    /// Another word for `model`; clients may send both, one of them empty.
    name: Option<String>,
    /// Whether the answer comes in parts; it does by default.
    stream: Option<bool>,
    options: Option<Object<Options>>,
    think: Option<Value>,
    keep_alive: Option<Value>,
    /// `json`, or a schema.
    format: Option<Value>,

    // What follows is refused unless it asks for what happens anyway.
    logprobs: Option<Value>,
}

/// What a request has led to.
pub(super) struct Begun {
    lines: Lines,
    outcome: Outcome,
}

enum Outcome {
    /// The model is there or gone, and nothing else was asked.
    Ready(Readiness),
    /// An answer in one piece is on its way.
    Whole(Reader),
    /// An answer line by line is on its way.
    Stream(Reader),
}

/// Takes a request by way of `start` to its answer.
pub(super) async fn answer(
    shared: Arc<Shared>,
    headers: HeaderMap,
    body: Body,
    start: fn(&Shared, &[u8], &Sender) -> Result<Begun, ApiError>,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let Begun { lines, outcome } = intake::digest(&shared, &headers, body, queue).await?;
    match outcome {
        Outcome::Ready(readiness) => Ok(Json(lines.ready(readiness)).into_response()),
        Outcome::Whole(reader) => {
            let answer = answer::one(events, reader, shared.cut()).await?;
            Ok(Json(lines.whole(&answer)).into_response())
        }
        Outcome::Stream(reader) => {
            let patience = shared.limits.ping_every;
            ndjson::respond(events, reader, lines, shared.cut(), patience).await
        }
    }
}

impl Common {
    fn named(&self) -> Option<&str> {
        self.model.as_deref().filter(|model| !model.is_empty()).or(self.name.as_deref())
    }

    /// Returns the model that is to answer, loaded.
    pub(super) fn model(&self, shared: &Shared) -> Result<Arc<Model>, ApiError> {
        let entry = find(shared, self.named())?;
        let model = Model::of(entry, shared)?;
        self.keep(entry)?;
        Ok(model)
    }

    /// Loads the model when there is nothing to answer, or unloads it if it is to be kept for no time.
    pub(super) fn prepare(&self, shared: &Shared, shape: Shape) -> Result<Begun, ApiError> {
        let entry = find(shared, self.named())?;
        let readiness = if self.keep_alive()? == Some(KeepAlive::For(Duration::ZERO)) {
            entry.unload(shared);
            Readiness::Unloaded
        } else {
            Model::of(entry, shared)?;
            self.keep(entry)?;
            Readiness::Loaded
        };
        Ok(Begun { lines: Lines::new(&entry.id, shape), outcome: Outcome::Ready(readiness) })
    }

    /// Says how the answer that was begun is to be told.
    pub(super) fn begun(&self, model: &Model, shape: Shape, reader: Reader) -> Begun {
        let outcome = match self.stream {
            Some(false) => Outcome::Whole(reader),
            None | Some(true) => Outcome::Stream(reader),
        };
        Begun { lines: Lines::new(&model.id, shape), outcome }
    }

    /// Refuses what would bend an answer in a way that is not implemented.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        self.format()?;
        off("logprobs", self.logprobs.as_ref())?;
        self.keep_alive().map(|_| ())
    }

    /// Keeps a model for as long as the request says, if it does.
    fn keep(&self, entry: &Entry) -> Result<(), ApiError> {
        if let Some(keep_alive) = self.keep_alive()? {
            entry.keep_for(keep_alive.limit());
        }
        Ok(())
    }

    /// Returns for how long the model is to stay when nobody uses it.
    fn keep_alive(&self) -> Result<Option<KeepAlive>, ApiError> {
        let Some(keep_alive) = &self.keep_alive else { return Ok(None) };
        let reason = "must be a number of seconds or a duration such as \"5m\"";
        KeepAlive::read(keep_alive).map(Some).ok_or_else(|| invalid("keep_alive", reason))
    }

    /// Returns the form that the text of an answer has to have.
    pub(super) fn format(&self) -> Result<Option<Format>, ApiError> {
        let schema = match &self.format {
            None => return Ok(None),
            Some(Value::String(word)) if word.is_empty() => return Ok(None),
            Some(Value::String(word)) if word == "json" => json!({"type": "object"}),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(other) => {
                return Err(invalid("format", format!("must be json or a schema, got {other}")));
            }
        };
        Ok(Some(Format { form: Form::Json(schema), param: "format".to_owned() }))
    }

    /// Returns the parameters of an answer.
    pub(super) fn params(&self, model: &Model) -> Result<Params, ApiError> {
        match &self.options {
            Some(Object(options)) => options.accept(model),
            None => Options::default().accept(model),
        }
    }

    /// Tells the template whether thoughts are wanted.
    pub(super) fn think(&self, template: &ChatTemplate, chat: &mut Chat) -> Result<(), ApiError> {
        let is_wanted = match &self.think {
            None => return Ok(()),
            Some(Value::Bool(is_wanted)) => *is_wanted,
            Some(Value::String(effort)) if ["low", "medium", "high"].contains(&effort.as_str()) => {
                chat.variables.insert("reasoning_effort".to_owned(), Value::String(effort.clone()));
                true
            }
            Some(other) => {
                let reason = format!("must be true, false, low, medium or high, got {other}");
                return Err(invalid("think", reason));
            }
        };
        if is_wanted && !thinking::is_known_to(template) {
            return Err(unsupported("think", "the model does not think"));
        }
        thinking::switch(template, chat, is_wanted);
        Ok(())
    }
}

/// Returns the model of a name, whose tag may be left out where it is `latest`.
pub(super) fn find<'a>(
    shared: &'a Shared,
    asked: Option<&str>,
) -> Result<&'a Arc<Entry>, ApiError> {
    let asked = asked.filter(|asked| !asked.is_empty()).ok_or_else(|| missing("model"))?;
    let other = match asked.strip_suffix(":latest") {
        Some(short) => short.to_owned(),
        None => format!("{asked}:latest"),
    };
    let catalog = &shared.catalog;
    catalog.find(asked).or_else(|unknown| catalog.find(&other).map_err(|_| unknown))
}
