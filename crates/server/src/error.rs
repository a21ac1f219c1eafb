//! Every answer that is an error, in one table: status, type, code and parameter.
//!
//! The body is an OpenAI error object with all four keys, whatever went wrong and wherever; `voice.rs` replaces it on the
//! paths of other APIs. Nothing else in the crate chooses a status above 299.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use toko_admission::decision::Decision;
use toko_engine::Error as EngineError;

/// Why a request gets no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("the request body is not a JSON object: {reason}")]
    InvalidJson { reason: String },
    #[error("the request body could not be read: {reason}")]
    BrokenBody { reason: String },
    #[error("nothing more of the request body came for {} s", .limit.as_secs())]
    SlowBody { limit: Duration },
    #[error("the request body is larger than {limit_bytes} bytes")]
    BodyTooLarge { limit_bytes: usize },
    #[error("the content type must be application/json, not {found}")]
    MediaType { found: String },
    #[error("{param} is required")]
    Missing { param: String },
    #[error("{param}: {reason}")]
    InvalidType { param: String, reason: String },
    #[error("{param}: {reason}")]
    InvalidValue { param: String, reason: String },
    #[error("{param}: {reason}")]
    Unsupported { param: String, reason: String },
    #[error("there is no model {asked:?} here; this server has {known}")]
    UnknownModel { asked: String, known: String },
    #[error("the model {model} could not be loaded: {reason}")]
    LoadFailed { model: String, reason: String },
    #[error("the model {model} was not loaded: {}", .decision.sentence())]
    Refused { model: String, decision: Box<Decision> },
    #[error("what is written down about loads could not be read: {reason}")]
    JournalUnreadable { reason: String },
    #[error("the policy could not be saved: {reason}")]
    PolicyNotSaved { reason: String },
    #[error("there is nothing at {path}")]
    UnknownPath { path: String },
    #[error("{path} does not take {method}; the allow header says what it takes")]
    WrongMethod { method: Method, path: String },
    #[error("models are managed on the command line, not over this API")]
    Unmanaged,
    #[error("the host {host} is not one of this server's names")]
    ForeignHost { host: String },
    #[error("an API key is required, in authorization: Bearer KEY or in x-api-key")]
    MissingKey,
    #[error("the API key is not one of this server's")]
    WrongKey,
    #[error("the server is shutting down")]
    ShuttingDown,
    /// What an answer was to be held to cannot be enforced.
    #[error("{param}: {reason}")]
    Constraint { param: String, reason: String },
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An error about the prompt that stands at `param`.
    #[error("{error}")]
    Prompt { param: String, error: EngineError },
    #[error("the engine ended without an answer")]
    Vanished,
    #[error("the server met a bug while it answered; the other requests go on")]
    Panicked,
}

/// Left in an answer that is an error, for whoever has to tell it in other words.
#[derive(Debug, Clone)]
pub(crate) struct Told(pub(crate) Arc<ApiError>);

/// One line of the table.
struct Row<'a> {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<&'a str>,
    /// Whether and when the official clients should try again; `None` leaves it to the status.
    retry: Option<Retry>,
}

/// What a client is told about trying again.
enum Retry {
    AfterSeconds(u32),
    Never,
}

const INVALID_REQUEST: &str = "invalid_request_error";
const NOT_FOUND: &str = "not_found_error";
const SERVER_ERROR: &str = "server_error";

impl<'a> Row<'a> {
    fn new(status: StatusCode, kind: &'static str, code: &'static str) -> Self {
        Self { status, kind, code, param: None, retry: None }
    }

    fn shutting_down() -> Self {
        Self {
            retry: Some(Retry::AfterSeconds(5)),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, "server_shutting_down")
        }
    }

    /// The part of the table for what the engine says; `prompt` names the field that holds the prompt.
    fn of_engine(error: &EngineError, prompt: &'a str) -> Self {
        match error {
            EngineError::Closed => Self::shutting_down(),
            EngineError::QueueFull { retry_after_seconds, .. } => Self {
                retry: Some(Retry::AfterSeconds(*retry_after_seconds)),
                ..Self::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "rate_limit_error",
                    "rate_limit_exceeded",
                )
            },
            EngineError::QueueTimeout { retry_after_seconds, .. } => Self {
                retry: Some(Retry::AfterSeconds(*retry_after_seconds)),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, "queue_timeout")
            },
            EngineError::PoolEmpty | EngineError::PoolPoisoned => Self {
                retry: Some(Retry::AfterSeconds(1)),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, "pool_degraded")
            },
            EngineError::ContextExceeded { .. } => {
                Self::bad_request("context_length_exceeded", prompt)
            }
            EngineError::Pooling { .. } => Self::bad_request("unsupported_parameter", "model"),
            EngineError::Tokenizer(_) | EngineError::EmptyPrompt => {
                Self::bad_request("invalid_value", prompt)
            }
            _ => Self {
                retry: Some(Retry::Never),
                ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, "engine_error")
            },
        }
    }

    fn bad_request(code: &'static str, param: &'a str) -> Self {
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, code) }
    }
}

impl ApiError {
    /// The table.
    fn row(&self) -> Row<'_> {
        use StatusCode as S;
        match self {
            Self::InvalidJson { .. } => Row::new(S::BAD_REQUEST, INVALID_REQUEST, "invalid_json"),
            Self::BrokenBody { .. } => Row::new(S::BAD_REQUEST, INVALID_REQUEST, "invalid_body"),
            Self::SlowBody { .. } => {
                Row::new(S::REQUEST_TIMEOUT, INVALID_REQUEST, "request_timeout")
            }
            Self::BodyTooLarge { .. } => {
                Row::new(S::PAYLOAD_TOO_LARGE, INVALID_REQUEST, "request_too_large")
            }
            Self::MediaType { .. } => {
                Row::new(S::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, "unsupported_media_type")
            }
            Self::Missing { param } => Row::bad_request("missing_required_parameter", param),
            Self::InvalidType { param, .. } => Row::bad_request("invalid_type", param),
            Self::InvalidValue { param, .. } => Row::bad_request("invalid_value", param),
            Self::Unsupported { param, .. } => Row::bad_request("unsupported_parameter", param),
            Self::Constraint { param, .. } => Row::bad_request("invalid_json_schema", param),
            Self::UnknownModel { .. } => Row {
                param: Some("model"),
                ..Row::new(S::NOT_FOUND, INVALID_REQUEST, "model_not_found")
            },
            Self::LoadFailed { .. } => Row {
                param: Some("model"),
                retry: Some(Retry::Never),
                ..Row::new(S::INTERNAL_SERVER_ERROR, SERVER_ERROR, "model_load_failed")
            },
            Self::JournalUnreadable { .. } => {
                Row::new(S::INTERNAL_SERVER_ERROR, SERVER_ERROR, "journal_unreadable")
            }
            Self::PolicyNotSaved { .. } => Row {
                retry: Some(Retry::Never),
                ..Row::new(S::INTERNAL_SERVER_ERROR, SERVER_ERROR, "policy_not_saved")
            },
            Self::Refused { decision, .. } if decision.never_fits => {
                Row { retry: Some(Retry::Never), ..Row::bad_request("model_too_large", "model") }
            }
            Self::Refused { .. } => Row {
                param: Some("model"),
                retry: Some(Retry::AfterSeconds(5)),
                ..Row::new(S::SERVICE_UNAVAILABLE, SERVER_ERROR, "insufficient_memory")
            },
            Self::UnknownPath { .. } => Row::new(S::NOT_FOUND, NOT_FOUND, "not_found"),
            Self::Unmanaged => Row::new(S::BAD_REQUEST, INVALID_REQUEST, "unsupported_operation"),
            Self::WrongMethod { .. } => {
                Row::new(S::METHOD_NOT_ALLOWED, NOT_FOUND, "method_not_allowed")
            }
            Self::ForeignHost { .. } => {
                Row::new(S::FORBIDDEN, "permission_error", "host_not_allowed")
            }
            Self::MissingKey | Self::WrongKey => {
                Row::new(S::UNAUTHORIZED, "authentication_error", "invalid_api_key")
            }
            Self::ShuttingDown => Row::shutting_down(),
            Self::Engine(error) => Row::of_engine(error, "messages"),
            Self::Prompt { param, error } => Row::of_engine(error, param),
            Self::Vanished | Self::Panicked => {
                Row::new(S::INTERNAL_SERVER_ERROR, SERVER_ERROR, "internal_error")
            }
        }
    }

    /// Returns the status of an answer that is this error.
    pub(crate) fn status(&self) -> StatusCode {
        self.row().status
    }

    /// Returns the error object as it stands in a body or in a frame of a stream.
    pub(crate) fn object(&self) -> Value {
        let Row { kind, code, param, .. } = self.row();
        let mut error =
            json!({"message": self.to_string(), "type": kind, "param": param, "code": code});
        if let Self::Engine(refusal) | Self::Prompt { error: refusal, .. } = self
            && let EngineError::ContextExceeded { prompt_tokens, context_tokens } = refusal
        {
            error["n_prompt_tokens"] = json!(prompt_tokens);
            error["n_ctx"] = json!(context_tokens);
        }
        if let Self::Refused { decision, .. } = self {
            error["required_bytes"] = json!(decision.need.incremental_bytes);
            error["limit_bytes"] = json!(decision.have.room_bytes);
            error["decision"] = json!(decision);
        }
        json!({"error": error})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Row { status, retry, .. } = self.row();
        let mut response = (status, Json(self.object())).into_response();
        match retry {
            Some(Retry::AfterSeconds(seconds)) => {
                let headers = response.headers_mut();
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                let milliseconds = HeaderValue::from(u64::from(seconds) * 1000);
                headers.insert("retry-after-ms", milliseconds);
            }
            Some(Retry::Never) => {
                response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
            }
            None => {}
        }
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response.extensions_mut().insert(Told(Arc::new(self)));
        response
    }
}

/// Answers for a route that panicked; the panic hook has reported where.
pub(crate) fn answer_panic(_payload: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::Panicked.into_response()
}
