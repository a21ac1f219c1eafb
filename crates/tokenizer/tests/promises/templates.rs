//! Chat templates render as Python's Jinja2 renders them, and fail in words.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use toko_tokenizer::{Chat, ChatTemplate, Error, Message, Tokenizer, ToolCall};

use crate::vocabularies::bytes_and;

fn chat(messages: &[(&str, &str)]) -> Chat {
    let messages = messages.iter().map(|(role, content)| Message::new(*role, *content)).collect();
    Chat::new(messages, UNIX_EPOCH + Duration::from_secs(1_735_689_599))
}

fn render(source: &str, chat: &Chat) -> String {
    ChatTemplate::new(source, "<s>", "</s>").unwrap().render(chat).unwrap()
}

fn calling(arguments: serde_json::Value) -> Chat {
    let mut chat = chat(&[("assistant", "")]);
    chat.messages[0].tool_calls.push(ToolCall {
        id: "c1".to_owned(),
        name: "f".to_owned(),
        arguments,
    });
    chat
}

#[test]
fn blocks_trim_their_line_ends_and_indents() {
    let source = "{%- for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{%- endfor %}\nend";
    assert_eq!(render(source, &chat(&[("user", "")])), "user\nend");
}

#[test]
fn python_string_methods_work() {
    let source = "{% set c = messages[0].content %}{{ (c.split('</think>')|last).lstrip('\\n') }}|{{ c.strip() }}|\
        {{ c.startswith('a') }}|{{ messages[::-1][0].role }}";
    assert_eq!(
        render(source, &chat(&[("user", "a</think>\n\nb ")])),
        "b |a</think>\n\nb|True|user"
    );
}

#[test]
fn the_time_comes_from_the_caller() {
    assert_eq!(
        render("{{ strftime_now('%d %b %Y %H:%M:%S') }}", &chat(&[])),
        "31 Dec 2024 23:59:59"
    );
}

#[test]
fn what_a_template_raises_is_the_error() {
    let template =
        ChatTemplate::new("{{ raise_exception('roles must alternate') }}", "", "").unwrap();
    match template.render(&chat(&[("user", "x")])) {
        Err(Error::TemplateRaised { message }) => assert_eq!(message, "roles must alternate"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_broken_template_is_refused_with_its_line() {
    let error = ChatTemplate::new("a\n{% for %}", "", "").unwrap_err();
    assert!(matches!(error, Error::TemplateSyntax { line: 2, .. }), "{error}");
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let source =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
    let error = ChatTemplate::new(source, "", "").unwrap().render(&chat(&[])).unwrap_err();
    assert!(matches!(error, Error::TemplateFailed { .. }), "{error}");
}

#[test]
fn generation_tags_mark_nothing() {
    let source = "a\n  {%- generation -%}\n b {% endgeneration %}\nc{% if add_generation_prompt %}d{% endif %}";
    assert_eq!(render(source, &chat(&[])), "ab cd");
}

#[test]
fn absent_things_are_none_or_missing_as_in_python() {
    let source = "{{ tools is none }} {{ tools is iterable }} {{ messages[0].tool_calls is defined }} {{ messages[0].name is defined }} \
        {{ messages[0].content == '' }} {{ enable_thinking is defined }} {{ bos_token }}{{ eos_token }}";
    assert_eq!(
        render(source, &chat(&[("assistant", "")])),
        "True False False False True False <s></s>"
    );
}

#[test]
fn variables_reach_the_template() {
    let mut chat = chat(&[]);
    chat.variables.insert("enable_thinking".to_owned(), json!(false));
    assert_eq!(
        render(
            "{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}",
            &chat
        ),
        "off"
    );
}

#[test]
fn arguments_are_an_object_and_tojson_spells_them_as_python_does() {
    let source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
    let spelled = r#"{"city": "<Zürich> & 'co'", "n": [1, 2.0, null]}"#;
    let arguments = json!({"city": "<Zürich> & 'co'", "n": [1, 2.0, null]});
    assert_eq!(render(source, &calling(arguments.clone())), spelled);
    assert_eq!(render(source, &calling(json!(arguments.to_string()))), spelled);
}

#[test]
fn a_template_that_wants_arguments_as_text_gets_text() {
    let source = "{{ '```json\\n' + messages[0].tool_calls[0].function.arguments + '\\n```' }}";
    assert_eq!(render(source, &calling(json!({"a": 1}))), "```json\n{\"a\": 1}\n```");
}

#[test]
fn a_template_without_a_system_role_gets_the_system_text_with_the_first_user_message() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
        [{{ m.content }}]{% endfor %}";
    assert_eq!(render(source, &chat(&[("system", "be kind"), ("user", "hi")])), "[be kind\n\nhi]");
    let template = ChatTemplate::new(source, "", "").unwrap();
    assert!(matches!(
        template.render(&chat(&[("system", "x")])),
        Err(Error::TemplateRaised { .. })
    ));
}

#[test]
fn the_fallback_is_chatml_where_the_vocabulary_has_it_and_plain_otherwise() {
    let talk =
        chat(&[("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")]);
    let chatml = Tokenizer::new(bytes_and(&[("<|im_start|>", 3), ("<|im_end|>", 3)])).unwrap();
    assert_eq!(
        ChatTemplate::fallback(&chatml).render(&talk).unwrap(),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n\
         <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    );
    let plain = Tokenizer::new(bytes_and(&[])).unwrap();
    assert_eq!(
        ChatTemplate::fallback(&plain).render(&talk).unwrap(),
        "Be kind.\n\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant:"
    );
}
