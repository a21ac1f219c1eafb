//! Conversations to prompts by the model's own chat template.
//!
//! Invariant: a prompt's control tokens come from the template alone; message text never makes one.
//! Templates are written for Python's Jinja2 as the transformers library sets it up, and are rendered the same way.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};

use crate::chat::{Chat, Message, ToolCall};
use crate::error::Error;
use crate::guard::{Author, Guard};
use crate::tokenizer::Tokenizer;
use crate::{json, strftime};

const NAME: &str = "chat";

/// Bounds the work and memory of one rendering; a conversation of 1,000 messages needs about a hundredth.
const FUEL: u64 = 50_000_000;

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const PLAIN: &str = "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}\n\n\
    {% else %}{{ message.role | capitalize }}: {{ message.content }}\n\
    {% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}";

/// Turns conversations into prompts.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_text: String,
    eos_text: String,
}

impl ChatTemplate {
    /// Compiles a template; `bos_text` and `eos_text` are what it sees as `bos_token` and `eos_token`.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", json::tojson);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, without_generation_tags(source).into_owned())
            .map_err(|error| syntax_error(&error))?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            bos_text: bos_text.to_owned(),
            eos_text: eos_text.to_owned(),
        })
    }

    /// Makes the template for a model whose file has none.
    ///
    /// ChatML (`<|im_start|>role`, text, `<|im_end|>`) when the vocabulary has its tokens. Otherwise the system
    /// text, an empty line, then lines `User: …` and `Assistant: …`, the last one left open.
    ///
    /// # Panics
    /// Never: both templates are part of this crate and tested.
    pub fn fallback(tokenizer: &Tokenizer) -> Self {
        let has_chatml = ["<|im_start|>", "<|im_end|>"]
            .iter()
            .all(|mark| tokenizer.special_token(mark).is_some());
        let text = |id: Option<u32>| id.map_or("", |id| tokenizer.token_text(id));
        Self::new(
            if has_chatml { CHATML } else { PLAIN },
            text(tokenizer.bos()),
            text(tokenizer.eos()),
        )
        .expect("the fallback templates are valid")
    }

    /// Returns the template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the conversation exactly as the template writes it.
    pub fn render(&self, chat: &Chat) -> Result<String, Error> {
        self.render_guarded(chat, None)
    }

    /// Renders the conversation to the tokens that the model is to continue.
    ///
    /// Special tokens that message text spells out stay text. The prompt has exactly one BOS if the model wants one.
    pub fn prompt(&self, tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<u32>, Error> {
        let guard =
            Guard::new(tokenizer, &self.source, chat).ok_or_else(|| Error::TemplateFailed {
                line: 0,
                message: "the conversation uses every character of Unicode's last private plane"
                    .to_owned(),
            })?;
        Ok(guard.encode(&self.render_guarded(chat, Some(&guard))?))
    }

    /// Renders; where the template fails, tries what other templates expect in its place.
    fn render_guarded(&self, chat: &Chat, guard: Option<&Guard<'_>>) -> Result<String, Error> {
        let words = Words { guard };
        let refused = match self.render_once(words.context(self, chat, Arguments::Object)) {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        if chat.messages.iter().any(|message| !message.tool_calls.is_empty())
            && let Ok(text) = self.render_once(words.context(self, chat, Arguments::Text))
        {
            return Ok(text);
        }
        if let Some(folded) = fold_system_message(chat)
            && let Ok(text) = self.render_once(words.context(self, &folded, Arguments::Object))
        {
            return Ok(text);
        }
        Err(refused)
    }

    fn render_once(&self, context: Value) -> Result<String, Error> {
        let template = self.environment.get_template(NAME).map_err(|error| render_error(&error))?;
        template.render(context).map_err(|error| render_error(&error))
    }
}

/// Says how a tool call's arguments are shown to the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    Object,
    Text,
}

/// Turns a conversation into template values, guarding its texts.
struct Words<'a> {
    guard: Option<&'a Guard<'a>>,
}

impl Words<'_> {
    fn text(&self, text: &str, author: Author) -> String {
        self.guard.map_or_else(|| text.to_owned(), |guard| guard.protect(text, author))
    }

    fn value(&self, text: &str) -> Value {
        Value::from(self.text(text, Author::Anyone))
    }

    fn context(&self, template: &ChatTemplate, chat: &Chat, arguments: Arguments) -> Value {
        let now = chat.now;
        let messages: Vec<Value> =
            chat.messages.iter().map(|message| self.message(message, arguments)).collect();
        let mut fields = vec![
            ("bos_token".to_owned(), Value::from(template.bos_text.as_str())),
            ("eos_token".to_owned(), Value::from(template.eos_text.as_str())),
            (
                "strftime_now".to_owned(),
                Value::from_function(move |pattern: &str| strftime::format(now, pattern)),
            ),
        ];
        fields.extend(chat.variables.iter().map(|(name, value)| (name.clone(), self.json(value))));
        fields.extend([
            ("messages".to_owned(), Value::from(messages)),
            (
                "tools".to_owned(),
                chat.tools.as_ref().map_or(Value::from(()), |tools| self.json(tools)),
            ),
            ("add_generation_prompt".to_owned(), Value::from(chat.add_generation_prompt)),
        ]);
        Value::from_pairs(fields)
    }

    fn message(&self, message: &Message, arguments: Arguments) -> Value {
        let author = if message.role == "assistant" { Author::Assistant } else { Author::Anyone };
        let mut fields = vec![
            ("role", self.value(&message.role)),
            ("content", Value::from(self.text(&message.content, author))),
        ];
        if let Some(thoughts) = &message.reasoning_content {
            fields.push(("reasoning_content", Value::from(self.text(thoughts, author))));
        }
        if let Some(name) = &message.name {
            fields.push(("name", self.value(name)));
        }
        if let Some(id) = &message.tool_call_id {
            fields.push(("tool_call_id", self.value(id)));
        }
        if !message.tool_calls.is_empty() {
            let calls: Vec<Value> =
                message.tool_calls.iter().map(|call| self.call(call, arguments)).collect();
            fields.push(("tool_calls", Value::from(calls)));
        }
        Value::from_pairs(fields)
    }

    fn call(&self, call: &ToolCall, arguments: Arguments) -> Value {
        let parsed = match &call.arguments {
            serde_json::Value::String(text) => {
                serde_json::from_str(text).ok().filter(serde_json::Value::is_object)
            }
            _ => None,
        };
        let given = self.json(parsed.as_ref().unwrap_or(&call.arguments));
        let given = match arguments {
            Arguments::Text if given.as_str().is_none() => {
                json::dumps(&given).map_or(given, Value::from)
            }
            _ => given,
        };
        let function = Value::from_pairs([("name", self.value(&call.name)), ("arguments", given)]);
        let mut fields = vec![("type", Value::from("function")), ("function", function)];
        if !call.id.is_empty() {
            fields.insert(0, ("id", self.value(&call.id)));
        }
        Value::from_pairs(fields)
    }

    fn json(&self, value: &serde_json::Value) -> Value {
        match value {
            serde_json::Value::Null => Value::from(()),
            serde_json::Value::Bool(yes) => Value::from(*yes),
            serde_json::Value::Number(number) => json_number(number),
            serde_json::Value::String(text) => self.value(text),
            serde_json::Value::Array(items) => {
                Value::from(items.iter().map(|item| self.json(item)).collect::<Vec<_>>())
            }
            serde_json::Value::Object(fields) => Value::from_pairs(
                fields
                    .iter()
                    .map(|(key, field)| (self.text(key, Author::Anyone), self.json(field))),
            ),
        }
    }
}

fn json_number(number: &serde_json::Number) -> Value {
    if let Some(number) = number.as_i64() {
        Value::from(number)
    } else if let Some(number) = number.as_u64() {
        Value::from(number)
    } else {
        Value::from(number.as_f64().unwrap_or(f64::NAN))
    }
}

/// Moves a leading system message into the user message after it, for templates that know no system role.
fn fold_system_message(chat: &Chat) -> Option<Chat> {
    let [system, user, rest @ ..] = chat.messages.as_slice() else { return None };
    if system.role != "system" || user.role != "user" {
        return None;
    }
    let first =
        Message { content: format!("{}\n\n{}", system.content, user.content), ..user.clone() };
    Some(Chat {
        messages: std::iter::once(first).chain(rest.iter().cloned()).collect(),
        ..chat.clone()
    })
}

/// Carries a template's own words through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Says what Python can iterate over: the engine's own test also accepts `none`.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Undefined | String | Bytes | Seq | Map | Iterable)
}

fn raise_exception(message: &str) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised")
        .with_source(Raised(message.to_owned())))
}

fn render_error(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::TemplateRaised { message: message.clone() };
        }
        cause = current.source();
    }
    Error::TemplateFailed { line: error.line().unwrap_or(0), message: describe(error) }
}

fn syntax_error(error: &minijinja::Error) -> Error {
    Error::TemplateSyntax { line: error.line().unwrap_or(0), message: describe(error) }
}

fn describe(error: &minijinja::Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()))
}

/// Replaces the tags that mark what an assistant generated, which only training reads, by ones without effect.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (inner, after) = tag.split_at(close);
        match inner.trim_matches(|character: char| {
            character.is_whitespace() || matches!(character, '-' | '+')
        }) {
            "generation" => out.push_str(&inner.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inner.replace("endgeneration", "endif")),
            _ => out.push_str(inner),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}
