//! The AVX2 tier: a unit of 32 codes is two vectors, its 16 pair sums are two `vpmaddwd`.
//!
//! Invariant: the lanes of the accumulators are those of the reference, operation by operation; the
//! first vector has the lanes of a unit's lower half. Formats supply [`Unpack`]; the order of
//! operations is here only.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtsi64_si128,
    _mm_cvtss_f32, _mm_loadu_si128, _mm_movehdup_ps, _mm_movehl_ps, _mm_prefetch, _mm_set1_epi16,
    _mm_unpacklo_epi16, _mm256_add_epi32, _mm256_add_ps, _mm256_castps256_ps128,
    _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::{
    Decoded, HALF, Layout, Rows, UNIT, array_at, dispatch, f16_bits, float, q2_k, q3_k, q5_0, q5_1,
    q5_k, tq1_0,
};
use crate::format::Format;
use crate::isa::Avx2;
use crate::kernel::BlockFn;
use crate::quantized::{GROUP, Group};

/// How far ahead of its use a row is fetched.
const PREFETCH_BYTES: usize = 4096;

/// Unpacks the steps of a format into vectors; callers have the features of [`Avx2`].
pub(super) trait Unpack: Layout {
    /// What units are unpacked from: the step itself, or the decoded step.
    type View;

    /// Decodes a step to `room` if the view is to be the decoded step.
    unsafe fn prepare(_step: &Self::Step, _room: &mut Decoded) {}

    /// Returns the view of a prepared step.
    fn view<'a>(step: &'a Self::Step, room: &'a Decoded) -> &'a Self::View;

    /// Returns the scales of the step's half units; a step of 128 has eight.
    unsafe fn scales(view: &Self::View) -> [__m256; 2];

    /// Returns the minima of the step's half units; a step of 128 has eight.
    unsafe fn mins(_view: &Self::View) -> [__m256; 2] {
        unreachable!("only formats with minima are asked for them")
    }

    /// Returns the 16 codes of the lower (0) or upper (1) half of a unit.
    unsafe fn codes(view: &Self::View, unit: usize, half: usize) -> __m256i;
}

/// Returns this tier's code for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<Avx2> {
    dispatch!(
        format,
        L => |_, block, out| block.in_tiles(out, super::reference::tile::<L>),
        E => |_, block, out| block.in_tiles(out, float::tile::<E>)
    )
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn sum16(lanes: [__m256; 2]) -> f32 {
    let sum = _mm256_add_ps(lanes[0], lanes[1]);
    let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}

/// Fetches what lies `PREFETCH_BYTES` beyond `bytes` into the cache; it need not be in any object.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        let ahead = bytes.as_ptr().cast::<i8>().wrapping_add(line + PREFETCH_BYTES);
        _mm_prefetch::<_MM_HINT_T0>(ahead);
    }
}

/// Reads half the codes of a unit of activations, or decoded ones.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_codes(codes: &[i16; UNIT], half: usize) -> __m256i {
    let codes: &[i16; HALF] = &codes.as_chunks().0[half];
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

/// Writes eight floats.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_floats(vector: __m256, floats: &mut [f32; 8]) {
    // SAFETY: the array has room for the eight floats that are written.
    unsafe { _mm256_storeu_ps(floats.as_mut_ptr(), vector) };
}

/// Reads eight floats.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_floats(floats: &[f32; 8]) -> __m256 {
    // SAFETY: the array has the eight floats that are read.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

/// Reads 16 bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Returns the half at `at` in every lane.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn one_scale(step: &[u8], at: usize) -> [__m256; 2] {
    [_mm256_cvtph_ps(_mm_set1_epi16(f16_bits(step, at).cast_signed())); 2]
}

/// Returns the halves at `at` in each of four blocks of `block` bytes, each in two of eight lanes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn four_scales(step: &[u8], at: usize, block: usize) -> [__m256; 2] {
    let bits = |i: usize| u64::from(f16_bits(step, at + i * block)) << (16 * i);
    let bits = _mm_cvtsi64_si128((bits(0) | bits(1) | bits(2) | bits(3)).cast_signed());
    [_mm256_cvtph_ps(_mm_unpacklo_epi16(bits, bits)), _mm256_setzero_ps()]
}

/// The formats that are decoded by the scalar code first.
macro_rules! unpack_by_decoding {
    ($($layout:ty),*) => {$(
        impl Unpack for $layout {
            type View = Decoded;

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn prepare(step: &Self::Step, room: &mut Decoded) {
                Self::decode(step, room);
            }

            #[inline]
            fn view<'a>(_: &'a Self::Step, room: &'a Decoded) -> &'a Decoded {
                room
            }

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn scales(view: &Decoded) -> [__m256; 2] {
                let scales = view.scales.as_chunks().0;
                [load_floats(&scales[0]), load_floats(&scales[1])]
            }

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn mins(view: &Decoded) -> [__m256; 2] {
                let mins = view.mins.as_chunks().0;
                [load_floats(&mins[0]), load_floats(&mins[1])]
            }

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn codes(view: &Decoded, unit: usize, half: usize) -> __m256i {
                load_codes(&view.codes.as_chunks().0[unit], half)
            }
        }
    )*};
}
unpack_by_decoding!(tq1_0::Tq1_0, q5_0::Q5_0, q5_1::Q5_1, q2_k::Q2K, q3_k::Q3K, q5_k::Q5K);
