//! An answer between the engine's events and the dialects: what was asked, how its text is read, what came of it.
//!
//! Knows no wire format. A dialect turns a request into an [`Ask`] and pieces or a whole [`Answer`] into its own words.

use toko_engine::{Chat, Event, FinishReason, Params, Summary, TokenDetails};

use crate::Backend;
use crate::backend::{self, Events, Sender};
use crate::error::ApiError;

/// A conversation that is to be answered.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) chat: Chat,
    /// One for each choice.
    pub(crate) params: Vec<Params>,
    pub(crate) reading: Reading,
}

/// What an answer's text can hold.
#[derive(Debug, Clone)]
pub(crate) enum Reading {
    /// Nothing but text for the reader.
    Plain,
}

/// A part of an answer, in the order in which the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text for the reader, never empty.
    Content(String),
}

/// Why an answer ended, as clients know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The model said that it is done, or a stop text appeared.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
}

/// Splits the text of one choice into pieces while it comes.
#[derive(Debug)]
pub(crate) struct Reader {
    reading: Reading,
}

impl Reader {
    pub(crate) fn new(reading: &Reading) -> Self {
        Self { reading: reading.clone() }
    }

    /// Takes more text and returns what is certain by now.
    pub(crate) fn push(&mut self, text: String) -> Vec<Piece> {
        match self.reading {
            Reading::Plain if text.is_empty() => Vec::new(),
            Reading::Plain => vec![Piece::Content(text)],
        }
    }

    /// Returns what was still held back at the end, and how the answer ended.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> (Vec<Piece>, End) {
        let end = match reason {
            FinishReason::Stop => End::Stop,
            FinishReason::Length => End::Length,
        };
        match self.reading {
            Reading::Plain => (Vec::new(), end),
        }
    }
}

impl Ask {
    /// Returns a reader for each choice.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        self.params.iter().map(|_| Reader::new(&self.reading)).collect()
    }

    /// Queues the conversation once for each choice; their events go to `sender`.
    ///
    /// After an error some choices may be queued; they are cancelled with the receiver.
    pub(crate) fn start(self, backend: &dyn Backend, sender: &Sender) -> Result<(), ApiError> {
        Ok(backend::start(backend, &self.chat, self.params, sender)?)
    }
}

/// A choice that is complete.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) content: String,
    /// The tokens that were asked about.
    pub(crate) tokens: Vec<TokenDetails>,
    pub(crate) end: End,
    pub(crate) summary: Summary,
}

/// A choice that is not.
struct Draft {
    reader: Reader,
    content: String,
    tokens: Vec<TokenDetails>,
    ended: Option<(End, Summary)>,
}

impl Draft {
    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content.push_str(&text),
            }
        }
    }

    fn complete(self) -> Option<Answer> {
        let (end, summary) = self.ended?;
        Some(Answer { content: self.content, tokens: self.tokens, end, summary })
    }
}

/// Waits for the end of all choices, one for each of `readers`, and returns them in order.
pub(crate) async fn collect(
    mut events: Events,
    readers: Vec<Reader>,
) -> Result<Vec<Answer>, ApiError> {
    let draft = |reader| Draft { reader, content: String::new(), tokens: Vec::new(), ended: None };
    let mut drafts: Vec<Draft> = readers.into_iter().map(draft).collect();
    while drafts.iter().any(|draft| draft.ended.is_none()) {
        // Without a sender left, whoever has not finished never will.
        let (choice, event) = events.recv().await.ok_or(ApiError::Vanished)?;
        let draft = &mut drafts[choice];
        match event {
            Event::Prefilled { .. } => {}
            Event::Text { text, mut tokens } => {
                draft.tokens.append(&mut tokens);
                let pieces = draft.reader.push(text);
                draft.take(pieces);
            }
            Event::Finished(summary) => {
                let (pieces, end) = draft.reader.finish(summary.reason);
                draft.take(pieces);
                draft.ended = Some((end, summary));
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    let complete: Option<Vec<Answer>> = drafts.into_iter().map(Draft::complete).collect();
    complete.ok_or(ApiError::Vanished)
}
