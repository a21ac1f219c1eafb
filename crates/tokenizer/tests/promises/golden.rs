//! Token ids and prompts that other programs computed for the same strings.

use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::Value;
use toko_tokenizer::{Chat, ChatTemplate, Message, Special, Tokenizer};

use crate::vocabularies::{QWEN2, from_file, named};

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn check_vectors(name: &str) {
    let tokenizer = named(name);
    let read = |ending: &str| {
        let path = toko_fixtures::golden_path(&format!("vocab/ggml-vocab-{name}.gguf.{ending}"));
        std::fs::read_to_string(path).unwrap()
    };
    let (texts, lines) = (read("inp"), read("out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines.len() > 40 && texts.len() >= lines.len());
    for (text, line) in texts.iter().zip(lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(text, Special::AsText), expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&expected, true), *text, "{name}");
    }
}

#[test]
fn gpt_2_has_the_ids_of_its_authors() {
    check_vectors("gpt-2");
}

#[test]
fn llama_bpe_has_the_ids_of_its_authors() {
    check_vectors("llama-bpe");
}

#[test]
fn llama_spm_has_the_ids_of_its_authors() {
    check_vectors("llama-spm");
}

#[test]
fn qwen2_has_the_ids_of_its_authors() {
    check_vectors("qwen2");
}

fn check_tokenizations(tokenizer: &Tokenizer, file: &str) {
    let golden = toko_fixtures::golden_json(file);
    let cases = golden["tokenize"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Special::AsText), ids(&case["ids"]), "{file}: {text:?}");
        assert_eq!(
            tokenizer.encode(text, Special::Parse),
            ids(&case["ids_parse_special"]),
            "{file}: {text:?}"
        );
        assert_eq!(
            tokenizer.encode_with_bos(text, Special::Parse),
            ids(&case["ids_add_special"]),
            "{file}: {text:?}"
        );
        if case["roundtrip"] == true {
            assert_eq!(tokenizer.decode(&ids(&case["ids_parse_special"]), true), text, "{file}");
        }
    }
}

#[test]
fn qwen3_cuts_tricky_strings_as_llama_cpp_does() {
    check_tokenizations(&QWEN2, "tokenizer/qwen2_151936.json");
}

#[test]
fn smollm2_cuts_tricky_strings_as_llama_cpp_does() {
    let tokenizer = from_file(&toko_fixtures::smollm2_path());
    check_tokenizations(&tokenizer, "tokenizer/smollm2.json");
    for type_name in ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M", "Q6_K", "TQ2_0"] {
        let file = format!("smollm2/{type_name}.llamacpp.json");
        check_tokenizations(&tokenizer, &file);
        let golden = toko_fixtures::golden_json(&file);
        for prompt in golden["prompts"].as_array().unwrap() {
            let text = prompt["text"].as_str().unwrap();
            assert_eq!(
                tokenizer.encode_with_bos(text, Special::Parse),
                ids(&prompt["ids"]),
                "{text:?}"
            );
            assert_eq!(
                tokenizer.decode(&ids(&prompt["greedy_ids"]), true),
                prompt["greedy_text"].as_str().unwrap()
            );
        }
    }
}

#[test]
fn the_embedded_model_cuts_its_prompts_as_it_was_trained() {
    let tokenizer = from_file(&toko_fixtures::embedded_model_path());
    for case in toko_fixtures::embedded_model_golden().as_array().unwrap() {
        let text = case["prompt"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode_with_bos(text, Special::Parse),
            ids(&case["prompt_ids"]),
            "{text:?}"
        );
        assert_eq!(
            tokenizer.decode(&ids(&case["greedy_ids"]), true),
            case["greedy_text"].as_str().unwrap()
        );
    }
}

fn check_chats(model: &Path, file: &str) {
    let tokenizer = from_file(model);
    let golden = toko_fixtures::golden_json(file);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let template = ChatTemplate::new(
        &text(&golden["chat_template"]),
        &text(&golden["bos_token"]),
        &text(&golden["eos_token"]),
    )
    .unwrap();
    let mut compared = 0;
    for case in golden["chats"].as_array().unwrap() {
        // Content in parts is the server's to join; one text is what reaches a template.
        let Some(messages) = plain_messages(&case["messages"]) else { continue };
        let mut chat = Chat::new(messages, UNIX_EPOCH);
        let rendered = template.render(&chat).unwrap();
        assert_eq!(rendered, text(&case["jinja2_prompt"]), "{file}: {}", case["name"]);
        if case["agree"] == true && case["name"] != "special_in_content" {
            assert_eq!(
                template.prompt(&tokenizer, &chat).unwrap(),
                ids(&case["ids"]),
                "{file}: {}",
                case["name"]
            );
            compared += 1;
        }
        chat.add_generation_prompt = false;
        assert_eq!(
            template.render(&chat).unwrap(),
            text(&case["jinja2_no_generation_prompt"]),
            "{file}"
        );
    }
    assert!(compared >= 8, "{file}");
}

fn plain_messages(messages: &Value) -> Option<Vec<Message>> {
    let plain = |message: &Value| {
        Some(Message::new(message["role"].as_str()?, message["content"].as_str()?))
    };
    messages.as_array().unwrap().iter().map(plain).collect()
}

#[test]
fn smollm2_conversations_have_the_prompts_of_llama_server() {
    check_chats(&toko_fixtures::smollm2_path(), "chat/smollm2.json");
}

#[test]
fn qwen3_conversations_have_the_prompts_of_llama_server() {
    check_chats(&toko_fixtures::golden_path("tiny/tiny-qwen3.Q8_0.gguf"), "chat/qwen3.json");
}
