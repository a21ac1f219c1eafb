//! From what a request demands of an answer to the grammar that holds the answer to it.
//!
//! Invariant: whatever the grammar allows is read back by [`super::reader`] as what was demanded. Where a model may think
//! first, it still may.

use serde_json::{Value, json};
use toko_engine::{Constraint, Form};

use super::reader::{CALL, CODE, THOUGHT};
use super::reading::{Calls, Limit, Reading, Syntax, Thoughts};
use crate::tools::{Choice, Tool, Tools};

/// Most calls of an answer that is held to them: small models would go on without end.
const CALLS: usize = 32;

/// Returns what holds an answer to the form and to the rules of its calls, if anything has to.
pub(super) fn constraint(
    reading: &Reading,
    form: Option<Form>,
    tools: Option<&Tools>,
) -> Option<Constraint> {
    let mut lark = Lark { grammar: String::new(), parts: Vec::new() };
    let body = if let (Reading::Marked { calls: Some(calls), .. }, Some(tools)) = (reading, tools) {
        match (tools.choice(), form) {
            (Choice::Required | Choice::Named(_), _) => {
                lark.calls(calls, tools);
                "calls"
            }
            (_, Some(form)) => {
                lark.calls(calls, tools);
                lark.part("answer", form);
                "(calls | @answer)"
            }
            (_, None) if tools.offered().any(|tool| tool.strict) => {
                lark.text_and_calls(calls, tools);
                "free"
            }
            (_, None) => return None,
        }
    } else {
        lark.part("answer", form?);
        "@answer"
    };
    let thoughts = lark.thoughts(reading.thoughts());
    lark.line(&format!("start: {thoughts}{body}"));
    Some(Constraint { grammar: lark.grammar, parts: lark.parts })
}

/// A grammar that is being written.
struct Lark {
    grammar: String,
    parts: Vec<(String, Form)>,
}

impl Lark {
    fn line(&mut self, line: &str) {
        self.grammar.push_str(line);
        self.grammar.push('\n');
    }

    fn part(&mut self, name: &str, form: Form) {
        self.parts.push((name.to_owned(), form));
    }

    /// Writes what comes before the answer and returns how a rule asks for it.
    fn thoughts(&mut self, thoughts: Thoughts) -> &'static str {
        let (open, asked) = match thoughts {
            Thoughts::Unknown => return "",
            Thoughts::Possible => (quoted(THOUGHT.open), "THOUGHTS? "),
            Thoughts::Begun => (String::new(), "THOUGHTS "),
        };
        self.line(&format!("THOUGHTS: {open} THOUGHT {} /[ \\n]{{0,2}}/", quoted(THOUGHT.close)));
        self.line(&format!("THOUGHT: {}", without("(?s:.*)", THOUGHT.close)));
        asked
    }

    /// Writes the rule `calls` for an answer that is calls and nothing else.
    fn calls(&mut self, calls: &Calls, tools: &Tools) {
        self.call("call", "", calls.syntax, tools);
        let separator = match calls.syntax {
            Syntax::Tagged => "\n",
            Syntax::Bare => "; ",
        };
        match limit(calls, tools) {
            Limit::One => self.line("calls: call"),
            Limit::Any => {
                let further = CALLS - 1;
                self.line(&format!("calls: call ({} call){{0,{further}}}", quoted(separator)));
            }
        }
    }

    /// Writes the rule `free` for text in which calls are legal.
    fn text_and_calls(&mut self, calls: &Calls, tools: &Tools) {
        match calls.syntax {
            Syntax::Bare => {
                self.calls(calls, tools);
                let code = CODE.replace('|', "\\|");
                self.line(&format!("TEXT: /[^{{\\s](?s:.*)/ & ~/{code}(?s:.*)/"));
                self.line("free: calls | TEXT");
            }
            Syntax::Tagged => {
                // What opens a call belongs to the text before it: nothing may come between.
                let opening = format!("{}\n{{\"name\": \"", CALL.open);
                self.line(&format!("TEXT: {}", without("(?s:.+)", CALL.open)));
                self.line(&format!("BEFORE: {}", without("(?s:.*)", CALL.open)));
                self.line(&format!("OPEN: BEFORE {}", quoted(&opening)));
                self.call("rest", &opening, calls.syntax, tools);
                match limit(calls, tools) {
                    Limit::One => self.line("free: OPEN rest | TEXT"),
                    Limit::Any => self.line(&format!("free: (OPEN rest){{0,{CALLS}}} TEXT?")),
                }
            }
        }
    }

    /// Writes a rule for one call of any function, without the `opening` that stands before it.
    fn call(&mut self, rule: &str, opening: &str, syntax: Syntax, tools: &Tools) {
        let mut alternatives = Vec::new();
        for (index, tool) in tools.offered().enumerate() {
            let (head, tail) = match syntax {
                Syntax::Tagged => (
                    format!("{}\n{{\"name\": \"{}\", \"arguments\": ", CALL.open, tool.name),
                    format!("}}\n{}", CALL.close),
                ),
                Syntax::Bare => {
                    (format!("{{\"name\": \"{}\", \"parameters\": ", tool.name), "}".to_owned())
                }
            };
            let head = quoted(head.strip_prefix(opening).unwrap_or(&head));
            alternatives.push(format!("{head} @arguments_{index} {}", quoted(&tail)));
            let is_held = tool.strict || *tools.choice() != Choice::Auto;
            self.part(&format!("arguments_{index}"), Form::Json(arguments(tool, is_held)));
        }
        self.line(&format!("{rule}: {}", alternatives.join(" | ")));
    }
}

/// How many calls the answer may have.
fn limit(calls: &Calls, tools: &Tools) -> Limit {
    match tools.choice() {
        Choice::Named(_) => Limit::One,
        _ => calls.limit,
    }
}

/// Returns the schema of a call's arguments, which are an object in any case.
fn arguments(tool: &Tool, is_held: bool) -> Value {
    let Some(Value::Object(parameters)) = tool.parameters.as_ref().filter(|_| is_held) else {
        return match tool.parameters {
            None => json!({"type": "object", "additionalProperties": false}),
            Some(_) => json!({"type": "object"}),
        };
    };
    let mut schema = parameters.clone();
    schema.insert("type".to_owned(), json!("object"));
    Value::Object(schema)
}

/// A string of Lark is one of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A terminal for what matches `pattern` and has `mark` nowhere in it.
fn without(pattern: &str, mark: &str) -> String {
    let mark = mark.replace('/', "\\/");
    format!("/{pattern}/ & ~/(?s:.*){mark}(?s:.*)/")
}

#[cfg(test)]
mod tests;
