//! The hyper-parameters of a decoder, read from metadata and checked once.
//!
//! Every length here is positive and consistent with the others; nothing later checks again.
//! A key that the format declares mandatory is never replaced by a default.

use toko_gguf::Gguf;
use toko_kernels::rope::{RopeLayout, RopeParams, RopeScaling, Yarn};

use crate::Error;

/// A family of decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, Mistral, SmolLM2: interleaved rotary pairs, no biases.
    Llama,
    /// Qwen2: split-half rotary pairs, biases on Q, K and V.
    Qwen2,
    /// Qwen3: split-half rotary pairs, RMS norm on every query and key head.
    Qwen3,
}

impl Architecture {
    fn parse(name: &str) -> Result<Self, Error> {
        match name {
            "llama" => Ok(Self::Llama),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            other => Err(Error::Architecture { found: other.to_owned() }),
        }
    }

    /// Returns the name that GGUF files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// How one vector is made of the hidden states of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean; also where the file does not say.
    Mean,
    /// The first one.
    First,
    /// The last one.
    Last,
    /// In no way that is built in.
    Unknown {
        /// The number in the file.
        kind: u64,
    },
}

impl Pooling {
    fn numbered(kind: Option<u64>) -> Self {
        match kind {
            None | Some(0 | 1) => Self::Mean,
            Some(2) => Self::First,
            Some(3) => Self::Last,
            Some(kind) => Self::Unknown { kind },
        }
    }
}

/// The geometry and constants of one model.
#[derive(Debug, Clone)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Layers.
    pub layers: usize,
    /// Length of the residual stream.
    pub hidden: usize,
    /// Length of the feed-forward layer.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Length of one head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Tokens of context that the model was trained for.
    pub context: usize,
    /// Added to the mean square in RMS norms.
    pub norm_epsilon: f32,
    /// Rotary position embedding.
    pub rope: RopeParams,
    /// How texts become vectors.
    pub pooling: Pooling,
}

/// Above any published model; bounds what a hostile file can make us loop over or allocate.
const MAX_LAYERS: usize = 1024;
const MAX_LENGTH: usize = 1 << 20;

impl Config {
    /// Reads and checks the hyper-parameters.
    ///
    /// # Errors
    /// A family that is not built in; a key that is missing, of the wrong type or out of range.
    pub fn from_gguf(file: &Gguf) -> Result<Self, Error> {
        let architecture = Architecture::parse(file.metadata().str("general.architecture")?)?;
        let keys = Keys { file, prefix: architecture.name() };
        if let Some(experts) = keys.optional_count("expert_count")?.filter(|&n| n > 0) {
            return Err(keys.invalid(
                "expert_count",
                experts,
                "0: mixtures of experts are not supported",
            ));
        }
        let layers = keys.length("block_count", MAX_LAYERS)?;
        let hidden = keys.length("embedding_length", MAX_LENGTH)?;
        let heads = keys.length("attention.head_count", MAX_LENGTH)?;
        let kv_heads = match keys.optional_count("attention.head_count_kv")? {
            Some(_) => keys.length("attention.head_count_kv", MAX_LENGTH)?,
            None => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(keys.invalid("attention.head_count_kv", kv_heads, &expected));
        }
        let head_dim = keys.head_dim(hidden, heads)?;
        let norm_epsilon = keys.float("attention.layer_norm_rms_epsilon")?;
        if !(norm_epsilon > 0.0 && norm_epsilon < 1.0) {
            return Err(keys.invalid(
                "attention.layer_norm_rms_epsilon",
                norm_epsilon,
                "a number between 0 and 1",
            ));
        }
        Ok(Self {
            architecture,
            layers,
            hidden,
            feed_forward: keys.length("feed_forward_length", MAX_LENGTH)?,
            heads,
            kv_heads,
            head_dim,
            vocabulary: vocabulary(file, hidden)?,
            context: keys.length("context_length", u32::MAX as usize)?,
            norm_epsilon,
            rope: keys.rope(architecture, head_dim)?,
            pooling: Pooling::numbered(keys.optional_count("pooling_type")?),
        })
    }

    /// Query heads that share one key and value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Length of all query heads together.
    pub fn query_length(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Length of all key heads together; values are as long.
    pub fn kv_length(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// The embedding table says how many tokens there are: its rows are what can be looked up.
fn vocabulary(file: &Gguf, hidden: usize) -> Result<usize, Error> {
    let name = "token_embd.weight";
    let missing =
        || Error::MissingTensor { name: name.to_owned(), expected: vec![hidden as u64, 0] };
    let tensor = file.tensor(name).ok_or_else(missing)?;
    match *tensor.shape {
        [columns, rows] if columns == hidden as u64 && (1..=1 << 24).contains(&rows) => {
            Ok(usize::try_from(rows).expect("at most 2^24 rows"))
        }
        _ => Err(Error::TensorShape {
            name: name.to_owned(),
            found: tensor.shape.clone(),
            expected: vec![hidden as u64, 0],
        }),
    }
}

/// Metadata keys of one architecture.
struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'static str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn invalid(&self, key: &str, found: impl std::fmt::Display, expected: &str) -> Error {
        Error::HyperParameter {
            key: self.full(key),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    fn optional_count(&self, key: &str) -> Result<Option<u64>, Error> {
        Ok(self.file.metadata().optional_u64(&self.full(key))?)
    }

    fn length(&self, key: &str, max: usize) -> Result<usize, Error> {
        let found = self.file.metadata().u64(&self.full(key))?;
        usize::try_from(found)
            .ok()
            .filter(|length| (1..=max).contains(length))
            .ok_or_else(|| self.invalid(key, found, &format!("1 to {max}")))
    }

    fn float(&self, key: &str) -> Result<f32, Error> {
        Ok(self.file.metadata().f32(&self.full(key))?)
    }

    fn optional_float(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.file.metadata().optional_f32(&self.full(key))?)
    }

    /// The format defines the head length as `embedding_length / head_count` when no key gives it.
    fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize, Error> {
        let key = "attention.key_length";
        let head_dim = match self.optional_count(key)? {
            Some(_) => self.length(key, 1024)?,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a divisor of the embedding length {hidden}");
                return Err(self.invalid("attention.head_count", heads, &expected));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > 1024 {
            return Err(self.invalid(key, head_dim, "an even number up to 1024"));
        }
        if heads > MAX_LENGTH / head_dim {
            return Err(self.invalid("attention.head_count", heads, "at most 2^20 / head length"));
        }
        match self.optional_count("attention.value_length")? {
            Some(length) if length != head_dim as u64 => {
                let expected = format!("{head_dim}, the length of the keys");
                Err(self.invalid("attention.value_length", length, &expected))
            }
            _ => Ok(head_dim),
        }
    }

    fn rope(&self, architecture: Architecture, head_dim: usize) -> Result<RopeParams, Error> {
        let dims_key = "rope.dimension_count";
        let rotary_dims = match self.optional_count(dims_key)? {
            Some(_) => self.length(dims_key, head_dim)?,
            None => head_dim,
        };
        if !rotary_dims.is_multiple_of(2) {
            return Err(self.invalid(dims_key, rotary_dims, "an even number"));
        }
        let base_key = "rope.freq_base";
        let base = match (self.optional_float(base_key)?, architecture) {
            (Some(base), _) => base,
            // Files of Llama 1 and 2 predate the key; the format defines 10,000 for them.
            (None, Architecture::Llama) => 10_000.0,
            (None, _) => self.float(base_key)?,
        };
        if !(base.is_finite() && base >= 1.0) {
            return Err(self.invalid(base_key, base, "a finite number of at least 1"));
        }
        let layout = match architecture {
            Architecture::Llama => RopeLayout::Interleaved,
            Architecture::Qwen2 | Architecture::Qwen3 => RopeLayout::Neox,
        };
        Ok(RopeParams { rotary_dims, base, layout, scaling: self.rope_scaling(rotary_dims)? })
    }

    fn rope_scaling(&self, rotary_dims: usize) -> Result<RopeScaling, Error> {
        if let Some(factors) = rope_factors(self.file, rotary_dims)? {
            return Ok(RopeScaling::Factors(factors));
        }
        let type_key = "rope.scaling.type";
        let factor_key = "rope.scaling.factor";
        let kind = match self.file.metadata().optional_str(&self.full(type_key))? {
            Some(kind) => kind,
            // The format takes a factor without a type as linear.
            None if self.optional_float(factor_key)?.is_some() => "linear",
            None => "none",
        };
        match kind {
            "none" => match self.optional_float("rope.scale_linear")? {
                Some(_) => Ok(RopeScaling::Linear { factor: self.positive("rope.scale_linear")? }),
                None => Ok(RopeScaling::None),
            },
            "linear" => Ok(RopeScaling::Linear { factor: self.positive(factor_key)? }),
            "yarn" => Ok(RopeScaling::Yarn(Yarn {
                factor: self.positive(factor_key)?,
                original_context: u32::try_from(
                    self.length("rope.scaling.original_context_length", u32::MAX as usize)?,
                )
                .expect("bounded above"),
                ext_factor: self.optional_float("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
                attn_factor: self.optional_float("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0),
                beta_fast: self.optional_float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.optional_float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            })),
            other => Err(self.invalid(type_key, format!("{other:?}"), "none, linear or yarn")),
        }
    }

    fn positive(&self, key: &str) -> Result<f32, Error> {
        let value = self.float(key)?;
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.invalid(key, value, "a positive number"))
        }
    }
}

/// Llama 3 files carry their frequency factors as a tensor, one for each rotary pair.
fn rope_factors(file: &Gguf, rotary_dims: usize) -> Result<Option<Vec<f32>>, Error> {
    let name = "rope_freqs.weight";
    if file.tensor(name).is_none() {
        return Ok(None);
    }
    let factors = crate::weights::read_floats(file, name, rotary_dims / 2)?;
    if let Some(bad) = factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        return Err(Error::HyperParameter {
            key: name.to_owned(),
            found: bad.to_string(),
            expected: "positive numbers".to_owned(),
        });
    }
    Ok(Some(factors))
}
