//! The only place that prints. Answers and documents go to standard output, all else to standard
//! error; a reader that has gone away is not an error.

use std::{
    borrow::Cow,
    io::{self, IsTerminal as _, Write as _},
};

use serde::Serialize;

use crate::{config, failure::Failure};

/// What the two output streams are connected to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    answers_are_seen: bool,
    has_colour: bool,
}

impl Output {
    /// Looks at the streams and the environment.
    pub(crate) fn detect() -> Self {
        let answers_are_seen = io::stdout().is_terminal();
        let has_colour = config::colour_wish().unwrap_or(answers_are_seen);
        Self { answers_are_seen, has_colour }
    }

    /// Tells whether a person sees standard output as it comes.
    pub(crate) fn is_terminal(self) -> bool {
        self.answers_are_seen
    }

    /// Writes a piece of an answer, visible at once.
    ///
    /// On a terminal control characters are made visible: a model's text must not steer it.
    pub(crate) fn answer(self, text: &str) -> Result<(), Failure> {
        let text = if self.answers_are_seen { visible(text) } else { Cow::Borrowed(text) };
        write(&text)
    }

    /// Writes one line.
    pub(crate) fn line(self, text: &str) -> Result<(), Failure> {
        self.answer(&format!("{text}\n"))
    }

    /// Writes a heading line.
    pub(crate) fn heading(self, text: &str) -> Result<(), Failure> {
        let text = visible(text);
        if self.has_colour { write(&format!("\x1b[1m{text}\x1b[0m\n")) } else { self.line(&text) }
    }
}

/// Writes one JSON document on one line.
pub(crate) fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(document)?;
    text.push('\n');
    Ok(write(&text)?)
}

/// Tells the user something that is not part of the answer.
pub(crate) fn note(text: &str) {
    write_error(&format!("{}\n", visible(text)));
}

/// Tells the user why the command failed; an end that is no failure is told as what it is.
pub(crate) fn report_error(error: &anyhow::Error) {
    match error.downcast_ref::<Failure>() {
        Some(Failure::OutputClosed | Failure::Told { .. }) => {}
        Some(Failure::CommandLine(error)) if !error.use_stderr() => {
            // Help that was asked for; there is nobody to tell if it cannot be written.
            drop(write(&error.render().to_string()));
        }
        Some(Failure::CommandLine(error)) => {
            let text = error.render().to_string();
            match text.strip_prefix("error: ") {
                Some(problem) => write_error(&format!("toko: {problem}")),
                None => write_error(&text),
            }
        }
        Some(Failure::Interrupted) => {
            // Leaves the line on which the terminal wrote ^C.
            if io::stderr().is_terminal() {
                write_error("\n");
            }
        }
        failure => {
            write_error(&format!("toko: {}\n", one_line(&format!("{error:#}"))));
            if let Some(Failure::Refused(refusal)) = failure {
                refusal.lines().iter().for_each(|line| note(line));
            }
        }
    }
}

/// Prints what the libraries log on standard error: warnings and worse, or what `RUST_LOG` asks for.
pub(crate) fn log_to_standard_error() {
    let environment = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(environment).format_timestamp(None).init();
}

/// Makes a panic one line on standard error that asks for a report.
pub(crate) fn report_panics_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place =
            panic.location().map_or_else(|| "unknown place".to_owned(), ToString::to_string);
        write_error(&format!(
            "toko: internal error at {place}: {}; this is a bug in toko, please report this line and the command\n",
            one_line(message)
        ));
    }));
}

/// Replaces control characters, tab and newline excepted, by their visible pictures.
fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if is_hidden(c) { picture(c) } else { c }).collect())
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { picture(c) } else { c }).collect()
}

/// Returns the control pictures of Unicode: U+2400 and on, U+2421 for delete.
fn picture(control: char) -> char {
    match u32::from(control) {
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or(char::REPLACEMENT_CHARACTER),
        0x7f => '\u{2421}',
        _ => char::REPLACEMENT_CHARACTER,
    }
}

fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::OutputFailed(error),
        }
    })
}

/// Standard error is the last resort: when it is gone too there is nobody left to tell.
fn write_error(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::{one_line, visible};

    #[test]
    fn control_characters_cannot_steer_the_terminal() {
        assert_eq!(visible("a\x1b[31mb\u{9b}c\x07\x7f"), "a␛[31mb\u{fffd}c␇␡");
    }

    #[test]
    fn lines_tabs_and_other_scripts_stay_as_they_are() {
        assert_eq!(visible("a\tb\nÜ 日本 😀"), "a\tb\nÜ 日本 😀");
    }

    #[test]
    fn an_error_stays_on_one_line_whatever_a_file_puts_into_it() {
        assert_eq!(one_line("key a\r\nb"), "key a␍␊b");
    }
}
