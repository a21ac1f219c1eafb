//! Answers under a constraint: a small model that would never write them writes nothing else.

use std::sync::mpsc::Receiver;

use serde_json::{Value, json};
use toko_engine::{Constraint, Engine, Error, Event, FinishReason, Form, Params, Sampling};

use crate::harness::{Answer, GREEDY, OPTIONS, ask, collect, embedded, params, submit};

/// "Once upon a time": the model wants to tell a story.
const STORY: [u32; 4] = [603, 874, 257, 465];

const WILD: Sampling = Sampling { temperature: 1.5, seed: Some(1), ..GREEDY };

fn constrained(form: Form, sampling: Sampling, max_tokens: usize) -> Params {
    Params { constraint: Some(Constraint::from(form)), ..params(sampling, max_tokens) }
}

/// The greedy answer and several that are drawn, at the same time.
fn answers(engine: &Engine, form: &Form, max_tokens: usize) -> Vec<Answer> {
    let drawn = (0..7).map(|seed| Sampling { seed: Some(seed), ..WILD });
    let queue = |sampling| {
        submit(engine, &STORY, constrained(form.clone(), sampling, max_tokens))
            .unwrap_or_else(|error| panic!("{form:?}: {error}"))
    };
    let queued: Vec<Receiver<Event>> = std::iter::once(GREEDY).chain(drawn).map(queue).collect();
    queued.iter().map(collect).collect()
}

/// The texts of answers that came to their end.
fn texts(engine: &Engine, form: &Form) -> Vec<String> {
    let complete = |answer: Answer| {
        assert_eq!(answer.summary().reason, FinishReason::Stop, "{form:?}: {}", answer.text);
        answer.text
    };
    answers(engine, form, 600).into_iter().map(complete).collect()
}

fn documents(engine: &Engine, schema: &Value) -> Vec<Value> {
    let parse = |text: String| {
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {error} in {text}"))
    };
    texts(engine, &Form::Json(schema.clone())).into_iter().map(parse).collect()
}

/// Checks what a model writes under a schema by rules that were written by hand.
fn check(engine: &Engine, schema: &Value, is_right: impl Fn(&Value) -> bool) {
    for document in documents(engine, schema) {
        assert!(is_right(&document), "{schema}: {document}");
    }
}

fn keys(document: &Value) -> Vec<&str> {
    document
        .as_object()
        .map(|fields| fields.keys().map(String::as_str).collect())
        .unwrap_or_default()
}

fn characters(value: &Value) -> usize {
    value.as_str().map_or(usize::MAX, |text| text.chars().count())
}

#[test]
fn documents_satisfy_their_schema_greedy_and_drawn() {
    let engine = embedded(&OPTIONS);
    let name = json!({"type": "string", "maxLength": 12});
    let person = json!({
        "type": "object",
        "properties": {
            "name": name,
            "age": {"type": "integer", "minimum": 3, "maximum": 117},
            "friend": {"type": ["string", "null"], "maxLength": 9},
        },
        "required": ["name", "age", "friend"],
        "additionalProperties": false,
    });
    check(&engine, &person, |document| {
        keys(document) == ["name", "age", "friend"]
            && characters(&document["name"]) <= 12
            && document["age"].as_i64().is_some_and(|age| (3..=117).contains(&age))
            && (document["friend"].is_null() || characters(&document["friend"]) <= 9)
    });
    let list = json!({
        "type": "array", "minItems": 2, "maxItems": 4,
        "items": {"enum": ["fox", "hare", 7, null, true]},
    });
    check(&engine, &list, |document| {
        let allowed = [json!("fox"), json!("hare"), json!(7), json!(null), json!(true)];
        document.as_array().is_some_and(|items| {
            (2..=4).contains(&items.len()) && items.iter().all(|item| allowed.contains(item))
        })
    });
    let tree = json!({
        "$defs": {"leaf": {"type": "object", "properties": {"value": {"type": "boolean"}},
            "required": ["value"], "additionalProperties": false}},
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"const": "none"}]}},
        "required": ["left", "right"], "additionalProperties": false,
    });
    check(&engine, &tree, |document| {
        document["left"]["value"].is_boolean()
            && (document["right"] == "none" || document["right"]["value"].is_boolean())
    });
    let number = json!({"type": "number", "minimum": -1, "maximum": 1});
    check(&engine, &number, |document| document.as_f64().is_some_and(|it| it.abs() <= 1.0));
    let date = json!({"type": "string", "format": "date"});
    check(&engine, &date, |document| {
        let parts: Vec<&str> = document.as_str().unwrap_or_default().split('-').collect();
        matches!(parts.as_slice(), [year, month, day] if year.len() == 4
            && month.parse().is_ok_and(|month: u8| (1..=12).contains(&month))
            && day.parse().is_ok_and(|day: u8| (1..=31).contains(&day)))
    });
    // What is left out of a schema is free: an open object is an object.
    for answer in answers(&engine, &Form::Json(json!({"type": "object"})), 300) {
        if answer.summary().reason == FinishReason::Stop {
            assert!(serde_json::from_str::<Value>(&answer.text).is_ok_and(|it| it.is_object()));
        }
    }
}

#[test]
fn a_pattern_is_enforced_with_its_anchors_and_escapes() {
    let engine = embedded(&OPTIONS);
    let pattern = r"^hello there indeed\!$";
    for strict in [
        json!({"pattern": pattern, "type": "string"}),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string", "pattern": pattern}),
    ] {
        check(&engine, &strict, |document| document == "hello there indeed!");
    }
}

#[test]
fn regular_expressions_match_the_whole_answer() {
    let engine = embedded(&OPTIONS);
    for text in texts(&engine, &Form::Regex(r"^[A-Z]{3}-[0-9]{2,4}/(fox|hare)$".to_owned())) {
        let (letters, rest) = text.split_once('-').unwrap();
        let (digits, animal) = rest.split_once('/').unwrap();
        assert!(letters.len() == 3 && letters.bytes().all(|it| it.is_ascii_uppercase()), "{text}");
        assert!((2..=4).contains(&digits.len()), "{text}");
        assert!(digits.bytes().all(|it| it.is_ascii_digit()), "{text}");
        assert!(["fox", "hare"].contains(&animal), "{text}");
    }
    // Characters of several bytes, a space at the beginning.
    for text in texts(&engine, &Form::Regex(" (é|世|😀){3}".to_owned())) {
        let characters: Vec<char> = text.chars().collect();
        assert_eq!((characters.len(), characters[0]), (4, ' '), "{text:?}");
        assert!(characters[1..].iter().all(|it| "é世😀".contains(*it)), "{text:?}");
    }
}

#[test]
fn a_choice_is_one_of_its_texts() {
    let engine = embedded(&OPTIONS);
    let choices = ["yes", "yes, please", "\"no\"\n", ""].map(str::to_owned).to_vec();
    let texts = texts(&engine, &Form::Choice(choices.clone()));
    assert!(texts.iter().all(|text| choices.contains(text)), "{texts:?}");
    assert!(texts.iter().any(|text| *text != texts[0]), "the draws differ: {texts:?}");
}

#[test]
fn grammars_with_recursion_are_followed() {
    let engine = embedded(&OPTIONS);
    let grammar = "start: sum\nsum: term (\"+\" term){0,3}\nterm: /[0-9]{1,2}/ | \"(\" DIGIT \")\"\nDIGIT: /[0-9]/";
    for text in texts(&engine, &Form::Grammar(grammar.to_owned())) {
        let terms: Vec<&str> = text.split('+').collect();
        let is_number = |it: &str| it.len() <= 2 && it.parse::<u8>().is_ok();
        let is_term = |it: &&str| {
            let inner = it.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
            inner.map_or_else(|| is_number(it), |inner| inner.len() == 1 && is_number(inner))
        };
        assert!(terms.len() <= 4 && terms.iter().all(is_term), "{text}");
    }
}

#[test]
fn grammars_in_the_notation_of_llama_cpp_are_followed() {
    let engine = embedded(&OPTIONS);
    let grammar = r#"# An object of texts, numbers and objects.
root   ::= object
object ::= "{" ws ( pair ("," ws pair){0,2} )? "}"
pair   ::= string ":" ws value
value  ::= string | [1-9] [0-9]{0,2} | "true" |
           "[" ws object? "]"
string ::= "\"" [a-z\x41-Z]{0,5} "\""
ws     ::= [ \n]?
"#;
    let mut pairs = 0;
    for sampling in (0..6).map(|seed| Sampling { seed: Some(seed), ..WILD }).chain([GREEDY]) {
        let answer =
            ask(&engine, &STORY, constrained(Form::Grammar(grammar.to_owned()), sampling, 600));
        if answer.summary().reason == FinishReason::Length {
            continue;
        }
        let document: Value = serde_json::from_str(&answer.text).expect(&answer.text);
        let fields = document.as_object().expect("an object");
        assert!(fields.len() <= 3 && fields.keys().all(|key| key.len() <= 5), "{document}");
        pairs += fields.len();
    }
    assert!(pairs > 0, "something was said");
    // The longest match of a literal takes nothing away from what follows.
    let grammar = "root ::= \"ab\" \"x\" | [a-z] [a-c] \"y\"";
    let texts = texts(&engine, &Form::Grammar(grammar.to_owned()));
    let is_legal = |text: &String| {
        text == "abx" || (text.len() == 3 && text.ends_with('y') && "abc".contains(&text[1..2]))
    };
    assert!(texts.iter().all(is_legal), "{texts:?}");
}

#[test]
fn parts_stand_where_their_grammar_names_them() {
    let engine = embedded(&OPTIONS);
    let constraint = Constraint {
        grammar: "start: \"<a>\" @first \"</a>\" @second".to_owned(),
        parts: vec![
            ("first".to_owned(), Form::Json(json!({"const": {"x": 1}}))),
            ("second".to_owned(), Form::Choice(vec!["yes".to_owned()])),
        ],
    };
    let params = Params { constraint: Some(constraint), ..params(GREEDY, 100) };
    let text = ask(&engine, &STORY, params).text;
    let inner = text.strip_prefix("<a>").and_then(|it| it.strip_suffix("</a>yes"));
    let document: Value = serde_json::from_str(inner.unwrap_or_else(|| panic!("{text}"))).unwrap();
    assert_eq!(document, json!({"x": 1}));
}

#[test]
fn a_bias_never_leads_out_of_the_constraint() {
    let engine = embedded(&OPTIONS);
    let biased = (256..900).map(|token| (token, 100.0)).collect();
    let form = Form::Regex("[a-c]{4}".to_owned());
    let params = Params { logit_bias: biased, ..constrained(form, GREEDY, 20) };
    let text = ask(&engine, &STORY, params).text;
    assert!(text.len() == 4 && text.bytes().all(|it| (b'a'..=b'c').contains(&it)), "{text}");
}

#[test]
fn an_answer_is_the_same_alone_and_among_others_with_and_without_constraints() {
    let engine = embedded(&OPTIONS);
    let schema =
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5});
    let sampling = Sampling { seed: Some(9), ..WILD };
    let under = constrained(Form::Json(schema), sampling.clone(), 60);
    let free = params(sampling, 60);
    let alone = [ask(&engine, &STORY, under.clone()).text, ask(&engine, &STORY, free.clone()).text];
    let queued =
        [&under, &free, &under, &free].map(|it| submit(&engine, &STORY, it.clone()).unwrap());
    let together = queued.map(|events| collect(&events).text);
    assert_eq!(
        [&alone[0], &alone[1], &alone[0], &alone[1]],
        [&together[0], &together[1], &together[2], &together[3]]
    );
}

#[test]
fn what_the_limit_cuts_ends_by_length() {
    let engine = embedded(&OPTIONS);
    let answer = ask(&engine, &STORY, constrained(Form::Regex("a{50}".to_owned()), GREEDY, 5));
    assert_eq!(answer.summary().reason, FinishReason::Length);
    assert!(!answer.text.is_empty() && answer.text.bytes().all(|it| it == b'a'), "{}", answer.text);
}

/// What a constraint is refused for.
fn refusal(engine: &Engine, form: Form) -> String {
    let shown = format!("{form:?}");
    match submit(engine, &STORY, constrained(form, GREEDY, 5)) {
        Err(Error::Constraint { reason }) => reason,
        other => panic!("{}: {other:?}", &shown[..shown.len().min(200)]),
    }
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused() {
    let engine = embedded(&OPTIONS);
    for schema in [
        json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
        json!({"not": {"type": "string"}}),
        json!({"if": {"type": "string"}, "then": {"maxLength": 2}}),
        json!({"type": "array", "contains": {"type": "integer"}}),
        json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
        json!({"type": "object", "propertyNames": {"pattern": "^a"}}),
        json!({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 5}]}),
        json!({"type": "string", "pattern": "a(?=b)"}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "string", "format": "made-up"}),
        json!({"type": "string", "minLength": 5, "maxLength": 3}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "strin"}),
        json!({"type": 3}),
        json!({"enum": []}),
        json!({"$ref": "https://example.org/schema.json"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"properties": []}),
        json!({"type": "array", "uniqueItems": true, "x-guidance": {"lenient": true}}),
        json!(false),
        json!("object"),
        json!(null),
    ] {
        let reason = refusal(&engine, Form::Json(schema.clone()));
        assert!(!reason.is_empty(), "{schema}");
    }
}

#[test]
fn expressions_and_grammars_that_cannot_be_enforced_are_refused() {
    let engine = embedded(&OPTIONS);
    for pattern in ["(", "a(?=b)", r"(a)\1", r"\bword\b", "a{2,1}"] {
        refusal(&engine, Form::Regex(pattern.to_owned()));
    }
    for grammar in [
        "",
        "root ::= this is (not valid",
        "start: missing",
        "start: \"a",
        "begin: \"a\"",
        "start: @nothing",
        "root ::= (\"a\"",
        "a ::= \"a\"",
    ] {
        refusal(&engine, Form::Grammar(grammar.to_owned()));
    }
    refusal(&engine, Form::Choice(Vec::new()));
    refusal(&engine, Form::Choice(vec!["x".repeat(300_000)]));
}

#[test]
fn hostile_constraints_end_in_bounded_work() {
    let engine = embedded(&OPTIONS);
    let mut deep = json!({"type": "integer"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    let wide: Vec<String> = (0..2000).map(|number| format!("{number:x}{number:x}")).collect();
    let forms = [
        Form::Json(json!({"$ref": "#"})),
        Form::Json(json!({"allOf": [{"$ref": "#"}]})),
        Form::Json(json!({"type": "object", "allOf": [{"$ref": "#"}]})),
        Form::Json(json!({"anyOf": [{"$ref": "#"}, {"type": "null"}], "maxLength": 3})),
        Form::Json(
            json!({"$defs": {"a": {"$ref": "#/$defs/b", "type": "object"}, "b": {"$ref": "#/$defs/a", "minProperties": 1}}, "$ref": "#/$defs/a"}),
        ),
        Form::Json(deep),
        Form::Json(json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000})),
        Form::Json(json!({"type": "array", "minItems": 1_000_000_000_000u64})),
        Form::Json(json!({"type": "string", "pattern": "(a|aa)*b(a{500}){500}"})),
        Form::Regex("((a{1000}){1000}){1000}".to_owned()),
        Form::Regex("(".repeat(20_000)),
        Form::Regex("(x+x+)+y".to_owned()),
        Form::Choice(wide),
        Form::Grammar(format!("start: {}", "(".repeat(50_000))),
        Form::Grammar("start: a\na: a a | \"x\" | ".to_owned()),
        Form::Grammar("start: a\na: b\nb: a".to_owned()),
    ];
    for form in forms {
        match submit(&engine, &STORY, constrained(form, GREEDY, 30)) {
            Err(Error::Constraint { .. }) => {}
            Ok(events) => {
                let answer = collect(&events);
                assert!(matches!(answer.end, Ok(_) | Err(Error::DeadEnd { .. })), "{answer:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(ask(&engine, &STORY, params(GREEDY, 3)).summary().completion_tokens, 3);
}
