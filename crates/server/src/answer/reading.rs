//! How the models of a template lay out what they write: thoughts and calls beside text.
//!
//! Invariant: a syntax is claimed only when reading what the template writes gives back what it was given.
//! Nothing is known by a model's name.

use std::time::SystemTime;

use serde_json::json;
use toko_engine::{Chat, ChatTemplate, FinishReason, Message, ToolCall};

use super::Piece;
use super::reader::{Reader, THOUGHT};

/// What an answer's text can hold.
#[derive(Debug, Clone)]
pub(crate) enum Reading {
    /// Nothing but text for the reader.
    Plain,
    /// Parts that are told apart by marks.
    Marked {
        /// Where the model thinks.
        thoughts: Thoughts,
        /// How it calls functions, if any were offered.
        calls: Option<Calls>,
    },
}

/// Whether and where an answer holds thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// The model's template knows none, or the prompt has closed them.
    Unknown,
    /// The answer may begin with them.
    Possible,
    /// The prompt has opened them.
    Begun,
}

/// What may be called, and how calls are written.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) syntax: Syntax,
    /// The functions that were offered.
    pub(crate) names: Vec<String>,
    pub(crate) limit: Limit,
}

/// How many calls an answer may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// One; what follows it is not told.
    One,
    /// Any number.
    Any,
}

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// Each an object with `name` and `arguments` between `<tool_call>` and `</tool_call>`, beside text.
    Tagged,
    /// The whole answer is an object with `name` and `parameters`, or several, separated by semicolons.
    Bare,
}

impl Reading {
    /// Returns how the answer to a conversation is read that may hold these calls.
    pub(crate) fn of(template: &ChatTemplate, chat: &Chat, calls: Option<Calls>) -> Self {
        match (thoughts(template, chat), calls) {
            (Thoughts::Unknown, None) => Self::Plain,
            (thoughts, calls) => Self::Marked { thoughts, calls },
        }
    }

    /// Returns where the answer holds thoughts.
    pub(super) fn thoughts(&self) -> Thoughts {
        match self {
            Self::Plain => Thoughts::Unknown,
            Self::Marked { thoughts, .. } => *thoughts,
        }
    }
}

fn thoughts(template: &ChatTemplate, chat: &Chat) -> Thoughts {
    if !template.source().contains(THOUGHT.open) {
        return Thoughts::Unknown;
    }
    // A conversation that cannot be rendered gets no answer.
    let Ok(prompt) = template.render(chat) else { return Thoughts::Possible };
    let end = prompt.trim_end();
    if end.ends_with(THOUGHT.open) {
        Thoughts::Begun
    } else if end.ends_with(THOUGHT.close) {
        Thoughts::Unknown
    } else {
        Thoughts::Possible
    }
}

/// Why tools cannot be offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoCalls {
    /// The model would not learn of them.
    #[error("the model's chat template does not show tools to it")]
    NotShown,
    /// The model would call them in words that are not understood here.
    #[error("the model's chat template writes calls in a syntax that this server cannot read")]
    NotRead,
}

/// Names that no template spells.
const TOOL: &str = "probe_of_tokonoma";
const ARGUMENT: &str = "argument_of_tokonoma";

/// Returns how the models of this template write calls, found by letting it write one.
pub(crate) fn syntax(template: &ChatTemplate) -> Result<Syntax, NoCalls> {
    let asked = |messages, add_generation_prompt| {
        let mut chat = Chat::new(messages, SystemTime::UNIX_EPOCH);
        chat.add_generation_prompt = add_generation_prompt;
        chat.tools = Some(json!([{"type": "function", "function": {
            "name": TOOL, "description": "", "parameters": {"type": "object", "properties": {}},
        }}]));
        template.render(&chat)
    };
    let question = Message::new("user", "?");
    let Ok(prompt) = asked(vec![question.clone()], true) else { return Err(NoCalls::NotShown) };
    if !prompt.contains(TOOL) {
        return Err(NoCalls::NotShown);
    }
    let call = ToolCall {
        id: "probe0000".to_owned(),
        name: TOOL.to_owned(),
        arguments: json!({ARGUMENT: 1}),
    };
    let answer = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
    let Ok(written) = asked(vec![question, answer], false) else { return Err(NoCalls::NotRead) };
    // The marks of the one are looked for anywhere; the other has none, so the place must be exact.
    if calls_probe(Syntax::Tagged, &written) {
        return Ok(Syntax::Tagged);
    }
    match written.strip_prefix(&*prompt) {
        Some(answer) if calls_probe(Syntax::Bare, answer) => Ok(Syntax::Bare),
        _ => Err(NoCalls::NotRead),
    }
}

/// Says whether a text, read in this syntax, is the call that the template was given.
fn calls_probe(syntax: Syntax, text: &str) -> bool {
    let calls = Calls { syntax, names: vec![TOOL.to_owned()], limit: Limit::Any };
    let reading = Reading::Marked { thoughts: Thoughts::Unknown, calls: Some(calls) };
    let mut reader = Reader::new(&reading);
    let mut pieces = reader.push(text.to_owned());
    pieces.extend(reader.finish(FinishReason::Stop).0);
    let is_call = |piece: &Piece| matches!(piece, Piece::CallStart { name, .. } if name == TOOL);
    let has_arguments = |piece: &Piece| matches!(piece, Piece::CallArguments { fragment, .. } if fragment.contains(ARGUMENT));
    pieces.iter().any(is_call) && pieces.iter().any(has_arguments)
}
