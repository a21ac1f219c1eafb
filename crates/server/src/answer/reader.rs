//! Splits the text of one choice into pieces while it comes.
//!
//! Invariant: the pieces depend on the text alone and not on how it was cut. What turns out to be no thought and no
//! call is content; only white space at the edges of marks is left out.

use std::mem;

use toko_engine::FinishReason;

use super::call::CallScanner;
use super::reading::{Calls, Limit, Reading, Syntax, Thoughts};
use super::{End, Piece};
use crate::ids;

/// What stands before and behind a part of an answer.
pub(super) struct Marks {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// Encloses what the model thinks before it answers.
pub(super) const THOUGHT: Marks = Marks { open: "<think>", close: "</think>" };

/// Encloses a call in [`Syntax::Tagged`].
pub(super) const CALL: Marks = Marks { open: "<tool_call>", close: "</tool_call>" };

/// May stand before calls in [`Syntax::Bare`].
pub(super) const CODE: &str = "<|python_tag|>";

/// Splits the text of one choice into pieces while it comes.
#[derive(Debug)]
pub(crate) struct Reader {
    calls: Option<Calls>,
    place: Place,
    /// Text that was not told, because it may be or border on a mark.
    held: String,
    /// Calls that were told.
    told_calls: usize,
    reasoning_tokens: usize,
}

#[derive(Debug)]
enum Place {
    /// Nothing but content comes.
    Plain,
    /// Before everything, where thoughts may begin.
    Start,
    /// At the beginning of thoughts that the prompt has opened.
    Opened,
    /// Inside thoughts, of which something was told or not.
    Thoughts(Told),
    /// Behind the thoughts, where content or a bare call begins.
    Answer(Told),
    /// Inside content, of which something was told or not.
    Content(Told),
    /// Inside what may be a call; `raw` is its text up to now until that is certain.
    Call { raw: Option<String>, scanner: Box<CallScanner> },
    /// Behind a call.
    AfterCall,
    /// Behind all that is told.
    Over,
}

/// Whether white space still is at the edge of its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Something,
}

/// Whether the held text suffices to go on.
enum Step {
    Again,
    NeedsMore,
}

impl Reader {
    pub(crate) fn new(reading: &Reading) -> Self {
        let (place, calls) = match reading {
            Reading::Plain => (Place::Plain, None),
            Reading::Marked { thoughts, calls } => {
                let place = match thoughts {
                    Thoughts::Unknown => Place::Answer(Told::Something),
                    Thoughts::Possible => Place::Start,
                    Thoughts::Begun => Place::Opened,
                };
                (place, calls.clone())
            }
        };
        Self { calls, place, held: String::new(), told_calls: 0, reasoning_tokens: 0 }
    }

    /// Takes the text of one more token and returns what is certain by now.
    pub(crate) fn push(&mut self, text: String) -> Vec<Piece> {
        match self.place {
            Place::Plain if text.is_empty() => return Vec::new(),
            Place::Plain => return vec![Piece::Content(text)],
            Place::Opened | Place::Thoughts(_) => self.reasoning_tokens += 1,
            _ => {}
        }
        self.held.push_str(&text);
        let mut pieces = Vec::new();
        while matches!(self.step(&mut pieces), Step::Again) {}
        pieces
    }

    /// Returns what was still held back at the end, and how the answer ended.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> (Vec<Piece>, End) {
        let mut pieces = Vec::new();
        let held = mem::take(&mut self.held);
        match mem::replace(&mut self.place, Place::Over) {
            Place::Opened | Place::Thoughts(_) => {
                tell(&mut pieces, Piece::Reasoning(held.trim_end().to_owned()));
            }
            Place::Answer(Told::Nothing) | Place::Content(Told::Nothing)
                if held.trim().is_empty() => {}
            Place::Content(_) if self.told_calls > 0 => {
                tell(&mut pieces, Piece::Content(held.trim_end().to_owned()));
            }
            Place::Start | Place::Answer(_) | Place::Content(_) => {
                tell(&mut pieces, Piece::Content(held));
            }
            Place::Call { raw: Some(raw), .. } => tell(&mut pieces, Piece::Content(raw)),
            // What follows a call was either content already or is a part of a mark.
            Place::Plain | Place::Call { raw: None, .. } | Place::AfterCall | Place::Over => {}
        }
        let end = match reason {
            FinishReason::Stop if self.told_calls > 0 => End::ToolCalls,
            FinishReason::Stop => End::Stop,
            FinishReason::Length => End::Length,
        };
        (pieces, end)
    }

    /// Returns how many tokens belonged to thoughts.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Goes on by one part of the held text.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> Step {
        match self.place {
            Place::Start => self.step_start(Place::Answer(Told::Something)),
            // Some models write the mark although the prompt has it.
            Place::Opened => self.step_start(Place::Thoughts(Told::Nothing)),
            Place::Thoughts(told) => self.step_thoughts(told, pieces),
            Place::Answer(told) => self.step_answer(told),
            Place::Content(told) => self.step_content(told, pieces),
            Place::Call { .. } => self.step_call(pieces),
            Place::AfterCall => self.step_after_call(),
            Place::Plain | Place::Over => {
                self.held.clear();
                Step::NeedsMore
            }
        }
    }

    /// Goes on with thoughts where they begin, and else with `other`.
    fn step_start(&mut self, other: Place) -> Step {
        match skip(&self.held, THOUGHT.open) {
            Found::At(end) => {
                self.held.drain(..end);
                self.place = Place::Thoughts(Told::Nothing);
            }
            Found::Maybe => return Step::NeedsMore,
            Found::Not => self.place = other,
        }
        Step::Again
    }

    fn step_thoughts(&mut self, told: Told, pieces: &mut Vec<Piece>) -> Step {
        if told == Told::Nothing {
            trim_start(&mut self.held);
        }
        let (text, has_ended) = self.take_until(THOUGHT.close);
        let text = text.trim_end();
        if !text.is_empty() {
            tell(pieces, Piece::Reasoning(text.to_owned()));
            self.place = Place::Thoughts(Told::Something);
        }
        if !has_ended {
            return Step::NeedsMore;
        }
        self.place = Place::Answer(Told::Nothing);
        Step::Again
    }

    fn step_answer(&mut self, told: Told) -> Step {
        if self.syntax() == Some(Syntax::Bare) {
            let begin = match skip(&self.held, CODE) {
                Found::At(end) => end,
                Found::Maybe => return Step::NeedsMore,
                Found::Not => 0,
            };
            match skip(&self.held[begin..], "{") {
                Found::At(end) => {
                    let raw = self.held.drain(..begin + end - 1).collect();
                    self.begin_call(raw);
                    return Step::Again;
                }
                Found::Maybe => return Step::NeedsMore,
                Found::Not => {}
            }
        }
        self.place = Place::Content(told);
        Step::Again
    }

    fn step_content(&mut self, told: Told, pieces: &mut Vec<Piece>) -> Step {
        if told == Told::Nothing {
            trim_start(&mut self.held);
        }
        let has_calls = self.syntax() == Some(Syntax::Tagged);
        let (text, has_ended) =
            if has_calls { self.take_until(CALL.open) } else { (mem::take(&mut self.held), false) };
        let (content, space) =
            if has_ended { text.split_at(text.trim_end().len()) } else { (&*text, "") };
        if !content.is_empty() {
            tell(pieces, Piece::Content(content.to_owned()));
            self.place = Place::Content(Told::Something);
        }
        if !has_ended {
            return Step::NeedsMore;
        }
        self.begin_call(format!("{space}{}", CALL.open));
        Step::Again
    }

    fn step_call(&mut self, pieces: &mut Vec<Piece>) -> Step {
        let Place::Call { raw, scanner } = &mut self.place else { return Step::NeedsMore };
        let mut read_bytes = 0;
        for character in self.held.chars() {
            if !scanner.push(character) {
                self.held.drain(..read_bytes);
                self.give_up_call(pieces);
                return Step::Again;
            }
            read_bytes += character.len_utf8();
            if let Some(raw) = raw {
                raw.push(character);
            }
            if let Some(name) = scanner.take_start() {
                let is_offered = |calls: &Calls| calls.names.contains(&name);
                // Without marks around it, only its name tells a call from an answer in JSON.
                if self
                    .calls
                    .as_ref()
                    .is_some_and(|calls| calls.syntax == Syntax::Bare && !is_offered(calls))
                {
                    self.held.drain(..read_bytes);
                    self.give_up_call(pieces);
                    return Step::Again;
                }
                *raw = None;
                let id = format!("call_{}", ids::unique());
                pieces.push(Piece::CallStart { index: self.told_calls, id, name });
                self.told_calls += 1;
            }
            if raw.is_none() {
                let fragment = scanner.take_arguments();
                tell(pieces, Piece::CallArguments { index: self.told_calls - 1, fragment });
            }
            if scanner.is_complete() {
                self.held.drain(..read_bytes);
                match raw {
                    None => self.end_call(),
                    Some(_) => self.give_up_call(pieces),
                }
                return Step::Again;
            }
        }
        self.held.clear();
        Step::NeedsMore
    }

    fn begin_call(&mut self, raw: String) {
        self.place = Place::Call { raw: Some(raw), scanner: Box::default() };
    }

    fn end_call(&mut self) {
        let is_only = self.calls.as_ref().is_some_and(|calls| calls.limit == Limit::One);
        self.place = if is_only { Place::Over } else { Place::AfterCall };
    }

    /// Goes on behind what cannot be read as a call any further: as content, unless it was told as a call.
    fn give_up_call(&mut self, pieces: &mut Vec<Piece>) {
        match mem::replace(&mut self.place, Place::Content(Told::Something)) {
            Place::Call { raw: Some(raw), .. } => tell(pieces, Piece::Content(raw)),
            _ => self.end_call(),
        }
    }

    fn step_after_call(&mut self) -> Step {
        let (mark, is_bare) = match self.syntax() {
            Some(Syntax::Bare) => (";", true),
            _ => (CALL.close, false),
        };
        match skip(&self.held, mark) {
            Found::At(end) => {
                self.held.drain(..end);
            }
            Found::Maybe => return Step::NeedsMore,
            Found::Not => {}
        }
        self.place =
            if is_bare { Place::Answer(Told::Nothing) } else { Place::Content(Told::Nothing) };
        Step::Again
    }

    fn syntax(&self) -> Option<Syntax> {
        self.calls.as_ref().map(|calls| calls.syntax)
    }

    /// Takes the held text before the mark, which is dropped, and says whether it was there; without it, takes what
    /// cannot belong to the mark or to the white space before it.
    fn take_until(&mut self, mark: &str) -> (String, bool) {
        if let Some(at) = self.held.find(mark) {
            let text = self.held.drain(..at).collect();
            self.held.drain(..mark.len());
            return (text, true);
        }
        let begun = (1..mark.len()).rev().find(|&bytes| self.held.ends_with(&mark[..bytes]));
        let text = &self.held[..self.held.len() - begun.unwrap_or(0)];
        let sure_bytes = text.trim_end().len();
        (self.held.drain(..sure_bytes).collect(), false)
    }
}

/// Appends a piece to the last one if both are of one kind; empty pieces are none.
fn tell(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (_, Piece::Content(text) | Piece::Reasoning(text)) if text.is_empty() => {}
        (_, Piece::CallArguments { fragment, .. }) if fragment.is_empty() => {}
        (Some(Piece::Content(last)), Piece::Content(text))
        | (Some(Piece::Reasoning(last)), Piece::Reasoning(text)) => last.push_str(&text),
        (
            Some(Piece::CallArguments { index: last_index, fragment: last }),
            Piece::CallArguments { index, fragment },
        ) if *last_index == index => last.push_str(&fragment),
        (_, piece) => pieces.push(piece),
    }
}

enum Found {
    /// The mark ends there.
    At(usize),
    /// More text decides.
    Maybe,
    Not,
}

/// Looks for a mark behind white space.
fn skip(text: &str, mark: &str) -> Found {
    let rest = text.trim_start();
    if rest.starts_with(mark) {
        Found::At(text.len() - rest.len() + mark.len())
    } else if mark.starts_with(rest) {
        Found::Maybe
    } else {
        Found::Not
    }
}

fn trim_start(text: &mut String) {
    let space_bytes = text.len() - text.trim_start().len();
    text.drain(..space_bytes);
}

#[cfg(test)]
mod tests;
