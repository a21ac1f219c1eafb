//! Texts as models write them, and what is told of them however they are cut.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn reading(thoughts: Thoughts, syntax: Option<Syntax>, limit: Limit) -> Reading {
    let names = vec!["f".to_owned(), "get_weather".to_owned()];
    let calls = syntax.map(|syntax| Calls { syntax, names, limit });
    Reading::Marked { thoughts, calls }
}

/// Pieces in short: thoughts in parentheses, calls in brackets, each with everything that it was told.
fn readable(pieces: &[Piece]) -> String {
    let mut out = String::new();
    let mut open = None;
    for piece in pieces {
        if !matches!(piece, Piece::CallArguments { .. }) && open.take().is_some() {
            out.push(']');
        }
        match piece {
            Piece::Content(text) => out.push_str(text),
            Piece::Reasoning(text) => write!(out, "({text})").unwrap(),
            Piece::CallStart { index, name, .. } => {
                open = Some(*index);
                write!(out, "[{index} {name} ").unwrap();
            }
            Piece::CallArguments { index, fragment } => {
                assert_eq!(Some(*index), open, "arguments follow the start of their call");
                out.push_str(fragment);
            }
        }
    }
    if open.is_some() {
        out.push(']');
    }
    out.replace(")(", "")
}

/// Reads a text that comes in these parts.
fn read(reading: &Reading, parts: &[&str], reason: FinishReason) -> (String, End) {
    let mut reader = Reader::new(reading);
    let mut pieces = Vec::new();
    for part in parts {
        pieces.extend(reader.push((*part).to_owned()));
    }
    let (rest, end) = reader.finish(reason);
    pieces.extend(rest);
    (readable(&pieces), end)
}

fn whole(reading: &Reading, text: &str) -> String {
    read(reading, &[text], FinishReason::Stop).0
}

#[test]
fn thoughts_are_what_stands_between_their_marks_at_the_beginning() {
    let possible = reading(Thoughts::Possible, None, Limit::Any);
    for (text, told) in [
        ("<think>\nOne.\n\nTwo.\n</think>\n\nThree.\n", "(One.\n\nTwo.)Three.\n"),
        ("\n<think>\n\n</think>\n\nThree.", "Three."),
        ("Three. <think>no</think>", "Three. <think>no</think>"),
        ("<thin", "<thin"),
        ("  a", "  a"),
        ("<think>One </thi", "(One </thi)"),
        ("<think>One</think>\n", "(One)"),
        ("", ""),
    ] {
        assert_eq!(whole(&possible, text), told, "{text:?}");
    }
    let begun = reading(Thoughts::Begun, None, Limit::Any);
    for (text, told) in [
        ("One.\n</think>\nTwo.", "(One.)Two."),
        ("<think>One.</think>Two.", "(One.)Two."),
        ("One. ", "(One.)"),
        ("</think>Two.", "Two."),
    ] {
        assert_eq!(whole(&begun, text), told, "{text:?}");
    }
    let unknown = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::Any);
    assert_eq!(whole(&unknown, "<think>One</think>"), "<think>One</think>");
}

#[test]
fn tagged_calls_are_told_beside_text() {
    let tagged = reading(Thoughts::Possible, Some(Syntax::Tagged), Limit::Any);
    for (text, told) in [
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}\n</tool_call>",
            "[0 f {\"a\": [1, {\"b\": \"}\\\"\"}]}]",
        ),
        (
            "<think>\nHm.\n</think>\n\nLook:\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\
             <tool_call>{\"arguments\":{\"x\":1},\"name\":\"g\"}</tool_call>\n",
            "(Hm.)Look:[0 f {}][1 g {\"x\":1}]",
        ),
        (
            "<tool_call>{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"a\": 1}}</tool_call> after",
            "[0 f {\"a\": 1}]after",
        ),
        ("<tool_call>{\"name\":\"f\"}</tool_call>", "[0 f {}]"),
        ("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}", "[0 f {\"a\":1}]"),
        ("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1\n</tool_call> x", "[0 f {\"a\":1\n]x"),
    ] {
        assert_eq!(read(&tagged, &[text], FinishReason::Stop), (told.to_owned(), End::ToolCalls));
    }
}

#[test]
fn bare_calls_are_the_whole_answer() {
    let bare = reading(Thoughts::Unknown, Some(Syntax::Bare), Limit::Any);
    for (text, told) in [
        ("{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", "[0 f {\"a\": \"b\"}]"),
        ("\n<|python_tag|> {\"name\": \"f\", \"parameters\": {}}", "[0 f {}]"),
        (
            "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"get_weather\",\"parameters\":{\"a\":1}}",
            "[0 f {}][1 get_weather {\"a\":1}]",
        ),
    ] {
        assert_eq!(read(&bare, &[text], FinishReason::Stop), (told.to_owned(), End::ToolCalls));
    }
}

#[test]
fn what_is_no_call_stays_text() {
    let tagged = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::Any);
    for text in [
        "a <tool_call> b",
        "<tool_call>\n{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
        "<tool_call>{\"city\": \"Paris\"}</tool_call>",
        "<tool_call>{}</tool_call>",
        "x\n<tool_call>{\"name\": \"f",
        "{\"name\": \"f\", \"arguments\": {}}",
        "a <tool",
        " \n",
    ] {
        assert_eq!(read(&tagged, &[text], FinishReason::Stop), (text.to_owned(), End::Stop));
    }
    let bare = reading(Thoughts::Unknown, Some(Syntax::Bare), Limit::Any);
    for text in [
        "{\"name\": \"Ann\", \"parameters\": {}}",
        "{\"city\": \"Paris\"}",
        "Sure: {\"name\": \"f\", \"parameters\": {}}",
        "{\"name\": \"f\"",
        "<|python_tag|>print(1)",
        "<|python",
    ] {
        assert_eq!(read(&bare, &[text], FinishReason::Stop), (text.to_owned(), End::Stop));
    }
}

#[test]
fn a_call_that_is_cut_keeps_what_was_told_and_ends_by_length() {
    for (syntax, open) in [(Syntax::Tagged, "<tool_call>"), (Syntax::Bare, "")] {
        let reading = reading(Thoughts::Unknown, Some(syntax), Limit::Any);
        let text = format!("{open}{{\"name\": \"f\", \"arguments\": {{\"a\": \"b");
        let told = "[0 f {\"a\": \"b]".to_owned();
        assert_eq!(read(&reading, &[&text], FinishReason::Length), (told, End::Length));
    }
}

#[test]
fn with_a_limit_of_one_nothing_is_told_behind_the_first_call() {
    let reading = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::One);
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let text = format!("{call}\n{call} and more");
    assert_eq!(
        read(&reading, &[&text], FinishReason::Stop),
        ("[0 f {}]".to_owned(), End::ToolCalls)
    );
}

#[test]
fn a_name_is_told_before_its_arguments_and_each_call_has_its_own_id() {
    let tagged = reading(Thoughts::Unknown, Some(Syntax::Tagged), Limit::Any);
    let mut reader = Reader::new(&tagged);
    assert_eq!(reader.push("<tool_call>{\"name\":\"f\",\"arguments\":".to_owned()), []);
    let pieces = reader.push("{\"a".to_owned());
    assert!(
        matches!(pieces.as_slice(), [Piece::CallStart { index: 0, name, .. }, Piece::CallArguments { index: 0, fragment }] if name == "f" && fragment == "{\"a"),
        "{pieces:?}"
    );
    let pieces = reader.push("\":1}}</tool_call><tool_call>{\"name\":\"f\"}".to_owned());
    let more = Piece::CallArguments { index: 0, fragment: "\":1}".to_owned() };
    assert_eq!((pieces.len(), &pieces[0]), (3, &more), "{pieces:?}");
    assert!(matches!(&pieces[1], Piece::CallStart { index: 1, id, .. } if id.len() == 37));
}

#[test]
fn tokens_of_thoughts_are_counted_with_the_mark_that_ends_them() {
    let possible = reading(Thoughts::Possible, None, Limit::Any);
    let mut reader = Reader::new(&possible);
    for token in ["<think>", "\n", "Hm", ".", "", "</think>", "\n\n", "Yes"] {
        reader.push(token.to_owned());
    }
    assert_eq!(reader.reasoning_tokens(), 5);
}

/// Texts of what models write, in any order, legal and not.
fn texts() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"name\":\"f\",\"parameters\":",
        "{\"arguments\": {\"x\": \"<tool_call>\"}, \"name\": \"f\"",
        "{\"a\": [1, \"}\\\"é\"]}",
        "{}",
        "}",
        "\"",
        "<",
        ";",
        "\n",
        " ",
        "word 😀",
    ]);
    prop::collection::vec(part, 0..9).prop_map(|parts| parts.concat())
}

fn readings(limits: &[Limit]) -> impl Strategy<Value = Reading> {
    let thoughts =
        prop::sample::select(vec![Thoughts::Unknown, Thoughts::Possible, Thoughts::Begun]);
    let syntax = prop::sample::select(vec![None, Some(Syntax::Tagged), Some(Syntax::Bare)]);
    let limit = prop::sample::select(limits.to_vec());
    (thoughts, syntax, limit).prop_map(|(thoughts, syntax, limit)| reading(thoughts, syntax, limit))
}

proptest! {
    #[test]
    fn the_cutting_into_pieces_does_not_matter(
        text in texts(),
        reading in readings(&[Limit::One, Limit::Any]),
        is_cut in prop::collection::vec(any::<bool>(), 200),
    ) {
        let mut parts: Vec<String> = vec![String::new()];
        for (character, is_cut) in text.chars().zip(is_cut.iter().cycle()) {
            if *is_cut {
                parts.push(String::new());
            }
            parts.last_mut().expect("there is one").push(character);
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let expected = read(&reading, &[&text], FinishReason::Stop);
        prop_assert_eq!(read(&reading, &parts, FinishReason::Stop), expected);
    }

    #[test]
    fn no_word_is_lost(text in "(<think>|</think>|<tool_call>|[a-z{}\" ]){0,20}", reading in readings(&[Limit::Any])) {
        let words = |text: &str| text.chars().filter(|char| "abcdefg".contains(*char)).count();
        // Marks have none of these letters but the call's `a` and `c`.
        let marks = text.matches("<tool_call>").count();
        let told = whole(&reading, &text);
        prop_assert_eq!(words(&told) - told.matches("<tool_call>").count() * 2, words(&text) - marks * 2);
    }
}
