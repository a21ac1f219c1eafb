//! What a model file says about itself, gathered into plain data for people and for JSON.
//!
//! Believes nothing to be present: a key that is missing or of another type is simply not shown,
//! so that files which cannot be run can be looked at.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value as Json};
use toko_engine::KvType;
use toko_gguf::{
    Gguf,
    q2::Q2Layout,
    tensor::{TensorInfo, TensorType},
    value::Value,
};

/// Longer arrays are described by their type and length; vocabularies have a hundred thousand.
const LONGEST_SHOWN_ARRAY: u64 = 64;

/// Everything that `toko show` tells.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) name: Option<String>,
    pub(super) architecture: Option<String>,
    /// Why it cannot be run here; `None` when it can.
    pub(super) problem: Option<String>,
    pub(super) gguf_version: u32,
    pub(super) parameters: u64,
    pub(super) tensors: usize,
    pub(super) tensor_bytes: u64,
    pub(super) geometry: Geometry,
    pub(super) rope: Rope,
    pub(super) kv_bytes_per_token: Option<KvBytes>,
    pub(super) tensor_types: Vec<TypeCount>,
    pub(super) q2_layout: Option<LayoutChoice>,
    pub(super) tokenizer: Option<Vocabulary>,
    pub(super) chat_template: Option<String>,
    pub(super) metadata: Map<String, Json>,
}

/// Lengths and counts, by the names of their keys.
#[derive(Debug, Serialize)]
pub(super) struct Geometry {
    pub(super) context_length: Option<u64>,
    pub(super) block_count: Option<u64>,
    pub(super) embedding_length: Option<u64>,
    pub(super) feed_forward_length: Option<u64>,
    pub(super) head_count: Option<u64>,
    pub(super) head_count_kv: Option<u64>,
    pub(super) key_length: Option<u64>,
    pub(super) value_length: Option<u64>,
}

/// Rotary position embedding.
#[derive(Debug, Serialize)]
pub(super) struct Rope {
    pub(super) freq_base: Option<f32>,
    pub(super) dimension_count: Option<u64>,
    pub(super) scaling: Option<String>,
    pub(super) scaling_factor: Option<f32>,
    pub(super) original_context_length: Option<u64>,
}

/// Memory that one token of context takes, by element type.
#[derive(Debug, Serialize)]
pub(super) struct KvBytes {
    pub(super) f16: u64,
    pub(super) f32: u64,
    /// `None` where a head is not whole blocks.
    pub(super) q8_0: Option<u64>,
}

/// All tensors of one type together.
#[derive(Debug, Serialize)]
pub(super) struct TypeCount {
    #[serde(rename = "type")]
    pub(super) name: String,
    pub(super) id: u32,
    pub(super) tensors: usize,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

/// Which of the layouts of type id 42 the file uses.
#[derive(Debug, Serialize)]
pub(super) struct LayoutChoice {
    pub(super) layout: Option<&'static str>,
    pub(super) why: String,
}

/// The tokenizer's keys.
#[derive(Debug, Serialize)]
pub(super) struct Vocabulary {
    pub(super) model: String,
    pub(super) pre: Option<String>,
    pub(super) tokens: u64,
    pub(super) merges: u64,
    pub(super) add_bos: Option<bool>,
    pub(super) special: Vec<SpecialToken>,
}

/// A token with a task.
#[derive(Debug, Serialize)]
pub(super) struct SpecialToken {
    pub(super) role: &'static str,
    pub(super) id: u64,
    pub(super) text: Option<String>,
}

impl Report {
    /// Gathers what the header says; of the tensors' data only samples are read.
    pub(super) fn new(model: String, file: &Gguf, problem: Option<String>) -> Self {
        let keys = Keys { file, architecture: text(file, "general.architecture") };
        let geometry = Geometry::new(&keys);
        let tensors = file.tensors();
        Self {
            model,
            name: text(file, "general.name"),
            problem,
            gguf_version: file.version(),
            parameters: tensors.iter().map(TensorInfo::elements).sum(),
            tensors: tensors.len(),
            tensor_bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
            rope: Rope::new(&keys),
            kv_bytes_per_token: geometry.kv_bytes_per_token(&keys),
            geometry,
            tensor_types: count_types(file),
            q2_layout: q2_layout(file),
            tokenizer: Vocabulary::new(file),
            chat_template: text(file, "tokenizer.chat_template"),
            metadata: metadata(file),
            architecture: keys.architecture,
        }
    }
}

/// Looks keys up below the architecture's name.
struct Keys<'a> {
    file: &'a Gguf,
    architecture: Option<String>,
}

impl Keys<'_> {
    fn get(&self, name: &str) -> Option<Value<'_>> {
        let architecture = self.architecture.as_deref()?;
        self.file.metadata().get(&format!("{architecture}.{name}"))
    }

    fn count(&self, name: &str) -> Option<u64> {
        self.get(name).as_ref().and_then(as_u64)
    }

    fn float(&self, name: &str) -> Option<f32> {
        self.get(name)?.as_f32()
    }
}

impl Geometry {
    fn new(keys: &Keys<'_>) -> Self {
        let head_count = keys.count("attention.head_count");
        let embedding_length = keys.count("embedding_length");
        let head_length = || embedding_length?.checked_div(head_count?);
        Self {
            context_length: keys.count("context_length"),
            block_count: keys.count("block_count"),
            embedding_length,
            feed_forward_length: keys.count("feed_forward_length"),
            head_count,
            head_count_kv: keys.count("attention.head_count_kv").or(head_count),
            key_length: keys.count("attention.key_length").or_else(head_length),
            value_length: keys.count("attention.value_length").or_else(head_length),
        }
    }

    /// Returns `None` where a length is missing or the product has no meaning.
    fn kv_bytes_per_token(&self, keys: &Keys<'_>) -> Option<KvBytes> {
        let layers = self.block_count?;
        let kv_heads = match keys.get("attention.head_count_kv") {
            // One entry a layer, as some files have it.
            Some(Value::Array(array)) => {
                array.iter().try_fold(0, |sum: u64, count| sum.checked_add(as_u64(&count)?))?
            }
            _ => self.head_count_kv?.checked_mul(layers)?,
        };
        let row = |kind: KvType, length: u64| {
            kind.row_bytes(usize::try_from(length).ok()?).map(|bytes| bytes as u64)
        };
        let bytes = |kind| {
            let (key, value) = (row(kind, self.key_length?)?, row(kind, self.value_length?)?);
            kv_heads.checked_mul(key.checked_add(value)?)
        };
        let (f16, f32) = (bytes(KvType::F16)?, bytes(KvType::F32)?);
        Some(KvBytes { f16, f32, q8_0: bytes(KvType::Q8_0) })
    }
}

impl Rope {
    fn new(keys: &Keys<'_>) -> Self {
        let scaling = match keys.get("rope.scaling.type") {
            Some(Value::String(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        Self {
            freq_base: keys.float("rope.freq_base"),
            dimension_count: keys.count("rope.dimension_count"),
            scaling,
            scaling_factor: keys.float("rope.scaling.factor"),
            original_context_length: keys.count("rope.scaling.original_context_length"),
        }
    }
}

impl Vocabulary {
    fn new(file: &Gguf) -> Option<Self> {
        let metadata = file.metadata();
        let length = |name: &str| match metadata.get(name) {
            Some(Value::Array(array)) => array.len(),
            _ => 0,
        };
        Some(Self {
            model: text(file, "tokenizer.ggml.model")?,
            pre: text(file, "tokenizer.ggml.pre"),
            tokens: length("tokenizer.ggml.tokens"),
            merges: length("tokenizer.ggml.merges"),
            add_bos: match metadata.get("tokenizer.ggml.add_bos_token") {
                Some(Value::Bool(value)) => Some(value),
                _ => None,
            },
            special: special_tokens(file),
        })
    }
}

fn special_tokens(file: &Gguf) -> Vec<SpecialToken> {
    let texts = match file.metadata().get("tokenizer.ggml.tokens") {
        Some(Value::Array(array)) => Some(array),
        _ => None,
    };
    let token = |&(role, key): &(&'static str, &str)| {
        let id = as_u64(&file.metadata().get(&format!("tokenizer.ggml.{key}_token_id"))?)?;
        let index = usize::try_from(id).ok();
        let text = match index.and_then(|index| texts?.iter().nth(index)) {
            Some(Value::String(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        Some(SpecialToken { role, id, text })
    };
    let roles = [
        ("bos", "bos"),
        ("eos", "eos"),
        ("eot", "eot"),
        ("eom", "eom"),
        ("unknown", "unknown"),
        ("separator", "seperator"),
        ("padding", "padding"),
        ("mask", "mask"),
    ];
    roles.iter().filter_map(token).collect()
}

fn count_types(file: &Gguf) -> Vec<TypeCount> {
    let mut counts = BTreeMap::<u32, TypeCount>::new();
    for tensor in file.tensors() {
        let TensorType(id) = tensor.kind;
        let count = counts.entry(id).or_insert_with(|| TypeCount {
            name: tensor.kind.to_string(),
            id,
            tensors: 0,
            elements: 0,
            bytes: 0,
        });
        count.tensors += 1;
        count.elements += tensor.elements();
        count.bytes += tensor.bytes;
    }
    let mut counts: Vec<_> = counts.into_values().collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.bytes));
    counts
}

fn q2_layout(file: &Gguf) -> Option<LayoutChoice> {
    Some(match file.q2_layout()? {
        Ok(choice) => LayoutChoice {
            layout: Some(match choice.layout {
                Q2Layout::Group64 => "64 weights in 18 bytes, scale first",
                Q2Layout::Group128ScaleFirst => "128 weights in 34 bytes, scale first",
                Q2Layout::Group128ScaleLast => "128 weights in 34 bytes, scale last",
            }),
            why: choice.why,
        },
        Err(error) => LayoutChoice { layout: None, why: error.to_string() },
    })
}

/// All metadata but what has its own place in the report.
fn metadata(file: &Gguf) -> Map<String, Json> {
    file.metadata()
        .iter()
        .filter(|(key, _)| *key != "tokenizer.chat_template")
        .map(|(key, value)| (key.to_owned(), json(&value)))
        .collect()
}

fn json(value: &Value<'_>) -> Json {
    match value {
        Value::Bool(value) => Json::from(*value),
        Value::F32(value) => Json::from(*value),
        Value::F64(value) => Json::from(*value),
        Value::String(bytes) => Json::from(String::from_utf8_lossy(bytes)),
        Value::Array(array) if array.len() <= LONGEST_SHOWN_ARRAY => {
            array.iter().map(|element| json(&element)).collect()
        }
        Value::Array(array) => {
            serde_json::json!({ "array_of": array.element_type().to_string(), "length": array.len() })
        }
        integer => match integer.as_integer() {
            Some(value) if value >= 0 => Json::from(u64::try_from(value).ok()),
            Some(value) => Json::from(i64::try_from(value).ok()),
            None => Json::Null,
        },
    }
}

fn text(file: &Gguf, key: &str) -> Option<String> {
    match file.metadata().get(key) {
        Some(Value::String(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn as_u64(value: &Value<'_>) -> Option<u64> {
    value.as_integer()?.try_into().ok()
}
