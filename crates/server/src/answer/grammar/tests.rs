//! Which texts the grammars allow, asked of their engine byte by byte, and that the reader gives back what was demanded.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities};
use llguidance::{Matcher, ParserFactory};
use toko_engine::FinishReason;

use super::super::{End, Piece, Reader};
use super::*;

fn tools(strict: bool, choice: Choice, limit: Limit) -> Tools {
    let tool = |name: &str, parameters: Option<Value>| Tool {
        name: name.to_owned(),
        description: None,
        parameters,
        strict,
        name_param: String::new(),
        parameters_param: String::new(),
    };
    let weather = json!({
        "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": false,
    });
    let offered = vec![tool("weather", Some(weather)), tool("time", None)];
    let accepted = Tools::accept("tools", offered, "tool_choice", choice, limit);
    accepted.expect("they are legal").expect("they may be called")
}

fn reading(thoughts: Thoughts, syntax: Option<Syntax>, limit: Limit) -> Reading {
    let names = vec!["weather".to_owned(), "time".to_owned()];
    let calls = syntax.map(|syntax| Calls { syntax, names, limit });
    Reading::Marked { thoughts, calls }
}

/// Says whether the text, whole, is what the constraint allows.
fn allows(constraint: &Constraint, text: &str) -> bool {
    let environment = ApproximateTokEnv::single_byte_env();
    let mut factory =
        ParserFactory::new(&environment, InferenceCapabilities::default(), &[]).expect("a factory");
    factory.quiet();
    let mut grammars = vec![GrammarWithLexer::from_lark(constraint.grammar.clone())];
    for (name, form) in &constraint.parts {
        let Form::Json(schema) = form else { panic!("{form:?} is not used here") };
        let mut part = GrammarWithLexer::from_json_schema(schema.clone());
        part.name = Some(name.clone());
        grammars.push(part);
    }
    let parser = factory.create_parser(TopLevelGrammar { grammars, max_tokens: None });
    let mut matcher = Matcher::new(parser);
    assert_eq!(matcher.get_error(), None, "{}", constraint.grammar);
    let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
    let taken = matcher.try_consume_tokens(&bytes).expect("the matcher goes on");
    taken == bytes.len() && matcher.is_accepting().expect("the matcher goes on")
}

/// What is read of a text: content, thoughts and calls.
fn read(reading: &Reading, text: &str) -> (String, String, Vec<(String, String)>, End) {
    let mut reader = Reader::new(reading);
    let mut pieces = reader.push(text.to_owned());
    let (rest, end) = reader.finish(FinishReason::Stop);
    pieces.extend(rest);
    let (mut content, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Content(text) => content += &text,
            Piece::Reasoning(text) => thoughts += &text,
            Piece::CallStart { name, .. } => calls.push((name, String::new())),
            Piece::CallArguments { index, fragment } => calls[index].1 += &fragment,
        }
    }
    (content, thoughts, calls, end)
}

const ROME: &str =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Rome\"}}\n</tool_call>";
const TIME: &str = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

#[test]
fn forced_calls_are_calls_and_nothing_else() {
    let reading = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::Any);
    let tools = tools(false, Choice::Required, Limit::Any);
    let forced = constraint(&reading, None, Some(&tools)).expect("it is held");
    for (text, count) in [(ROME.to_owned(), 1), (format!("{TIME}\n{ROME}"), 2)] {
        assert!(allows(&forced, &text), "{text}");
        let (content, _, calls, end) = read(&reading, &text);
        assert_eq!((content.as_str(), calls.len(), end), ("", count, End::ToolCalls));
    }
    for text in [
        "",
        "Hello",
        &format!("Hello {ROME}"),
        &ROME.replace("Rome", "Paris"),
        &ROME.replace("weather", "time"),
        &TIME.replace("time", "fly"),
        &ROME[..ROME.len() - 1],
        &format!("{ROME} and more"),
    ] {
        assert!(!allows(&forced, text), "{text}");
    }
    let one = reading_of_one();
    let named = self::tools(false, Choice::Named("time".to_owned()), Limit::Any);
    let named = constraint(&one, None, Some(&named)).expect("it is held");
    assert!(allows(&named, TIME));
    assert!(!allows(&named, ROME) && !allows(&named, &format!("{TIME}\n{TIME}")));
}

fn reading_of_one() -> Reading {
    reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::One)
}

#[test]
fn bare_calls_are_forced_in_their_own_syntax() {
    let reading = reading(Thoughts::Unknown, Some(Syntax::Bare), Limit::Any);
    let tools = tools(false, Choice::Required, Limit::Any);
    let forced = constraint(&reading, None, Some(&tools)).expect("it is held");
    let text = "{\"name\": \"time\", \"parameters\": {}}; {\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}";
    assert!(allows(&forced, text));
    assert_eq!(read(&reading, text).2.len(), 2);
    assert!(!allows(&forced, ROME) && !allows(&forced, "Hello"));
}

#[test]
fn strict_tools_leave_text_free_and_hold_calls() {
    let tagged = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::Any);
    let held = constraint(&tagged, None, Some(&tools(true, Choice::Auto, Limit::Any)));
    let held = held.expect("it is held");
    for text in
        ["Hello.\n\n<tool", "a < b", ROME, &format!("Hello\n{ROME}\n{TIME} Bye"), "<tool_call"]
    {
        assert!(allows(&held, text), "{text}");
    }
    for text in ["<tool_call>x", &format!("Hello {}", ROME.replace("Rome", "Paris")), "<tool_call>"]
    {
        assert!(!allows(&held, text), "{text}");
    }
    let one = constraint(&reading_of_one(), None, Some(&tools(true, Choice::Auto, Limit::One)));
    let one = one.expect("it is held");
    assert!(allows(&one, &format!("Hello {ROME}")) && allows(&one, "Hello"));
    assert!(!allows(&one, &format!("{ROME}\n{ROME}")));
    let bare = reading(Thoughts::Unknown, Some(Syntax::Bare), Limit::Any);
    let bare = constraint(&bare, None, Some(&tools(true, Choice::Auto, Limit::Any)));
    let bare = bare.expect("it is held");
    let call =
        |city: &str| format!("{{\"name\": \"weather\", \"parameters\": {{\"city\": \"{city}\"}}}}");
    assert!(allows(&bare, "Hello {x}") && allows(&bare, &call("Oslo")));
    assert!(
        !allows(&bare, &call("Paris"))
            && !allows(&bare, &format!("<|python_tag|>{}", call("Paris")))
    );
    let lenient = tools(false, Choice::Auto, Limit::Any);
    assert_eq!(constraint(&tagged, None, Some(&lenient)), None);
}

#[test]
fn a_form_beside_tools_allows_either() {
    let reading = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::Any);
    let form = Form::Json(json!({"const": "done"}));
    let tools = tools(false, Choice::Auto, Limit::Any);
    let either = constraint(&reading, Some(form), Some(&tools)).expect("it is held");
    assert!(allows(&either, "\"done\"") && allows(&either, TIME));
    assert!(!allows(&either, "done") && !allows(&either, &format!("{TIME}\"done\"")));
}

#[test]
fn a_model_that_thinks_thinks_before_the_form() {
    let form = || Some(Form::Json(json!({"enum": [1, "</think>"]})));
    let possible = reading(Thoughts::Possible, None, Limit::Any);
    let held = constraint(&possible, form(), None).expect("it is held");
    for (text, thoughts) in
        [("1", ""), ("<think>\nHm < 2\n\n{</think>\n\n1", "Hm < 2\n\n{"), ("<think></think>1", "")]
    {
        assert!(allows(&held, text), "{text}");
        let (content, told, _, _) = read(&possible, text);
        assert_eq!((content.as_str(), told.as_str()), ("1", thoughts));
    }
    for text in
        ["<think>Hm", "<think>Hm</think>Hello", "Hm</think>1", "<think></think>a</think>1", "2"]
    {
        assert!(!allows(&held, text), "{text}");
    }
    let begun = reading(Thoughts::Begun, None, Limit::Any);
    let held = constraint(&begun, form(), None).expect("it is held");
    assert!(allows(&held, "Hm.\n</think>\n\n1") && allows(&held, "</think>\"</think>\""));
    assert!(!allows(&held, "1") && !allows(&held, "Hm.</think>2"));
    assert_eq!(read(&begun, "Hm.\n</think>\n\n1").0, "1");
}
