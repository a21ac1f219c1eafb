//! What a model needs in memory at any context length and number of replicas: a sum of terms, each with its source.
//!
//! Invariant: more context or more replicas never costs less. Knows no model format; whoever knows one fills this in.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What a part of the memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Tensors.
    Weights,
    /// Vocabulary, merges and templates.
    Tokenizer,
    /// What the engine takes whatever the model is.
    Runtime,
    /// Keys and values of all layers.
    KvCache,
    /// State of layers without a KV cache.
    RecurrentState,
    /// Activations of one forward pass.
    Scratch,
    /// Numbers over the vocabulary.
    Logits,
    /// What nobody could account for.
    Margin,
}

/// How well an estimate is founded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// From a file's header and the engine's own layout.
    Header,
    /// From sizes of files.
    FileSystemMeasured,
    /// From a catalog's declared sizes.
    CatalogExact,
    /// From a number of parameters.
    Heuristic,
    /// From what earlier loads took.
    Observed,
}

/// One addend of a footprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// What it is for.
    pub kind: Kind,
    /// How much.
    pub bytes: Bytes,
    /// Where the number comes from, in words.
    pub source: String,
}

/// Memory that grows with the context of one sequence, in whole steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// What it is for.
    pub kind: Kind,
    /// Tokens that share one allocation; at least 1.
    pub step_tokens: u64,
    /// Bytes of one step.
    pub step_bytes: Bytes,
    /// The most tokens that are kept, where a sliding window bounds them.
    pub window_tokens: Option<u64>,
    /// Where the numbers come from, in words.
    pub source: String,
}

impl Growth {
    /// Returns the bytes of one sequence of a context length.
    pub fn bytes(&self, context_tokens: u64) -> Bytes {
        let kept = self.window_tokens.map_or(context_tokens, |window| window.min(context_tokens));
        self.step_bytes * kept.div_ceil(self.step_tokens.max(1))
    }
}

/// What a model needs, as a function of context and replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizing {
    /// Tensors that are mapped from a file: they fill memory, but the system does not count them as used.
    pub mapped_weights: Bytes,
    /// Tensors in memory of the process itself.
    pub private_weights: Bytes,
    /// Where the sizes of the tensors come from, in words.
    pub weights_source: String,
    /// What is needed once, whatever the context and the replicas.
    pub fixed: Vec<Term>,
    /// What every replica needs.
    pub per_replica: Vec<Term>,
    /// What every replica needs for its context.
    pub growth: Vec<Growth>,
    /// How well this is founded.
    pub evidence: Evidence,
}

/// What a model needs at one context length and number of replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Tensors, mapped and private.
    pub weights: Bytes,
    /// The part of the weights that is mapped from a file.
    pub mapped: Bytes,
    /// Everything else.
    pub overhead: Bytes,
    /// All of it, by purpose; zero terms are left out.
    pub terms: Vec<Term>,
    /// How well this is founded.
    pub evidence: Evidence,
}

impl Footprint {
    /// Returns all of it.
    pub fn total(&self) -> Bytes {
        self.weights + self.overhead
    }
}

impl Sizing {
    /// Returns what is needed for `replicas` sequences of `context_tokens` each.
    pub fn footprint(&self, context_tokens: u64, replicas: u64) -> Footprint {
        let weights = self.mapped_weights + self.private_weights;
        let once = self.fixed.iter().cloned();
        let each = self.per_replica.iter().cloned();
        let each = each.map(|term| Term { bytes: term.bytes * replicas, ..term });
        let grown = self.growth.iter().map(|growth| Term {
            kind: growth.kind,
            bytes: growth.bytes(context_tokens) * replicas,
            source: growth.source.clone(),
        });
        let overhead: Vec<Term> = once.chain(each).chain(grown).collect();
        let of_weights =
            Term { kind: Kind::Weights, bytes: weights, source: self.weights_source.clone() };
        Footprint {
            weights,
            mapped: self.mapped_weights,
            overhead: overhead.iter().map(|term| term.bytes).sum(),
            terms: std::iter::once(of_weights)
                .chain(overhead)
                .filter(|term| term.bytes > Bytes::ZERO)
                .collect(),
            evidence: self.evidence,
        }
    }

    /// Returns the largest context, at most `limit_tokens`, whose overhead stays within `room`; `None` where not even
    /// one token does.
    pub fn largest_context(&self, room: Bytes, replicas: u64, limit_tokens: u64) -> Option<u64> {
        let fits = |tokens: u64| self.overhead(tokens, replicas) <= room;
        if limit_tokens == 0 || !fits(1) {
            return None;
        }
        // The overhead never falls with the context, so half of what is left is settled at a time.
        let (mut fitting, mut above) = (1, limit_tokens.saturating_add(1));
        while above - fitting > 1 {
            let middle = fitting + (above - fitting) / 2;
            if fits(middle) { fitting = middle } else { above = middle }
        }
        Some(fitting)
    }

    /// Returns the most replicas, at most `limit`, whose overhead stays within `room`; `None` where not even one does.
    pub fn most_replicas(&self, room: Bytes, context_tokens: u64, limit: u64) -> Option<u64> {
        if limit == 0 || self.overhead(context_tokens, 1) > room {
            return None;
        }
        let left = room.left_after(self.once()).get();
        let each = self.each(context_tokens).get();
        Some(left.checked_div(each).map_or(limit, |fitting| fitting.min(limit)))
    }

    fn overhead(&self, context_tokens: u64, replicas: u64) -> Bytes {
        self.once() + self.each(context_tokens) * replicas
    }

    fn once(&self) -> Bytes {
        self.fixed.iter().map(|term| term.bytes).sum()
    }

    fn each(&self, context_tokens: u64) -> Bytes {
        let same: Bytes = self.per_replica.iter().map(|term| term.bytes).sum();
        same + self.growth.iter().map(|growth| growth.bytes(context_tokens)).sum()
    }
}
