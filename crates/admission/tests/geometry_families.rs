//! Families of architectures beyond the golden configurations: layers counted by hand from their published papers and
//! configurations, and files that are hostile or say nothing.

use proptest::prelude::*;
use serde_json::{Value, json};
use toko_admission::geometry::gguf::{self, Field};
use toko_admission::geometry::{
    Cache, Error, Exactness, KvElement, LatentForm, MAX_LAYERS, Recurrence, Shape, hf,
};
use toko_admission::units::Bytes;

fn read(config: &Value) -> Shape {
    hf::read(&config.to_string()).unwrap_or_else(|error| panic!("{config}: {error}"))
}

/// What is expected of all layers: numbers kept of every token, and numbers kept of the last ones by length of window.
fn check(config: &Value, every_token: u64, windows: &[(u64, u64)]) -> Shape {
    let shape = read(config);
    for tokens in [1, 100, 4096, 5000, 131_072] {
        let kept = |(elements, window): &(u64, u64)| elements * (*window).min(tokens);
        let elements = every_token * tokens + windows.iter().map(kept).sum::<u64>();
        assert_eq!(
            shape.kv_bytes(tokens, KvElement::F16).get(),
            elements * 2,
            "{config}: {tokens}"
        );
    }
    shape
}

fn check_state(shape: &Shape, layers: usize, recurrence: Recurrence, elements: [u64; 2]) {
    let states: Vec<_> = shape.layers.iter().filter_map(|layer| layer.state).collect();
    assert_eq!(states.len(), layers, "{}", shape.architecture);
    for state in states {
        assert_eq!(state.recurrence, recurrence);
        assert_eq!([state.conv_elements, state.state_elements], elements);
    }
}

fn with(config: &Value, changes: &Value) -> Value {
    let mut config = config.clone();
    let changes = changes.as_object().expect("changes are an object");
    config.as_object_mut().expect("a configuration is an object").extend(changes.clone());
    config
}

#[test]
fn gemma_3_leaves_heads_to_its_class() {
    // 34 layers, one in six full; the class has 4 key and value heads of width 256.
    let text = json!({"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024});
    let whole = json!({"model_type": "gemma3", "text_config": text});
    check(&whole, 5 * 2048, &[(29 * 2048, 1024)]);
    let named = with(&text, &json!({"_sliding_window_pattern": 2}));
    check(&named, 17 * 2048, &[(17 * 2048, 1024)]);
}

#[test]
fn gemma_4_has_wider_full_layers_and_shares_the_last() {
    let small = json!({
        "model_type": "gemma4_text", "num_hidden_layers": 35, "hidden_size": 1536, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": null,
        "attention_k_eq_v": false, "num_kv_shared_layers": 20, "sliding_window": 512,
        "layer_types": (0..35).map(|i| if i % 5 == 4 { "full_attention" } else { "sliding_attention" }).collect::<Vec<_>>(),
    });
    // 15 layers keep their own: 3 full ones of width 512 and 12 of width 256.
    let shape = check(&small, 3 * 1024, &[(12 * 512, 512)]);
    assert_eq!(shape.layers.iter().filter(|layer| layer.cache == Cache::Shared).count(), 20);
    let unlisted = with(&small, &json!({"layer_types": null, "num_kv_shared_layers": 0}));
    // One in six is full, and the last one.
    check(&unlisted, 6 * 1024, &[(29 * 512, 512)]);
}

#[test]
fn llama_4_attends_within_chunks_in_three_layers_of_four() {
    let text = json!({"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192});
    check(&json!({"text_config": text}), 12 * 2048, &[(36 * 2048, 8192)]);
    let listed = with(&text, &json!({"no_rope_layers": vec![1; 48]}));
    check(&listed, 0, &[(48 * 2048, 8192)]);
    check(&with(&text, &json!({"no_rope_layers": []})), 12 * 2048, &[(36 * 2048, 8192)]);
}

#[test]
fn windows_count_where_they_are_switched_on_and_shorter_than_the_context() {
    let dense = json!({"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": 2, "max_position_embeddings": 32_768, "sliding_window": 4096});
    let of = |changes: Value| with(&dense, &changes);
    check(&of(json!({"model_type": "mistral"})), 0, &[(1024, 4096)]);
    check(&of(json!({"model_type": "mistral", "sliding_window": 32_768})), 1024, &[]);
    check(&of(json!({"model_type": "mistral", "sliding_window": null})), 1024, &[]);
    check(&of(json!({"model_type": "llama"})), 1024, &[]);
    check(&of(json!({"model_type": "phi3", "sliding_window": [512, null, 512, null]})), 1024, &[]);
    check(&of(json!({"model_type": "qwen2"})), 1024, &[]);
    check(
        &of(json!({"model_type": "qwen2", "use_sliding_window": false, "max_window_layers": 0})),
        1024,
        &[],
    );
    check(
        &of(json!({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 3})),
        768,
        &[(256, 4096)],
    );
    check(&of(json!({"model_type": "olmo3"})), 256, &[(768, 4096)]);
    check(
        &of(json!({"model_type": "exaone4", "sliding_window_pattern": "LLLG"})),
        256,
        &[(768, 4096)],
    );
    check(&of(json!({"model_type": "exaone4", "sliding_window": null})), 1024, &[]);
    check(&of(json!({"model_type": "cohere2", "sliding_window_pattern": 2})), 512, &[(512, 4096)]);
    let listed = json!({"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]});
    check(&of(with(&listed, &json!({"model_type": "ministral"}))), 768, &[(256, 4096)]);
}

#[test]
fn layers_without_a_window_of_the_same_width_are_counted_apart() {
    let mimo = json!({"model_type": "mimo_v2_flash", "num_hidden_layers": 3, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 128,
        "hybrid_layer_pattern": [0, 1, 1], "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128});
    check(&mimo, 4 * 320, &[(2 * 8 * 320, 128)]);
    let step = json!({"model_type": "step3p5", "num_hidden_layers": 2, "num_attention_heads": 64, "head_dim": 128,
        "num_attention_groups": 8, "sliding_window": 512, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 4, "head_dim": 128}});
    check(&step, 2048, &[(1024, 512)]);
}

#[test]
fn older_names_of_fields_are_understood() {
    let cases = [
        (json!({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}), 12 * 1536),
        (
            json!({"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096}),
            30 * 8192,
        ),
        (
            json!({"model_type": "bloom", "n_layer": 30, "num_attention_heads": 32, "n_embed": 4096}),
            30 * 8192,
        ),
        (
            json!({"model_type": "mpt", "n_layers": 32, "n_heads": 32, "d_model": 4096, "attn_config": {"attn_type": "multihead_attention"}}),
            32 * 8192,
        ),
        (
            json!({"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": true}),
            40 * 256,
        ),
        (
            json!({"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64}),
            44 * 12_288,
        ),
        (
            json!({"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "num_kv_heads": 71, "multi_query": true, "new_decoder_architecture": false}),
            32 * 128,
        ),
        (
            json!({"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": true}),
            60 * 1024,
        ),
        (
            json!({"model_type": "RefinedWeb", "n_layer": 60, "hidden_size": 8192, "n_head": 128, "n_head_kv": 8}),
            60 * 1024,
        ),
        (
            json!({"model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}),
            40 * 2048,
        ),
        (
            json!({"model_type": "chatglm", "num_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "multi_query_attention": false, "multi_query_group_num": 2, "kv_channels": 128}),
            40 * 8192,
        ),
        (
            json!({"model_type": "openelm", "num_transformer_layers": 3, "head_dim": 64, "num_kv_heads": [3, 4, 5]}),
            12 * 128,
        ),
        (
            json!({"model_type": "exaone", "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}),
            32 * 2048,
        ),
    ];
    for (config, every_token) in cases {
        let shape = check(&config, every_token, &[]);
        assert_eq!(shape.exactness, Exactness::Exact, "{config}");
    }
}

#[test]
fn latent_attention_keeps_its_rank_and_what_carries_positions() {
    let flash = json!({"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128});
    // Two attentions make one layer.
    check(&flash, 56 * 576, &[]);
    let indexed = json!({"model_type": "deepseek_v32", "num_hidden_layers": 61, "num_attention_heads": 128,
        "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048});
    let shape = check(&indexed, 61 * (576 + 128), &[]);
    let expanded = shape.in_form(LatentForm::Expanded).growing_bytes_per_token(KvElement::F16);
    assert_eq!(expanded.get(), 61 * 128 * (128 + 64 + 128) * 2);
    let every_fourth =
        json!({"num_hidden_layers": 10, "index_topk_freq": 4, "index_skip_topk_offset": 3});
    // Layers 0 to 2, and 6.
    check(&with(&indexed, &every_fourth), 10 * 576 + 4 * 128, &[]);
    let lettered = json!({"num_hidden_layers": 4, "index_topk_pattern": "FSSF"});
    check(&with(&indexed, &lettered), 4 * 576 + 2 * 128, &[]);
    let switched_off = json!({"model_type": "deepseek_v2", "num_hidden_layers": 12, "hidden_size": 1280,
        "num_attention_heads": 10, "num_key_value_heads": 10, "kv_lora_rank": null, "qk_rope_head_dim": 0, "use_mla": false});
    check(&switched_off, 12 * 2560, &[]);
}

#[test]
fn compressed_attention_keeps_a_window_and_one_entry_for_several_tokens() {
    let config = json!({"model_type": "deepseek_v4", "num_hidden_layers": 3, "num_attention_heads": 64, "num_key_value_heads": 1,
        "head_dim": 512, "sliding_window": 128, "index_head_dim": 128, "compress_ratios": [0, 4, 128, 4]});
    let shape = read(&config);
    let elements = |tokens: u64| {
        let window = 3 * 512 * tokens.min(128);
        window + (512 + 128) * tokens.div_ceil(4) + 512 * tokens.div_ceil(128)
    };
    for tokens in [0, 1, 127, 129, 1000, 8192] {
        assert_eq!(shape.kv_bytes(tokens, KvElement::Bf16).get(), elements(tokens) * 2, "{tokens}");
    }
    let listed = json!({"compress_ratios": null, "layer_types": ["sliding_attention",
        "compressed_sparse_attention", "heavily_compressed_attention"]});
    assert_eq!(read(&with(&config, &listed)).layers, shape.layers);
}

#[test]
fn states_of_hybrids_have_their_dimensions() {
    let lfm = json!({"model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 8, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14]});
    check_state(&check(&lfm, 6 * 1024, &[]), 10, Recurrence::ShortConv, [4096, 0]);
    let bamba = json!({"model_type": "bamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": "auto",
        "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2, "mamba_d_conv": 4});
    check_state(
        &check(&bamba, 3 * 2048, &[]),
        29,
        Recurrence::Mamba2,
        [3 * (8192 + 256), 8192 * 128],
    );
    let griffin = json!({"model_type": "recurrent_gemma", "num_hidden_layers": 26, "hidden_size": 2560, "head_dim": 256,
        "num_attention_heads": 10, "num_key_value_heads": 1, "attention_window_size": 2048, "lru_width": 2560,
        "conv1d_width": 4, "block_types": ["recurrent", "recurrent", "attention"]});
    check_state(&check(&griffin, 0, &[(8 * 512, 2048)]), 18, Recurrence::Rglru, [7680, 2560]);
    let minimax = json!({"model_type": "minimax_text_01", "num_hidden_layers": 8, "hidden_size": 6144, "head_dim": 128,
        "num_attention_heads": 64, "num_key_value_heads": 8, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1]});
    check_state(&check(&minimax, 2048, &[]), 7, Recurrence::Lightning, [0, 64 * 128 * 128]);
    let zamba = json!({"model_type": "zamba2", "num_hidden_layers": 3, "hidden_size": 2560, "num_attention_heads": 32,
        "num_key_value_heads": 32, "attention_head_dim": 160, "layers_block_type": ["mamba", "hybrid", "mamba"],
        "mamba_d_state": 64, "mamba_ngroups": 1, "mamba_expand": 2, "mamba_d_conv": 4, "n_mamba_heads": 80, "mamba_headdim": 64});
    check_state(
        &check(&zamba, 32 * 320, &[]),
        3,
        Recurrence::Mamba2,
        [3 * (5120 + 128), 5120 * 64],
    );
    let mamba = json!({"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768, "intermediate_size": 1536,
        "state_size": 16, "conv_kernel": 4, "expand": 2});
    check_state(&check(&mamba, 0, &[]), 24, Recurrence::Mamba1, [3 * 1536, 1536 * 16]);
    let rwkv = json!({"model_type": "rwkv", "num_hidden_layers": 24, "hidden_size": 1024, "attention_hidden_size": 1024});
    check_state(&check(&rwkv, 0, &[]), 24, Recurrence::Rwkv, [2048, 3072]);
    let k3 = json!({"model_type": "kimi_linear", "num_hidden_layers": 4, "num_attention_heads": 96, "hidden_size": 7168,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4],
        "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4}});
    check_state(&check(&k3, 576, &[]), 3, Recurrence::Kda, [9 * 12_288, 12_288 * 128]);
}

#[test]
fn families_that_leave_their_pattern_to_the_class_follow_it() {
    let dense = json!({"num_hidden_layers": 12, "hidden_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128});
    let of = |changes: Value| with(&dense, &changes);
    check(&of(json!({"model_type": "gpt_oss"})), 6 * 256, &[(6 * 256, 128)]);
    check(&of(json!({"model_type": "mimo_v2_flash"})), 3 * 256, &[(9 * 256, 128)]);
    check(&of(json!({"model_type": "granite_swa"})), 3 * 256, &[(9 * 256, 128)]);
    check(
        &of(json!({"model_type": "afmoe", "global_attn_every_n_layers": 3})),
        4 * 256,
        &[(8 * 256, 128)],
    );
    check(&of(json!({"model_type": "minimax"})), 6 * 256, &[]);
    check(&of(json!({"model_type": "qwen3_next"})), 3 * 256, &[]);
    check(
        &of(json!({"model_type": "granitemoehybrid", "mamba_d_state": 16, "mamba_n_heads": 2})),
        0,
        &[],
    );
    check(&of(json!({"model_type": "bailing_moe_linear", "layer_group_size": 5})), 4 * 256, &[]);
    check(
        &of(
            json!({"model_type": "jamba", "attn_layer_period": 5, "attn_layer_offset": 1, "mamba_d_state": 16}),
        ),
        3 * 256,
        &[],
    );
    let index =
        json!({"model_type": "minimax_m3_vl_text", "index_head_dim": 128, "index_n_heads": 4});
    check(&of(index.clone()), 12 * 256, &[]);
    let mut types = vec!["full_attention"; 3];
    types.resize(12, "minimax_m3_sparse");
    check(&of(with(&index, &json!({"layer_types": types}))), 12 * 256 + 9 * 512, &[]);
}

#[test]
fn layers_that_use_the_keys_of_another_are_counted_once() {
    let config = json!({"model_type": "hunyuan", "num_hidden_layers": 64, "hidden_size": 6400, "num_attention_heads": 80,
        "num_key_value_heads": 8, "use_cla": true, "cla_share_factor": 2});
    check(&config, 32 * 1280, &[]);
    check(&with(&config, &json!({"use_cla": false})), 64 * 1280, &[]);
}

#[test]
fn searched_models_say_the_heads_of_each_layer() {
    let config = json!({"model_type": "nemotron-nas", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": null, "block_configs": [
            {"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": true}},
            {"attention": {"replace_with_linear": true}}, {"attention": {"n_heads_in_group": 8, "window_length": 1024}}]});
    check(&config, 256, &[(128, 1024)]);
    let listed = json!({"model_type": "deci", "num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8,
        "num_key_value_heads_per_layer": [4, 2, 1]});
    check(&listed, 7 * 128, &[]);
}

#[test]
fn the_language_model_may_lie_deeper() {
    let text = json!({"model_type": "qwen3", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "hidden_size": 512, "vocab_size": 1000, "max_position_embeddings": 4096});
    let wholes = [
        json!({"model_type": "x", "text_config": text, "vision_config": {"num_hidden_layers": 40}}),
        json!({"llm_config": text}),
        json!({"language_config": text, "num_hidden_layers": null}),
        json!({"thinker_config": {"text_config": text}}),
    ];
    for whole in wholes {
        let shape = check(&whole, 512, &[]);
        assert_eq!((shape.architecture.as_str(), shape.vocab), ("qwen3", Some(1000)));
        assert_eq!((shape.hidden, shape.trained_context), (Some(512), Some(4096)));
    }
}

#[test]
fn numbers_that_json_has_no_word_for_do_not_matter() {
    let config = r#"{"model_type": "nemotron_h", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "hidden_size": 256, "hybrid_override_pattern": "M*-", "mamba_num_heads": 8, "mamba_head_dim": 64,
        "ssm_state_size": 128, "n_groups": 2, "conv_kernel": 4, "time_step_limit": [0.0, Infinity], "x": NaN, "y": -Infinity}"#;
    let shape = hf::read(config).unwrap();
    assert_eq!(shape.layers.len(), 3);
    assert_eq!(shape.growing_bytes_per_token(KvElement::F16).get(), 512);
    assert_eq!(shape.conv_elements(), 3 * (512 + 512));
}

#[test]
fn an_unknown_architecture_is_counted_in_full_and_says_so() {
    let dense = json!({"model_type": "frobnicator", "num_hidden_layers": 4, "hidden_size": 512,
        "num_attention_heads": 8, "num_key_value_heads": 2, "sliding_window": 128});
    let shape = check(&dense, 4 * 256, &[]);
    let Exactness::UpperBound(reason) = &shape.exactness else { panic!("{shape:?}") };
    assert!(reason.contains("frobnicator"), "{reason}");
    let growth = shape.growth(KvElement::F16, 16);
    assert!(growth.iter().all(|growth| growth.source.contains("upper bound")), "{growth:?}");
    let odd = with(&dense, &json!({"model_type": "llama", "layer_types": ["a", "b", "c", "d"]}));
    assert!(matches!(check(&odd, 4 * 256, &[]).exactness, Exactness::UpperBound(_)));
    // A state that no list assigns to layers is counted in all of them, beside their attention.
    let hybrid =
        with(&dense, &json!({"mamba_d_state": 16, "mamba_n_heads": 8, "mamba_d_head": 64}));
    check_state(&check(&hybrid, 4 * 256, &[]), 4, Recurrence::Mamba2, [3 * (512 + 32), 512 * 16]);
    let sizeless =
        with(&dense, &json!({"model_type": "llama", "layer_types": vec!["linear_attention"; 4]}));
    assert!(matches!(check(&sizeless, 4 * 256, &[]).exactness, Exactness::UpperBound(_)));
}

#[test]
fn a_file_without_usable_fields_says_what_is_missing_or_wrong() {
    let dense = json!({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512,
        "num_attention_heads": 8, "num_key_value_heads": 2});
    let cases = [
        (json!({"num_hidden_layers": null}), "num_hidden_layers"),
        (json!({"num_hidden_layers": -1}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers"),
        (json!({"num_hidden_layers": "4"}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 2.5}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 1e300}), "num_hidden_layers"),
        (json!({"num_hidden_layers": u64::MAX}), "18446744073709551615"),
        (json!({"hidden_size": 100, "num_attention_heads": 3}), "hidden_size"),
        (json!({"num_key_value_heads": {}}), "num_key_value_heads"),
        (json!({"num_key_value_heads": [2, 2, "x", 2]}), "num_key_value_heads"),
        (json!({"head_dim": "x"}), "head_dim"),
        (json!({"layer_types": ["full_attention"]}), "layer_types"),
        (json!({"layer_types": [1, 2, 3, 4]}), "layer_types"),
    ];
    for (changes, word) in cases {
        let error = hf::read(&with(&dense, &changes).to_string()).expect_err("it has no meaning");
        assert!(error.to_string().contains(word), "{changes}: {error}");
    }
    let deep = "[".repeat(1_000_000);
    for (text, word) in [
        (deep.as_str(), "recursion"),
        ("", "line 1"),
        ("[]", "object"),
        ("{}", "num_hidden_layers"),
        ("{\"a\":", "JSON"),
    ] {
        let error = hf::read(text).expect_err("it is no configuration").to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
    let only_layers = hf::read(r#"{"num_hidden_layers": 2}"#).unwrap_err();
    assert!(matches!(only_layers, Error::Missing(_)), "{only_layers}");
}

#[test]
fn hostile_sizes_are_sizes_that_fit_nowhere() {
    let config = json!({"model_type": "llama", "num_hidden_layers": MAX_LAYERS, "num_key_value_heads": u64::MAX,
        "head_dim": u64::MAX, "num_attention_heads": u64::MAX});
    let shape = read(&config);
    assert_eq!(shape.kv_bytes(1 << 63, KvElement::F32), Bytes::MAX);
    assert_eq!(shape.kv_bytes(1, KvElement::Q4_0), Bytes::MAX);
    assert_eq!(shape.growth(KvElement::F16, u64::MAX)[0].bytes(1), Bytes::MAX);
    let long = json!({"model_type": "jamba", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1,
        "mamba_d_state": u64::MAX, "mamba_expand": u64::MAX, "attn_layer_period": u64::MAX, "attn_layer_offset": u64::MAX,
        "layers_block_type": vec!["mamba"; 1_000_000]});
    assert_eq!(read(&long).recurrent_bytes(KvElement::F32), Bytes::MAX);
    let small = read(
        &json!({"model_type": "llama", "num_hidden_layers": 61, "num_key_value_heads": 128, "head_dim": 192}),
    );
    let exact = 61_u64 * 2 * 128 * 192 * 2 * (1 << 40);
    assert_eq!(small.kv_bytes(1 << 40, KvElement::F16).get(), exact, "beyond 2^53");
}

#[test]
fn narrower_elements_take_their_share() {
    let shape = read(
        &json!({"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 64}),
    );
    let elements = 2 * 2 * 4 * 64 * 100;
    for (name, bytes) in [
        ("f32", elements * 4),
        ("f16", elements * 2),
        ("bf16", elements * 2),
        ("q8_0", elements * 34 / 32),
        ("q5_1", elements * 24 / 32),
        ("q4_0", elements * 18 / 32),
        ("FP8", elements),
    ] {
        let element = KvElement::from_name(name).unwrap();
        assert_eq!(shape.kv_bytes(100, element).get(), bytes, "{name}");
    }
    assert_eq!(KvElement::from_name("q3_k"), None);
}

fn file<'a>(architecture: &'a str, fields: &'a [(&'a str, Field)]) -> Result<Shape, Error> {
    gguf::read(&|key| {
        if key == "general.architecture" {
            return Some(Field::Text(architecture.to_owned()));
        }
        let name = key.strip_prefix(architecture)?.strip_prefix('.')?;
        fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.clone())
    })
}

fn check_file(
    architecture: &str,
    fields: &[(&str, Field)],
    every_token: u64,
    windows: &[(u64, u64)],
) -> Shape {
    let shape =
        file(architecture, fields).unwrap_or_else(|error| panic!("{architecture}: {error}"));
    assert_eq!(shape.exactness, Exactness::Exact);
    for tokens in [1, 100, 4096, 131_072] {
        let kept = |(elements, window): &(u64, u64)| elements * (*window).min(tokens);
        let elements = every_token * tokens + windows.iter().map(kept).sum::<u64>();
        let found = shape.kv_bytes(tokens, KvElement::F16).get();
        assert_eq!(found, elements * 2, "{architecture}: {tokens}");
    }
    shape
}

#[test]
fn files_say_windows_by_period_by_list_or_not_at_all() {
    use Field::{Count, Flags};
    let dense = |extra: &[(&'static str, Field)]| {
        let mut fields = vec![
            ("block_count", Count(6)),
            ("attention.head_count", Count(4)),
            ("attention.head_count_kv", Count(2)),
            ("attention.key_length", Count(64)),
            ("attention.value_length", Count(64)),
            ("attention.sliding_window", Count(512)),
        ];
        fields.extend_from_slice(extra);
        fields
    };
    check_file("gemma3", &dense(&[]), 256, &[(5 * 256, 512)]);
    check_file("gemma2", &dense(&[]), 3 * 256, &[(3 * 256, 512)]);
    check_file("cohere2", &dense(&[]), 256, &[(5 * 256, 512)]);
    check_file("llama", &dense(&[]), 6 * 256, &[]);
    check_file("phi3", &dense(&[]), 6 * 256, &[]);
    let period = ("attention.sliding_window_pattern", Count(3));
    check_file("gemma3", &dense(&[period]), 2 * 256, &[(4 * 256, 512)]);
    let flags = ("attention.sliding_window_pattern", Flags(vec![true, false]));
    check_file("mimo2", &dense(&[flags]), 3 * 256, &[(3 * 256, 512)]);
    check_file("gemma3", &dense(&[("context_length", Count(512))]), 6 * 256, &[]);
    check_file("gemma3", &dense(&[("attention.shared_kv_layers", Count(4))]), 0, &[(2 * 256, 512)]);
    check_file("smallthinker", &dense(&[]), 2 * 256, &[(4 * 256, 512)]);
}

#[test]
fn files_of_hybrids_say_which_layers_attend_by_their_heads() {
    use Field::{Count, Counts};
    let nemotron = [
        ("block_count", Count(4)),
        ("embedding_length", Count(256)),
        ("attention.head_count", Count(4)),
        ("attention.head_count_kv", Counts(vec![0, 2, 0, 0])),
        ("feed_forward_length", Counts(vec![0, 0, 512, 0])),
        ("ssm.conv_kernel", Count(4)),
        ("ssm.inner_size", Count(512)),
        ("ssm.state_size", Count(128)),
        ("ssm.group_count", Count(8)),
    ];
    let shape = check_file("nemotron_h", &nemotron, 256, &[]);
    check_state(&shape, 2, Recurrence::Mamba2, [3 * (512 + 2048), 512 * 128]);
    let mut fields = nemotron.to_vec();
    fields.retain(|(name, _)| *name != "ssm.group_count");
    let shape = check_file("jamba", &fields, 256, &[]);
    check_state(&shape, 3, Recurrence::Mamba1, [3 * 512, 512 * 128]);
    let lfm = [
        ("block_count", Count(3)),
        ("embedding_length", Count(2048)),
        ("attention.head_count", Count(32)),
        ("attention.head_count_kv", Counts(vec![0, 8, 0])),
        ("shortconv.l_cache", Count(3)),
    ];
    check_state(&check_file("lfm2", &lfm, 1024, &[]), 2, Recurrence::ShortConv, [4096, 0]);
    let mut fields = nemotron.to_vec();
    fields[3].1 = Count(2);
    let shape = check_file("falcon-h1", &fields, 4 * 256, &[]);
    check_state(&shape, 4, Recurrence::Mamba2, [3 * (512 + 2048), 512 * 128]);
    let rwkv = [
        ("block_count", Count(2)),
        ("embedding_length", Count(2560)),
        ("wkv.head_size", Count(64)),
    ];
    check_state(&check_file("rwkv7", &rwkv, 0, &[]), 2, Recurrence::Rwkv, [5120, 2560 * 64]);
    let kimi = [
        ("block_count", Count(4)),
        ("attention.head_count", Count(32)),
        ("attention.head_count_kv", Counts(vec![0, 0, 0, 1])),
        ("attention.key_length", Count(576)),
        ("attention.value_length", Count(512)),
        ("attention.kv_lora_rank", Count(512)),
        ("attention.key_length_mla", Count(192)),
        ("attention.value_length_mla", Count(128)),
        ("rope.dimension_count", Count(64)),
        ("ssm.conv_kernel", Count(4)),
        ("kda.head_dim", Count(128)),
    ];
    let shape = check_file("kimi-linear", &kimi, 576, &[]);
    check_state(&shape, 3, Recurrence::Kda, [9 * 4096, 4096 * 128]);
    let expanded = shape.in_form(LatentForm::Expanded).growing_bytes_per_token(KvElement::F16);
    assert_eq!(expanded.get(), 32 * 320 * 2);
}

#[test]
fn files_that_say_too_little_or_nonsense_name_the_key() {
    use Field::{Count, Counts, Other, Real, Text};
    let cases: [(&[(&str, Field)], &str); 8] = [
        (&[], "llama.block_count"),
        (&[("block_count", Count(0))], "llama.block_count"),
        (&[("block_count", Count(1 << 40))], "1099511627776 layers"),
        (&[("block_count", Real(-1.0))], "-1"),
        (&[("block_count", Count(2))], "llama.attention.head_count"),
        (
            &[("block_count", Count(2)), ("attention.head_count", Text("x".to_owned()))],
            "head_count",
        ),
        (
            &[
                ("block_count", Count(2)),
                ("attention.head_count", Count(3)),
                ("embedding_length", Count(100)),
            ],
            "embedding_length",
        ),
        (
            &[
                ("block_count", Count(2)),
                ("attention.head_count", Counts(vec![])),
                ("ssm.inner_size", Other),
            ],
            "ssm.inner_size",
        ),
    ];
    for (fields, word) in cases {
        let error = file("llama", fields).expect_err("it says too little").to_string();
        assert!(error.contains(word), "{fields:?}: {error}");
    }
    assert!(matches!(gguf::read(&|_| None), Err(Error::Missing(_))));
    let unknown = [
        ("block_count", Count(2)),
        ("attention.head_count", Count(4)),
        ("embedding_length", Count(256)),
    ];
    assert!(matches!(file("frob", &unknown).unwrap().exactness, Exactness::UpperBound(_)));
}

/// Names that the readers look at.
const NAMES: [&str; 30] = [
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "sliding_window",
    "layer_types",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "linear_attn_config",
    "compress_ratios",
    "block_configs",
    "hybrid_override_pattern",
    "attn_layer_period",
    "full_attention_interval",
    "mamba_d_state",
    "num_kv_shared_layers",
    "sliding_window_pattern",
    "index_head_dim",
    "sparse_attention_config",
    "block_types",
    "text_config",
    "model_type",
    "attn_type_list",
    "max_window_layers",
    "use_sliding_window",
    "cla_share_factor",
    "use_cla",
    "conv_kernel",
    "num_layers",
];

fn values() -> impl Strategy<Value = Value> {
    let architectures = [
        "gemma3n",
        "jamba",
        "qwen2",
        "zamba",
        "nemotron_h",
        "olmo_hybrid",
        "mamba2",
        "rwkv6",
        "recurrent_gemma",
        "minimax",
        "deepseek_v4",
        "longcat_flash",
        "qwen3_next",
        "bailing_moe_linear",
        "modernbert-decoder",
        "falcon_h1",
    ];
    let leaf = prop_oneof![
        any::<u64>().prop_map(Value::from),
        (0..100_u64).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        "[ML*E|-]{0,12}".prop_map(Value::from),
        prop::sample::select(architectures.to_vec()).prop_map(Value::from),
        prop::sample::select(vec!["full_attention", "mamba", "linear_attention", "conv", "hybrid"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 48, 12, |inner| {
        let fields =
            prop::collection::vec((prop::sample::select(NAMES.to_vec()), inner.clone()), 0..8);
        prop_oneof![
            prop::collection::vec(inner, 0..12).prop_map(Value::from),
            fields.prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_configuration_gives_layers_or_a_reason(
        fields in prop::collection::vec((prop::sample::select(NAMES.to_vec()), values()), 0..14),
        layers in 1..12_u64,
        context in any::<u64>(),
    ) {
        let mut config = json!({"num_hidden_layers": layers, "hidden_size": 64, "num_attention_heads": 4});
        for (name, value) in fields {
            config[name] = value;
        }
        if let Ok(shape) = hf::read(&config.to_string()) {
            prop_assert!(shape.layers.len() as u64 <= 2 * MAX_LAYERS);
            let bytes = |tokens| shape.kv_bytes(tokens, KvElement::Q8_0);
            prop_assert!(bytes(context) <= bytes(context.saturating_add(1)));
            prop_assert!(shape.widened(7).kv_bytes(context, KvElement::F16) >= shape.kv_bytes(context, KvElement::F16));
            let _ = (shape.recurrent_bytes(KvElement::Bf16), shape.in_form(LatentForm::Expanded));
            // Pages round up, never down.
            let grown: Bytes = shape.growth(KvElement::Q8_0, 16).iter().map(|growth| growth.bytes(context)).sum();
            prop_assert!(grown >= bytes(context));
        }
    }

    #[test]
    fn any_metadata_gives_layers_or_a_reason(
        fields in prop::collection::vec((0..20_usize, 0..7_usize, any::<u64>(), prop::collection::vec(0..40_u64, 0..6)), 0..20),
        architecture in prop::sample::select(vec!["llama", "qwen35", "gemma3n", "nemotron_h", "deepseek4", "rwkv7", "kimi-linear", "falcon-h1", "mamba", "llama4"]),
        layers in 1..40_u64,
        context in any::<u64>(),
    ) {
        const KEYS: [&str; 20] = ["attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
            "embedding_length", "attention.sliding_window", "attention.sliding_window_pattern", "attention.kv_lora_rank",
            "attention.key_length_mla", "rope.dimension_count", "nextn_predict_layers", "ssm.conv_kernel", "ssm.inner_size",
            "ssm.state_size", "wkv.head_size", "shortconv.l_cache", "full_attention_interval", "attention.compress_ratios",
            "attention.shared_kv_layers", "feed_forward_length"];
        let mut known = vec![("block_count", Field::Count(layers))];
        for (key, kind, number, list) in fields {
            let value = match kind {
                0 | 1 => Field::Count(number % 512),
                2 => Field::Count(number),
                3 => Field::Counts(list),
                4 => Field::Flags(list.into_iter().map(|flag| flag > 20).collect()),
                5 => Field::Real(-1.5),
                _ => Field::Other,
            };
            known.push((KEYS[key], value));
        }
        if let Ok(shape) = file(architecture, &known) {
            prop_assert_eq!((shape.layers.len() + shape.draft_layers.len()) as u64, layers);
            prop_assert!(shape.kv_bytes(context, KvElement::F16) <= shape.kv_bytes(context.saturating_add(9), KvElement::F16));
        }
    }
}
