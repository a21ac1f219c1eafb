//! Answers that have to follow a grammar: what may come next is asked before every token.
//!
//! Invariant: fail closed. What cannot be enforced is refused before anything is queued, and an answer that can go no
//! way that its grammar allows fails; none is ever given without its constraint. Knows no wire format.

mod gbnf;

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value, json};
use toko_tokenizer::Tokenizer;

use crate::Error;

/// Most bytes of everything that a constraint says.
const LIMIT_BYTES: usize = 256 << 10;

/// How many compiled constraints are kept for requests to come.
const RECENT: usize = 8;

/// White space between the tokens of JSON: a space or two, or a line break and its indentation. Without a bound a
/// small model may write white space to the end of its context.
const JSON_SPACE: &str = r"[ \t]{1,2}|\r?\n[ \t]{0,40}";

/// What an answer's text has to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    /// A grammar in the Lark syntax of llguidance, whose rules name the parts as `@name`.
    pub grammar: String,
    /// What the grammar builds on, by name.
    pub parts: Vec<(String, Form)>,
}

/// A text that stands alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// A JSON document that satisfies the schema.
    Json(Value),
    /// A text that the regular expression matches from its beginning to its end.
    Regex(String),
    /// One of the texts.
    Choice(Vec<String>),
    /// A text of a grammar: in the Lark syntax of llguidance, or in llama.cpp's, which defines rules by `::=`.
    Grammar(String),
}

impl From<Form> for Constraint {
    fn from(form: Form) -> Self {
        Self { grammar: "start: @answer".to_owned(), parts: vec![("answer".to_owned(), form)] }
    }
}

impl Constraint {
    fn said_bytes(&self) -> usize {
        let part = |(name, form): &(String, Form)| name.len() + form.said_bytes();
        self.grammar.len() + self.parts.iter().map(part).sum::<usize>()
    }
}

impl Form {
    fn said_bytes(&self) -> usize {
        match self {
            Self::Json(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Grammar(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }

    fn compile(&self, name: &str) -> Result<GrammarWithLexer, String> {
        let mut grammar = match self {
            Self::Json(schema) => GrammarWithLexer::from_json_schema(with_options(schema)?),
            Self::Regex(pattern) => GrammarWithLexer::from_regex(pattern),
            Self::Choice(texts) => GrammarWithLexer::from_lark(one_of(texts)?),
            Self::Grammar(text) if gbnf::is_gbnf(text) => {
                GrammarWithLexer::from_lark(gbnf::to_lark(text)?)
            }
            Self::Grammar(text) => GrammarWithLexer::from_lark(text.clone()),
        };
        grammar.name = Some(name.to_owned());
        Ok(grammar)
    }
}

/// Sets how the schema is read, whatever it says about that itself.
fn with_options(schema: &Value) -> Result<Value, String> {
    let options = JsonCompileOptions {
        whitespace_pattern: Some(JSON_SPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => json!({}),
        _ => return Err("a schema is an object".to_owned()),
    };
    options.apply_to(&mut schema);
    Ok(schema)
}

/// Returns the grammar of a choice.
fn one_of(texts: &[String]) -> Result<String, String> {
    let mut grammar = "start: ".to_owned();
    for (index, text) in texts.iter().enumerate() {
        let separator = if index == 0 { "" } else { " | " };
        // A string of Lark is one of JSON.
        write!(grammar, "{separator}{}", Value::String(text.clone())).map_err(|e| e.to_string())?;
    }
    if texts.is_empty() { Err("there is nothing to choose from".to_owned()) } else { Ok(grammar) }
}

/// Compiles constraints for one vocabulary.
pub(crate) struct Grammars {
    tokenizer: Arc<Tokenizer>,
    /// Made when the first constraint comes.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The last ones, before their first token: a request is checked before it waits and compiled when it runs, and
    /// clients send the same schema and tools with each turn.
    recent: Mutex<VecDeque<(Constraint, Matcher)>>,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, factory: OnceLock::new(), recent: Mutex::default() }
    }

    /// Compiles the constraint, if there is one, or says why it cannot be enforced.
    pub(crate) fn guide(&self, constraint: Option<&Constraint>) -> Result<Option<Guide>, Error> {
        let Some(constraint) = constraint else { return Ok(None) };
        if let Some(guide) = self.recall(constraint) {
            return Ok(Some(guide));
        }
        let matcher = self.compile(constraint).map_err(|reason| Error::Constraint { reason })?;
        let guide = Guide { matcher: matcher.deep_clone() };
        let mut recent = self.recent();
        recent.push_front((constraint.clone(), matcher));
        recent.truncate(RECENT);
        Ok(Some(guide))
    }

    fn recall(&self, constraint: &Constraint) -> Option<Guide> {
        let recent = self.recent();
        let (_, matcher) = recent.iter().find(|(known, _)| known == constraint)?;
        Some(Guide { matcher: matcher.deep_clone() })
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(Constraint, Matcher)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile(&self, constraint: &Constraint) -> Result<Matcher, String> {
        let bytes = constraint.said_bytes();
        if bytes > LIMIT_BYTES {
            return Err(format!("it has {bytes} bytes, and at most {LIMIT_BYTES} are compiled"));
        }
        let factory = self.factory.get_or_init(|| factory(&self.tokenizer)).as_ref();
        let mut grammars = vec![GrammarWithLexer::from_lark(constraint.grammar.clone())];
        for (name, form) in &constraint.parts {
            grammars.push(form.compile(name)?);
        }
        let grammar = TopLevelGrammar { grammars, max_tokens: None };
        let mut matcher = Matcher::new(factory.map_err(Clone::clone)?.create_parser(grammar));
        match matcher.get_error() {
            Some(reason) => Err(reason.trim_end().to_owned()),
            // What only shows at the first token is better known now.
            None => match matcher.compute_mask_or_eos() {
                Ok(_) => Ok(matcher),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// Lays out the vocabulary so that its texts can be searched.
fn factory(tokenizer: &Tokenizer) -> Result<ParserFactory, String> {
    let count = u32::try_from(tokenizer.len()).map_err(|error| error.to_string())?;
    // Control tokens have no text, so no grammar asks for them; those that end an answer come in beside.
    let text = |id| if tokenizer.is_control(id) { &[] } else { tokenizer.token_bytes(id) };
    let texts: Vec<Vec<u8>> = (0..count).map(|id| text(id).to_vec()).collect();
    let ends: Vec<u32> = tokenizer.end_of_generation().collect();
    let end = ends.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(count, end), &texts);
    // What comes now takes several times as much.
    drop(texts);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(&ends);
    }
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
        .map_err(|error| error.to_string())?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        // At up to 2 KB each, this bounds what a request can make the engine keep.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

/// Walks one answer through its grammar.
pub(crate) struct Guide {
    matcher: Matcher,
}

impl Guide {
    /// Makes the logits of all tokens impossible that cannot come next.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| dead_end(&error))?;
        for (logits, word) in logits.chunks_mut(32).zip(allowed.as_slice()) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    /// Goes on by a token that came next.
    pub(crate) fn accept(&mut self, token: u32) -> Result<(), Error> {
        self.matcher.consume_token(token).map_err(|error| dead_end(&error))
    }

    /// Says whether nothing can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

fn dead_end(error: &impl ToString) -> Error {
    Error::DeadEnd { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use toko_fixtures::embedded_model_path;
    use toko_gguf::Gguf;

    use super::*;

    #[test]
    fn a_token_that_the_grammar_does_not_allow_ends_its_walk_for_good() {
        let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
        let tokenizer = crate::vocabulary::tokenizer(&file).expect("it has a tokenizer");
        let token = |text: &str| tokenizer.encode(text, toko_tokenizer::Special::AsText)[0];
        let (a, b) = (token("a"), token("b"));
        let grammars = Grammars::new(Arc::new(tokenizer));
        let constraint = Constraint::from(Form::Choice(vec!["aa".to_owned()]));
        let mut guide =
            grammars.guide(Some(&constraint)).expect("it can be enforced").expect("there is one");
        guide.accept(a).expect("it is allowed");
        assert!(!guide.is_complete());
        assert!(matches!(guide.accept(b), Err(Error::DeadEnd { .. })));
        assert!(matches!(guide.mask(&mut [0.0; 64]), Err(Error::DeadEnd { .. })));
        assert!(!guide.is_complete());
    }
}
