//! Layers of real configurations against figures of a separate calculator.

use std::collections::BTreeMap;

use serde_json::Value;
use toko_admission::geometry::gguf::{self, Field};
use toko_admission::geometry::{
    Cache, Error, Exactness, KvElement, LatentForm, Layer, Recurrence, Shape, hf,
};
use toko_admission::units::Bytes;

fn golden() -> Value {
    toko_fixtures::golden_json("geometry.json")
}

fn bytes(value: &Value) -> Bytes {
    Bytes::new(value.as_u64().expect("a golden figure is a whole number"))
}

fn kind(layer: &Layer) -> String {
    let cache = match layer.cache {
        Cache::None => None,
        Cache::Shared => Some("shared_kv"),
        Cache::Full { .. } => Some("full"),
        Cache::Window { .. } => Some("window"),
        Cache::Latent { .. } => Some("mla"),
        Cache::Compressed { .. } => Some("dsv4"),
    };
    let state = layer.state.map(|state| match state.recurrence {
        Recurrence::Mamba1 => "mamba1",
        Recurrence::Mamba2 => "mamba2",
        Recurrence::GatedDelta => "gated_delta",
        Recurrence::Kda => "kda",
        Recurrence::Rwkv => "rwkv",
        Recurrence::Lightning => "lightning",
        Recurrence::ShortConv => "conv",
        Recurrence::Rglru => "rglru",
    });
    match (cache, state) {
        (Some(cache), Some(state)) => format!("{cache}+{state}"),
        (Some(kind), None) | (None, Some(kind)) => kind.to_owned(),
        (None, None) => "none".to_owned(),
    }
}

fn kinds(shape: &Shape) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for layer in &shape.layers {
        *kinds.entry(kind(layer)).or_insert(0) += 1;
    }
    kinds
}

fn window_bytes(shape: &Shape) -> (Bytes, Vec<u64>) {
    let windows = shape.layers.iter().filter_map(|layer| match layer.cache {
        Cache::Window { elements, window_tokens } => Some((elements, window_tokens)),
        _ => None,
    });
    let (elements, mut lengths): (Vec<u64>, Vec<u64>) = windows.unzip();
    lengths.dedup();
    (KvElement::F16.bytes(elements.into_iter().map(u128::from).sum()), lengths)
}

fn check(id: &str, shape: &Shape, expected: &Value) {
    let contexts = expected["kv_bytes_1seq_2B"].as_object().expect("figures by context");
    assert!(contexts.len() >= 4);
    for (tokens, figure) in contexts {
        let tokens = tokens.parse().expect("a context is a number");
        assert_eq!(shape.kv_bytes(tokens, KvElement::F16), bytes(figure), "{id} at {tokens}");
        let growth = shape.growth(KvElement::F16, 1);
        let grown: Bytes = growth.iter().map(|growth| growth.bytes(tokens)).sum();
        assert_eq!(grown, bytes(figure), "{id} at {tokens}: as growth");
    }
    let declared: BTreeMap<String, u64> =
        serde_json::from_value(expected["layer_kinds"].clone()).expect("kinds are counted");
    assert_eq!(kinds(shape), declared, "{id}");
    let per_token = shape.growing_bytes_per_token(KvElement::F16);
    assert_eq!(per_token, bytes(&expected["kv_growing_bytes_per_token_2B"]), "{id}");
    check_optional(id, shape, expected);
}

fn check_optional(id: &str, shape: &Shape, expected: &Value) {
    if let Some(elements) = expected["recurrent_state_elems_per_seq"].as_object() {
        assert_eq!(
            Value::from(u64::try_from(shape.conv_elements()).ok()),
            elements["conv"],
            "{id}"
        );
        assert_eq!(
            Value::from(u64::try_from(shape.state_elements()).ok()),
            elements["ssm"],
            "{id}"
        );
        let all = shape.recurrent_bytes(KvElement::F32);
        assert_eq!(all, bytes(&expected["recurrent_state_bytes_per_seq_f32"]), "{id}");
    } else {
        assert_eq!(shape.recurrent_bytes(KvElement::F32), Bytes::ZERO, "{id}");
    }
    let (per_token, lengths) = window_bytes(shape);
    if expected["window"].is_null() {
        assert_eq!(per_token, Bytes::ZERO, "{id}");
    } else {
        assert_eq!(per_token, bytes(&expected["window_bytes_per_token_2B_sum"]), "{id}");
        assert_eq!(Value::from(lengths), Value::from(vec![expected["window"].clone()]), "{id}");
        let growing = shape.growing_bytes_per_token(KvElement::F16);
        assert_eq!(growing + per_token, bytes(&expected["growing_if_windows_ignored_2B"]), "{id}");
    }
    if !expected["mla_expanded_bytes_per_token_2B"].is_null() {
        let expanded = shape.in_form(LatentForm::Expanded);
        let per_token = expanded.growing_bytes_per_token(KvElement::F16);
        assert_eq!(per_token, bytes(&expected["mla_expanded_bytes_per_token_2B"]), "{id}");
    }
    let published = expected["logits_row_bytes_f32"].as_u64();
    if let Some(row) = published.filter(|_| shape.vocab.is_some()) {
        assert_eq!(shape.vocab, Some(row / 4), "{id}");
    }
}

#[test]
fn every_golden_configuration_gives_its_bytes() {
    let golden = golden();
    let models = golden["models"].as_array().unwrap();
    assert_eq!(models.len(), 66);
    for model in models {
        let id = model["id"].as_str().unwrap();
        let shape = hf::read(&model["config"].to_string()).unwrap_or_else(|e| panic!("{id}: {e}"));
        assert_eq!(shape.exactness, Exactness::Exact, "{id}");
        check(id, &shape, &model["expected"]);
    }
}

fn field(value: &Value) -> Field {
    match value {
        Value::String(text) => Field::Text(text.clone()),
        Value::Bool(flag) => Field::Flag(*flag),
        Value::Number(number) => match number.as_u64() {
            Some(count) => Field::Count(count),
            None => Field::Real(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::Array(list) if list.iter().all(Value::is_boolean) => {
            Field::Flags(list.iter().filter_map(Value::as_bool).collect())
        }
        Value::Array(list) if list.iter().all(Value::is_u64) => {
            Field::Counts(list.iter().filter_map(Value::as_u64).collect())
        }
        _ => Field::Other,
    }
}

fn read_metadata(metadata: &Value) -> Result<Shape, Error> {
    gguf::read(&|key| metadata.get(key).map(field))
}

fn golden_file(id: &str) -> (Shape, Value) {
    let golden = golden();
    let files = golden["gguf"].as_array().expect("the golden file lists files");
    let file = files.iter().find(|file| file["id"] == id).expect("the golden file has the name");
    let shape = read_metadata(&file["metadata"]).expect("the metadata is usable");
    assert_eq!(shape.exactness, Exactness::Exact, "{id}");
    (shape, file["expected"].clone())
}

#[test]
fn a_hybrid_file_keeps_its_draft_layer_apart_from_its_states() {
    let (shape, expected) = golden_file("qwen3.8:27b GGUF");
    let per_token = shape.growing_bytes_per_token(KvElement::F16);
    assert_eq!(per_token, bytes(&expected["kv_bytes_per_token_f16"]));
    assert_eq!(Value::from(kinds(&shape)["gated_delta"]), expected["recurrent_layers"]);
    let state = shape.layers[0].state.unwrap();
    let of_layer = KvElement::F32.bytes(u128::from(state.conv_elements + state.state_elements));
    assert_eq!(of_layer, bytes(&expected["recurrent_bytes_per_layer_f32"]));
    let once = shape.recurrent_bytes(KvElement::F32);
    assert_eq!(once, bytes(&expected["recurrent_total_one_copy"]));
    assert_eq!(once * 5, bytes(&expected["recurrent_total_with_4_drafted_tokens"]));
    let draft = Shape { layers: shape.draft_layers.clone(), ..shape };
    let per_token = draft.growing_bytes_per_token(KvElement::F16);
    assert_eq!(per_token, bytes(&expected["draft_layer_bytes_per_token"]));
    assert_eq!(draft.kv_bytes(8192, KvElement::F16), Bytes::from_mib(32), "as measured");
}

#[test]
fn a_hybrid_file_without_a_draft_layer_gives_its_bytes() {
    let (shape, expected) = golden_file("ornith:9b GGUF (qwen35, 32 layers)");
    let per_token = shape.growing_bytes_per_token(KvElement::F16);
    assert_eq!(per_token, bytes(&expected["kv_bytes_per_token_f16"]));
    let once = shape.recurrent_bytes(KvElement::F32);
    assert_eq!(once, bytes(&expected["recurrent_total_one_copy"]));
    assert_eq!(shape.kv_bytes(8192, KvElement::F16), Bytes::from_mib(256), "as measured");
    assert_eq!(shape.draft_layers, []);
}

#[test]
fn a_file_without_absorbed_heads_is_counted_expanded_and_can_be_counted_latent() {
    let (shape, expected) = golden_file("deepseek-coder-v2 lite GGUF (deepseek2, no *_mla keys)");
    let per_token = |shape: &Shape| shape.growing_bytes_per_token(KvElement::F16);
    assert_eq!(per_token(&shape), bytes(&expected["kv_bytes_per_token_f16_expanded"]));
    assert_eq!(shape.kv_bytes(8192, KvElement::F16), Bytes::from_mib(2160), "as measured");
    let latent = shape.in_form(LatentForm::Latent);
    assert_eq!(per_token(&latent), bytes(&expected["kv_bytes_per_token_f16_latent"]));
}

#[test]
fn a_dense_file_gives_its_bytes() {
    let (shape, expected) = golden_file("llama3.2:3b GGUF");
    let per_token = shape.growing_bytes_per_token(KvElement::F16);
    assert_eq!(per_token, bytes(&expected["kv_bytes_per_token_f16"]));
}

#[test]
fn a_file_that_does_not_say_which_layers_slide_follows_its_architecture() {
    let (shape, expected) = golden_file("gpt-oss-20b GGUF");
    assert_eq!(Value::from(kinds(&shape)["full"]), expected["full_layers"]);
    let all = shape.kv_bytes(131_072, KvElement::F16);
    assert_eq!(all, bytes(&expected["kv_bytes_at_131072"]));
}

#[test]
fn windows_that_an_engine_widens_are_counted_wider() {
    let (shape, expected) = golden_file("gemma4 26B-A4B GGUF");
    let wide = shape.widened(512);
    for (tokens, figure) in expected["kv_bytes_f16_swa_cells_1536"].as_object().unwrap() {
        let all = wide.kv_bytes(tokens.parse().unwrap(), KvElement::F16);
        assert_eq!(all, bytes(figure), "{tokens}");
    }
}
