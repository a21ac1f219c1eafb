//! Weights that are plain floats: F32, F16 and BF16, multiplied with unquantized activations.
//!
//! Invariant: 32 lanes, the weights at e going to lane e mod 32, each product added without a
//! rounding of its own; lanes l and l + 16 are added, then the 16 as a tree. A short last 32 is filled up with
//! zeros, which add +0 to sums that are never −0.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

use half::{bf16, f16};

use crate::kernel::{Products, Tile};
use crate::lanes::sum16;

/// Weights that are added to lanes at once.
const LANES: usize = 32;

/// A float as it is stored.
pub(super) trait Element: Copy + 'static {
    const BYTES: usize;

    /// Reads the float stored in `BYTES` bytes.
    fn read(bytes: &[u8]) -> f32;

    /// Stores the float nearest to `value`, even if there are two, in `BYTES` bytes.
    fn write(value: f32, bytes: &mut [u8]);
}

macro_rules! element {
    ($type:ty, $bytes:literal, $to:expr, $from:expr) => {
        impl Element for $type {
            const BYTES: usize = $bytes;

            #[inline]
            fn read(bytes: &[u8]) -> f32 {
                $to(Self::from_le_bytes(*super::array_at(bytes, 0)))
            }

            #[inline]
            fn write(value: f32, bytes: &mut [u8]) {
                bytes.copy_from_slice(&$from(value).to_le_bytes());
            }
        }
    };
}
element!(f32, 4, std::convert::identity, std::convert::identity::<f32>);
element!(f16, 2, f16::to_f32, f16::from_f32);
element!(bf16, 2, bf16::to_f32, bf16::from_f32);

/// Writes the weights of a row as floats.
pub(super) fn dequantize<E: Element>(row: &[u8], out: &mut [f32]) {
    for (bytes, out) in row.chunks_exact(E::BYTES).zip(out) {
        *out = E::read(bytes);
    }
}

/// Stores weights.
pub(super) fn quantize<E: Element>(weights: &[f32], out: &mut [u8]) {
    assert_eq!(
        Some(out.len()),
        weights.len().checked_mul(E::BYTES),
        "there are bytes for each weight"
    );
    for (bytes, &weight) in out.chunks_exact_mut(E::BYTES).zip(weights) {
        E::write(weight, bytes);
    }
}

/// Computes a tile, one weight at a time.
pub(super) fn tile<E: Element>(tile: &Tile<'_>, products: &mut Products) {
    for (row, products) in products.iter_mut().enumerate().take(tile.rows) {
        for (token, product) in products.iter_mut().enumerate().take(tile.tokens) {
            let mut acc = [0.0; LANES];
            let ([bytes], [values]) = (tile.rows_from(row), tile.values_from(token));
            let weights = bytes.chunks_exact(E::BYTES).map(E::read);
            for (e, (w, x)) in weights.zip(values).enumerate() {
                acc[e % LANES] = w.mul_add(*x, acc[e % LANES]);
            }
            *product = sum16(std::array::from_fn(|l| acc[l] + acc[l + 16]));
        }
    }
}

/// Returns the rest of a row with zeros behind it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn filled_up<T: Copy + Default, const N: usize>(rest: &[T]) -> [T; N] {
    std::array::from_fn(|i| rest.get(i).copied().unwrap_or_default())
}
