//! Whether a model is to think before it answers, for templates that can be told.

use serde_json::Value;
use toko_engine::{Chat, ChatTemplate};

/// The variable by which templates are told.
const SWITCH: &str = "enable_thinking";

/// What thoughts begin with.
const MARK: &str = "<think>";

/// Tells the template whether thoughts are wanted; one that does not ask thinks always or never.
pub(crate) fn switch(template: &ChatTemplate, chat: &mut Chat, is_wanted: bool) {
    if template.source().contains(SWITCH) {
        chat.variables.insert(SWITCH.to_owned(), Value::Bool(is_wanted));
    }
}

/// Says whether a model with this template can think.
pub(crate) fn is_known_to(template: &ChatTemplate) -> bool {
    [SWITCH, MARK].iter().any(|sign| template.source().contains(sign))
}
