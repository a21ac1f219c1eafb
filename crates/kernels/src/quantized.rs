//! Activations as 16-bit integers: the one form in which every quantized weight meets them.
//!
//! Invariant: the codes of a group of 128 values and its scale depend on those values only, by the
//! same operations on every tier. Sixteen bits keep the error of an activation two orders of
//! magnitude below that of eight bits, and one form for all weight formats lets matrices of mixed
//! formats share one quantization. Knows no weights.

use crate::isa::Tier;
use crate::isa::tiered::tiered;
use crate::kernel::FEW_TOKENS;
use crate::pool::Pool;

/// Values that share one scale.
pub(crate) const GROUP: usize = 128;

/// The largest code: 127 · 256, so that a code splits into two signed bytes.
const CODE_MAX: f32 = 32512.0;

/// Adding this to a float below 2²² in size rounds it to an integer, half to even, whose two's
/// complement is in the low bits of the sum.
const ROUNDING: f32 = 12_582_912.0;

/// How the codes of a group lie in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// 128 little-endian words.
    Words,
    /// The high bytes of all codes, then the low bytes; a code is 256 · high + low, both signed.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Bytes,
}

impl Form {
    fn of(tier: Tier) -> Self {
        match tier {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(_) | Tier::Amx(_) => Self::Bytes,
            #[cfg(target_arch = "aarch64")]
            Tier::NeonDot(_) => Self::Bytes,
            _ => Self::Words,
        }
    }
}

/// One group of quantized activations; a short last group is filled up with zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Group {
    /// The codes in the form of the tier.
    pub(crate) codes: [u8; 2 * GROUP],
    /// The sum of each 16 codes.
    pub(crate) sums_16: [i32; 8],
    /// The sum of each 32 codes.
    pub(crate) sums_32: [i32; 4],
    /// The sum of each 64 codes.
    pub(crate) sums_64: [i32; 2],
    /// The sum of all codes.
    pub(crate) sum: i32,
    /// What a code is multiplied with to give its value; NaN if a value was not finite.
    pub(crate) scale: f32,
    /// The sum of each 16 codes, times the scale.
    pub(crate) scaled_16: [f32; 8],
    /// The sum of each 32 codes, times the scale.
    pub(crate) scaled_32: [f32; 4],
}

impl Group {
    pub(crate) const ZERO: Self = Self {
        codes: [0; 2 * GROUP],
        sums_16: [0; 8],
        sums_32: [0; 4],
        sums_64: [0; 2],
        sum: 0,
        scale: 0.0,
        scaled_16: [0.0; 8],
        scaled_32: [0.0; 4],
    };

    #[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
    #[inline(always)]
    fn quantize(&mut self, values: &[f32; GROUP], form: Form) {
        let magnitude = values.iter().fold(0, |max, v| max.max(v.to_bits() & (u32::MAX >> 1)));
        let magnitude = f32::from_bits(magnitude);
        let inverse = CODE_MAX / magnitude;
        let usable = magnitude.is_finite() && inverse.is_finite();
        let inverse = if usable { inverse } else { 0.0 };
        self.scale = match (magnitude.is_finite(), usable) {
            (true, true) => magnitude / CODE_MAX,
            (true, false) => 0.0,
            (false, _) => f32::NAN,
        };
        let mut codes = [0_i16; GROUP];
        for (code, value) in codes.iter_mut().zip(values) {
            let [low, high, ..] = (value * inverse + ROUNDING).to_le_bytes();
            *code = i16::from_le_bytes([low, high]);
        }
        self.store(&codes, form);
        self.sum_up(&codes);
    }

    #[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
    #[inline(always)]
    fn store(&mut self, codes: &[i16; GROUP], form: Form) {
        match form {
            Form::Words => {
                for (bytes, code) in self.codes.as_chunks_mut().0.iter_mut().zip(codes) {
                    *bytes = code.to_le_bytes();
                }
            }
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Form::Bytes => {
                let (highs, lows) = self.codes.split_at_mut(GROUP);
                for ((high, low), code) in highs.iter_mut().zip(lows).zip(codes) {
                    // The low byte is signed: adding half of 256 rounds the high one to match.
                    [_, *high] = (code + 128).to_le_bytes();
                    [*low, _] = code.to_le_bytes();
                }
            }
        }
    }

    #[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "at most 32 · 32512, below 2^24")]
    fn sum_up(&mut self, codes: &[i16; GROUP]) {
        for (sum, codes) in self.sums_16.iter_mut().zip(codes.as_chunks::<16>().0) {
            *sum = codes.iter().map(|&code| i32::from(code)).sum();
        }
        for (sum, [a, b]) in self.sums_32.iter_mut().zip(self.sums_16.as_chunks().0) {
            *sum = a + b;
        }
        for (sum, [a, b]) in self.sums_64.iter_mut().zip(self.sums_32.as_chunks().0) {
            *sum = a + b;
        }
        self.sum = self.sums_64[0] + self.sums_64[1];
        self.scaled_16 = self.sums_16.map(|sum| sum as f32 * self.scale);
        self.scaled_32 = self.sums_32.map(|sum| sum as f32 * self.scale);
    }
}

/// Weights whose activations lie in planes together.
pub(crate) const PLANE_WEIGHTS: usize = 512;

/// Groups that a row is filled up to a multiple of, so that no span of weights juts out.
const ROW_GROUPS: usize = PLANE_WEIGHTS / GROUP;

/// Returns the groups of a row of so many values.
fn row_groups(cols: usize) -> usize {
    cols.div_ceil(PLANE_WEIGHTS) * ROW_GROUPS
}

/// The bytes of four groups side by side as one- and two-bit weights lie in bytes; only AVX-512 has a
/// use for them.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Planes {
    /// High and low bytes, each: plane k has those of weights 8i + k of each group, for i < 16.
    pub(crate) bits: [[[u8; 64]; 8]; 2],
    /// By 256 weights, high and low bytes: plane k has those of weights 4i + k of each 64.
    pub(crate) pairs: [[[[u8; 64]; 4]; 2]; 2],
    /// The groups' sums and scales.
    pub(crate) sums: [i32; 4],
    pub(crate) scales: [f32; 4],
    /// Sums and scales of each 64 weights, by 256.
    pub(crate) sums_64: [[i32; 4]; 2],
    pub(crate) scales_64: [[f32; 4]; 2],
}

impl Planes {
    pub(crate) const ZERO: Self = Self {
        bits: [[[0; 64]; 8]; 2],
        pairs: [[[[0; 64]; 4]; 2]; 2],
        sums: [0; 4],
        scales: [0.0; 4],
        sums_64: [[0; 4]; 2],
        scales_64: [[0.0; 4]; 2],
    };
}

/// Holds the quantized activations of up to a fixed number of tokens.
///
/// A value is `code · scale` with `scale = max|x| / 32512` over each 128 values of a row and the
/// code rounded half to even. A group with a NaN or an infinity gets a NaN scale, so that every
/// product with it is NaN; one whose largest value is below 10⁻³⁴ becomes zero.
#[derive(Debug)]
pub struct Quantized {
    groups: Vec<Group>,
    /// For as many tokens as are multiplied row by row.
    planes: Vec<Planes>,
    tokens: usize,
    cols: usize,
}

impl Quantized {
    /// Allocates room for `max_tokens` rows of `max_cols` values.
    pub fn new(max_tokens: usize, max_cols: usize) -> Self {
        let groups = vec![Group::ZERO; max_tokens * row_groups(max_cols)];
        let planes = max_tokens.min(FEW_TOKENS) * max_cols.div_ceil(PLANE_WEIGHTS);
        Self { groups, planes: vec![Planes::ZERO; planes], tokens: 0, cols: 0 }
    }

    /// Returns the bytes that [`Self::new`] allocates; those that no memory has are `u64::MAX`.
    pub fn bytes(max_tokens: u64, max_cols: u64) -> u64 {
        let row = max_cols.div_ceil(PLANE_WEIGHTS as u64).saturating_mul(ROW_GROUPS as u64);
        let groups = max_tokens.saturating_mul(row);
        let planes = max_tokens.min(FEW_TOKENS as u64) * max_cols.div_ceil(PLANE_WEIGHTS as u64);
        let planes = planes.saturating_mul(size_of::<Planes>() as u64);
        groups.saturating_mul(size_of::<Group>() as u64).saturating_add(planes)
    }

    /// Quantizes `values`, `[tokens, cols]`, in place of what was held; allocates nothing.
    ///
    /// # Panics
    /// If `values` is not a whole number of rows or has more than there is room for.
    pub fn quantize(&mut self, pool: &Pool, tier: Tier, values: &[f32], cols: usize) {
        assert!(cols > 0 && values.len().is_multiple_of(cols), "values are rows of cols");
        (self.tokens, self.cols) = (values.len() / cols, cols);
        let row = row_groups(cols);
        let groups = &mut self.groups[..self.tokens * row];
        let form = Form::of(tier);
        // A job for the pool costs as much as quantizing a few thousand values.
        if values.len() < 16 * 1024 {
            quantize_rows(tier, values, cols, form, groups);
            self.spread(tier);
            return;
        }
        let mut workers = vec![(); pool.threads()]; // of a type without size: allocates nothing
        pool.for_each_chunk(groups, row, &mut workers, |token, groups, ()| {
            quantize_rows(tier, &values[token * cols..][..cols], cols, form, groups);
        });
        self.spread(tier);
    }

    /// Fills the planes, where the tier reads them.
    fn spread(&mut self, tier: Tier) {
        #[cfg(target_arch = "x86_64")]
        if let (Some(isa), 1..=FEW_TOKENS) = (tier.avx512(), self.tokens) {
            let (row, planes) = (row_groups(self.cols), self.cols.div_ceil(PLANE_WEIGHTS));
            let rows = self.groups.chunks_exact(row).zip(self.planes.chunks_exact_mut(planes));
            for (groups, planes) in rows.take(self.tokens) {
                crate::formats::spread(isa, groups, planes);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (self, tier);
    }

    /// Returns the number of rows held.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the length of the rows held.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the groups of all rows, `[tokens, 4 · ceil(cols / 512)]`.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups[..self.tokens * row_groups(self.cols)]
    }

    /// Returns the planes of all rows, `[tokens, ceil(cols / 512)]`, if there are few rows.
    pub(crate) fn planes(&self) -> &[Planes] {
        let tokens = if self.tokens <= FEW_TOKENS { self.tokens } else { 0 };
        &self.planes[..tokens * self.cols.div_ceil(PLANE_WEIGHTS)]
    }
}

tiered!(fn quantize_rows(values: &[f32], cols: usize, form: Form, groups: &mut [Group]) = rows);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn rows(values: &[f32], cols: usize, form: Form, groups: &mut [Group]) {
    let rows = groups.chunks_exact_mut(row_groups(cols));
    for (row, groups) in values.chunks_exact(cols).zip(rows) {
        let (full, rest) = row.as_chunks::<GROUP>();
        for (values, group) in full.iter().zip(&mut *groups) {
            group.quantize(values, form);
        }
        let behind = &mut groups[full.len()..];
        behind.fill(Group::ZERO);
        if let (false, [group, ..]) = (rest.is_empty(), behind) {
            let mut values = [0.0; GROUP];
            values[..rest.len()].copy_from_slice(rest);
            group.quantize(&values, form);
        }
    }
}
