//! Perplexity of a text under SmolLM2, against float64 and llama.cpp.

use toko_engine::tokenizer;
use toko_fixtures::{golden_json, golden_path, smollm2_model, smollm2_path};
use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_kernels::pool::default_threads;
use toko_model::{KvCache, KvType, Model, PageTable, Rows, Scratch, Slot};
use toko_tokenizer::Special;

/// The golden values were computed in chunks of so many tokens.
const CHUNK: usize = 512;

/// Mean of -log p(next token) over the whole chunks of a text.
fn perplexity(file: &Gguf, text: &str) -> f64 {
    let tokens = tokenizer(file).expect("a tokenizer").encode(text, Special::AsText);
    let model = Model::bind(file, Tier::detect(), default_threads()).expect("a model");
    let vocabulary = model.config().vocabulary;
    let mut kv = KvCache::new(model.config(), KvType::F16);
    let mut scratch = Scratch::new(model.config(), CHUNK, CHUNK, CHUNK, default_threads());
    let (mut sum, mut scored) = (0.0, 0.0);
    for chunk in tokens.chunks_exact(CHUNK) {
        let mut pages = PageTable::default();
        kv.grow(&mut pages, CHUNK);
        let slot = Slot { tokens: chunk, start: 0, pages: &pages, rows: Rows::All };
        let logits = model.forward(&[slot], &mut kv, &mut scratch);
        for (row, &next) in logits.chunks_exact(vocabulary).zip(&chunk[1..]) {
            let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            sum += total.ln() - f64::from(row[next as usize]);
            scored += 1.0;
        }
        kv.release(pages);
    }
    (sum / scored).exp()
}

fn check(kind: &str, file: &Gguf) {
    let text = std::fs::read_to_string(golden_path("ppl_text.txt")).expect("the text");
    let number = |file: &str, pointer: &str| {
        golden_json(&format!("smollm2/{kind}.{file}.json"))
            .pointer(pointer)
            .and_then(serde_json::Value::as_f64)
    };
    let llama_cpp = number("llamacpp", "/ppl/ppl").expect("llama.cpp's perplexity");
    let float64 = number("f64ppl", "/ppl").expect("the float64 perplexity");
    let ours = perplexity(file, &text);
    assert!(ours <= llama_cpp * 1.003, "{kind}: {ours}, llama.cpp's is {llama_cpp}");
    assert!((ours / float64 - 1.0).abs() < 0.001, "{kind}: {ours}, float64's is {float64}");
}

#[test]
fn perplexity_in_f16_is_that_of_float64() {
    check("F16", &Gguf::from_bytes(smollm2_model("F16")).expect("the test model opens"));
}

#[test]
fn perplexity_in_q8_0_is_that_of_float64() {
    check("Q8_0", &Gguf::from_bytes(smollm2_model("Q8_0")).expect("the test model opens"));
}

#[test]
fn perplexity_in_q4_0_is_that_of_float64() {
    check("Q4_0", &Gguf::from_bytes(smollm2_model("Q4_0")).expect("the test model opens"));
}

#[test]
fn perplexity_in_q4_1_is_that_of_float64() {
    check("Q4_1", &Gguf::open(smollm2_path()).expect("the test model opens"));
}
