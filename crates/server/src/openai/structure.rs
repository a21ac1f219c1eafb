//! What form a request demands of its answer: `response_format`, and the fields of llama-server and vLLM for the same.

use serde::Deserialize;
use serde_json::{Value, json};
use toko_engine::Form;

use crate::answer::Format;
use crate::body::Object;
use crate::error::ApiError;
use crate::validate::{invalid, missing, off, unsupported};

/// The fields that demand a form; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct WireStructure {
    response_format: Option<Object<ResponseFormat>>,
    json_schema: Option<Value>,
    grammar: Option<String>,
    regex: Option<String>,
    structured_outputs: Option<Object<StructuredOutputs>>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    guided_grammar: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: Option<String>,
    json_schema: Option<Object<NamedSchema>>,
    /// Where llama-server looks for the schema of a `json_object`.
    schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct NamedSchema {
    schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    structural_tag: Option<Value>,
}

impl WireStructure {
    /// Returns the form that is demanded, at most one.
    pub(super) fn accept(self) -> Result<Option<Format>, ApiError> {
        let mut formats = Vec::new();
        if let Some(Object(format)) = self.response_format {
            formats.extend(format.accept()?);
        }
        let mut add = |param: &str, form: Option<Form>| {
            formats.extend(form.map(|form| Format { form, param: param.to_owned() }));
        };
        add("json_schema", self.json_schema.filter(asks_for_something).map(Form::Json));
        add("grammar", grammar(self.grammar));
        add("regex", regex(self.regex));
        add("guided_json", self.guided_json.map(|json| schema("guided_json", json)).transpose()?);
        add("guided_regex", regex(self.guided_regex));
        add("guided_choice", self.guided_choice.map(Form::Choice));
        add("guided_grammar", grammar(self.guided_grammar));
        if let Some(Object(outputs)) = self.structured_outputs {
            formats.extend(outputs.accept()?);
        }
        match formats.as_slice() {
            [first, second, ..] => {
                let reason = format!("must not be sent beside {}", first.param);
                Err(invalid(&*second.param, reason))
            }
            _ => Ok(formats.pop()),
        }
    }
}

impl ResponseFormat {
    fn accept(self) -> Result<Option<Format>, ApiError> {
        let (form, param) = match self.kind.as_deref() {
            None => return Err(missing("response_format.type")),
            Some("text") => return Ok(None),
            Some("json_object") => match self.schema {
                Some(schema) => (schema, "response_format.schema"),
                None => (json!({"type": "object"}), "response_format"),
            },
            Some("json_schema") => {
                let Some(Object(named)) = self.json_schema else {
                    return Err(missing("response_format.json_schema"));
                };
                let param = "response_format.json_schema.schema";
                (named.schema.ok_or_else(|| missing(param))?, param)
            }
            Some(kind @ ("grammar" | "structural_tag")) => {
                let reason = format!("{kind} is not supported by this server");
                return Err(unsupported("response_format.type", reason));
            }
            Some(other) => {
                let reason = format!("must be text, json_object or json_schema, got {other:?}");
                return Err(invalid("response_format.type", reason));
            }
        };
        Ok(Some(Format { form: Form::Json(form), param: param.to_owned() }))
    }
}

impl StructuredOutputs {
    fn accept(self) -> Result<Option<Format>, ApiError> {
        off("structured_outputs.structural_tag", self.structural_tag.as_ref())?;
        let param = |field: &str| format!("structured_outputs.{field}");
        let json_object = self.json_object == Some(true);
        let mut forms = vec![
            ("json", self.json.map(|json| schema(&param("json"), json)).transpose()?),
            ("regex", regex(self.regex)),
            ("choice", self.choice.map(Form::Choice)),
            ("grammar", grammar(self.grammar)),
            ("json_object", json_object.then(|| Form::Json(json!({"type": "object"})))),
        ];
        forms.retain(|(_, form)| form.is_some());
        if let [_, (second, _), ..] = forms.as_slice() {
            return Err(invalid(param(second), "must be the only form in structured_outputs"));
        }
        let format =
            |(field, form): (&str, Option<Form>)| Some(Format { form: form?, param: param(field) });
        Ok(forms.pop().and_then(format))
    }
}

fn grammar(text: Option<String>) -> Option<Form> {
    text.filter(|text| !text.is_empty()).map(Form::Grammar)
}

fn regex(text: Option<String>) -> Option<Form> {
    text.filter(|text| !text.is_empty()).map(Form::Regex)
}

/// Clients of llama-server send an empty object for no schema.
fn asks_for_something(schema: &Value) -> bool {
    schema.as_object().is_none_or(|fields| !fields.is_empty())
}

/// Reads a schema that clients of vLLM may send as text.
fn schema(param: &str, json: Value) -> Result<Form, ApiError> {
    match json {
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema) => Ok(Form::Json(schema)),
            Err(error) => Err(invalid(param, format!("is not JSON: {error}"))),
        },
        schema => Ok(Form::Json(schema)),
    }
}
