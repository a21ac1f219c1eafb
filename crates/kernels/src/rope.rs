//! Rotary position embedding (arXiv:2104.09864) and its extensions to longer contexts.
//!
//! Invariant: angles, sines and cosines are computed in f64 by portable code and rounded once, so
//! every machine rotates by the same bits at every position. Knows nothing about heads or layers.

use std::f64::consts::PI;

use crate::isa::Tier;
use crate::isa::tiered::tiered;

/// Which two elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Elements `i` and `i + rotary_dims / 2`.
    Neox,
    /// Elements `2i` and `2i + 1`.
    Interleaved,
}

/// How the angles are stretched for contexts beyond the trained one.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All angles divided by `factor`.
    Linear {
        /// How many times the trained context.
        factor: f32,
    },
    /// `YaRN` (arXiv:2309.00071): slow rotations are interpolated, fast ones kept.
    Yarn(Yarn),
    /// The angle of pair `i` divided by `factors[i]`, as Llama 3 stores them.
    Factors(Vec<f32>),
}

/// The parameters of `YaRN`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How many times the trained context.
    pub factor: f32,
    /// The trained context, in positions.
    pub original_context: u32,
    /// How much of the ramp applies: 1 for `YaRN`, 0 for plain interpolation without the change of
    /// the attention's temperature.
    pub ext_factor: f32,
    /// Multiplies the sines and cosines, besides `YaRN`'s own 0.1 · ln(factor) + 1.
    pub attn_factor: f32,
    /// Pairs that turn at least this often in the trained context are kept.
    pub beta_fast: f32,
    /// Pairs that turn at most this often in the trained context are interpolated.
    pub beta_slow: f32,
}

/// What a model says about its rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// How many of a head's first elements are rotated; even.
    pub rotary_dims: usize,
    /// The base of the geometric sequence of frequencies.
    pub base: f32,
    /// Which elements form pairs.
    pub layout: RopeLayout,
    /// The extension to longer contexts.
    pub scaling: RopeScaling,
}

/// A model's rotation, with its frequencies computed.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Radians per position, one per pair.
    frequencies: Vec<f64>,
    /// Multiplies sines and cosines.
    magnitude: f64,
    layout: RopeLayout,
}

impl Rope {
    /// Computes the frequencies.
    ///
    /// # Panics
    /// If `rotary_dims` is odd or the number of factors is not `rotary_dims / 2`.
    pub fn new(params: &RopeParams) -> Self {
        let dims = params.rotary_dims;
        assert!(dims.is_multiple_of(2), "{dims} elements do not form pairs");
        let base = f64::from(params.base);
        let plain = (0..dims / 2).map(|pair| libm::pow(base, -2.0 * float(pair) / float(dims)));
        let mut magnitude = 1.0;
        let frequencies = match &params.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / f64::from(*factor)).collect(),
            RopeScaling::Yarn(yarn) => {
                magnitude = yarn.magnitude();
                let ramp = yarn.ramp(dims, base);
                let factor = f64::from(yarn.factor);
                plain.zip(ramp).map(|(f, kept)| f / factor * (1.0 - kept) + f * kept).collect()
            }
            RopeScaling::Factors(factors) => {
                assert_eq!(factors.len(), dims / 2, "one factor per pair");
                plain.zip(factors).map(|(f, factor)| f / f64::from(*factor)).collect()
            }
        };
        Self { frequencies, magnitude, layout: params.layout }
    }

    /// Writes the cosines and then the sines of all pairs at `position` to `out`, `[rotary_dims]`.
    ///
    /// # Panics
    /// If `out` has another length.
    #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
    pub fn angles(&self, position: u32, out: &mut [f32]) {
        let pairs = self.frequencies.len();
        assert_eq!(out.len(), 2 * pairs, "a cosine and a sine per pair");
        let (cosines, sines) = out.split_at_mut(pairs);
        for ((frequency, cosine), sine) in self.frequencies.iter().zip(cosines).zip(sines) {
            let (s, c) = libm::sincos(f64::from(position) * frequency);
            *cosine = (c * self.magnitude) as f32;
            *sine = (s * self.magnitude) as f32;
        }
    }

    /// Rotates the first `angles.len()` elements of one head in place, by what
    /// [`angles`](Self::angles) wrote.
    ///
    /// # Panics
    /// If the head is shorter.
    pub fn rotate(&self, tier: Tier, angles: &[f32], head: &mut [f32]) {
        let head = &mut head[..angles.len()];
        match self.layout {
            RopeLayout::Neox => rotate_halves(tier, angles, head),
            RopeLayout::Interleaved => rotate_neighbours(tier, angles, head),
        }
    }
}

impl Yarn {
    /// Returns the factor on sines and cosines; squared, it is the attention's 1/t of the paper.
    fn magnitude(&self) -> f64 {
        let temperature = if self.ext_factor == 0.0 || self.factor <= 1.0 {
            1.0 // interpolated plainly, or not stretched at all
        } else {
            0.1 * libm::log(f64::from(self.factor)) + 1.0
        };
        f64::from(self.attn_factor) * temperature
    }

    /// Returns, for each pair, which share of its own frequency is kept: 1 for pairs that turn
    /// `beta_fast` times or more, 0 at `beta_slow` or less, linear in the pair's index between.
    fn ramp(&self, dims: usize, base: f64) -> impl Iterator<Item = f64> {
        let pair_that_turns = |turns: f32| {
            let positions_per_turn = f64::from(self.original_context) / f64::from(turns);
            float(dims) * libm::log(positions_per_turn / (2.0 * PI)) / (2.0 * libm::log(base))
        };
        let first = libm::floor(pair_that_turns(self.beta_fast)).max(0.0);
        let last = libm::ceil(pair_that_turns(self.beta_slow)).min(float(dims) - 1.0);
        let ext_factor = f64::from(self.ext_factor);
        (0..dims / 2).map(move |pair| {
            let past = (float(pair) - first) / (last - first).max(0.001);
            (1.0 - past.clamp(0.0, 1.0)) * ext_factor
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "indices within a head are small")]
fn float(index: usize) -> f64 {
    index as f64
}

tiered!(fn rotate_halves(angles: &[f32], head: &mut [f32]) = halves);
tiered!(fn rotate_neighbours(angles: &[f32], head: &mut [f32]) = neighbours);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn halves(angles: &[f32], head: &mut [f32]) {
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    let (re, im) = head.split_at_mut(angles.len() / 2);
    for (((re, im), cos), sin) in re.iter_mut().zip(im).zip(cosines).zip(sines) {
        (*re, *im) = turned(*re, *im, *cos, *sin);
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn neighbours(angles: &[f32], head: &mut [f32]) {
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cosines).zip(sines) {
        let (re, im) = (pair[0], pair[1]);
        (pair[0], pair[1]) = turned(re, im, *cos, *sin);
    }
}

/// Returns (`re` + i · `im`) · (`cos` + i · `sin`); the second product of each part is rounded by itself.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn turned(re: f32, im: f32, cos: f32, sin: f32) -> (f32, f32) {
    (re.mul_add(cos, -(im * sin)), re.mul_add(sin, im * cos))
}
