//! Grammars in llama.cpp's notation, written anew in that of Lark.
//!
//! Invariant: the same texts. Every character becomes a token of its own, so that no longest match takes away what
//! another rule needs. What is not understood is refused with its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

/// Deepest nesting of groups.
const DEPTH: usize = 100;

/// Most repetitions that a grammar may spell out.
const REPETITIONS: u32 = 2000;

/// Why writing succeeds.
const GROWS: &str = "a string takes whatever is written to it";

/// Says whether a grammar is in llama.cpp's notation, whose rules are defined by `::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    let defines =
        |line: &str| line.trim_start().trim_start_matches(is_name).trim_start().starts_with("::=");
    text.lines().any(defines)
}

/// Returns the grammar in the notation of Lark, or what is wrong with it and where.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut reader =
        Reader { rest: text, line: 1, depth: 0, names: BTreeMap::new(), defined: BTreeSet::new() };
    let rules = reader.rules().map_err(|reason| format!("line {}: {reason}", reader.line))?;
    for (name, number) in &reader.names {
        if !reader.defined.contains(number) {
            return Err(format!("the rule {name} is named and not defined"));
        }
    }
    match reader.names.get("root") {
        Some(root) => Ok(format!("start: rule_{root}\n{rules}")),
        None => Err("there is no rule root".to_owned()),
    }
}

/// Reads a grammar from its beginning to its end.
struct Reader<'a> {
    rest: &'a str,
    line: usize,
    depth: usize,
    /// The number that stands for each name, which Lark could not spell.
    names: BTreeMap<&'a str, usize>,
    defined: BTreeSet<usize>,
}

impl<'a> Reader<'a> {
    fn rules(&mut self) -> Result<String, String> {
        let mut out = String::new();
        self.skip_space(true);
        while !self.rest.is_empty() {
            let name = self.name()?;
            let number = self.number(name);
            self.skip_space(false);
            self.expect("::=")?;
            self.skip_space(true);
            if !self.defined.insert(number) {
                return Err(format!("the rule {name} is defined a second time"));
            }
            let alternatives = self.alternatives(false)?;
            writeln!(out, "rule_{number}: {alternatives}").expect(GROWS);
            match self.peek() {
                None | Some('\n' | '\r') => self.skip_space(true),
                Some(other) => return Err(format!("{other:?} is not expected")),
            }
        }
        Ok(out)
    }

    /// Reads what stands between bars; in a group, line breaks are space.
    fn alternatives(&mut self, is_group: bool) -> Result<String, String> {
        let mut out = self.sequence(is_group)?;
        while self.peek() == Some('|') {
            self.take();
            self.skip_space(true);
            out += " | ";
            out += &self.sequence(is_group)?;
        }
        Ok(out)
    }

    fn sequence(&mut self, is_group: bool) -> Result<String, String> {
        let mut items = Vec::new();
        loop {
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.take();
                    "/(?s:.)/".to_owned()
                }
                Some('(') => self.group()?,
                Some(first) if is_name(first) => {
                    let name = self.name()?;
                    format!("rule_{}", self.number(name))
                }
                _ => break,
            };
            items.push(format!("{item}{}", self.repetition()?));
            self.skip_space(is_group);
        }
        Ok(if items.is_empty() { "\"\"".to_owned() } else { items.join(" ") })
    }

    fn group(&mut self) -> Result<String, String> {
        self.take();
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("groups are nested deeper than {DEPTH}"));
        }
        self.skip_space(true);
        let inner = self.alternatives(true)?;
        self.expect(")")?;
        self.depth -= 1;
        Ok(format!("({inner})"))
    }

    /// Returns a literal as one token for each of its characters.
    fn literal(&mut self) -> Result<String, String> {
        self.take();
        let mut characters = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err("a literal has no end".to_owned()),
                Some('"') => {
                    self.take();
                    break;
                }
                Some(_) => {
                    let character = self.character()?;
                    characters.push(Value::from(character.to_string()).to_string());
                }
            }
        }
        Ok(match characters.as_slice() {
            [] => "\"\"".to_owned(),
            [one] => one.clone(),
            _ => format!("({})", characters.join(" ")),
        })
    }

    fn class(&mut self) -> Result<String, String> {
        self.take();
        let mut out = "/[".to_owned();
        if self.peek() == Some('^') {
            self.take();
            out.push('^');
        }
        let empty = out.len();
        while self.peek() != Some(']') {
            let first = self.character()?;
            write!(out, "\\x{{{:x}}}", u32::from(first)).expect(GROWS);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.take();
                let last = self.character()?;
                if last < first {
                    return Err(format!("{first:?} to {last:?} is no range"));
                }
                write!(out, "-\\x{{{:x}}}", u32::from(last)).expect(GROWS);
            }
        }
        self.take();
        if out.len() == empty {
            return Err("a class of characters is empty".to_owned());
        }
        Ok(out + "]/")
    }

    /// Reads one character, which may be written as an escape.
    fn character(&mut self) -> Result<char, String> {
        let Some(first) = self.take() else { return Err("the grammar ends too early".to_owned()) };
        if first == '\n' {
            return Err("a line ends too early".to_owned());
        }
        if first != '\\' {
            return Ok(first);
        }
        let digits = match self.take() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(same @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/')) => return Ok(same),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => return Err(format!("\\{} is no escape", other.unwrap_or(' '))),
        };
        let Some((code, rest)) = self.rest.split_at_checked(digits) else {
            return Err("an escape ends too early".to_owned());
        };
        self.rest = rest;
        u32::from_str_radix(code, 16)
            .ok()
            .and_then(char::from_u32)
            .ok_or_else(|| format!("{code} is no character"))
    }

    fn repetition(&mut self) -> Result<String, String> {
        let Some(mark) = self.peek().filter(|mark| "*+?{".contains(*mark)) else {
            return Ok(String::new());
        };
        self.take();
        if mark != '{' {
            return Ok(mark.to_string());
        }
        let Some((inner, rest)) = self.rest.split_once('}') else {
            return Err("a repetition has no end".to_owned());
        };
        let count = |text: &str| match text.trim().parse::<u32>() {
            Ok(count) if count <= REPETITIONS => Ok(count),
            _ => Err(format!("{inner:?} is no repetition of at most {REPETITIONS}")),
        };
        let out = match inner.split_once(',') {
            None => format!("{{{}}}", count(inner)?),
            Some((least, "")) => format!("{{{},}}", count(least)?),
            Some((least, most)) => {
                let (least, most) = (count(least)?, count(most)?);
                if most < least {
                    return Err(format!("{inner:?} is no repetition"));
                }
                format!("{{{least},{most}}}")
            }
        };
        self.rest = rest;
        Ok(out)
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let end = self.rest.find(|it| !is_name(it)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            let found: String = self.rest.chars().take(10).collect();
            return Err(format!("a rule's name is expected, not {found:?}"));
        }
        self.rest = rest;
        Ok(name)
    }

    fn number(&mut self, name: &'a str) -> usize {
        let next = self.names.len();
        *self.names.entry(name).or_insert(next)
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(format!("{text:?} is expected")),
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        self.line += usize::from(character == '\n');
        Some(character)
    }

    /// Goes over spaces and comments, and over line breaks if they are space here.
    fn skip_space(&mut self, over_lines: bool) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => {}
                Some('\r' | '\n') if over_lines => {}
                Some('#') => {
                    while self.peek().is_some_and(|it| it != '\n') {
                        self.take();
                    }
                    continue;
                }
                _ => return,
            }
            self.take();
        }
    }
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_construct_has_its_counterpart() {
        let text = "# An expression.\nroot ::= (term \"+\" | \"é\\n\") term{1,3} # the end\n  \nterm  ::= [a-c\\]\\x41^-] |\n  [^\\n]? | .* other-1\nother-1 ::= ( \"x\"\n | \"\" )+\n";
        assert_eq!(
            to_lark(text).unwrap(),
            "start: rule_0\n\
             rule_0: (rule_1 \"+\" | (\"é\" \"\\n\")) rule_1{1,3}\n\
             rule_1: /[\\x{61}-\\x{63}\\x{5d}\\x{41}\\x{5e}\\x{2d}]/ | /[^\\x{a}]/? | /(?s:.)/* rule_2\n\
             rule_2: (\"x\" | \"\")+\n"
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, reason) in [
            ("root ::= this is (not valid", "line 1: \")\" is expected"),
            ("root ::= a", "the rule a is named and not defined"),
            ("a ::= \"b\"", "there is no rule root"),
            ("root ::= \"a\nb ::= \"c\"", "line 1: a literal has no end"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule root is defined a second time"),
            ("root ::= [z-a]", "line 1: 'z' to 'a' is no range"),
            ("root ::= []", "line 1: a class of characters is empty"),
            ("root ::= [a", "line 1: the grammar ends too early"),
            ("root ::= \"\\q\"", "line 1: \\q is no escape"),
            ("root ::= \"\\x4\"", "line 1: 4\" is no character"),
            ("root ::= \"a\"{3,1}", "line 1: \"3,1\" is no repetition"),
            ("root ::= \"a\"{99999}", "line 1: \"99999\" is no repetition of at most 2000"),
            ("root ::= \"a\" )", "line 1: ')' is not expected"),
            ("::= \"a\"", "line 1: a rule's name is expected, not \"::= \\\"a\\\"\""),
        ] {
            assert_eq!(to_lark(text).unwrap_err(), reason, "{text}");
        }
        let deep = format!("root ::= {}", "(".repeat(200));
        assert_eq!(to_lark(&deep).unwrap_err(), "line 1: groups are nested deeper than 100");
    }
}
