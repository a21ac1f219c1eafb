//! Sums and transpositions of vectors, the same for every format.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m128, __m512, __m512i, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehdup_ps, _mm_movehl_ps,
    _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm512_add_epi32,
    _mm512_castps_si512, _mm512_castps512_ps128, _mm512_castps512_ps256, _mm512_castsi512_ps,
    _mm512_castsi512_si128, _mm512_extractf32x4_ps, _mm512_extractf32x8_ps, _mm512_inserti32x4,
    _mm512_loadu_si512, _mm512_permutexvar_epi32, _mm512_shuffle_i32x4, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Returns, in quarter q of lane r, the sum of quarter q of `rows[r]`.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn sum_quarters(rows: [__m512i; 4]) -> __m512i {
    let [a, b, c, d] = rows;
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Returns four quarters that sum to those of the halves of `a`, then of `b`.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn halves_to_quarters(a: __m512i, b: __m512i) -> __m512i {
    let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
    let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
    _mm512_add_epi32(even, odd)
}

/// Returns two halves that sum to `a` and to `b`.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn wholes_to_halves(a: __m512i, b: __m512i) -> __m512i {
    let low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
    let high = _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
    _mm512_add_epi32(low, high)
}

/// Returns lane q of the `quad`-th quarter of `rows[r]` in lane r of quarter q.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(in crate::formats) fn transpose_quads(rows: [__m512; 4], quad: usize) -> __m512 {
    let quarter = |row: __m512| {
        let row = _mm512_castps_si512(row);
        match quad {
            0 => row,
            1 => _mm512_shuffle_i32x4::<1>(row, row),
            2 => _mm512_shuffle_i32x4::<2>(row, row),
            _ => _mm512_shuffle_i32x4::<3>(row, row),
        }
    };
    let all = quarter(rows[0]);
    let all = _mm512_inserti32x4::<1>(all, _mm512_castsi512_si128(quarter(rows[1])));
    let all = _mm512_inserti32x4::<2>(all, _mm512_castsi512_si128(quarter(rows[2])));
    let all = _mm512_inserti32x4::<3>(all, _mm512_castsi512_si128(quarter(rows[3])));
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(lanes(&TRANSPOSED), all))
}

/// Lane 4r + q for each lane 4q + r.
const TRANSPOSED: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// Lane q for all of quarter q.
pub(super) const QUARTERS: [i32; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];

/// Reads lane numbers.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn lanes(numbers: &[i32; 16]) -> __m512i {
    // SAFETY: the array has the sixteen integers that are read.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

/// Returns (first + third) + (second + fourth) of the quarters.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn add_quarters(acc: __m512) -> __m128 {
    let even = _mm_add_ps(_mm512_castps512_ps128(acc), _mm512_extractf32x4_ps::<2>(acc));
    let odd = _mm_add_ps(_mm512_extractf32x4_ps::<1>(acc), _mm512_extractf32x4_ps::<3>(acc));
    _mm_add_ps(even, odd)
}

/// Returns lane r of `rows[c]` in lane c of vector r.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn transpose(rows: &[__m512i; 16]) -> [__m512i; 16] {
    let mut pairs = *rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // `fours[4 * i + j]`: lanes j of each quarter of rows 4i to 4i + 3.
    let mut fours = pairs;
    for i in 0..4 {
        for j in 0..2 {
            let (a, b) = (pairs[4 * i + j], pairs[4 * i + 2 + j]);
            fours[4 * i + 2 * j] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut columns = fours;
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        let (ab_even, ab_odd) = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
        );
        let (cd_even, cd_odd) = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d),
        );
        columns[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, cd_even);
        columns[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, cd_odd);
        columns[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, cd_even);
        columns[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, cd_odd);
    }
    columns
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(in crate::formats) fn sum16(lanes: __m512) -> f32 {
    let sum = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
    let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}
