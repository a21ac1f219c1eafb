//! One tool call as models write it: a JSON object with a name and the arguments, read character by character.
//!
//! Invariant: the fragments, joined, are exactly the text of the arguments' object. Knows no marks around the object.

use std::mem;

/// Most bytes of a call that are held back before it is certain that it is one.
const HEAD_LIMIT_BYTES: usize = 16 << 10;

/// Reads one call.
#[derive(Debug, Default)]
pub(super) struct CallScanner {
    place: Place,
    depth: usize,
    string: StringState,
    key: String,
    /// The string being read, with its quotes, unless it is an argument.
    quoted: String,
    /// `None` again once it was told.
    name: Option<String>,
    /// What is known of the arguments and was not told.
    arguments: String,
    has_arguments: bool,
    has_started: bool,
    held_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    BeforeObject,
    /// Before a key, or before the end of an object that has no entry yet.
    BeforeFirstKey,
    BeforeKey,
    InKey,
    AfterKey,
    BeforeValue,
    InName,
    InArguments,
    /// In a string that says nothing about the call.
    InOther,
    AfterValue,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum StringState {
    #[default]
    Outside,
    Inside,
    Escaped,
}

impl CallScanner {
    /// Takes the next character; says whether it may stand there.
    pub(super) fn push(&mut self, character: char) -> bool {
        if !self.has_started {
            self.held_bytes += character.len_utf8();
        }
        self.held_bytes <= HEAD_LIMIT_BYTES && self.accepts(character)
    }

    /// Returns the function's name, once, as soon as it is certain that this is a call.
    pub(super) fn take_start(&mut self) -> Option<String> {
        // An object that ends without arguments is a call that needs none.
        let is_certain = self.has_arguments || self.is_complete();
        let name = self.name.take_if(|_| is_certain)?;
        self.has_started = true;
        if !self.has_arguments {
            self.arguments.push_str("{}");
        }
        Some(name)
    }

    /// Says whether the object has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.place == Place::Done
    }

    /// Returns the arguments that were read since the last time.
    pub(super) fn take_arguments(&mut self) -> String {
        mem::take(&mut self.arguments)
    }

    /// Moves on by one character; says whether it may stand there.
    fn accepts(&mut self, character: char) -> bool {
        use Place as P;
        match (self.place, character) {
            (P::InKey | P::InName | P::InOther, _) => return self.accepts_quoted(character),
            (P::InArguments, _) => return self.accepts_argument(character),
            (P::Done, _) => return false,
            (_, ' ' | '\t' | '\n' | '\r') => {}
            (P::BeforeObject, '{') => self.place = P::BeforeFirstKey,
            (P::BeforeFirstKey | P::BeforeKey, '"') => self.begin_quoted(P::InKey),
            (P::AfterKey, ':') => self.place = P::BeforeValue,
            (P::BeforeValue, _) => return self.begins_value(character),
            (P::AfterValue, ',') => self.place = P::BeforeKey,
            (P::AfterValue, '}') => self.place = P::Done,
            _ => return false,
        }
        true
    }

    fn begin_quoted(&mut self, place: Place) {
        self.place = place;
        self.string = StringState::Inside;
        self.quoted.clear();
        self.quoted.push('"');
    }

    fn begins_value(&mut self, character: char) -> bool {
        match (self.key.as_str(), character) {
            ("name", '"') if self.name.is_none() && !self.has_started => {
                self.begin_quoted(Place::InName);
                true
            }
            ("arguments" | "parameters", '{') if !self.has_arguments => {
                self.has_arguments = true;
                self.place = Place::InArguments;
                self.accepts_argument(character)
            }
            ("type" | "id", '"') => {
                self.begin_quoted(Place::InOther);
                true
            }
            _ => false,
        }
    }

    /// Reads a string that is no argument to its closing quote.
    fn accepts_quoted(&mut self, character: char) -> bool {
        self.quoted.push(character);
        self.step_string(character);
        if self.string != StringState::Outside {
            return true;
        }
        let Ok(text) = serde_json::from_str::<String>(&self.quoted) else { return false };
        match self.place {
            Place::InKey => {
                self.key = text;
                self.place = Place::AfterKey;
                return true;
            }
            Place::InName if text.is_empty() => return false,
            Place::InName => self.name = Some(text),
            _ => {}
        }
        self.place = Place::AfterValue;
        true
    }

    /// Reads the arguments to the bracket that closes them.
    fn accepts_argument(&mut self, character: char) -> bool {
        if self.string == StringState::Outside {
            match character {
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth -= 1,
                // No JSON has it here, and marks begin with it.
                '<' => return false,
                _ => {}
            }
            if self.depth == 0 {
                self.place = Place::AfterValue;
            }
        }
        self.step_string(character);
        self.arguments.push(character);
        true
    }

    fn step_string(&mut self, character: char) {
        self.string = match (self.string, character) {
            (StringState::Outside, '"') | (StringState::Escaped, _) => StringState::Inside,
            (StringState::Outside, _) | (StringState::Inside, '"') => StringState::Outside,
            (StringState::Inside, '\\') => StringState::Escaped,
            (StringState::Inside, _) => StringState::Inside,
        };
    }
}
