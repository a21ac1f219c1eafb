//! The choice of code for one tensor, made once from its format and the machine's tier.
//!
//! Invariant: a kernel of a tier can only be made with that tier's proof token. Knows one tile, a
//! few rows times a few tokens; how a matrix is cut into tiles is the business of `matmul`.

use crate::format::Format;
#[cfg(target_arch = "aarch64")]
use crate::isa::Neon;
use crate::isa::Tier;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx512};
use crate::quantized::Group;

/// Rows in a tile, at most.
pub(crate) const TILE_ROWS: usize = 4;

/// Tokens in a tile, at most.
pub(crate) const TILE_TOKENS: usize = 8;

/// One to `TILE_ROWS` rows of weights and one to `TILE_TOKENS` rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// The rows' bytes, one row after the other.
    pub(crate) weights: &'a [u8],
    /// Rows of weights.
    pub(crate) rows: usize,
    /// Rows of activations.
    pub(crate) tokens: usize,
    /// Quantized activations, `[tokens, ceil(cols / 128)]`; empty for a float format.
    pub(crate) groups: &'a [Group],
    /// Unquantized activations, `[tokens, cols]`.
    pub(crate) values: &'a [f32],
}

impl<'a> Tile<'a> {
    /// Returns the bytes of `R` rows; beyond the last row, those of the last.
    #[inline]
    pub(crate) fn rows_from<const R: usize>(&self, row: usize) -> [&'a [u8]; R] {
        parts(self.weights, self.rows, row)
    }

    /// Returns the quantized activations of `B` tokens; beyond the last, those of the last.
    #[inline]
    pub(crate) fn groups_from<const B: usize>(&self, token: usize) -> [&'a [Group]; B] {
        parts(self.groups, self.tokens, token)
    }

    /// Returns the unquantized activations of `B` tokens; beyond the last, those of the last.
    #[inline]
    pub(crate) fn values_from<const B: usize>(&self, token: usize) -> [&'a [f32]; B] {
        parts(self.values, self.tokens, token)
    }
}

/// Returns `N` of the `count` equal parts of `all` from the `first` on, repeating the last.
#[inline]
fn parts<T, const N: usize>(all: &[T], count: usize, first: usize) -> [&[T]; N] {
    let len = all.len() / count;
    let mut parts = [&all[..0]; N];
    for (i, part) in parts.iter_mut().enumerate() {
        *part = &all[(first + i).min(count - 1) * len..][..len];
    }
    parts
}

/// The products of a tile, `[row][token]`; entries without a row or token have no meaning.
pub(crate) type Products = [[f32; TILE_TOKENS]; TILE_ROWS];

/// Computes a tile on one tier, of which `I` is the proof.
pub(crate) type TileFn<I> = fn(I, &Tile<'_>, &mut Products);

/// Multiplies rows of one format on one tier.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    format: Format,
    code: Code,
}

#[derive(Clone, Copy, Debug)]
enum Code {
    Reference(TileFn<()>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2, TileFn<Avx2>),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512, TileFn<Avx512>),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon, TileFn<Neon>),
}

impl Kernel {
    /// Chooses the code for a format on a tier.
    pub fn new(format: Format, tier: Tier) -> Self {
        let code = match tier {
            Tier::Reference => Code::Reference(crate::formats::reference::tile_fn(format)),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(isa) => Code::Avx2(isa, crate::formats::avx2::tile_fn(format)),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(isa) => Code::Avx512(isa, crate::formats::avx512::tile_fn(format)),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon(isa) => Code::Neon(isa, crate::formats::neon::tile_fn(format)),
        };
        Self { format, code }
    }

    /// Returns the format of the weights this kernel multiplies.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns whether the weights are plain floats, which need no quantized activations.
    pub fn is_float(&self) -> bool {
        self.format.is_float()
    }

    #[inline]
    pub(crate) fn tile(&self, tile: &Tile<'_>, products: &mut Products) {
        debug_assert!((1..=TILE_ROWS).contains(&tile.rows), "a tile has a few rows");
        debug_assert!((1..=TILE_TOKENS).contains(&tile.tokens), "a tile has a few tokens");
        match self.code {
            Code::Reference(code) => code((), tile, products),
            #[cfg(target_arch = "x86_64")]
            Code::Avx2(isa, code) => code(isa, tile, products),
            #[cfg(target_arch = "x86_64")]
            Code::Avx512(isa, code) => code(isa, tile, products),
            #[cfg(target_arch = "aarch64")]
            Code::Neon(isa, code) => code(isa, tile, products),
        }
    }
}
