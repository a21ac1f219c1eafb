//! The coarse geometry of a `config.json` that estimates for foreign engines are made of.
//!
//! Invariant: sliding windows and unknown recurrent layers count as full attention, so that the figure errs upwards.
//! A field of the wrong type leaves the whole checkpoint without a geometry. Reads no file.

use serde_json::{Map, Value};

use super::json;

/// Tokens that a foreign engine prefills at a time.
pub const PREFILL_CHUNK_TOKENS: u64 = 2048;

/// What a checkpoint needs in memory per token of context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReferenceGeometry {
    /// Keys and values of one token.
    pub kv_bytes_per_token: u64,
    /// States of linear attention layers, whatever the context.
    pub fixed_state_bytes: u64,
    /// Activations of one token of the context.
    pub prefill_bytes_per_token: u64,
    /// Entries of the vocabulary.
    pub vocab_size: Option<u64>,
}

impl ReferenceGeometry {
    /// Reads it from the text of a `config.json`; `None` where the text does not give one.
    pub fn from_config(text: &str) -> Option<Self> {
        let config = json::parse(text).ok()?;
        Fields::read(language_block(config.as_object()?))?.geometry()
    }
}

/// Finds the object that describes the language model, and gives it the element type of the whole where it has none.
fn language_block(config: &Map<String, Value>) -> Map<String, Value> {
    let has_layers = |block: &Map<String, Value>| block.contains_key("num_hidden_layers");
    if has_layers(config) {
        return config.clone();
    }
    let inner = ["text_config", "llm_config", "language_config"];
    let inner = inner.into_iter().filter_map(|name| config.get(name)?.as_object());
    let Some(block) = inner.into_iter().find(|block| has_layers(block)) else {
        return config.clone();
    };
    let mut block = block.clone();
    let is_set = |name: &str| block.get(name).is_some_and(|value| !value.is_null());
    if !ELEMENT_KEYS.into_iter().any(is_set) {
        let inherited =
            ["torch_dtype", "dtype"].into_iter().find_map(|name| config.get(name)?.as_str());
        if let Some(name) = inherited {
            block.insert("torch_dtype".to_owned(), Value::from(name));
        }
    }
    block
}

/// Names of the element type, the one that counts first in front.
const ELEMENT_KEYS: [&str; 3] = ["kv_cache_dtype", "torch_dtype", "dtype"];

struct Fields {
    model_type: Option<String>,
    element: Option<String>,
    layer_types: Option<Vec<String>>,
    counts: Map<String, Value>,
}

impl Fields {
    fn read(block: Map<String, Value>) -> Option<Self> {
        let text = |name: &str| match block.get(name) {
            None | Some(Value::Null) => Some(None),
            Some(Value::String(text)) => Some(Some(text.clone())),
            Some(_) => None,
        };
        let mut element = None;
        for name in ELEMENT_KEYS {
            element = element.or(text(name)?);
        }
        let layer_types = match block.get("layer_types") {
            None | Some(Value::Null) => None,
            Some(Value::Array(types)) => Some(
                types.iter().map(|kind| kind.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            ),
            Some(_) => return None,
        };
        let model_type = text("model_type")?;
        let usable =
            |name: &str| block.get(name).is_none_or(|value| value.is_null() || value.is_u64());
        if !COUNTS.into_iter().all(usable) {
            return None;
        }
        Some(Self { model_type, element, layer_types, counts: block })
    }

    /// Returns a count that is there and not zero.
    fn positive(&self, name: &str) -> Option<u64> {
        self.counts.get(name)?.as_u64().filter(|count| *count > 0)
    }

    fn element_bytes(&self) -> u64 {
        match self.element.as_deref().unwrap_or_default().to_ascii_lowercase().as_str() {
            "float32" | "fp32" | "f32" => 4,
            "float64" | "fp64" | "f64" => 8,
            "float8" | "fp8" | "int8" | "uint8" | "i8" | "u8" => 1,
            _ => 2,
        }
    }

    fn geometry(&self) -> Option<ReferenceGeometry> {
        let layers = self.positive("num_hidden_layers")?;
        let (linear_layers, fixed_state_bytes) = self.linear(layers);
        let activations = product(&[self.positive("hidden_size").unwrap_or(0), 2, 4]);
        let cached = layers - linear_layers;
        let (kv_bytes_per_token, prefill_bytes_per_token) = match self.latent(cached, activations) {
            Some(latent) => latent,
            None => (self.dense(cached)?, activations),
        };
        let vocab_size = self.positive("vocab_size");
        Some(ReferenceGeometry {
            kv_bytes_per_token,
            fixed_state_bytes,
            prefill_bytes_per_token,
            vocab_size,
        })
    }

    /// Returns how many layers have linear attention, and the bytes of their states.
    fn linear(&self, layers: u64) -> (u64, u64) {
        let dimensions = || {
            Some([
                self.positive("linear_num_key_heads")?,
                self.positive("linear_key_head_dim")?,
                self.positive("linear_num_value_heads")?,
                self.positive("linear_value_head_dim")?,
            ])
        };
        let Some([key_heads, key_width, value_heads, value_width]) = dimensions() else {
            return (0, 0);
        };
        let linear = match (&self.layer_types, self.positive("full_attention_interval")) {
            (Some(types), _) => {
                types.iter().filter(|kind| *kind == "linear_attention").count() as u64
            }
            (None, Some(interval)) => layers - layers / interval,
            (None, None) => 0,
        };
        let linear = linear.min(layers);
        let columns = self.positive("linear_conv_kernel_dim").unwrap_or(4) - 1;
        let state = product(&[value_heads, value_width, key_width, 4]);
        let convolved = product(&[key_heads, key_width, 2])
            .saturating_add(product(&[value_heads, value_width]));
        let convolution = product(&[convolved, columns, self.element_bytes()]);
        (linear, product(&[linear, state.saturating_add(convolution)]))
    }

    /// Returns the bytes per token of keys and values and of activations, with multi-head latent attention.
    fn latent(&self, layers: u64, activations: u64) -> Option<(u64, u64)> {
        let rank = self.positive("kv_lora_rank")?;
        let rope = self.positive("qk_rope_head_dim")?;
        let heads = self.positive("num_attention_heads")?;
        let nope = self.positive("qk_nope_head_dim").unwrap_or(0);
        let value = self.positive("v_head_dim");
        let bytes = self.element_bytes();
        let absorbs = self.model_type.as_deref().is_some_and(|name| ABSORBING.contains(&name));
        if !absorbs {
            let key = nope.saturating_add(rope);
            let pair = key.saturating_add(value.unwrap_or(key));
            return Some((product(&[layers, heads, pair, bytes]), activations));
        }
        let scores = product(&[4, heads, PREFILL_CHUNK_TOKENS, bytes]);
        let heads_out = product(&[heads, nope.saturating_add(value.unwrap_or(0)), bytes]);
        let prefill = activations.saturating_add(scores).saturating_add(heads_out);
        Some((product(&[layers, rank.saturating_add(rope), bytes]), prefill))
    }

    fn dense(&self, layers: u64) -> Option<u64> {
        let heads = self.positive("num_key_value_heads")?;
        let derived = || {
            let (hidden, heads) =
                (self.positive("hidden_size")?, self.positive("num_attention_heads")?);
            (hidden % heads == 0).then(|| hidden / heads)
        };
        let width = self.positive("head_dim").or_else(derived)?;
        Some(product(&[layers, 2, heads, width, self.element_bytes()]))
    }
}

/// Architectures whose engines keep the latent vectors themselves.
const ABSORBING: [&str; 5] =
    ["deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_linear", "longcat_flash"];

/// Fields that must be whole numbers from zero where they are there.
const COUNTS: [&str; 16] = [
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
];

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor))
}
