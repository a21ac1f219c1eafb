//! A checkpoint's layers and what each remembers of the tokens before.
//!
//! Invariant: arithmetic saturates, so that a hostile size is one that fits nowhere. Reads no file and knows no
//! allocator; the formats are in the modules below.

pub mod checkpoint;
pub mod gguf;
pub mod hf;
pub mod json;
pub mod reference;

use std::collections::BTreeMap;

use crate::sizing::{Growth, Kind};
use crate::units::Bytes;

/// The most layers that a model may declare.
pub const MAX_LAYERS: u64 = 65_536;

/// Why a model's layers could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not JSON.
    #[error("the configuration is not JSON: {0}")]
    NotJson(String),
    /// A number that is needed is not there.
    #[error("the model does not say `{0}`")]
    Missing(String),
    /// A field holds what it cannot mean.
    #[error("`{field}` is {found}, which is not {wanted}")]
    Unusable {
        /// The field's name.
        field: String,
        /// What it holds, in words.
        found: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// More layers than any model has.
    #[error("the model declares {0} layers, and at most {MAX_LAYERS} are read")]
    TooManyLayers(u64),
}

/// The type of a number in a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    F16,
    /// 2 bytes.
    Bf16,
    /// 34 bytes for 32 numbers.
    Q8_0,
    /// 24 bytes for 32 numbers.
    Q5_1,
    /// 18 bytes for 32 numbers.
    Q4_0,
    /// 1 byte.
    Fp8,
}

impl KvElement {
    /// All of them, the widest first.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Fp8, Self::Q5_1, Self::Q4_0];

    /// Returns the bytes that 32 of them take.
    pub const fn bytes_of_32(self) -> u64 {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::Bf16 => 64,
            Self::Q8_0 => 34,
            Self::Fp8 => 32,
            Self::Q5_1 => 24,
            Self::Q4_0 => 18,
        }
    }

    /// Returns the bytes of that many elements, rounded up; the largest size where they are too many.
    pub fn bytes(self, elements: u128) -> Bytes {
        let bytes = elements.saturating_mul(u128::from(self.bytes_of_32())).div_ceil(32);
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Reads the name that a command line or a metadata key gives it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name().eq_ignore_ascii_case(name))
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Fp8 => "fp8",
            Self::Q5_1 => "q5_1",
            Self::Q4_0 => "q4_0",
        }
    }
}

/// What a layer keeps of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cache {
    /// Nothing: no attention.
    None,
    /// Nothing of its own: it reads the keys and values of an earlier layer.
    Shared,
    /// Keys and values of every token.
    Full {
        /// Numbers per token.
        elements: u64,
    },
    /// Keys and values of the last tokens.
    Window {
        /// Numbers per token.
        elements: u64,
        /// Tokens that are kept.
        window_tokens: u64,
    },
    /// A compressed vector from which keys and values are made (multi-head latent attention).
    Latent {
        /// Numbers per token in the compressed form.
        elements: u64,
        /// Numbers per token where an engine keeps the keys and values themselves.
        expanded_elements: u64,
    },
    /// The last tokens in full and one entry for every `ratio` tokens (compressed attention).
    Compressed {
        /// Numbers per token of the window and per entry.
        elements: u64,
        /// Tokens that are kept in full.
        window_tokens: u64,
        /// Tokens that share one entry.
        ratio: u64,
        /// Numbers of the search index per entry.
        index_elements: u64,
    },
}

/// How a layer without attention remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recurrence {
    /// Selective state space, first form.
    Mamba1,
    /// Selective state space, second form.
    Mamba2,
    /// Gated delta rule.
    GatedDelta,
    /// Kimi delta attention.
    Kda,
    /// Receptance-weighted key-value.
    Rwkv,
    /// Linear attention with a decay.
    Lightning,
    /// A short convolution and nothing else.
    ShortConv,
    /// A real-gated linear recurrent unit.
    Rglru,
}

/// The state that one layer keeps for a sequence, whatever its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// How it remembers.
    pub recurrence: Recurrence,
    /// Numbers of the convolution (or token shift), one column less than its width.
    pub conv_elements: u64,
    /// Numbers of the state itself.
    pub state_elements: u64,
}

/// What one layer remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layer {
    /// What it keeps of each token.
    pub cache: Cache,
    /// Numbers per token of a search index beside the cache (sparse attention).
    pub index_elements: u64,
    /// What it keeps for a sequence.
    pub state: Option<State>,
}

/// Which form of a latent cache an engine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LatentForm {
    /// The compressed vectors.
    Latent,
    /// Keys and values of every head.
    Expanded,
}

/// How well a shape is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exactness {
    /// The architecture is known.
    Exact,
    /// It is not, and every layer is counted as full attention; the reason in words.
    UpperBound(String),
}

/// All layers of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The name of the architecture, as the model gives it; empty where it does not.
    pub architecture: String,
    /// One entry for each layer.
    pub layers: Vec<Layer>,
    /// Layers that only predict drafts; not part of any total here.
    pub draft_layers: Vec<Layer>,
    /// The form in which latent layers are counted.
    pub latent_form: LatentForm,
    /// Entries of the vocabulary.
    pub vocab: Option<u64>,
    /// Width of the hidden state.
    pub hidden: Option<u64>,
    /// Tokens that the model was trained for.
    pub trained_context: Option<u64>,
    /// How well this is known.
    pub exactness: Exactness,
}

/// Entries that a group of layers keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Keeping {
    tokens_per_entry: u64,
    window_tokens: Option<u64>,
}

impl Keeping {
    const EVERY_TOKEN: Self = Self { tokens_per_entry: 1, window_tokens: None };

    const fn last(window_tokens: u64) -> Self {
        Self { tokens_per_entry: 1, window_tokens: Some(window_tokens) }
    }

    fn entries(self, context_tokens: u64) -> u64 {
        let kept = self.window_tokens.map_or(context_tokens, |window| window.min(context_tokens));
        kept.div_ceil(self.tokens_per_entry.max(1))
    }
}

impl Layer {
    /// Makes a layer that remembers nothing.
    pub const NOTHING: Self = Self::caching(Cache::None);

    /// Makes a layer that has a cache and nothing else.
    pub const fn caching(cache: Cache) -> Self {
        Self { cache, index_elements: 0, state: None }
    }

    /// Makes a layer that has a state and nothing else.
    pub const fn recurrent(state: State) -> Self {
        Self { cache: Cache::None, index_elements: 0, state: Some(state) }
    }

    fn entries(&self, form: LatentForm) -> impl Iterator<Item = (Keeping, u64)> {
        let every = Keeping::EVERY_TOKEN;
        let expanded = form == LatentForm::Expanded && matches!(self.cache, Cache::Latent { .. });
        // The index only serves engines that search the latent vectors.
        let index = if expanded { 0 } else { self.index_elements };
        let cached = match self.cache {
            Cache::None | Cache::Shared => [(every, 0), (every, 0)],
            Cache::Full { elements } => [(every, elements), (every, 0)],
            Cache::Window { elements, window_tokens } => {
                [(Keeping::last(window_tokens), elements), (every, 0)]
            }
            Cache::Latent { elements, expanded_elements } => {
                [(every, if expanded { expanded_elements } else { elements }), (every, 0)]
            }
            Cache::Compressed { elements, window_tokens, ratio, index_elements } => {
                let entry = elements.saturating_add(index_elements);
                let compressed = Keeping { tokens_per_entry: ratio.max(1), window_tokens: None };
                [
                    (Keeping::last(window_tokens), elements),
                    (compressed, if ratio == 0 { 0 } else { entry }),
                ]
            }
        };
        cached.into_iter().chain([(every, index)]).filter(|(_, elements)| *elements > 0)
    }
}

impl Shape {
    /// Returns the bytes of keys and values of one sequence, without padding.
    pub fn kv_bytes(&self, context_tokens: u64, element: KvElement) -> Bytes {
        let elements = self.keeping().into_iter().map(|(keeping, elements)| {
            elements.saturating_mul(u128::from(keeping.entries(context_tokens)))
        });
        element.bytes(elements.fold(0, u128::saturating_add))
    }

    /// Returns the bytes that each further token adds where all windows are full; entries that several tokens share
    /// are left out.
    pub fn growing_bytes_per_token(&self, element: KvElement) -> Bytes {
        element.bytes(self.keeping().get(&Keeping::EVERY_TOKEN).copied().unwrap_or(0))
    }

    /// Returns the bytes of all recurrent states of one sequence: convolutions as `convolution`, the rest as f32.
    pub fn recurrent_bytes(&self, convolution: KvElement) -> Bytes {
        convolution.bytes(self.conv_elements()) + KvElement::F32.bytes(self.state_elements())
    }

    /// Returns how many numbers the convolutions of one sequence keep.
    pub fn conv_elements(&self) -> u128 {
        self.states().map(|state| u128::from(state.conv_elements)).sum()
    }

    /// Returns how many numbers the states of one sequence keep, without the convolutions.
    pub fn state_elements(&self) -> u128 {
        self.states().map(|state| u128::from(state.state_elements)).sum()
    }

    /// Returns the same layers with another form of latent cache.
    #[must_use]
    pub fn in_form(&self, latent_form: LatentForm) -> Self {
        Self { latent_form, ..self.clone() }
    }

    /// Returns the same layers with `extra_tokens` more in each window, for engines that keep a chunk beside it.
    #[must_use]
    pub fn widened(&self, extra_tokens: u64) -> Self {
        let mut wide = self.clone();
        for layer in &mut wide.layers {
            if let Cache::Window { window_tokens, .. } | Cache::Compressed { window_tokens, .. } =
                &mut layer.cache
            {
                *window_tokens = window_tokens.saturating_add(extra_tokens);
            }
        }
        wide
    }

    /// Returns the memory of one sequence as a function of its context, for pages of `page_tokens` tokens.
    pub fn growth(&self, element: KvElement, page_tokens: u64) -> Vec<Growth> {
        let page = page_tokens.max(1);
        let grows = self.keeping().into_iter().map(|(keeping, elements)| Growth {
            kind: Kind::KvCache,
            step_tokens: page.saturating_mul(keeping.tokens_per_entry),
            step_bytes: element.bytes(elements.saturating_mul(u128::from(page))),
            window_tokens: keeping.window_tokens,
            source: self.source(keeping, element),
        });
        grows.collect()
    }

    fn source(&self, keeping: Keeping, element: KvElement) -> String {
        let bound = match self.exactness {
            Exactness::Exact => "",
            Exactness::UpperBound(_) => ", upper bound",
        };
        let name = element.name();
        match keeping {
            Keeping { window_tokens: Some(window), .. } => {
                format!("layers with a window of {window} tokens, {name}{bound}")
            }
            Keeping { tokens_per_entry: 1, .. } => {
                format!("layers that keep all tokens, {name}{bound}")
            }
            Keeping { tokens_per_entry, .. } => {
                format!("layers with one entry for {tokens_per_entry} tokens, {name}{bound}")
            }
        }
    }

    fn states(&self) -> impl Iterator<Item = State> {
        self.layers.iter().filter_map(|layer| layer.state)
    }

    /// Sums the elements of all layers that keep the same tokens.
    fn keeping(&self) -> BTreeMap<Keeping, u128> {
        let mut sums = BTreeMap::new();
        for (keeping, elements) in
            self.layers.iter().flat_map(|layer| layer.entries(self.latent_form))
        {
            *sums.entry(keeping).or_insert(0) += u128::from(elements);
        }
        sums
    }
}
