//! Sums and transpositions of vectors, the same for every format.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehdup_ps, _mm_movehl_ps,
    _mm256_add_epi32, _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps,
    _mm256_hadd_epi32, _mm256_permute2x128_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

/// Returns, in lane c of half r, the sum of `rows[r][c]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn sum_quads(rows: [[__m256i; 4]; 2]) -> __m256i {
    let (first, second) = (sum_four(rows[0]), sum_four(rows[1]));
    let low = _mm256_permute2x128_si256::<0x20>(first, second);
    let high = _mm256_permute2x128_si256::<0x31>(first, second);
    _mm256_add_epi32(low, high)
}

/// Returns, in lane c of each half, a sum of half of `vectors[c]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sum_four([a, b, c, d]: [__m256i; 4]) -> __m256i {
    _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d))
}

/// Returns (first + third) + (second + fourth) of the lanes of each half.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_turns(acc: __m256) -> [f32; 2] {
    [add_pairs(_mm256_castps256_ps128(acc)), add_pairs(_mm256_extractf128_ps::<1>(acc))]
}

/// Adds the upper two lanes to the lower two, then the second to the first.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_pairs(lanes: __m128) -> f32 {
    let sum = _mm_add_ps(lanes, _mm_movehl_ps(lanes, lanes));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::formats) fn sum16(lanes: [__m256; 2]) -> f32 {
    let sum = _mm256_add_ps(lanes[0], lanes[1]);
    add_pairs(_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum)))
}

/// Returns lane r of `rows[c]` in lane c of vector r.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn transpose(rows: &[__m256i; 8]) -> [__m256i; 8] {
    let mut pairs = *rows;
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // `fours[4 * i + j]`: lanes j of each half of rows 4i to 4i + 3.
    let mut fours = pairs;
    for i in 0..2 {
        for j in 0..2 {
            let (a, b) = (pairs[4 * i + j], pairs[4 * i + 2 + j]);
            fours[4 * i + 2 * j] = _mm256_unpacklo_epi64(a, b);
            fours[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(a, b);
        }
    }
    let mut columns = fours;
    for j in 0..4 {
        columns[j] = _mm256_permute2x128_si256::<0x20>(fours[j], fours[4 + j]);
        columns[4 + j] = _mm256_permute2x128_si256::<0x31>(fours[j], fours[4 + j]);
    }
    columns
}
