//! Keeps the text of messages from becoming special tokens.
//!
//! Invariant: one character that occurs in no message, template or special token is put inside every special
//! token's text that a message spells out, and removed after the special tokens were found. So only the template can
//! write them, and the message's text reaches the model unchanged.

use std::collections::HashSet;

use serde_json::Value;

use crate::chat::Chat;
use crate::json;
use crate::tokenizer::Tokenizer;
use crate::vocabulary::TokenKind;

/// Lay out answers, so templates look for them in what an assistant said.
const ANSWER_MARKS: &[&str] =
    &["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

/// Private-use characters, of which one is chosen that does not occur.
const CANDIDATES: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';

/// Says whose words a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// Anyone's: nothing in it steers the model.
    Anyone,
    /// The assistant's: marks that lay out its answers may stand in it.
    Assistant,
}

/// Takes special tokens' texts apart in one conversation.
pub(crate) struct Guard<'a> {
    tokenizer: &'a Tokenizer,
    /// Stands inside a text that was taken apart.
    pub(crate) character: char,
    anyone: HashSet<u32>,
    assistant: HashSet<u32>,
}

impl<'a> Guard<'a> {
    /// Chooses the tokens to guard against and the character that guards.
    ///
    /// Returns `None` when the conversation uses every private character there is.
    pub(crate) fn new(tokenizer: &'a Tokenizer, template: &str, chat: &Chat) -> Option<Self> {
        let character = CANDIDATES.into_iter().find(|&character| {
            let escaped = json::escaped(character);
            let is_in_token = |id: &u32| tokenizer.token_text(*id).contains(character);
            let mut is_free =
                !template.contains(character) && !tokenizer.parsed().ids().iter().any(is_in_token);
            visit_texts(chat, &mut |text| {
                is_free &= !text.contains(character) && !text.contains(&escaped);
            });
            is_free
        })?;
        let (mut anyone, mut assistant) = (HashSet::new(), HashSet::new());
        for &id in tokenizer.parsed().ids() {
            let text = tokenizer.token_text(id);
            let is_answer_mark = ANSWER_MARKS.contains(&text);
            let steers = match tokenizer.kind(id) {
                Some(TokenKind::UserDefined) => is_answer_mark || is_markup(text, template),
                _ => true,
            };
            if steers {
                anyone.insert(id);
                if tokenizer.is_control(id) && !is_answer_mark {
                    assistant.insert(id);
                }
            }
        }
        Some(Self { tokenizer, character, anyone, assistant })
    }

    /// Returns the text with every guarded token's text in it taken apart.
    pub(crate) fn protect(&self, text: &str, author: Author) -> String {
        let guarded = match author {
            Author::Anyone => &self.anyone,
            Author::Assistant => &self.assistant,
        };
        let mut out = String::with_capacity(text.len());
        // Text of the template next to the message must not complete a token either. Plain words are spared: templates
        // look names and types up, and write role names into tokens on purpose.
        let has_edges =
            !text.chars().all(|character| character.is_alphanumeric() || "_-".contains(character));
        let any = |meets: fn(&str, &str) -> bool| {
            has_edges && guarded.iter().any(|id| meets(self.tokenizer.token_text(*id), text))
        };
        if any(completes) {
            out.push(self.character);
        }
        let mut done = 0;
        let mut from = 0;
        while let Some(found) = self.tokenizer.parsed().find_from(text, from) {
            let first = text[found.start..].chars().next().map_or(1, char::len_utf8);
            // Going on inside the match finds tokens that overlap it.
            from = found.start + first;
            if guarded.contains(&found.id) {
                out.push_str(&text[done..from]);
                out.push(self.character);
                done = from;
            }
        }
        out.push_str(&text[done..]);
        if any(begins) {
            out.push(self.character);
        }
        out
    }

    /// Returns the tokens of a rendered conversation whose messages were protected.
    pub(crate) fn encode(&self, rendered: &str) -> Vec<u32> {
        // A template that writes JSON in ASCII has escaped the guard.
        let rendered = rendered
            .replace(&json::escaped(self.character), self.character.encode_utf8(&mut [0; 4]));
        self.tokenizer.encode_guarded(&rendered, self.character)
    }
}

/// Says whether a user-defined token is markup of the template and not a piece of ordinary text.
fn is_markup(text: &str, template: &str) -> bool {
    let is_word_like = text.chars().any(char::is_alphanumeric);
    is_word_like && (text.starts_with("<|") || template.contains(text))
}

/// Says whether some end of the token is how the text begins, or the text lies inside the token.
fn completes(token: &str, text: &str) -> bool {
    token.contains(text)
        || token.char_indices().skip(1).any(|(at, _)| text.starts_with(&token[at..]))
}

/// Says whether some beginning of the token is how the text ends.
fn begins(token: &str, text: &str) -> bool {
    token.char_indices().skip(1).any(|(at, _)| text.ends_with(&token[..at]))
}

/// Hands each text of the conversation to `each`.
fn visit_texts(chat: &Chat, each: &mut impl FnMut(&str)) {
    for message in &chat.messages {
        each(&message.role);
        each(&message.content);
        for text in
            [&message.name, &message.tool_call_id, &message.reasoning_content].into_iter().flatten()
        {
            each(text);
        }
        for call in &message.tool_calls {
            each(&call.id);
            each(&call.name);
            visit_json(&call.arguments, each);
        }
    }
    if let Some(tools) = &chat.tools {
        visit_json(tools, each);
    }
    for (name, value) in &chat.variables {
        each(name);
        visit_json(value, each);
    }
}

fn visit_json(value: &Value, each: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter().for_each(|item| visit_json(item, each)),
        Value::Object(fields) => {
            for (key, value) in fields {
                each(key);
                visit_json(value, each);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
