//! What replicas count: totals since somebody attached the counters. Reading them disturbs nobody.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals, in tokens, over all replicas to which they are attached.
#[derive(Debug, Default)]
pub struct Metrics {
    prompt: AtomicU64,
    cached: AtomicU64,
    generated: AtomicU64,
}

impl Metrics {
    /// Returns the prompt tokens that were computed.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt.load(Ordering::Relaxed)
    }

    /// Returns the prompt tokens that had been computed for an earlier request.
    pub fn cached_tokens(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    /// Returns the tokens that were generated.
    pub fn generated_tokens(&self) -> u64 {
        self.generated.load(Ordering::Relaxed)
    }

    pub(crate) fn add_prompt(&self, computed: usize, cached: usize) {
        self.prompt.fetch_add(count(computed), Ordering::Relaxed);
        self.cached.fetch_add(count(cached), Ordering::Relaxed);
    }

    pub(crate) fn add_generated(&self, tokens: usize) {
        self.generated.fetch_add(count(tokens), Ordering::Relaxed);
    }
}

fn count(tokens: usize) -> u64 {
    u64::try_from(tokens).unwrap_or(u64::MAX)
}
