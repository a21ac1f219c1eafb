//! Estimates for engines whose inside is unknown: supervised processes and checkpoints that only a `config.json`
//! describes. Our own engine is sized exactly elsewhere.
//!
//! Invariant: weights of which nothing is known are unknown, never nothing. All terms are whole MiB, rounded up.

use serde::{Deserialize, Serialize};

use crate::geometry::reference::{PREFILL_CHUNK_TOKENS, ReferenceGeometry};
use crate::parameters::{Parameters, whole_at_least};
use crate::sizing::{Evidence, Growth, Kind, Sizing, Term};
use crate::units::{Bytes, MIB};

/// What a foreign engine may take for a moment beyond all other terms.
pub const TRANSIENT_MARGIN_MB: u64 = 1024;

/// Keys and values per token of an eight-billion model, for models of which nothing better is known.
pub const FALLBACK_KV_BYTES_PER_TOKEN: u64 = 147_456;

/// Bytes that one number over the vocabulary takes while a whole chunk is scored: once as f32, once as bf16.
const LOGIT_BYTES: u64 = 6;

/// Where a foreign engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Apple's GPUs.
    Metal,
    /// NVIDIA's GPUs.
    Cuda,
    /// The processor.
    Cpu,
}

impl Backend {
    /// Returns what an engine takes on it before it has loaded anything.
    pub const fn runtime_overhead_mb(self) -> u64 {
        match self {
            Self::Metal | Self::Cuda => 512,
            Self::Cpu => 1024,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Metal => "Metal",
            Self::Cuda => "CUDA",
            Self::Cpu => "the processor",
        }
    }
}

/// Which positions of a prompt an engine scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// The last one.
    LastPosition,
    /// Every position of a chunk, as engines with a draft model do.
    WholeChunk,
}

/// What is declared or measured of a model that a foreign engine runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForeignModel<'a> {
    /// The number of parameters, as people write it.
    pub parameter_text: &'a str,
    /// Declared memory of the weights.
    pub ram_mb: Option<u64>,
    /// Declared size of the files.
    pub size_mb: Option<u64>,
    /// Measured size of the weights; it wins over all that is declared.
    pub measured_weights_mb: Option<u64>,
    /// What its `config.json` says.
    pub geometry: Option<ReferenceGeometry>,
    /// Where the engine computes.
    pub backend: Backend,
    /// Which positions it scores.
    pub scoring: Scoring,
}

/// Nothing says how large a model is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the size of the weights is unknown: no file was measured, no size is declared, and {parameter_text:?} is not a number of parameters"
)]
pub struct UnknownWeights {
    /// The number of parameters as it was declared.
    pub parameter_text: String,
}

/// What a foreign engine needs at one context length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Weights.
    pub weights_mb: u64,
    /// What the engine takes before it has loaded anything.
    pub runtime_overhead_mb: u64,
    /// KV cache, activations and logits.
    pub context_overhead_mb: u64,
    /// What may be taken for a moment.
    pub transient_margin_mb: u64,
    /// All of it.
    pub estimated_peak_mb: u64,
    /// Where the size of the weights comes from.
    pub evidence: Evidence,
}

impl ForeignModel<'_> {
    /// Returns what the engine needs at its peak for one sequence.
    pub fn estimate(&self, context_tokens: u64) -> Result<Estimate, UnknownWeights> {
        let (weights_mb, evidence) = self.weights_mb()?;
        let runtime_overhead_mb = self.backend.runtime_overhead_mb();
        let context =
            [self.kv_mb(context_tokens), self.prefill_mb(context_tokens), self.chunk_logits_mb()];
        let context_overhead_mb = sum(&context);
        let all = [weights_mb, runtime_overhead_mb, context_overhead_mb, TRANSIENT_MARGIN_MB];
        Ok(Estimate {
            weights_mb,
            runtime_overhead_mb,
            context_overhead_mb,
            transient_margin_mb: TRANSIENT_MARGIN_MB,
            estimated_peak_mb: sum(&all),
            evidence,
        })
    }

    /// Returns the size of the weights: measured, else declared, else guessed from the number of parameters.
    pub fn weights_mb(&self) -> Result<(u64, Evidence), UnknownWeights> {
        if let Some(measured) = self.measured_weights_mb {
            return Ok((measured, Evidence::FileSystemMeasured));
        }
        let declared = self.ram_mb.max(self.size_mb).filter(|declared| *declared > 0);
        if let Some(declared) = declared {
            return Ok((declared, Evidence::CatalogExact));
        }
        let parsed = Parameters::parse(self.parameter_text);
        let guessed = parsed.map(|parsed| (parsed.heuristic_weights_mb(), Evidence::Heuristic));
        guessed.ok_or_else(|| UnknownWeights { parameter_text: self.parameter_text.to_owned() })
    }

    /// Returns the KV cache and the states of one sequence.
    pub fn kv_mb(&self, context_tokens: u64) -> u64 {
        if let Some(geometry) = self.geometry {
            let per_token = geometry.kv_bytes_per_token;
            return mib_of(per_token, context_tokens, geometry.fixed_state_bytes);
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate of a few digits")]
        let (tokens, mib) = (context_tokens as f64, MIB as f64);
        whole_at_least(self.fallback_kv_bytes_per_token() * tokens / mib)
    }

    /// Returns the activations of a prefill.
    pub fn prefill_mb(&self, context_tokens: u64) -> u64 {
        let per_token = self.geometry.map_or(0, |geometry| geometry.prefill_bytes_per_token);
        mib_of(per_token, context_tokens, 0)
    }

    /// Returns the numbers over the vocabulary of a chunk, where the engine scores all of it.
    pub fn chunk_logits_mb(&self) -> u64 {
        let vocab = self.geometry.and_then(|geometry| geometry.vocab_size);
        match (self.scoring, vocab) {
            (Scoring::WholeChunk, Some(vocab)) => {
                mib_of(vocab, PREFILL_CHUNK_TOKENS * LOGIT_BYTES, 0)
            }
            _ => 0,
        }
    }

    /// Returns the same estimate as a function of context and sequences.
    ///
    /// For one sequence it is at most two MiB above [`ForeignModel::estimate`], whose terms are rounded up one by one.
    pub fn sizing(&self) -> Result<Sizing, UnknownWeights> {
        let (weights_mb, evidence) = self.weights_mb()?;
        let weights_source = match evidence {
            Evidence::FileSystemMeasured => "sizes of the files",
            Evidence::CatalogExact => "declared size",
            _ => "600 MiB for a billion parameters, upper bound",
        };
        Ok(Sizing {
            mapped_weights: Bytes::ZERO,
            private_weights: Bytes::from_mib(weights_mb),
            weights_source: weights_source.to_owned(),
            fixed: self.fixed_terms(),
            per_replica: self.replica_terms(),
            growth: self.growth(),
            evidence,
        })
    }

    fn fixed_terms(&self) -> Vec<Term> {
        let runtime = Bytes::from_mib(self.backend.runtime_overhead_mb());
        let margin = Bytes::from_mib(TRANSIENT_MARGIN_MB);
        let runtime_source = format!("flat for an engine on {}", self.backend.name());
        vec![
            term(Kind::Runtime, runtime, &runtime_source),
            term(Kind::Margin, margin, "flat for an engine whose inside is unknown"),
        ]
    }

    fn replica_terms(&self) -> Vec<Term> {
        let Some(geometry) = self.geometry else {
            return vec![term(Kind::KvCache, Bytes::new(MIB), "rounding up to whole MiB")];
        };
        let states = Bytes::new(geometry.fixed_state_bytes);
        let logits = Bytes::from_mib(self.chunk_logits_mb());
        vec![
            term(Kind::RecurrentState, states, "config.json: layers with linear attention"),
            term(Kind::Logits, logits, "config.json: vocabulary, for a whole chunk"),
            term(Kind::KvCache, Bytes::new(MIB), "rounding up to whole MiB"),
            term(Kind::Scratch, Bytes::new(MIB), "rounding up to whole MiB"),
        ]
    }

    fn growth(&self) -> Vec<Growth> {
        let Some(geometry) = self.geometry else {
            let per_token = whole_at_least(self.fallback_kv_bytes_per_token());
            return vec![per_token_growth(
                Kind::KvCache,
                per_token,
                "no geometry: an eight-billion model scaled by the active parameters, upper bound",
            )];
        };
        let of_kv = "config.json: all layers at full context, upper bound";
        let of_prefill = "config.json: width, for the whole context, upper bound";
        vec![
            per_token_growth(Kind::KvCache, geometry.kv_bytes_per_token, of_kv),
            per_token_growth(Kind::Scratch, geometry.prefill_bytes_per_token, of_prefill),
        ]
    }

    fn fallback_kv_bytes_per_token(&self) -> f64 {
        let declared = Parameters::parse(self.parameter_text);
        let known = declared.or_else(|| Parameters::from_size_mb(self.size_mb?));
        let eights = known.map_or(1.0, |known| (known.active_billions / 8.0).max(1.0));
        #[expect(clippy::cast_precision_loss, reason = "the constant has 18 bits")]
        let of_eight_billions = FALLBACK_KV_BYTES_PER_TOKEN as f64;
        of_eight_billions * eights
    }
}

fn term(kind: Kind, bytes: Bytes, source: &str) -> Term {
    Term { kind, bytes, source: source.to_owned() }
}

fn per_token_growth(kind: Kind, bytes: u64, source: &str) -> Growth {
    Growth {
        kind,
        step_tokens: 1,
        step_bytes: Bytes::new(bytes),
        window_tokens: None,
        source: source.to_owned(),
    }
}

fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part))
}

/// Returns the MiB that hold `per_token * tokens + fixed` bytes; the largest number where they are too many.
fn mib_of(per_token: u64, tokens: u64, fixed: u64) -> u64 {
    let bytes = (u128::from(per_token) * u128::from(tokens)).saturating_add(u128::from(fixed));
    u64::try_from(bytes.div_ceil(u128::from(MIB))).unwrap_or(u64::MAX)
}
