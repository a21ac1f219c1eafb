//! The `tojson` filter as chat templates expect it: the output of Python's `json.dumps`.
//!
//! Invariant: nothing is escaped for HTML. Models were trained on this exact spelling, spaces after separators
//! included; the filter of Jinja engines differs in both.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Indents wider than this only waste memory.
const WIDEST_INDENT: usize = 64;

/// Says how JSON is laid out; the default is that of `json.dumps`.
#[derive(Debug, Default)]
struct Layout {
    ascii: bool,
    indent: Option<String>,
    separators: Option<(String, String)>,
    sort_keys: bool,
}

/// Renders a value as JSON: `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments this way")]
pub(crate) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    rest: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named
            .or_else(|| rest.get(place).cloned())
            .filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let layout = Layout {
        ascii: argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true()),
        indent: argument(1, "indent")?.map(|value| indent(&value)).transpose()?,
        separators: argument(2, "separators")?.map(|value| separators(&value)).transpose()?,
        sort_keys: argument(3, "sort_keys")?.is_some_and(|value| value.is_true()),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    layout.write(value, 0, &mut out)?;
    state.consume_fuel(out.len() as u64 / 64)?;
    Ok(Value::from(out))
}

/// Renders a value as `json.dumps` does without further arguments, but leaves characters beyond ASCII alone.
pub(crate) fn dumps(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    Layout::default().write(value, 0, &mut out)?;
    Ok(out)
}

fn indent(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().take(WIDEST_INDENT).collect());
    }
    let width = if let Ok(yes) = bool::try_from(value.clone()) {
        i64::from(yes)
    } else {
        i64::try_from(value.clone())?
    };
    Ok(" ".repeat(usize::try_from(width).unwrap_or(0).min(WIDEST_INDENT)))
}

fn separators(value: &Value) -> Result<(String, String), Error> {
    let parts: Vec<String> = value.try_iter()?.map(|part| part.to_string()).collect();
    <[String; 2]>::try_from(parts).map(|[item, key]| (item, key)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, "tojson: separators is a pair of texts")
    })
}

impl Layout {
    fn item_separator(&self) -> &str {
        match (&self.separators, &self.indent) {
            (Some((item, _)), _) => item,
            (None, Some(_)) => ",",
            (None, None) => ", ",
        }
    }

    fn key_separator(&self) -> &str {
        self.separators.as_ref().map_or(": ", |(_, key)| key)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_text(value.as_str().unwrap_or(""), out),
            ValueKind::Map => self.write_map(value, depth, out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_group('[', &items, ']', depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: {kind} has no JSON form"),
                ));
            }
        }
        Ok(())
    }

    fn write_map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()? {
            let field = value.get_item(&key)?;
            entries.push((key_text(&key), field));
        }
        if self.sort_keys {
            entries.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.write_group('{', &entries, '}', depth, out, |(key, field), out| {
            self.write_text(key, out);
            out.push_str(self.key_separator());
            self.write(field, depth + 1, out)
        })
    }

    fn write_group<T>(
        &self,
        open: char,
        items: &[T],
        close: char,
        depth: usize,
        out: &mut String,
        each: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(self.item_separator());
            }
            self.break_line(depth + 1, out);
            each(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                _ if character < ' ' || (self.ascii && !character.is_ascii()) => {
                    out.push_str(&escaped(character));
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// Returns how JSON in ASCII writes a character.
pub(crate) fn escaped(character: char) -> String {
    let mut out = String::with_capacity(12);
    for unit in character.encode_utf16(&mut [0; 2]) {
        let escape = format!("\\u{unit:04x}");
        out.push_str(&escape);
    }
    out
}

/// Returns a key as JSON spells it: keys that are no text become one.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => {
            let mut text = String::new();
            write_number(key, &mut text);
            text
        }
        _ => key.to_string(),
    }
}

fn write_number(value: &Value, out: &mut String) {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
    }
}

/// Spells a float as Python does: the shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) =
            exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    use super::*;

    fn render(expression: &str) -> String {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_filter("tojson", tojson);
        environment.render_str(&format!("{{{{ {expression} }}}}"), ()).unwrap()
    }

    #[test]
    fn the_spelling_is_that_of_json_dumps() {
        let value = r#"{"a": [1, 2.0, "x<&>'é\n"], "b": none, "c": true, "d": {}, "e": []}"#;
        assert_eq!(
            render(&format!("{value}|tojson")),
            r#"{"a": [1, 2.0, "x<&>'é\n"], "b": null, "c": true, "d": {}, "e": []}"#
        );
        assert_eq!(render(r#""é😀"|tojson(ensure_ascii=true)"#), r#""\u00e9\ud83d\ude00""#);
        assert_eq!(render(r#"{"b": 1, "a": 2}|tojson(sort_keys=true)"#), r#"{"a": 2, "b": 1}"#);
        assert_eq!(render(r#"{"b": [1, 2]}|tojson(separators=(",", ":"))"#), r#"{"b":[1,2]}"#);
        assert_eq!(
            render(r#"{"b": [1, {}]}|tojson(indent=2)"#),
            "{\n  \"b\": [\n    1,\n    {}\n  ]\n}"
        );
    }

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        // Each right side is what `python3 -c 'print(repr(x))'` prints.
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (-0.0, "-0.0"),
            (123_456_789.125, "123456789.125"),
        ] {
            assert_eq!(python_float(value), text);
        }
    }
}
