//! What a model is said to take in memory before it is loaded.

use proptest::prelude::*;
use toko_admission::sizing::{Footprint, Kind};
use toko_admission::units::Bytes;
use toko_engine::{Error, KvType, Options, footprint, sizing};
use toko_fixtures::embedded_model_path;
use toko_fixtures::small::{Family, Layout, small_model};
use toko_gguf::Gguf;
use toko_gguf::tensor::TensorType;
use toko_gguf::write::Writer;

use crate::harness::OPTIONS;

fn embedded() -> Gguf {
    Gguf::open(embedded_model_path()).expect("the embedded model opens")
}

fn small() -> Gguf {
    let bytes = small_model(Family::Llama, &Layout::ALL[7], 1);
    Gguf::from_bytes(bytes).expect("a small model can be read")
}

fn sum(footprint: &Footprint, kind: Kind) -> u64 {
    let terms = footprint.terms.iter().filter(|term| term.kind == kind);
    terms.map(|term| term.bytes).sum::<Bytes>().get()
}

#[test]
fn keys_and_values_take_whole_pages_of_the_chosen_type_for_each_replica() {
    // 6 layers, keys and values, 2 heads of 64.
    let values = 6 * 2 * 2 * 64;
    for (kv_type, token_bytes) in
        [(KvType::F16, values * 2), (KvType::F32, values * 4), (KvType::Q8_0, values / 32 * 34)]
    {
        let sizing = sizing(&embedded(), &Options { kv_type, ..OPTIONS }).expect("it can be sized");
        for (context, pages) in [(1, 1), (64, 1), (65, 2), (1024, 16)] {
            for replicas in [1, 4] {
                let bytes = sum(&sizing.footprint(context, replicas), Kind::KvCache);
                assert_eq!(bytes, pages * 64 * token_bytes * replicas, "{kv_type:?} {context}");
            }
        }
    }
}

#[test]
fn weights_are_the_tensors_where_they_are_mapped_and_the_copied_vectors() {
    let sizing = sizing(&embedded(), &OPTIONS).expect("it can be sized");
    // As the model's description lists them: 1,437,696 bytes in Q1_0 and 5,760 floats, 1,460,736 in all.
    assert_eq!(sizing.mapped_weights.get(), 1_460_736);
    let copied = sizing.private_weights.get();
    assert!((5760 * 4..5760 * 4 + 16_384).contains(&copied), "{copied}");
}

#[test]
fn pages_kept_beyond_all_contexts_are_counted_and_others_cost_nothing() {
    let bytes = |context_tokens, replicas, prefix_cache_tokens| {
        let options = Options {
            context_tokens: Some(context_tokens),
            replicas: Some(replicas),
            prefix_cache_tokens,
            ..OPTIONS
        };
        sum(&footprint(&embedded(), &options).expect("it can be sized"), Kind::KvCache)
    };
    let page = 64 * 3072;
    assert_eq!(bytes(256, 2, None), 8 * page);
    assert_eq!(bytes(256, 2, Some(0)), 8 * page);
    assert_eq!(bytes(256, 2, Some(512)), 8 * page);
    assert_eq!(bytes(256, 2, Some(64 * 20 + 63)), 20 * page);
    assert_eq!(bytes(64, 1, Some(64 * 20)), 20 * page);
}

#[test]
fn sizes_that_no_memory_has_are_the_largest_and_nothing_overflows() {
    let largest = Options {
        context_tokens: Some(usize::MAX),
        replicas: Some(usize::MAX),
        threads: Some(usize::MAX),
        prefix_cache_tokens: Some(usize::MAX),
        ..OPTIONS
    };
    let sizing = sizing(&embedded(), &largest).expect("it can be sized");
    assert_eq!(sizing.footprint(1 << 63, 1).total(), Bytes::MAX);
    assert_eq!(sizing.footprint(u64::MAX, u64::MAX).total(), Bytes::MAX);
    assert_eq!(footprint(&embedded(), &largest).expect("it can be sized").total(), Bytes::MAX);
}

/// The embedded model's metadata with some values replaced, around an embedding of one row.
fn claims(changes: &[(&str, u32)]) -> Gguf {
    let file = embedded();
    let mut writer = Writer::new();
    let is_kept = |key: &str| changes.iter().all(|(changed, _)| key != format!("qwen3.{changed}"));
    for (key, value) in file.metadata().iter().filter(|(key, _)| is_kept(key)) {
        writer.copy(key, value);
    }
    for (key, value) in changes {
        writer.set(&format!("qwen3.{key}"), *value);
    }
    let hidden = changes.iter().find(|(key, _)| *key == "embedding_length");
    let hidden = u64::from(hidden.map_or(384, |(_, value)| *value));
    let row = vec![0; usize::try_from(hidden * 2).expect("a small row")];
    writer.tensor("token_embd.weight", &[hidden, 1], TensorType::F16, row);
    Gguf::from_bytes(writer.into_bytes().expect("it can be written")).expect("it can be read")
}

#[test]
fn a_header_that_claims_the_largest_model_is_sized_and_not_believed_to_be_small() {
    let file = claims(&[
        ("block_count", 1024),
        ("context_length", u32::MAX),
        ("embedding_length", 1 << 20),
        ("feed_forward_length", 1 << 20),
        ("attention.head_count", 1024),
        ("attention.head_count_kv", 1024),
        ("attention.key_length", 1024),
        ("attention.value_length", 1024),
    ]);
    let options = Options { context_tokens: Some(1 << 20), replicas: Some(8), ..OPTIONS };
    let footprint = footprint(&file, &options).expect("it can be sized");
    // 1024 layers of keys and values of 2^20 halves for 2^20 positions of 8 replicas.
    assert_eq!(sum(&footprint, Kind::KvCache), 1 << (10 + 1 + 20 + 1 + 20 + 3));
}

#[test]
fn what_cannot_run_here_is_not_sized() {
    let misfit = claims(&[("attention.key_length", 80), ("attention.value_length", 80)]);
    let options = Options { kv_type: KvType::Q8_0, ..OPTIONS };
    assert!(matches!(sizing(&misfit, &options), Err(Error::Model(_))));
    let experts = claims(&[("expert_count", 8)]);
    assert!(matches!(sizing(&experts, &OPTIONS), Err(Error::Model(_))));
}

proptest! {
    #[test]
    fn i7_more_context_or_replicas_or_threads_or_kept_tokens_never_cost_less(
        context in 1usize..300_000,
        replicas in 1usize..40,
        threads in 1usize..64,
        kept in proptest::option::of(0usize..600_000),
        more in (0usize..5000, 0usize..5, 0usize..5, 0usize..100_000),
        kv_type in prop_oneof![Just(KvType::F16), Just(KvType::F32), Just(KvType::Q8_0)],
    ) {
        let file = small();
        let total = |context, replicas, threads, kept| {
            let options = Options {
                context_tokens: Some(context),
                replicas: Some(replicas),
                threads: Some(threads),
                prefix_cache_tokens: kept,
                kv_type,
                ..OPTIONS
            };
            footprint(&file, &options).expect("it can be sized").total()
        };
        let before = total(context, replicas, threads, kept);
        prop_assert!(total(context + more.0, replicas, threads, kept) >= before);
        prop_assert!(total(context, replicas + more.1, threads, kept) >= before);
        prop_assert!(total(context, replicas, threads + more.2, kept) >= before);
        prop_assert!(total(context, replicas, threads, kept.map(|kept| kept + more.3)) >= before);
        prop_assert!(before < Bytes::MAX);
    }
}
