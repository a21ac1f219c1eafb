//! The object of a `config.json` that describes the language model, with typed fields and what its class assumes for
//! those that are left out.
//!
//! Invariant: a field that is there and can't be meant is an error that names it, never a guess. Knows no layer.

use serde_json::{Map, Value};

use super::super::{Error, MAX_LAYERS};

/// Objects that may hold the language model, the likeliest first.
const INNER: [&str; 10] = [
    "text_config",
    "llm_config",
    "language_config",
    "language_model",
    "text_model",
    "llm",
    "thinker_config",
    "model_config",
    "decoder_config",
    "decoder",
];

/// Names of the number of layers.
const LAYERS: [&str; 8] = [
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_transformer_layers",
    "num_decoder_layers",
    "decoder_layers",
    "num_blocks",
];

/// Lists with one entry for each layer, from which the number follows where it is not given.
const PER_LAYER: [&str; 5] = [
    "layers_block_type",
    "hybrid_override_pattern",
    "layer_types",
    "block_configs",
    "hybrid_layer_pattern",
];

/// What an architecture's class assumes; 0 where it assumes nothing or derives the number.
struct Assumed {
    architecture: &'static str,
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_width: u64,
    window: u64,
    vocab: u64,
}

const fn assumed(
    architecture: &'static str,
    [layers, hidden, heads, kv_heads, head_width, window, vocab]: [u64; 7],
) -> Assumed {
    Assumed { architecture, layers, hidden, heads, kv_heads, head_width, window, vocab }
}

/// Class defaults of architectures whose published files leave fields out.
const ASSUMED: [Assumed; 43] = [
    assumed("afmoe", [32, 2048, 16, 0, 128, 1024, 200_192]),
    assumed("cohere", [40, 8192, 64, 0, 0, 0, 256_000]),
    assumed("cohere2", [40, 8192, 64, 0, 0, 4096, 256_000]),
    assumed("deepseek_v3", [61, 7168, 128, 128, 0, 0, 129_280]),
    assumed("deepseek_v32", [61, 7168, 128, 128, 0, 0, 129_280]),
    assumed("ernie4_5", [18, 1024, 16, 2, 128, 0, 103_424]),
    assumed("exaone4", [32, 4096, 32, 32, 0, 4096, 102_400]),
    assumed("gemma", [28, 3072, 16, 16, 256, 0, 256_000]),
    assumed("gemma2", [26, 2304, 8, 4, 256, 4096, 256_000]),
    assumed("gemma3", [26, 2304, 8, 4, 256, 4096, 262_208]),
    assumed("gemma3_text", [26, 2304, 8, 4, 256, 4096, 262_208]),
    assumed("gemma3n", [35, 2048, 8, 2, 256, 512, 262_400]),
    assumed("gemma3n_text", [35, 2048, 8, 2, 256, 512, 262_400]),
    assumed("gemma4", [30, 2304, 8, 4, 256, 512, 262_144]),
    assumed("gemma4_text", [30, 2304, 8, 4, 256, 512, 262_144]),
    assumed("gemma4_unified", [30, 2304, 8, 4, 256, 1024, 262_144]),
    assumed("gemma4_unified_text", [30, 2304, 8, 4, 256, 1024, 262_144]),
    assumed("glm", [40, 4096, 32, 2, 128, 0, 151_552]),
    assumed("glm4", [40, 4096, 32, 2, 128, 0, 151_552]),
    assumed("gpt_oss", [36, 2880, 64, 8, 64, 128, 201_088]),
    assumed("helium", [24, 2560, 20, 20, 128, 0, 48_000]),
    assumed("kimi_linear", [27, 2304, 32, 32, 0, 0, 163_840]),
    assumed("llama", [32, 4096, 32, 0, 0, 0, 32_000]),
    assumed("llama4", [48, 5120, 40, 8, 128, 0, 202_048]),
    assumed("llama4_text", [48, 5120, 40, 8, 128, 0, 202_048]),
    assumed("ministral3", [34, 4096, 32, 8, 128, 0, 131_072]),
    assumed("mistral", [32, 4096, 32, 8, 0, 0, 32_000]),
    assumed("mixtral", [32, 4096, 32, 8, 0, 0, 32_000]),
    assumed("mllama_text_model", [40, 4096, 32, 8, 0, 0, 128_256]),
    assumed("olmo3", [32, 4096, 32, 0, 0, 4096, 50_304]),
    assumed("phi3", [32, 3072, 32, 0, 0, 0, 32_064]),
    assumed("qwen2", [32, 4096, 32, 32, 0, 4096, 151_936]),
    assumed("qwen2_5_vl_text", [80, 8192, 64, 8, 0, 4096, 152_064]),
    assumed("qwen2_vl_text", [80, 8192, 64, 8, 0, 4096, 152_064]),
    assumed("qwen3", [32, 4096, 32, 32, 128, 4096, 151_936]),
    assumed("qwen3_5_moe_text", [40, 2048, 16, 2, 256, 0, 248_320]),
    assumed("qwen3_5_text", [32, 4096, 16, 4, 256, 0, 248_320]),
    assumed("qwen3_moe", [24, 2048, 32, 4, 0, 4096, 151_936]),
    assumed("qwen3_next", [48, 2048, 16, 2, 256, 0, 151_936]),
    assumed("qwen3_vl_moe_text", [24, 2048, 16, 16, 0, 0, 151_936]),
    assumed("qwen3_vl_text", [32, 4096, 32, 32, 128, 0, 151_936]),
    assumed("seed_oss", [64, 4096, 80, 8, 128, 0, 155_136]),
    assumed("vaultgemma", [26, 2304, 8, 4, 256, 4096, 256_000]),
];

/// The object that describes the language model.
pub(super) struct Block<'a> {
    fields: &'a Map<String, Value>,
    whole: &'a Map<String, Value>,
    /// The architecture, in the spelling of `model_type`.
    pub(super) architecture: &'a str,
    assumed: Option<&'static Assumed>,
}

impl<'a> Block<'a> {
    /// Finds the object in a whole configuration.
    pub(super) fn find(whole: &'a Map<String, Value>) -> Self {
        let fields = language_model(whole, 4);
        let name_of = |fields: &'a Map<String, Value>| fields.get("model_type")?.as_str();
        let architecture = name_of(fields).or_else(|| name_of(whole)).unwrap_or_default();
        let assumed = ASSUMED.iter().find(|assumed| assumed.architecture == architecture);
        Self { fields, whole, architecture, assumed }
    }

    /// Returns a field that is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Says whether the architecture is one of those.
    pub(super) fn is(&self, architectures: &[&str]) -> bool {
        architectures.contains(&self.architecture)
    }

    /// Returns the first count under one of the names.
    pub(super) fn count(&self, names: &[&str]) -> Result<Option<u64>, Error> {
        let Some((name, value)) = names.iter().find_map(|name| Some((*name, self.get(name)?)))
        else {
            return Ok(None);
        };
        whole_number(value).map(Some).ok_or_else(|| unusable(name, value, "a whole number from 0"))
    }

    /// Returns the first count under one of the names, where it is above zero.
    pub(super) fn positive(&self, names: &[&str]) -> Result<Option<u64>, Error> {
        Ok(self.count(names)?.filter(|count| *count > 0))
    }

    /// Returns a count that has to be there and above zero.
    pub(super) fn needed(&self, names: &[&str]) -> Result<u64, Error> {
        match self.count(names)? {
            None => Err(Error::Missing(names.first().copied().unwrap_or_default().to_owned())),
            Some(0) => Err(Error::Unusable {
                field: names.first().copied().unwrap_or_default().to_owned(),
                found: "0".to_owned(),
                wanted: "a positive number",
            }),
            Some(count) => Ok(count),
        }
    }

    /// Returns a truth value.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    /// Returns a text.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    /// Returns a list.
    pub(super) fn list(&self, name: &str) -> Option<&'a [Value]> {
        self.get(name)?.as_array().map(Vec::as_slice)
    }

    /// Returns an object within this one, read in the same way.
    pub(super) fn inner(&self, name: &str) -> Option<Self> {
        let fields = self.get(name)?.as_object()?;
        Some(Self { fields, whole: self.whole, architecture: self.architecture, assumed: None })
    }

    /// Returns a list with one count for each layer.
    pub(super) fn counts(
        &self,
        name: &'static str,
        layers: usize,
    ) -> Result<Option<Vec<u64>>, Error> {
        let Some(list) = self.list(name) else {
            return Ok(None);
        };
        let list = first_of(name, list, layers)?;
        let number = |value: &Value| match value {
            Value::Bool(set) => Some(u64::from(*set)),
            Value::Null => Some(0),
            value => whole_number(value),
        };
        let number = |value| {
            number(value).ok_or_else(|| unusable(name, value, "a list of whole numbers from 0"))
        };
        list.iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// Returns the number of layers.
    pub(super) fn layers(&self) -> Result<usize, Error> {
        let listed = PER_LAYER.iter().find_map(|name| match self.get(name)? {
            Value::Array(list) => Some(list.len() as u64),
            Value::String(pattern) => Some(pattern.chars().count() as u64),
            _ => None,
        });
        let is_nested = !std::ptr::eq(self.fields, self.whole);
        let assumed = self.assumed.filter(|_| is_nested).map(|assumed| assumed.layers);
        let layers = match self.count(&LAYERS)? {
            None => listed.or(assumed).ok_or_else(|| Error::Missing(LAYERS[0].to_owned()))?,
            Some(_) => self.needed(&LAYERS)?,
        };
        if layers > MAX_LAYERS {
            return Err(Error::TooManyLayers(layers));
        }
        usize::try_from(layers).map_err(|_| Error::TooManyLayers(layers))
    }

    /// Returns the width of the hidden state.
    pub(super) fn hidden(&self) -> Result<Option<u64>, Error> {
        let names = ["hidden_size", "n_embd", "d_model", "n_embed", "model_dim", "hidden_dim"];
        Ok(self.positive(&names)?.or(self.assumed(|assumed| assumed.hidden)))
    }

    /// Returns the number of query heads.
    pub(super) fn heads(&self) -> Result<Option<u64>, Error> {
        let names = ["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"];
        Ok(self.positive(&names)?.or(self.assumed(|assumed| assumed.heads)))
    }

    /// Returns the number of key and value heads that the class assumes.
    pub(super) fn assumed_kv_heads(&self) -> Option<u64> {
        self.assumed(|assumed| assumed.kv_heads)
    }

    /// Returns the width of a head that the class assumes.
    pub(super) fn assumed_head_width(&self) -> Option<u64> {
        self.assumed(|assumed| assumed.head_width)
    }

    /// Returns the window that the class assumes where the file does not name the key at all.
    pub(super) fn assumed_window(&self, names: &[&str]) -> Option<u64> {
        let is_named = names.iter().any(|name| self.fields.contains_key(*name));
        self.assumed(|assumed| assumed.window).filter(|_| !is_named)
    }

    /// Returns how many tokens the model was trained for.
    pub(super) fn trained_context(&self) -> Result<Option<u64>, Error> {
        let names = [
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
            "seq_length",
            "max_sequence_length",
            "model_max_length",
            "n_ctx",
            "context_length",
        ];
        self.positive(&names)
    }

    /// Returns the entries of the vocabulary, wherever they are said.
    pub(super) fn vocab(&self) -> Option<u64> {
        let names = ["vocab_size", "padded_vocab_size", "n_vocab"];
        let said = |fields: &Map<String, Value>| {
            names.iter().find_map(|name| whole_number(fields.get(*name)?))
        };
        let said = said(self.fields).or_else(|| said(self.whole)).filter(|entries| *entries > 0);
        said.or(self.assumed(|assumed| assumed.vocab))
    }

    fn assumed(&self, of: impl Fn(&Assumed) -> u64) -> Option<u64> {
        self.assumed.map(of).filter(|number| *number > 0)
    }
}

/// Walks down to the object that says how many layers there are; stays where none does.
fn language_model(whole: &Map<String, Value>, depth: usize) -> &Map<String, Value> {
    if says_layers(whole) || depth == 0 {
        return whole;
    }
    let inner = || INNER.iter().filter_map(|name| whole.get(*name)?.as_object());
    let walked = inner().map(|fields| language_model(fields, depth - 1));
    walked
        .into_iter()
        .find(|fields| says_layers(fields))
        .or_else(|| inner().next())
        .unwrap_or(whole)
}

fn says_layers(fields: &Map<String, Value>) -> bool {
    let is_set = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
    LAYERS.iter().chain(&PER_LAYER).any(is_set)
}

/// Reads a whole number from zero; a fraction of nothing is no fraction.
pub(super) fn whole_number(value: &Value) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be whole, not negative and exact"
    )]
    let whole = |number: f64| {
        let is_whole = number.fract() == 0.0 && (0.0..=EXACT).contains(&number);
        is_whole.then_some(number as u64)
    };
    value.as_u64().or_else(|| value.as_f64().and_then(whole))
}

/// Takes the entries of the model's own layers; what follows them belongs to layers that only predict drafts.
pub(super) fn first_of<'v>(
    name: &str,
    list: &'v [Value],
    layers: usize,
) -> Result<&'v [Value], Error> {
    list.get(..layers).ok_or_else(|| Error::Unusable {
        field: name.to_owned(),
        found: format!("a list of {} entries for {layers} layers", list.len()),
        wanted: "one entry for each layer",
    })
}

/// Makes the error of a field that can't be meant.
pub(super) fn unusable(name: &str, value: &Value, wanted: &'static str) -> Error {
    let found = match value {
        Value::Array(list) => format!("a list of {} entries", list.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        other => other.to_string(),
    };
    Error::Unusable { field: name.to_owned(), found, wanted }
}
