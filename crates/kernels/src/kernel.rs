//! The choice of code for one tensor, made once from its format and the machine's tier.
//!
//! Invariant: a kernel of a tier can only be made with that tier's proof token. Knows blocks, the
//! rows of one worker times some tokens, which each tier cuts as its registers ask; how a matrix is
//! dealt out to workers is the business of `matmul`.

use crate::format::Format;
use crate::isa::Tier;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, Avx2, Avx512, AvxVnni};
#[cfg(target_arch = "aarch64")]
use crate::isa::{Neon, NeonDot};
use crate::pool::Columns;
use crate::quantized::{Group, Planes};

/// Rows in a tile, at most.
pub(crate) const TILE_ROWS: usize = 4;

/// Tokens in a tile, at most.
pub(crate) const TILE_TOKENS: usize = 8;

/// The most tokens in a block.
pub(crate) const BLOCK_TOKENS: usize = 256;

/// The most tokens that are multiplied row by row rather than by many rows at once.
pub(crate) const FEW_TOKENS: usize = 4;

/// Rows of weights and one to `BLOCK_TOKENS` rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    /// The rows' bytes, one row after the other.
    pub(crate) weights: &'a [u8],
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    /// Rows of weights.
    pub(crate) rows: usize,
    /// Rows of activations.
    pub(crate) tokens: usize,
    /// Quantized activations, `[tokens, token_groups]`; empty for a float format.
    pub(crate) groups: &'a [Group],
    /// Groups of a token: a 128th of its values, and zeros behind them.
    pub(crate) token_groups: usize,
    /// The same activations in planes, `[tokens, token_planes]`; empty for more than a few tokens.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX-512 reads planes")
    )]
    pub(crate) planes: &'a [Planes],
    /// Planes of a token: a 512th of its values.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX-512 reads planes")
    )]
    pub(crate) token_planes: usize,
    /// Unquantized activations, `[tokens, cols]`.
    pub(crate) values: &'a [f32],
}

impl<'a> Block<'a> {
    /// Returns the bytes of one row.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        &self.weights[row * self.row_bytes..][..self.row_bytes]
    }

    /// Returns the quantized activations of one token.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline]
    pub(crate) fn token(&self, token: usize) -> &'a [Group] {
        &self.groups[token * self.token_groups..][..self.token_groups]
    }

    /// Calls `f` for each tile, in turn, and hands its products to `out`.
    pub(crate) fn in_tiles(&self, out: &mut Out<'_, '_>, f: impl Fn(&Tile<'_>, &mut Products)) {
        let (row_len, groups) = (self.row_bytes, self.token_groups);
        let cols = self.values.len() / self.tokens;
        for row in (0..self.rows).step_by(TILE_ROWS) {
            let rows = row..self.rows.min(row + TILE_ROWS);
            for token in (0..self.tokens).step_by(TILE_TOKENS) {
                let tokens = token..self.tokens.min(token + TILE_TOKENS);
                let tile = Tile {
                    weights: &self.weights[rows.start * row_len..rows.end * row_len],
                    rows: rows.len(),
                    tokens: tokens.len(),
                    groups: &self.groups[tokens.start * groups..tokens.end * groups],
                    values: &self.values[tokens.start * cols..tokens.end * cols],
                };
                let mut products = Products::default();
                f(&tile, &mut products);
                for token in tokens.clone() {
                    let out = &mut out.token(token)[rows.clone()];
                    for (out, products) in out.iter_mut().zip(&products) {
                        *out = products[token - tokens.start];
                    }
                }
            }
        }
    }
}

/// Where the products of a block go.
pub(crate) struct Out<'a, 'b> {
    /// The columns of the block's rows.
    pub(crate) columns: &'a mut Columns<'b>,
    /// The block's first token.
    pub(crate) first_token: usize,
}

impl Out<'_, '_> {
    /// Returns the outputs of one token of the block, one for each row.
    #[inline]
    pub(crate) fn token(&mut self, token: usize) -> &mut [f32] {
        self.columns.row(self.first_token + token)
    }
}

/// One to `TILE_ROWS` rows of weights and one to `TILE_TOKENS` rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// The rows' bytes, one row after the other.
    pub(crate) weights: &'a [u8],
    /// Rows of weights.
    pub(crate) rows: usize,
    /// Rows of activations.
    pub(crate) tokens: usize,
    /// Quantized activations, `[tokens, 4 · ceil(cols / 512)]`; empty for a float format.
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

/// Computes a block on one tier, of which `I` is the proof.
pub(crate) type BlockFn<I> = fn(I, &Block<'_>, &mut Out<'_, '_>);

/// Multiplies rows of one format on one tier.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    format: Format,
    code: Code,
}

#[derive(Clone, Copy, Debug)]
enum Code {
    Reference(BlockFn<()>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2, BlockFn<Avx2>),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni, BlockFn<AvxVnni>),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512, BlockFn<Avx512>),
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, BlockFn<Amx>),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon, BlockFn<Neon>),
    #[cfg(target_arch = "aarch64")]
    NeonDot(NeonDot, BlockFn<NeonDot>),
}

impl Kernel {
    /// Chooses the code for a format on a tier.
    pub fn new(format: Format, tier: Tier) -> Self {
        let code = match tier {
            Tier::Reference => Code::Reference(crate::formats::reference::block_fn(format)),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(isa) => Code::Avx2(isa, crate::formats::avx2::block_fn(format)),
            #[cfg(target_arch = "x86_64")]
            Tier::AvxVnni(isa) => Code::AvxVnni(isa, crate::formats::avx2::vnni_block_fn(format)),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(isa) => Code::Avx512(isa, crate::formats::avx512::block_fn(format)),
            #[cfg(target_arch = "x86_64")]
            Tier::Amx(isa) => Code::Amx(isa, crate::formats::amx::block_fn(format)),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon(isa) => Code::Neon(isa, crate::formats::neon::block_fn(format)),
            #[cfg(target_arch = "aarch64")]
            Tier::NeonDot(isa) => Code::NeonDot(isa, crate::formats::neon::dot_block_fn(format)),
        };
        Self { format, code }
    }

    /// Makes a kernel of other code for the vectors of AVX-512.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn of_vectors(format: Format, isa: Avx512, code: BlockFn<Avx512>) -> Self {
        Self { format, code: Code::Avx512(isa, code) }
    }

    /// Returns the format of the weights this kernel multiplies.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns whether the weights are plain floats, which need no quantized activations.
    pub fn is_float(&self) -> bool {
        self.format.is_float()
    }

    pub(crate) fn block(&self, block: &Block<'_>, out: &mut Out<'_, '_>) {
        debug_assert!(block.rows > 0, "a block has rows");
        debug_assert!((1..=BLOCK_TOKENS).contains(&block.tokens), "a block has some tokens");
        match self.code {
            Code::Reference(code) => code((), block, out),
            #[cfg(target_arch = "x86_64")]
            Code::Avx2(isa, code) => code(isa, block, out),
            #[cfg(target_arch = "x86_64")]
            Code::AvxVnni(isa, code) => code(isa, block, out),
            #[cfg(target_arch = "x86_64")]
            Code::Avx512(isa, code) => code(isa, block, out),
            #[cfg(target_arch = "x86_64")]
            Code::Amx(isa, code) => code(isa, block, out),
            #[cfg(target_arch = "aarch64")]
            Code::Neon(isa, code) => code(isa, block, out),
            #[cfg(target_arch = "aarch64")]
            Code::NeonDot(isa, code) => code(isa, block, out),
        }
    }
}
