//! Bits that must not depend on how the work is cut: tier, threads, chunks, batch, pages.

use toko_fixtures::{embedded_model_golden, embedded_model_path};
use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_model::{KvCache, KvType, Model, PAGE_TOKENS, PageTable, Rows, Scratch, Slot};

use crate::harness::{Runner, ids};

fn embedded() -> Gguf {
    Gguf::open(embedded_model_path()).expect("the embedded model opens")
}

/// The golden prompts, longest first.
fn golden_prompts() -> Vec<Vec<u32>> {
    let golden = embedded_model_golden();
    let mut prompts: Vec<Vec<u32>> = golden
        .as_array()
        .expect("an array of prompts")
        .iter()
        .map(|prompt| [ids(&prompt["prompt_ids"]), ids(&prompt["greedy_ids"])].concat())
        .collect();
    prompts.sort_by_key(|prompt| std::cmp::Reverse(prompt.len()));
    prompts
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn every_tier_and_thread_count_gives_the_reference_bits() {
    let file = embedded();
    let prompt = &golden_prompts()[0];
    let run = |tier, threads| {
        bits(&Runner::new(&file, tier, threads, KvType::F16, 512).logits(prompt, 64))
    };
    let expected = run(Tier::Reference, 1);
    for tier in Tier::available() {
        for threads in 1..=3 {
            assert!(run(tier, threads) == expected, "{tier:?} with {threads} threads differs");
        }
    }
}

#[test]
fn every_tier_and_thread_count_gives_the_reference_bits_with_a_cache_in_q8_0() {
    let file = embedded();
    let prompt = &golden_prompts()[0];
    let run = |tier, threads| {
        bits(&Runner::new(&file, tier, threads, KvType::Q8_0, 512).logits(prompt, 64))
    };
    let expected = run(Tier::Reference, 2);
    for tier in Tier::available() {
        for threads in [1, 3] {
            assert!(run(tier, threads) == expected, "{tier:?} with {threads} threads differs");
        }
    }
}

#[test]
fn greedy_answers_are_the_same_on_every_tier() {
    let file = embedded();
    let golden = embedded_model_golden();
    let prompts = golden.as_array().expect("an array of prompts");
    let run = |tier| -> Vec<Vec<u32>> {
        let mut runner = Runner::new(&file, tier, 2, KvType::F16, 512);
        prompts.iter().map(|prompt| runner.greedy(&ids(&prompt["prompt_ids"]), 48)).collect()
    };
    let expected = run(Tier::Reference);
    for tier in Tier::available() {
        assert_eq!(run(tier), expected, "{tier:?}");
    }
}

#[test]
fn chunks_of_a_prompt_do_not_change_its_logits() {
    let file = embedded();
    for kv in [KvType::F16, KvType::F32, KvType::Q8_0] {
        let mut runner = Runner::new(&file, Tier::detect(), 2, kv, 512);
        let prompt = &golden_prompts()[0];
        let expected = bits(&runner.logits(prompt, prompt.len()));
        for chunk in [1, 7, 64, 100] {
            assert!(bits(&runner.logits(prompt, chunk)) == expected, "chunks of {chunk} differ");
        }
    }
}

#[test]
fn a_sequence_among_others_gets_the_logits_that_it_gets_alone() {
    for kv_type in [KvType::F16, KvType::Q8_0] {
        check_among_others(kv_type);
    }
}

fn check_among_others(kv_type: KvType) {
    let file = embedded();
    let prompts = golden_prompts();
    let mut runner = Runner::new(&file, Tier::detect(), 2, kv_type, 512);
    let alone: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| bits(&runner.last_logits(prompt))).collect();

    let model = Model::bind(&file, Tier::detect(), 2).expect("the embedded model runs");
    let mut kv = KvCache::new(model.config(), kv_type);
    let mut scratch = Scratch::new(model.config(), 256, prompts.len(), 512, 2);
    let mut pages: Vec<PageTable> = prompts.iter().map(|_| PageTable::default()).collect();
    // All but the last token come in passes that sequences share in ever other mixtures.
    let mut done = vec![0; prompts.len()];
    for round in 0.. {
        let mut slots = Vec::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let tokens = (1 + (round * 5 + index * 3) % 17).min(prompt.len() - 1 - done[index]);
            kv.grow(&mut pages[index], prompt.len());
            slots.push((index, done[index]..done[index] + tokens));
            done[index] += tokens;
        }
        slots.retain(|(_, range)| !range.is_empty());
        if slots.is_empty() {
            break;
        }
        let slots: Vec<Slot<'_>> = slots
            .into_iter()
            .map(|(index, range)| Slot {
                tokens: &prompts[index][range.clone()],
                start: range.start,
                pages: &pages[index],
                rows: Rows::None,
            })
            .collect();
        assert!(model.forward(&slots, &mut kv, &mut scratch).is_empty());
    }
    let slots: Vec<Slot<'_>> = prompts
        .iter()
        .zip(&pages)
        .map(|(prompt, pages)| Slot {
            tokens: &prompt[prompt.len() - 1..],
            start: prompt.len() - 1,
            pages,
            rows: Rows::Last,
        })
        .collect();
    let logits = model.forward(&slots, &mut kv, &mut scratch);
    for (index, row) in logits.chunks_exact(model.config().vocabulary).enumerate() {
        assert!(bits(row) == alone[index], "{kv_type:?}: sequence {index} differs among others");
    }
}

#[test]
fn distinct_prompts_have_distinct_logits() {
    let file = embedded();
    let mut runner = Runner::new(&file, Tier::detect(), 2, KvType::F16, 512);
    let all: Vec<Vec<u32>> =
        golden_prompts().iter().map(|prompt| bits(&runner.last_logits(prompt))).collect();
    for (index, logits) in all.iter().enumerate() {
        assert!(!all[..index].contains(logits), "prompt {index} repeats another's logits");
    }
}

#[test]
fn a_page_is_given_back_when_its_sequence_ends() {
    let file = embedded();
    let model = Model::bind(&file, Tier::detect(), 1).expect("the embedded model runs");
    let mut kv = KvCache::new(model.config(), KvType::F16);
    let mut pages = PageTable::default();
    kv.grow(&mut pages, 65);
    assert_eq!(kv.pages_in_use(), 2);
    kv.release(pages);
    assert_eq!(kv.pages_in_use(), 0);
}

#[test]
fn a_sequence_on_shared_pages_gets_the_logits_that_it_gets_alone() {
    let file = embedded();
    let prompts = golden_prompts();
    let longest = &prompts[0];
    let whole = longest.len() / PAGE_TOKENS * PAGE_TOKENS;
    assert!(whole >= PAGE_TOKENS, "the longest golden prompt fills a page");
    for kv_type in [KvType::F16, KvType::F32, KvType::Q8_0] {
        let other = [&longest[..whole], &prompts[1][..]].concat();
        let mut runner = Runner::new(&file, Tier::detect(), 2, kv_type, 512);
        let alone = bits(&runner.last_logits(&other));

        let model = Model::bind(&file, Tier::detect(), 2).expect("the embedded model runs");
        let mut kv = KvCache::new(model.config(), kv_type);
        let mut scratch = Scratch::new(model.config(), 512, 1, 512, 2);
        let mut run = |kv: &mut KvCache, tokens: &[u32], start: usize, pages: &PageTable| {
            let slot = Slot { tokens: &tokens[start..], start, pages, rows: Rows::Last };
            bits(model.forward(&[slot], kv, &mut scratch))
        };
        let (mut first, mut second) = (PageTable::default(), PageTable::default());
        kv.grow(&mut first, longest.len());
        run(&mut kv, longest, 0, &first);
        kv.share(&first, 0..whole / PAGE_TOKENS, &mut second);
        kv.release(first);
        kv.grow(&mut second, other.len());
        assert!(run(&mut kv, &other, whole, &second) == alone, "{kv_type:?} differs");
    }
}
