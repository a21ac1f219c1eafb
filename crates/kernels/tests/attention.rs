//! Grouped-query attention against a plain f64 loop, and however it is cut against itself.

#![expect(clippy::cast_precision_loss, reason = "sizes and indices are small numbers")]

use half::f16;
use proptest::prelude::*;
use toko_kernels::attention::{
    Codes, PAGE, PART, Page, Queries, attend, attend_part, finish, merge, state_length,
};
use toko_kernels::convert::{Q8_LENGTH, to_q8_0};
use toko_kernels::isa::Tier;

/// The last tokens of a sequence at one KV head.
#[derive(Debug, Clone)]
struct Case {
    group: usize,
    head_dim: usize,
    /// The first token's position.
    position: usize,
    tokens: usize,
    /// Of each token, `group` heads that count and one that does not.
    queries: Vec<f32>,
    /// `[positions, head_dim]`, representable in f16.
    keys: Vec<f32>,
    values: Vec<f32>,
}

fn case(head_dims: &[usize]) -> impl Strategy<Value = Case> + use<> {
    let head_dims = prop::sample::select(head_dims.to_vec());
    let position = prop_oneof![0..3 * PAGE, PART - PAGE..2 * PART + PAGE];
    (1_usize..9, head_dims, position, 1_usize..12, any::<u64>()).prop_map(
        |(group, head_dim, position, tokens, seed)| {
            let mut random = seed;
            let mut some = |count: usize| -> Vec<f32> {
                let mut next = || {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    f16::from_f32((random >> 40) as f32 / (1 << 22) as f32 - 2.0).to_f32()
                };
                (0..count).map(|_| next()).collect()
            };
            let numbers = (position + tokens) * head_dim;
            let queries = some(tokens * (group + 1) * head_dim);
            let (keys, values) = (some(numbers), some(numbers));
            Case { group, head_dim, position, tokens, queries, keys, values }
        },
    )
}

/// The pages of one KV head in one type.
enum Cache {
    F32([Vec<f32>; 2]),
    F16([Vec<f16>; 2]),
    Q8_0([(Vec<i8>, Vec<f16>); 2]),
}

impl Cache {
    /// Numbers per page, and scales.
    fn pages(&self, head_dim: usize) -> impl Iterator<Item = Page<'_>> {
        let (numbers, scales) = (PAGE * head_dim, PAGE * head_dim / Q8_LENGTH);
        let count = match self {
            Self::F32([keys, _]) => keys.len() / numbers,
            Self::F16([keys, _]) => keys.len() / numbers,
            Self::Q8_0([(keys, _), _]) => keys.len() / numbers,
        };
        (0..count).map(move |page| {
            let (range, scales) =
                (page * numbers..(page + 1) * numbers, page * scales..(page + 1) * scales);
            match self {
                Self::F32([keys, values]) => {
                    Page::F32 { keys: &keys[range.clone()], values: &values[range] }
                }
                Self::F16([keys, values]) => {
                    Page::F16 { keys: &keys[range.clone()], values: &values[range] }
                }
                Self::Q8_0(both) => {
                    let [keys, values] = both.each_ref().map(|(codes, blocks)| Codes {
                        codes: &codes[range.clone()],
                        scales: &blocks[scales.clone()],
                    });
                    Page::Q8_0 { keys, values }
                }
            }
        })
    }
}

/// Brings keys `[positions, width]` and values of the same shape into pages, whose unused places
/// hold what is `unused`.
fn paged<T: Copy>(keys: &[T], values: &[T], width: usize, unused: T) -> [Vec<T>; 2] {
    let pages = (keys.len() / width).div_ceil(PAGE);
    let mut both = [(); 2].map(|()| vec![unused; pages * PAGE * width]);
    for (position, (key, value)) in keys.chunks(width).zip(values.chunks(width)).enumerate() {
        let start = position / PAGE * PAGE * width;
        for d in 0..width {
            both[0][start + d * PAGE + position % PAGE] = key[d];
            both[1][start + position % PAGE * width + d] = value[d];
        }
    }
    both
}

impl Case {
    fn in_f32(&self) -> Cache {
        Cache::F32(paged(&self.keys, &self.values, self.head_dim, f32::NAN))
    }

    fn in_f16(&self) -> Cache {
        let [keys, values] = [&self.keys, &self.values].map(|x| narrow(x));
        Cache::F16(paged(&keys, &values, self.head_dim, f16::NAN))
    }

    fn in_q8_0(&self, tier: Tier) -> Cache {
        let blocks = self.head_dim / Q8_LENGTH;
        let [(keys, key_scales), (values, value_scales)] =
            [&self.keys, &self.values].map(|x| coded(tier, x));
        let [keys, values] = paged(&keys, &values, self.head_dim, 77);
        // Scales of values lie like those of keys.
        let [key_scales, _] = paged(&key_scales, &key_scales, blocks, f16::NAN);
        let [value_scales, _] = paged(&value_scales, &value_scales, blocks, f16::NAN);
        Cache::Q8_0([(keys, key_scales), (values, value_scales)])
    }

    fn queries(&self) -> Queries<'_> {
        Queries {
            values: &self.queries,
            stride: (self.group + 1) * self.head_dim,
            tokens: self.tokens,
            group: self.group,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            position: self.position,
        }
    }

    /// All heads that count, token by token.
    fn heads<T: Copy>(&self, all: &[T]) -> Vec<T> {
        let (stride, length) = ((self.group + 1) * self.head_dim, self.group * self.head_dim);
        all.chunks(stride).flat_map(|token| token[..length].to_vec()).collect()
    }

    fn attend(&self, tier: Tier, cache: &Cache) -> Vec<f32> {
        let queries = self.queries();
        let mut states = vec![f32::NAN; 2 * queries.rows() * state_length(self.head_dim) + 3];
        let mut out = vec![f32::NAN; self.queries.len()];
        attend(tier, &queries, cache.pages(self.head_dim), &mut states, &mut out);
        self.heads(&out)
    }

    /// The same, each token alone and in parts that are computed last to first.
    fn in_parts(&self, tier: Tier, cache: &Cache) -> Vec<f32> {
        let (stride, length) = ((self.group + 1) * self.head_dim, state_length(self.head_dim));
        let mut out = Vec::new();
        for token in 0..self.tokens {
            let values = &self.queries[token * stride..];
            let position = self.position + token;
            let queries = Queries { values, tokens: 1, position, ..self.queries() };
            let parts = (position + 1).div_ceil(PART);
            let mut states = vec![vec![f32::NAN; self.group * length]; parts];
            for (part, states) in states.iter_mut().enumerate().rev() {
                let pages = cache.pages(self.head_dim).skip(part * PART / PAGE);
                attend_part(tier, &queries, part, pages, states);
            }
            let mut whole = states.remove(0);
            for part in &states {
                merge(tier, self.head_dim, part, &mut whole);
            }
            for state in whole.chunks(length) {
                let mut head = vec![f32::NAN; self.head_dim];
                finish(state, &mut head);
                out.extend(head);
            }
        }
        out
    }

    /// What attention over some keys and values is, in f64.
    fn exact(&self, keys: &[f32], values: &[f32]) -> Vec<f64> {
        let dim = self.head_dim;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (keys, values, scale) = (wide(keys), wide(values), f64::from(self.queries().scale));
        let mut out = Vec::new();
        for (row, query) in wide(&self.heads(&self.queries)).chunks(dim).enumerate() {
            let positions = self.position + row / self.group + 1;
            let powers: Vec<f64> = keys
                .chunks(dim)
                .take(positions)
                .map(|key| (query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * scale).exp())
                .collect();
            let sum: f64 = powers.iter().sum();
            out.extend((0..dim).map(|d| {
                let values = values.chunks(dim).map(|value| value[d]);
                powers.iter().zip(values).map(|(p, v)| p * v).sum::<f64>() / sum
            }));
        }
        out
    }
}

fn narrow(values: &[f32]) -> Vec<f16> {
    values.iter().map(|&x| f16::from_f32(x)).collect()
}

fn coded(tier: Tier, values: &[f32]) -> (Vec<i8>, Vec<f16>) {
    let (mut codes, mut scales) =
        (vec![99; values.len()], vec![f16::NAN; values.len() / Q8_LENGTH]);
    to_q8_0(tier, values, &mut codes, &mut scales);
    (codes, scales)
}

/// The numbers that codes and scales stand for.
fn decoded(values: &[f32]) -> Vec<f32> {
    let (codes, scales) = coded(Tier::Reference, values);
    let scales = scales.iter().flat_map(|scale| [scale.to_f32(); Q8_LENGTH]);
    codes.iter().zip(scales).map(|(&code, scale)| f32::from(code) * scale).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn worst(ours: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(ours.len(), exact.len());
    let errors = ours.iter().zip(exact).map(|(ours, exact)| (f64::from(*ours) - exact).abs());
    // NaN would get lost in a maximum.
    errors.fold(0.0, |worst, error| if error <= worst { worst } else { error })
}

const HEAD_DIMS: [usize; 9] = [1, 16, 20, 64, 72, 80, 96, 128, 256];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn attention_is_within_ten_millionths_and_has_the_same_bits_everywhere(case in case(&HEAD_DIMS)) {
        let reference = case.attend(Tier::Reference, &case.in_f16());
        // Values lie within ±2; scores up to about 20 carry 2e-6 of rounding.
        let worst = worst(&reference, &case.exact(&case.keys, &case.values));
        prop_assert!(worst < 1e-5, "off by {worst}");
        for tier in Tier::available() {
            prop_assert_eq!(bits(&case.attend(tier, &case.in_f16())), bits(&reference), "{}", tier);
            prop_assert_eq!(bits(&case.attend(tier, &case.in_f32())), bits(&reference), "{} in f32", tier);
        }
    }

    #[test]
    fn attention_over_codes_is_within_ten_millionths_of_that_over_the_numbers_they_are(
        case in case(&[32, 64, 96, 128]),
    ) {
        let reference = case.attend(Tier::Reference, &case.in_q8_0(Tier::Reference));
        let worst = worst(&reference, &case.exact(&decoded(&case.keys), &decoded(&case.values)));
        prop_assert!(worst < 1e-5, "off by {worst}");
        for tier in Tier::available() {
            prop_assert_eq!(bits(&case.attend(tier, &case.in_q8_0(tier))), bits(&reference), "{}", tier);
        }
    }

    #[test]
    fn neither_other_tokens_nor_other_parts_change_what_a_token_gets(
        case in case(&[20, 64, 80, 128]),
        codes in any::<bool>(),
    ) {
        let tier = Tier::detect();
        let has_codes = codes && case.head_dim.is_multiple_of(Q8_LENGTH);
        let cache = if has_codes { case.in_q8_0(tier) } else { case.in_f16() };
        let together = case.attend(tier, &cache);
        prop_assert_eq!(bits(&case.in_parts(tier, &cache)), bits(&together));
    }

    #[test]
    fn a_head_does_not_see_the_others_of_its_group(case in case(&[20, 64, 80, 96, 128])) {
        let tier = Tier::detect();
        let together = case.attend(tier, &case.in_f16());
        for head in 0..case.group {
            let stride = case.group * case.head_dim;
            let ours = together.chunks(stride).flat_map(|x| &x[head * case.head_dim..][..case.head_dim]);
            let dim = case.head_dim;
            let heads = case.queries.chunks(stride + dim);
            let queries = heads.flat_map(|x| [&x[head * dim..][..dim], &x[stride..]].concat()).collect();
            let alone = Case { group: 1, queries, ..case.clone() };
            let ours: Vec<f32> = ours.copied().collect();
            prop_assert_eq!(bits(&alone.attend(tier, &case.in_f16())), bits(&ours));
        }
    }
}

#[test]
fn scores_of_minus_infinity_do_not_count_and_a_number_that_is_none_is_not_hidden() {
    let (head_dim, position) = (20, PAGE + 5);
    let numbers = (position + 1) * head_dim;
    let case = Case {
        group: 1,
        head_dim,
        position,
        tokens: 1,
        queries: vec![1.0; 2 * head_dim],
        keys: vec![f32::NEG_INFINITY; numbers],
        values: (0..numbers).map(|i| (i / head_dim) as f32).collect(),
    };
    for tier in Tier::available() {
        assert_eq!(case.attend(tier, &case.in_f32()), [0.0; 20], "no position on {tier}");
        for seen in [0, PAGE - 1, PAGE, position] {
            let mut case = case.clone();
            case.keys[seen * head_dim..][..head_dim].fill(0.5);
            assert_eq!(case.attend(tier, &case.in_f32()), [seen as f32; 20], "one on {tier}");
            case.keys[seen * head_dim] = f32::NAN;
            assert!(case.attend(tier, &case.in_f32()).iter().all(|x| x.is_nan()), "none on {tier}");
        }
    }
}
