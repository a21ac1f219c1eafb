//! `toko run` on a terminal: a conversation with one model, line by line.
//!
//! Invariant: every question that stays in the conversation has its answer after it.

mod input;

use std::{
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context as _;
use input::{Block, Command, Line};
use rustyline::{DefaultEditor, error::ReadlineError};
use toko_engine::{Chat, Error as EngineError, FinishReason, Message, Summary};

use crate::{
    args::{GenerationArgs, RunArgs},
    commands::run::{note_timings, request_params},
    config,
    failure::Failure,
    output::{Output, note, report_error},
    session::{Ending, Session},
};

const HELP: &str = "\
  \"\"\"             begins and ends a text of several lines
  /set NAME VALUE  changes a setting; without a value an optional one is cleared
  /show            shows the model and the settings
  /clear           begins a new conversation
  /help            shows this
  /bye             leaves, as Ctrl-D does
  Ctrl-C stops an answer, or empties the line.";

/// Talks until the user leaves.
pub(crate) fn chat(session: Session, args: &RunArgs, output: Output) -> anyhow::Result<()> {
    let info = session.engine().info();
    note(&format!(
        "{}, {} tokens of context. /help lists the commands, /bye leaves.",
        info.name, info.context_tokens
    ));
    let mut prompter = Prompter::new()?;
    let mut conversation = Conversation {
        session,
        settings: args.generation.clone(),
        is_verbose: args.verbose,
        messages: Vec::new(),
        output,
    };
    while let Some(line) = prompter.next_line()? {
        match line {
            Ok(Line::Text(text)) => conversation.answer(text)?,
            Ok(Line::Command(Command::Bye)) => break,
            Ok(Line::Command(command)) => conversation.obey(command)?,
            Ok(Line::Block(_) | Line::Empty) => {}
            Err(problem) => note(&problem),
        }
    }
    Ok(())
}

struct Conversation {
    session: Session,
    settings: GenerationArgs,
    is_verbose: bool,
    /// Questions and answers; the system text is a setting and stands before them.
    messages: Vec<Message>,
    output: Output,
}

impl Conversation {
    fn answer(&mut self, question: String) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", question));
        let mut answer = String::new();
        match self.ask(&mut answer) {
            Ok(()) => self.messages.push(Message::new("assistant", answer)),
            Err(error) => {
                self.messages.pop();
                explain(error)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self, answer: &mut String) -> anyhow::Result<()> {
        let system = self.settings.system.iter().map(|text| Message::new("system", text));
        let messages = system.chain(self.messages.iter().cloned()).collect();
        let prompt = self.session.engine().chat_prompt(&Chat::new(messages, SystemTime::now()))?;
        let seed = self.settings.seed.unwrap_or_else(config::fresh_seed);
        let output = self.output;
        let ending = self.session.ask(prompt, request_params(&self.settings, seed), |text| {
            answer.push_str(text);
            output.answer(text)
        })?;
        output.answer("\n")?;
        match ending {
            Ending::Interrupted => note("(stopped)"),
            Ending::Finished(summary) => {
                self.note_full_context(&summary);
                if self.is_verbose {
                    note_timings(&summary, seed);
                }
            }
        }
        Ok(())
    }

    fn note_full_context(&self, summary: &Summary) {
        let is_limited = self.settings.max_tokens.is_some_and(|n| summary.completion_tokens >= n);
        if summary.reason == FinishReason::Length && !is_limited {
            let tokens = self.session.engine().info().context_tokens;
            note(&format!("(the context of {tokens} tokens is full: {GO_ON})"));
        }
    }

    fn obey(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Set { name, value } => match self.set(&name, value.as_deref()) {
                Ok(()) => {}
                Err(problem) => note(&problem),
            },
            Command::Show => self.show()?,
            Command::Clear => {
                self.messages.clear();
                note("(a new conversation)");
            }
            Command::Help => self.output.line(HELP)?,
            Command::Bye => {}
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        if let Some(value) = value {
            return self.settings.set(name, value);
        }
        match name {
            "seed" => self.settings.seed = None,
            "max-tokens" => self.settings.max_tokens = None,
            "system" => self.settings.system = None,
            "stop" => self.settings.stop.clear(),
            _ => return Err(format!("/set {name} needs a value")),
        }
        Ok(())
    }

    fn show(&self) -> anyhow::Result<()> {
        let info = self.session.engine().info();
        let output = self.output;
        output.line(&format!("model              {}", info.name))?;
        output.line(&format!("architecture       {}", info.architecture))?;
        output.line(&format!("parameters         {}", info.parameters))?;
        output.line(&format!("context            {} tokens", info.context_tokens))?;
        output.line(&format!("threads            {}, {}", info.threads, info.tier))?;
        output.line(&format!("messages so far    {}", self.messages.len()))?;
        for (name, value) in self.settings.list() {
            output.line(&format!("{name:<18} {value}"))?;
        }
        Ok(())
    }
}

const GO_ON: &str = "/clear begins a new conversation, --ctx gives it more room";

/// Tells what went wrong with one question; only a lost terminal ends the chat.
fn explain(error: anyhow::Error) -> anyhow::Result<()> {
    if error.is::<Failure>() {
        return Err(error);
    }
    report_error(&error);
    if let Some(EngineError::ContextExceeded { .. }) = error.downcast_ref() {
        note(&format!("(the conversation has grown too long: {GO_ON})"));
    }
    Ok(())
}

/// The line editor with its history file, which may be missing.
struct Prompter {
    editor: DefaultEditor,
    history: Option<PathBuf>,
}

impl Prompter {
    fn new() -> anyhow::Result<Self> {
        let mut editor = DefaultEditor::new().context("cannot use this terminal")?;
        let history = config::history_file().filter(|path| is_ready(path));
        if let Some(path) = &history {
            // A history that does not exist yet, or cannot be read, is an empty one.
            drop(editor.load_history(path));
        }
        Ok(Self { editor, history })
    }

    /// Reads a line or a block; `None` when the user leaves.
    fn next_line(&mut self) -> anyhow::Result<Option<Result<Line, String>>> {
        let line = match self.editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => return Ok(Some(Ok(Line::Empty))),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        };
        let parsed = input::parse(&line);
        let Ok(Line::Block(block)) = parsed else {
            self.remember(&line);
            return Ok(Some(parsed));
        };
        Ok(Some(Ok(self.rest_of_block(block)?.map_or(Line::Empty, Line::Text))))
    }

    /// Reads lines until the block ends; `None` when the user gave it up.
    fn rest_of_block(&mut self, mut block: Block) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline("... ") {
                Ok(line) => match block.with_line(&line) {
                    Ok(text) => {
                        self.remember(&format!("\"\"\"{text}\"\"\""));
                        return Ok(Some(text));
                    }
                    Err(longer) => block = longer,
                },
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
    }

    /// Keeps a line for the arrow keys and for the next chat; a full disk is no reason to stop.
    fn remember(&mut self, line: &str) {
        if line.trim().is_empty() || !matches!(self.editor.add_history_entry(line), Ok(true)) {
            return;
        }
        if let Some(path) = &self.history {
            drop(self.editor.append_history(path));
        }
    }
}

fn is_ready(history: &Path) -> bool {
    let mut closed = std::fs::DirBuilder::new();
    closed.recursive(true).mode(0o700);
    history.parent().is_some_and(|directory| closed.create(directory).is_ok())
}
