//! The chat on a terminal, through a pseudo-terminal as a person would use it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use tempfile::TempDir;

use crate::command::{golden_answer, run, toko};

/// Only a bound against hanging; nothing waits for it when things go well.
const PATIENCE: Duration = Duration::from_mins(2);

const PROMPT: &str = ">>> ";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A chat and the terminal on which it runs.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    home: TempDir,
}

impl Terminal {
    fn start(arguments: &[&str]) -> Self {
        Self::start_at(tempfile::tempdir().unwrap(), arguments)
    }

    /// Starts a chat in a session of its own, so that its terminal can interrupt it.
    fn start_at(home: TempDir, arguments: &[&str]) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let end: OwnedFd =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let program = toko(&["run", "--temperature", "0"]);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(program.get_program()).args(program.get_args());
        command.args(arguments).env("HOME", home.path()).env("TERM", "xterm").env_remove("COLUMNS");
        command.env_remove("XDG_STATE_HOME");
        command.stdin(end.try_clone().unwrap()).stdout(end.try_clone().unwrap()).stderr(end);
        let child = command.spawn().unwrap();
        let mut reader = File::from(keyboard.try_clone().unwrap());
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last process that has the terminal open ends this with an error.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut terminal =
            Self { child, keyboard: keyboard.into(), screen, seen: String::new(), home };
        terminal.wait_for(PROMPT);
        terminal
    }

    /// Types keys.
    fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line and returns what is on the screen up to the next prompt.
    fn enter(&mut self, line: &str) -> String {
        self.type_keys(line);
        self.type_keys("\r");
        // The line editor draws its prompt again while a line is typed.
        self.wait_for(&format!("{line}\r\n"));
        self.wait_for(PROMPT)
    }

    /// Waits until `text` is seen and returns everything before it since the last time.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let shown = plain(&self.seen);
            if let Some((before, _)) = shown.split_once(text) {
                let before = before.to_owned();
                shown[before.len() + text.len()..].clone_into(&mut self.seen);
                return before;
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{error} while waiting for {text:?}; on screen: {shown:?}"),
            }
        }
    }

    /// Waits for the chat's end and returns its exit code.
    fn end(mut self) -> (Option<i32>, TempDir) {
        while self.screen.recv_timeout(PATIENCE).is_ok() {}
        (self.child.wait().unwrap().code(), self.home)
    }
}

/// Removes escape sequences: what is left is what a person reads.
fn plain(screen: &str) -> String {
    let mut text = String::new();
    let mut chars = screen.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {},
            _ => text.push(c),
        }
    }
    text
}

#[test]
fn a_question_is_answered_and_ctrl_d_leaves() {
    let mut terminal = Terminal::start(&[]);
    let question = "What is the capital of France?";
    let answer = terminal.enter(question);
    assert_eq!(answer.trim(), golden_answer(question));
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn settings_are_changed_checked_and_shown() {
    let mut terminal = Terminal::start(&[]);
    let refused = terminal.enter("/set temperature 9");
    assert!(refused.contains("must be a number from 0 to 2"), "{refused}");
    assert_eq!(terminal.enter("/set max-tokens 3").trim(), "");
    let shown = terminal.enter("/show");
    assert!(shown.contains("temperature        0\r\n"), "{shown}");
    assert!(shown.contains("max-tokens         3\r\n"), "{shown}");
    assert_eq!(terminal.enter("What is the capital of France?").trim(), "Paris");
    assert!(terminal.enter("/nonsense").contains("/help"));
    terminal.type_keys("/bye\r");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn several_lines_between_quotes_are_one_question() {
    let mut terminal = Terminal::start(&["--verbose"]);
    terminal.type_keys("\"\"\"\r");
    terminal.wait_for("... ");
    terminal.type_keys("What is a\r");
    terminal.wait_for("... ");
    terminal.type_keys("volcano?\"\"\"\r");
    let answer = terminal.wait_for("seed ");
    let given = run(&["run", "--verbose", "--max-tokens", "1", "What is a\nvolcano?"]).stderr;
    assert_eq!(prefilled(&answer), prefilled(&given));
    terminal.wait_for(PROMPT);
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn ctrl_c_stops_the_answer_and_at_the_prompt_empties_the_line() {
    let mut terminal = Terminal::start(&[]);
    terminal.type_keys("this is not sent");
    terminal.wait_for("this is not sent");
    terminal.type_keys(CTRL_C);
    terminal.wait_for(PROMPT);
    // Whether the story is still being told when the key arrives or not: the chat goes on.
    terminal.type_keys("Tell me a story about a fox named Pip.\r");
    terminal.wait_for("Once");
    terminal.type_keys(CTRL_C);
    terminal.wait_for(PROMPT);
    terminal.enter("/clear");
    let question = "What is a volcano?";
    assert_eq!(terminal.enter(question).trim(), golden_answer(question));
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_full_context_is_told_with_what_to_do() {
    let mut terminal = Terminal::start(&["--ctx", "48"]);
    let first = terminal.enter("What is a volcano?");
    assert!(first.contains(&golden_answer("What is a volcano?")), "{first}");
    let second = terminal.enter("What is the capital of France? Tell me all about it, please.");
    assert!(second.contains("/clear"), "{second}");
    terminal.enter("/clear");
    let question = "What is the capital of France?";
    assert_eq!(terminal.enter(question).trim(), golden_answer(question));
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn the_conversation_so_far_is_part_of_the_prompt() {
    let mut terminal = Terminal::start(&["--verbose", "--max-tokens", "1"]);
    let first = prefilled(&terminal.enter("What is a volcano?"));
    let second = prefilled(&terminal.enter("What is a volcano?"));
    assert_eq!(first, 17);
    assert!(second > 2 * first, "{second} tokens");
    terminal.enter("/clear");
    assert_eq!(prefilled(&terminal.enter("What is a volcano?")), first);
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn what_was_typed_is_there_again_in_the_next_chat() {
    let mut terminal = Terminal::start(&["--max-tokens", "1"]);
    terminal.enter("What is a volcano?");
    terminal.type_keys(CTRL_D);
    let (code, home) = terminal.end();
    assert_eq!(code, Some(0));
    assert!(home.path().join(".local/state/tokonoma/history").is_file());

    let mut terminal = Terminal::start_at(home, &[]);
    let arrow_up = "\x1b[A";
    terminal.type_keys(arrow_up);
    terminal.wait_for("What is a volcano?");
    terminal.type_keys("\r");
    terminal.wait_for(&golden_answer("What is a volcano?"));
    terminal.wait_for(PROMPT);
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_history_that_cannot_be_kept_is_no_error() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join(".local"), "a file where a directory should be").unwrap();
    let mut terminal = Terminal::start_at(home, &[]);
    let question = "What is the capital of France?";
    assert_eq!(terminal.enter(question).trim(), golden_answer(question));
    terminal.type_keys(CTRL_D);
    assert_eq!(terminal.end().0, Some(0));
}

/// Reads the number of prompt tokens from the timings.
#[track_caller]
fn prefilled(screen: &str) -> usize {
    let (_, rest) = screen.split_once("prefill").expect(screen);
    rest.split_whitespace().next().unwrap().parse().unwrap()
}
