//! How fast this machine reads memory in order: what a decode step, which reads every weight once, could reach at most.
//!
//! Invariant: in a round every worker reads its own part once, which it wrote itself. Knows no weights.

use std::hint::black_box;
use std::time::Instant;

use crate::isa::Tier;
use crate::isa::tiered::tiered;
use crate::pool::Pool;

/// Reads a buffer of so many bytes, which should be far more than the caches hold, a number of times with all workers of
/// a pool, and returns the bytes per second of the fastest time.
///
/// # Panics
/// If there are fewer bytes than workers need for a word each, or no rounds.
pub fn read_rate(pool: &Pool, tier: Tier, bytes: usize, rounds: usize) -> f64 {
    let words = bytes / size_of::<u64>();
    assert!(words >= pool.threads() && rounds > 0, "there is something to read");
    let share = words.div_ceil(pool.threads());
    let mut data = vec![0_u64; words];
    let mut sums = vec![0_u64; pool.threads()];
    // Zeros are only promised until they are written.
    pool.for_each_chunk(&mut data, share, &mut sums, |part, words, _| words.fill(part as u64 + 1));
    let seconds = (0..rounds).map(|_| {
        let started = Instant::now();
        pool.for_each_chunk(&mut data, share, &mut sums, |_, words, sum| combine(tier, words, sum));
        started.elapsed().as_secs_f64()
    });
    let fastest = seconds.fold(f64::INFINITY, f64::min);
    black_box(sums);
    #[expect(clippy::cast_precision_loss, reason = "buffers are far below 2^52 bytes")]
    let bytes = (words * size_of::<u64>()) as f64;
    bytes / fastest
}

tiered!(fn combine(words: &[u64], sum: &mut u64) = exclusive_or);

/// Several places at a time keep more lines of memory under way than one does.
const PLACES: usize = 4;

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn exclusive_or(words: &[u64], sum: &mut u64) {
    let (lines, rest) = words.as_chunks::<32>();
    let part = lines.len() / PLACES;
    let mut sums = [0; 32];
    let [first, second, third, fourth] =
        std::array::from_fn(|place| &lines[place * part..][..part]);
    for (((a, b), c), d) in first.iter().zip(second).zip(third).zip(fourth) {
        for i in 0..32 {
            sums[i] ^= a[i] ^ b[i] ^ c[i] ^ d[i];
        }
    }
    let rest = lines[part * PLACES..].as_flattened().iter().chain(rest);
    *sum ^= sums.iter().chain(rest).fold(0, |sum, word| sum ^ word);
}
