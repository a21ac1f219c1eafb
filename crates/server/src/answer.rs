//! An answer between the engine's events and the dialects: what was asked, how its text is read, what came of it.
//!
//! Knows no wire format. A dialect turns a request into an [`Ask`] and pieces or a whole [`Answer`] into its own words.

mod call;
mod grammar;
mod reader;
mod reading;

use toko_engine::{
    Chat, ChatTemplate, Error as EngineError, Event, Form, Params, Summary, TokenDetails,
};

pub(crate) use reader::Reader;
pub(crate) use reading::{Calls, Limit, Reading, syntax};

use crate::Backend;
use crate::backend::{self, Events, Sender};
use crate::error::ApiError;
use crate::tools::Tools;

/// A conversation that is to be answered.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) chat: Chat,
    /// One for each choice.
    params: Vec<Params>,
    reading: Reading,
    /// The field that holds the answer to something, if any does.
    demanded_by: String,
}

/// What an answer has to be.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) form: Form,
    /// The field that demands it.
    pub(crate) param: String,
}

/// Functions that may be called.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) tools: Tools,
    /// The field that offers them.
    pub(crate) param: &'static str,
}

/// A part of an answer, in the order in which the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text for the reader, never empty.
    Content(String),
    /// What the model thinks before it answers, never empty.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// Which of the answer's calls this is.
        index: usize,
        /// No other call has it.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Which of the answer's calls this is.
        index: usize,
        /// A part of the object's text, never empty.
        fragment: String,
    },
}

/// Why an answer ended, as clients know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The model said that it is done, or a stop text appeared.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
    /// The model said that it is done, and calls are to be answered.
    ToolCalls,
}

/// What an answer cost.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pub(crate) summary: Summary,
    /// Generated tokens that belonged to thoughts.
    pub(crate) reasoning_tokens: usize,
}

impl Account {
    /// Closes the account of what a reader has read.
    pub(crate) fn new(reader: &Reader, summary: Summary) -> Self {
        // A tail that was held back comes without a token of its own.
        let reasoning_tokens = reader.reasoning_tokens().min(summary.completion_tokens);
        Self { summary, reasoning_tokens }
    }
}

impl Ask {
    /// Makes the conversation one in which the functions may be called, and holds its answer to what is demanded.
    ///
    /// # Errors
    /// Functions that the template's model cannot be offered.
    pub(crate) fn new(
        mut chat: Chat,
        mut params: Vec<Params>,
        offer: Option<&Offer>,
        format: Option<Format>,
        template: &ChatTemplate,
    ) -> Result<Self, ApiError> {
        let mut calls = None;
        if let Some(Offer { tools, param }) = offer {
            calls = Some(tools.calls(param, template)?);
            chat.tools = Some(tools.definitions());
        }
        let reading = Reading::of(template, &chat, calls);
        let demanded_by = match (&format, offer) {
            (Some(format), _) => format.param.clone(),
            (None, offer) => offer.map(|offer| offer.param.to_owned()).unwrap_or_default(),
        };
        let tools = offer.map(|offer| &offer.tools);
        let constraint = grammar::constraint(&reading, format.map(|format| format.form), tools);
        for params in &mut params {
            params.constraint.clone_from(&constraint);
        }
        Ok(Self { chat, params, reading, demanded_by })
    }

    /// Returns a reader for one choice.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(&self.reading)
    }

    /// Returns a reader for each choice.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        self.params.iter().map(|_| self.reader()).collect()
    }

    /// Queues the conversation once for each choice; their events go to `sender`.
    ///
    /// After an error some choices may be queued; they are cancelled with the receiver.
    pub(crate) fn start(self, backend: &dyn Backend, sender: &Sender) -> Result<(), ApiError> {
        backend::start(backend, &self.chat, self.params, sender).map_err(|error| match error {
            EngineError::Constraint { reason } => {
                ApiError::Constraint { param: self.demanded_by, reason }
            }
            error => error.into(),
        })
    }
}

/// A choice that is complete.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    /// The tokens that were asked about.
    pub(crate) tokens: Vec<TokenDetails>,
    /// The tokens of the prompt behind its first, if those were asked about.
    pub(crate) prompt: Vec<TokenDetails>,
    pub(crate) end: End,
    pub(crate) account: Account,
}

/// A call of a function that a client offered.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The text of an object as the model wrote it, which may be cut or no JSON.
    pub(crate) arguments: String,
}

/// A choice that is not.
struct Draft {
    reader: Reader,
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    tokens: Vec<TokenDetails>,
    prompt: Vec<TokenDetails>,
    ended: Option<(End, Account)>,
}

impl Draft {
    fn new(reader: Reader) -> Self {
        Self {
            reader,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            tokens: Vec::new(),
            prompt: Vec::new(),
            ended: None,
        }
    }

    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content.push_str(&text),
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::CallStart { id, name, .. } => {
                    self.calls.push(Call { id, name, arguments: String::new() });
                }
                Piece::CallArguments { index, fragment } => {
                    self.calls[index].arguments.push_str(&fragment);
                }
            }
        }
    }

    fn complete(self) -> Option<Answer> {
        let Self { content, reasoning, calls, tokens, prompt, ended, .. } = self;
        let (end, account) = ended?;
        Some(Answer { content, reasoning, calls, tokens, prompt, end, account })
    }
}

/// Waits for the end of all choices, one for each of `readers`, and returns them in order.
pub(crate) async fn collect(
    mut events: Events,
    readers: Vec<Reader>,
) -> Result<Vec<Answer>, ApiError> {
    let mut drafts: Vec<Draft> = readers.into_iter().map(Draft::new).collect();
    while drafts.iter().any(|draft| draft.ended.is_none()) {
        // Without a sender left, whoever has not finished never will.
        let (choice, event) = events.recv().await.ok_or(ApiError::Vanished)?;
        let draft = &mut drafts[choice];
        match event {
            Event::Waiting | Event::Prefilled { .. } | Event::Embedded { .. } => {}
            Event::Prompt { mut tokens } => draft.prompt.append(&mut tokens),
            Event::Text { text, mut tokens } => {
                draft.tokens.append(&mut tokens);
                let pieces = draft.reader.push(text);
                draft.take(pieces);
            }
            Event::Finished(summary) => {
                let (pieces, end) = draft.reader.finish(summary.reason);
                draft.take(pieces);
                draft.ended = Some((end, Account::new(&draft.reader, summary)));
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    let complete: Option<Vec<Answer>> = drafts.into_iter().map(Draft::complete).collect();
    complete.ok_or(ApiError::Vanished)
}

/// Waits for the end of an answer of one choice, but not beyond `cut`.
pub(crate) async fn one(
    events: Events,
    reader: Reader,
    cut: impl Future<Output = ()>,
) -> Result<Answer, ApiError> {
    tokio::select! {
        answers = collect(events, vec![reader]) => answers?.pop().ok_or(ApiError::Vanished),
        () = cut => Err(ApiError::ShuttingDown),
    }
}

/// Counts the tokens of the prompt that a conversation becomes.
pub(crate) fn prompt_tokens(backend: &dyn Backend, chat: &Chat) -> Result<usize, ApiError> {
    let prompt = backend.chat_template().prompt(backend.tokenizer(), chat);
    Ok(prompt.map_err(toko_engine::Error::from)?.len())
}
