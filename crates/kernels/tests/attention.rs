//! Grouped-query attention against a plain f64 loop.

#![expect(clippy::cast_precision_loss, reason = "sizes and indices are small numbers")]

use half::f16;
use proptest::prelude::*;
use toko_kernels::attention::{KvSlice, Query, attend};
use toko_kernels::convert::{Q8_LENGTH, Q8Block, to_q8_0};
use toko_kernels::isa::Tier;

/// The queries, keys and values of one KV head.
#[derive(Debug)]
struct Case {
    group: usize,
    head_dim: usize,
    positions: usize,
    queries: Vec<f32>,
    keys: Vec<f16>,
    values: Vec<f16>,
}

fn case(head_dims: &[usize]) -> impl Strategy<Value = Case> + use<> {
    let sizes = (1_usize..10, prop::sample::select(head_dims.to_vec()), 1_usize..200);
    sizes.prop_flat_map(|(group, head_dim, positions)| {
        let some = |len| prop::collection::vec(-2.0_f32..2.0, len);
        let (kv, q) = (positions * head_dim, group * head_dim);
        (some(q), some(kv), some(kv)).prop_map(move |(queries, keys, values)| {
            let narrow = |x: Vec<f32>| x.into_iter().map(f16::from_f32).collect();
            let (keys, values) = (narrow(keys), narrow(values));
            Case { group, head_dim, positions, queries, keys, values }
        })
    })
}

impl Case {
    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn attend<'a>(&self, tier: Tier, pages: impl Iterator<Item = KvSlice<'a>> + Clone) -> Vec<f32> {
        let query = Query { values: &self.queries, head_dim: self.head_dim, scale: self.scale() };
        let mut scores = vec![f32::NAN; self.group * self.positions + 5];
        let mut out = vec![f32::NAN; self.queries.len()];
        attend(tier, &query, pages, self.positions, &mut scores, &mut out);
        out
    }

    fn in_f16(&self, tier: Tier, page: usize) -> Vec<f32> {
        let step = page * self.head_dim;
        let pages = self.keys.chunks(step).zip(self.values.chunks(step));
        self.attend(tier, pages.map(|(keys, values)| KvSlice::F16 { keys, values }))
    }

    fn in_f32(&self, tier: Tier, page: usize) -> Vec<f32> {
        self.over_f32(tier, page, &widen(&self.keys), &widen(&self.values))
    }

    fn over_f32(&self, tier: Tier, page: usize, keys: &[f32], values: &[f32]) -> Vec<f32> {
        let step = page * self.head_dim;
        let pages = keys.chunks(step).zip(values.chunks(step));
        self.attend(tier, pages.map(|(keys, values)| KvSlice::F32 { keys, values }))
    }

    fn in_q8_0(&self, tier: Tier, page: usize) -> Vec<f32> {
        let step = page * self.head_dim / Q8_LENGTH;
        let (keys, values) = (blocks(tier, &self.keys), blocks(tier, &self.values));
        let pages = keys.chunks(step).zip(values.chunks(step));
        self.attend(tier, pages.map(|(keys, values)| KvSlice::Q8_0 { keys, values }))
    }

    /// What attention is, in f64.
    fn exact(&self) -> Vec<f64> {
        let dim = self.head_dim;
        let mut out = Vec::new();
        for query in self.queries.chunks(dim) {
            let powers: Vec<f64> = self
                .keys
                .chunks(dim)
                .map(|key| {
                    query.iter().zip(key).map(|(q, k)| f64::from(*q) * k.to_f64()).sum::<f64>()
                })
                .map(|dot| (dot * f64::from(self.scale())).exp())
                .collect();
            let sum: f64 = powers.iter().sum();
            out.extend((0..dim).map(|d| {
                let values = self.values.chunks(dim).map(|value| value[d].to_f64());
                powers.iter().zip(values).map(|(p, v)| p * v).sum::<f64>() / sum
            }));
        }
        out
    }
}

fn widen(values: &[f16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

fn blocks(tier: Tier, values: &[f16]) -> Vec<Q8Block> {
    let mut blocks = vec![[0xff; 34]; values.len() / 32];
    to_q8_0(tier, &widen(values), &mut blocks);
    blocks
}

/// What the format says that the bytes are.
fn decode(blocks: &[Q8Block]) -> Vec<f32> {
    let decode = |block: &Q8Block| {
        let (scale, codes) = block.split_at(2);
        let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
        codes.iter().map(|&code| f32::from(code.cast_signed()) * scale).collect::<Vec<_>>()
    };
    blocks.iter().flat_map(decode).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn attention_is_within_five_millionths_and_has_the_same_bits_everywhere(
        case in case(&[20, 64, 80, 96, 128]),
        page in 1_usize..100,
    ) {
        let reference = case.in_f16(Tier::Reference, page);
        for (ours, exact) in reference.iter().zip(case.exact()) {
            // Values lie within ±2; scores up to about 20 carry 2e-6 of rounding.
            prop_assert!((f64::from(*ours) - exact).abs() < 5e-6, "{ours} is not {exact}");
        }
        for tier in Tier::available() {
            prop_assert_eq!(bits(&case.in_f16(tier, page)), bits(&reference), "{}", tier);
            prop_assert_eq!(bits(&case.in_f16(tier, case.positions)), bits(&reference), "one page");
            prop_assert_eq!(bits(&case.in_f32(tier, page)), bits(&reference), "f32");
        }
    }

    #[test]
    fn attention_over_blocks_has_the_bits_of_attention_over_the_floats_that_they_are(
        case in case(&[32, 64, 96, 128]),
        page in 1_usize..100,
    ) {
        let decoded = [&case.keys, &case.values].map(|x| decode(&blocks(Tier::Reference, x)));
        let reference = case.over_f32(Tier::Reference, page, &decoded[0], &decoded[1]);
        for tier in Tier::available() {
            prop_assert_eq!(bits(&case.in_q8_0(tier, page)), bits(&reference), "{}", tier);
            prop_assert_eq!(bits(&case.in_q8_0(tier, case.positions)), bits(&reference), "one page");
        }
        // Numbers within ±2 are off by 0.009 at most, a score by about a hundredth.
        for (ours, exact) in reference.iter().zip(case.exact()) {
            prop_assert!((f64::from(*ours) - exact).abs() < 0.05, "{ours} is not {exact}");
        }
    }

    #[test]
    fn a_head_does_not_see_the_others_of_its_group(case in case(&[20, 64, 80, 96, 128])) {
        let together = case.in_f16(Tier::detect(), 64);
        for (queries, ours) in case.queries.chunks(case.head_dim).zip(together.chunks(case.head_dim)) {
            let (queries, keys, values) = (queries.to_vec(), case.keys.clone(), case.values.clone());
            let alone = Case { group: 1, queries, keys, values, ..case };
            prop_assert_eq!(bits(&alone.in_f16(Tier::detect(), 64)), bits(ours));
        }
    }
}

#[test]
fn positions_beyond_those_asked_for_do_not_count() {
    let head_dim = 32;
    let number = |i: usize| f16::from_f32((i % 17) as f32 / 8.0 - 1.0);
    let keys: Vec<f16> = (0..40 * head_dim).map(number).collect();
    let values: Vec<f16> = (0..40 * head_dim).map(|i| number(i * 7)).collect();
    let queries = vec![0.25; head_dim];
    let case = Case { group: 1, head_dim, positions: 21, queries, keys, values };
    let whole = case.in_f16(Tier::detect(), 16);
    let cut = |x: &[f16]| x[..21 * head_dim].to_vec();
    let (keys, values) = (cut(&case.keys), cut(&case.values));
    let short = Case { keys, values, queries: case.queries.clone(), ..case };
    assert_eq!(bits(&whole), bits(&short.in_f16(Tier::detect(), 16)));
}
