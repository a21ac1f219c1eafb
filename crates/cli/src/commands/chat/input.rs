//! What a line typed in the chat means. Pure: no terminal, no model.

/// Opens and closes a text of several lines.
const QUOTES: &str = "\"\"\"";

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Nothing.
    Empty,
    /// A question.
    Text(String),
    /// The beginning of a text of several lines.
    Block(Block),
    /// Something for the chat itself.
    Command(Command),
}

/// A line that begins with a slash.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Change a setting, or clear it when there is no value.
    Set {
        /// The flag's name without dashes in front.
        name: String,
        /// The rest of the line.
        value: Option<String>,
    },
    /// Show model and settings.
    Show,
    /// Forget the conversation.
    Clear,
    /// List the commands.
    Help,
    /// Leave.
    Bye,
}

/// A text of several lines that is not complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    text: String,
}

impl Block {
    /// Adds a line: the whole text when the line closes it, otherwise the longer block.
    pub(super) fn with_line(mut self, line: &str) -> Result<String, Self> {
        self.text.push('\n');
        if let Some(last) = line.trim_end().strip_suffix(QUOTES) {
            self.text.push_str(last);
            return Ok(self.text.trim_matches('\n').to_owned());
        }
        self.text.push_str(line);
        Err(self)
    }
}

/// Reads one line; the error says what to type instead.
pub(super) fn parse(line: &str) -> Result<Line, String> {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Ok(Line::Empty);
    }
    if let Some(begun) = trimmed.strip_prefix(QUOTES) {
        return Ok(match begun.strip_suffix(QUOTES) {
            Some(whole) if whole.trim().is_empty() => Line::Empty,
            Some(whole) => Line::Text(whole.to_owned()),
            None => Line::Block(Block { text: begun.to_owned() }),
        });
    }
    match trimmed.strip_prefix('/') {
        Some(command) => parse_command(command).map(Line::Command),
        None => Ok(Line::Text(trimmed.to_owned())),
    }
}

fn parse_command(line: &str) -> Result<Command, String> {
    let (word, rest) = split_word(line);
    match (word, rest) {
        ("set", "") => Err("/set needs a name and a value; /show lists the names".to_owned()),
        ("set", rest) => {
            let (name, value) = split_word(rest);
            let name = name.trim_start_matches("--").replace('_', "-");
            Ok(Command::Set { name, value: Some(value.to_owned()).filter(|v| !v.is_empty()) })
        }
        ("show", "") => Ok(Command::Show),
        ("clear", "") => Ok(Command::Clear),
        ("help" | "?", "") => Ok(Command::Help),
        ("bye" | "exit" | "quit", "") => Ok(Command::Bye),
        ("show" | "clear" | "help" | "bye", _) => Err(format!("/{word} takes nothing after it")),
        _ => Err(format!(
            "there is no command /{word}; /help lists them, and {QUOTES}/{word}{QUOTES} sends it as text"
        )),
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

#[cfg(test)]
mod tests {
    use super::{Block, Command, Line, parse};

    fn set(name: &str, value: Option<&str>) -> Line {
        let value = value.map(str::to_owned);
        Line::Command(Command::Set { name: name.to_owned(), value })
    }

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[test]
    fn a_plain_line_is_a_question_without_the_space_around_it() {
        assert_eq!(parse("  Why is the sky blue? "), Ok(text("Why is the sky blue?")));
        assert_eq!(parse("1/2 of 10?"), Ok(text("1/2 of 10?")));
    }

    #[test]
    fn space_alone_is_nothing() {
        assert_eq!(parse(""), Ok(Line::Empty));
        assert_eq!(parse(" \t"), Ok(Line::Empty));
        assert_eq!(parse("\"\"\"\"\"\""), Ok(Line::Empty));
    }

    #[test]
    fn set_takes_a_flag_name_in_any_spelling_and_the_rest_of_the_line() {
        assert_eq!(parse("/set temperature 0.2"), Ok(set("temperature", Some("0.2"))));
        assert_eq!(parse("/set top_k  5"), Ok(set("top-k", Some("5"))));
        assert_eq!(parse("/set --min-p 0.1"), Ok(set("min-p", Some("0.1"))));
        assert_eq!(
            parse("/set system You are a  pirate."),
            Ok(set("system", Some("You are a  pirate.")))
        );
    }

    #[test]
    fn set_without_a_value_clears() {
        assert_eq!(parse("/set seed"), Ok(set("seed", None)));
        assert_eq!(parse("/set seed  "), Ok(set("seed", None)));
    }

    #[test]
    fn commands_stand_alone() {
        assert_eq!(parse("/bye"), Ok(Line::Command(Command::Bye)));
        assert_eq!(parse(" /show "), Ok(Line::Command(Command::Show)));
        assert_eq!(parse("/clear"), Ok(Line::Command(Command::Clear)));
        assert_eq!(parse("/help"), Ok(Line::Command(Command::Help)));
        assert_eq!(parse("/clear all"), Err("/clear takes nothing after it".to_owned()));
    }

    #[test]
    fn an_unknown_command_says_how_to_send_it_as_text() {
        let problem = parse("/etc/hosts what is it").unwrap_err();
        assert!(problem.contains("/etc/hosts") && problem.contains("/help"), "{problem}");
        assert_eq!(parse("\"\"\"/etc/hosts\"\"\""), Ok(text("/etc/hosts")));
    }

    #[test]
    fn a_block_keeps_its_lines_up_to_the_closing_quotes() {
        let Ok(Line::Block(block)) = parse("\"\"\"first") else { panic!("no block") };
        let block = block.with_line("  /set is text here").unwrap_err();
        let block = block.with_line("").unwrap_err();
        let whole = block.with_line("last\"\"\"  ");
        assert_eq!(whole, Ok("first\n  /set is text here\n\nlast".to_owned()));
    }

    #[test]
    fn quotes_on_lines_of_their_own_add_no_empty_lines() {
        let Ok(Line::Block(block)) = parse("\"\"\"") else { panic!("no block") };
        let block: Block = block.with_line("one").unwrap_err();
        let block = block.with_line("two").unwrap_err();
        assert_eq!(block.with_line("\"\"\""), Ok("one\ntwo".to_owned()));
    }
}
