//! What attention layers of a `config.json` keep of each token.
//!
//! Invariant: a head's width is the declared one; it is only derived where none is, and only where it divides. Knows not
//! which layers attend.

use serde_json::Value;

use super::super::{Cache, Error};
use super::block::{Block, first_of, unusable, whole_number};

/// Names of the number of key and value heads.
const KV_HEADS: [&str; 5] =
    ["num_key_value_heads", "n_head_kv", "num_kv_heads", "kv_n_heads", "num_attention_groups"];

/// Names of the width of a head.
const HEAD_WIDTHS: [&str; 6] =
    ["head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head", "head_size"];

/// Architectures that keep latent vectors and leave the part with positions at 64.
const LATENT: [&str; 8] = [
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "kimi_k2",
    "kimi_linear",
    "longcat_flash",
    "glm4_moe_lite",
    "glm_moe_dsa",
];

/// What the attention layers of a model keep.
pub(super) struct Attention {
    full: Vec<u64>,
    windowed: u64,
    latent: Option<(u64, u64)>,
}

impl Attention {
    /// Reads the sizes for a number of layers.
    pub(super) fn read(block: &Block<'_>, layers: usize) -> Result<Self, Error> {
        if let Some(latent) = latent(block)? {
            return Ok(Self { full: Vec::new(), windowed: 0, latent: Some(latent) });
        }
        let width = head_width(block)?;
        let pair = width.saturating_add(block.positive(&["v_head_dim"])?.unwrap_or(width));
        let heads = kv_heads(block, layers)?;
        let windowed = windowed(block, &heads, pair)?;
        let full = global(block)?.map_or_else(
            || heads.iter().map(|heads| heads.saturating_mul(pair)).collect(),
            |(heads_of_full, pair)| {
                let of = |heads: &u64| heads_of_full.unwrap_or(*heads).saturating_mul(pair);
                heads.iter().map(of).collect()
            },
        );
        Ok(Self { full, windowed, latent: None })
    }

    /// Returns the cache of one layer; `window_tokens` for a layer that only keeps the last ones.
    pub(super) fn cache(&self, layer: usize, window_tokens: Option<u64>) -> Cache {
        if let Some((elements, expanded_elements)) = self.latent {
            return Cache::Latent { elements, expanded_elements };
        }
        let elements = self.full.get(layer).copied().unwrap_or(0);
        match window_tokens {
            Some(window_tokens) => Cache::Window {
                elements: if self.windowed == 0 { elements } else { self.windowed },
                window_tokens,
            },
            None => Cache::Full { elements },
        }
    }
}

/// Returns the numbers per token of layers with a window where they differ from the others; 0 where they do not.
fn windowed(block: &Block<'_>, heads: &[u64], pair: u64) -> Result<u64, Error> {
    if let Some(other) = block.inner("attention_other_setting") {
        let Some(heads) = other.positive(&["num_attention_groups", "num_key_value_heads"])? else {
            return Ok(0);
        };
        let width = other.positive(&["head_dim"])?.map(|width| width.saturating_mul(2));
        return Ok(heads.saturating_mul(width.unwrap_or(pair)));
    }
    let own_heads = block.positive(&["swa_num_key_value_heads"])?;
    let own_key = block.positive(&["swa_head_dim"])?;
    let is_global_apart = global(block)?.is_some();
    if own_heads.is_none() && own_key.is_none() && !is_global_apart {
        return Ok(0);
    }
    let value = block.positive(&["swa_v_head_dim"])?;
    let pair = own_key.map_or(pair, |key| key.saturating_add(value.unwrap_or(key)));
    let heads = own_heads.or(heads.first().copied()).unwrap_or(0);
    Ok(heads.saturating_mul(pair))
}

/// Returns the heads, where they differ, and the numbers per head of full layers that are wider than the others.
fn global(block: &Block<'_>) -> Result<Option<(Option<u64>, u64)>, Error> {
    let assumed = block.architecture.starts_with("gemma4").then_some(512);
    let Some(width) = block.positive(&["global_head_dim"])?.or(assumed) else {
        return Ok(None);
    };
    // The other number of heads goes with keys that serve as values; both are kept all the same.
    let heads = match block.flag("attention_k_eq_v") {
        Some(true) => block.positive(&["num_global_key_value_heads"])?,
        _ => None,
    };
    Ok(Some((heads, width.saturating_mul(2))))
}

fn head_width(block: &Block<'_>) -> Result<u64, Error> {
    if let Some(width) = block.positive(&HEAD_WIDTHS)?.or(block.assumed_head_width()) {
        return Ok(width);
    }
    derived_width(block)
}

fn derived_width(block: &Block<'_>) -> Result<u64, Error> {
    let missing = |name: &str| Error::Missing(name.to_owned());
    let heads = block.heads()?.ok_or_else(|| missing("num_attention_heads"))?;
    let hidden = block.hidden()?.ok_or_else(|| missing("hidden_size"))?;
    // Zamba's shared attention reads the embedding beside the hidden state.
    let hidden = if block.is(&["zamba", "zamba2"]) { hidden.saturating_mul(2) } else { hidden };
    if !hidden.is_multiple_of(heads) {
        return Err(Error::Unusable {
            field: "hidden_size".to_owned(),
            found: hidden.to_string(),
            wanted: "a multiple of the number of heads, and the width of a head is not given",
        });
    }
    Ok(hidden / heads)
}

/// Returns the key and value heads of each layer.
fn kv_heads(block: &Block<'_>, layers: usize) -> Result<Vec<u64>, Error> {
    for name in ["num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads"] {
        if let Some(heads) = block.counts(name, layers)? {
            return Ok(heads);
        }
    }
    let inner = match block.inner("attn_config") {
        Some(inner) if inner.text("attn_type") == Some("multiquery_attention") => Some(1),
        Some(inner) => inner.positive(&["kv_n_heads"])?,
        None => None,
    };
    let all = || block.heads()?.ok_or_else(|| Error::Missing(KV_HEADS[0].to_owned()));
    let is_shared = block.flag("multi_query");
    let heads = match block.architecture {
        "falcon" if block.flag("new_decoder_architecture") != Some(true) => {
            if is_shared == Some(false) { all()? } else { 1 }
        }
        "RefinedWebModel" => {
            if is_shared == Some(false) {
                all()?
            } else {
                1
            }
        }
        "gpt_bigcode" if is_shared != Some(false) => 1,
        "chatglm" if block.flag("multi_query_attention") == Some(true) => {
            block.needed(&["multi_query_group_num"])?
        }
        "chatglm" => all()?,
        _ => match inner.or(block.positive(&KV_HEADS)?) {
            Some(heads) => heads,
            None if is_shared == Some(true) => 1,
            None => block.assumed_kv_heads().map_or_else(all, Ok)?,
        },
    };
    Ok(vec![heads; layers])
}

/// Returns the numbers per token of latent attention, compressed and expanded; `None` for attention of another kind.
fn latent(block: &Block<'_>) -> Result<Option<(u64, u64)>, Error> {
    let assumed = block.is(&LATENT).then_some(64);
    let rank = block.positive(&["kv_lora_rank"])?;
    let rope = block.count(&["qk_rope_head_dim"])?.or(assumed);
    let (Some(rank), Some(rope)) = (rank, rope) else {
        return Ok(None);
    };
    if block.flag("use_mla") == Some(false) {
        return Ok(None);
    }
    let heads = block.heads()?.ok_or_else(|| Error::Missing("num_attention_heads".to_owned()))?;
    let nope = block.count(&["qk_nope_head_dim"])?.unwrap_or(0);
    let key = nope.saturating_add(rope);
    let value = match block.positive(&["v_head_dim"])? {
        Some(value) => value,
        None => derived_width(block).unwrap_or(key),
    };
    let expanded = heads.saturating_mul(key.saturating_add(value));
    Ok(Some((rank.saturating_add(rope), expanded)))
}

/// Returns the numbers per token of each layer's search index.
pub(super) fn index(block: &Block<'_>, layers: usize) -> Result<Vec<u64>, Error> {
    if let Some(sparse) = block.inner("sparse_attention_config") {
        return sparse_index(&sparse, layers);
    }
    let own = block.positive(&["index_head_dim"])?;
    let heads = block.positive(&["index_n_heads"])?.unwrap_or(1);
    let named = |kind: &Value| kind.as_str() == Some("minimax_m3_sparse");
    if let (Some(types), Some(width)) = (block.list("layer_types"), own)
        && types.iter().any(named)
    {
        let of = |kind: &Value| if named(kind) { width.saturating_mul(heads) } else { 0 };
        return Ok(first_of("layer_types", types, layers)?.iter().map(of).collect());
    }
    let grouped = match block.positive(&["indexer_head_dim"])? {
        Some(width) => {
            block.positive(&["indexer_kv_heads"])?.map(|heads| heads.saturating_mul(width))
        }
        None => None,
    };
    // In this family only layers that are named so have an index.
    let is_named_only = block.architecture.starts_with("minimax");
    let Some(width) = own.or(grouped).filter(|_| !is_named_only) else {
        return Ok(vec![0; layers]);
    };
    let searches = searching(block, layers)?;
    Ok(searches.into_iter().map(|searches| if searches { width } else { 0 }).collect())
}

/// Says for each layer whether it has an index of its own; the others use that of a layer below.
fn searching(block: &Block<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    if let Some(types) = block.list("indexer_types").or(block.list("index_topk_pattern")) {
        let types = first_of("indexer_types", types, layers)?;
        return Ok(types
            .iter()
            .map(|kind| !matches!(kind.as_str(), Some("shared" | "S")))
            .collect());
    }
    if let Some(letters) = block.text("index_topk_pattern") {
        let letters: Vec<bool> = letters.chars().take(layers).map(|letter| letter != 'S').collect();
        return if letters.len() == layers {
            Ok(letters)
        } else {
            Err(unusable(
                "index_topk_pattern",
                &Value::from(letters.len()),
                "one letter for each layer",
            ))
        };
    }
    let every = block.positive(&["index_topk_freq"])?.unwrap_or(1);
    let skipped = block.count(&["index_skip_topk_offset"])?.unwrap_or(2);
    let of = |layer: u64| (layer + 1).saturating_sub(skipped).is_multiple_of(every);
    Ok((0..layers as u64).map(of).collect())
}

/// Reads block-sparse attention, whose index has keys, and values where they are not switched off.
fn sparse_index(sparse: &Block<'_>, layers: usize) -> Result<Vec<u64>, Error> {
    let heads = sparse.positive(&["sparse_num_index_heads"])?.unwrap_or(0);
    let width = sparse.positive(&["sparse_index_dim"])?.unwrap_or(0);
    if sparse.flag("use_sparse_attention") == Some(false) {
        return Ok(vec![0; layers]);
    }
    let keys = heads.saturating_mul(width);
    let searches =
        sparse.counts("sparse_attention_freq", layers)?.unwrap_or_else(|| vec![1; layers]);
    let valueless = sparse.counts("sparse_disable_index_value", layers)?;
    let valueless = valueless.unwrap_or_else(|| vec![0; layers]);
    let of = |(searches, valueless): (u64, u64)| match (searches, valueless) {
        (0, _) => 0,
        (_, 0) => keys.saturating_mul(2),
        _ => keys,
    };
    Ok(searches.into_iter().zip(valueless).map(of).collect())
}

/// Reads attention over a window and over entries that stand for several tokens; `None` for attention of another kind.
pub(super) fn compressed(block: &Block<'_>, layers: usize) -> Result<Option<Vec<Cache>>, Error> {
    let Some(ratios) = compression(block, layers)? else {
        return Ok(None);
    };
    // One head whose keys serve as values.
    let heads = block.positive(&KV_HEADS)?.unwrap_or(1);
    let elements = heads.saturating_mul(head_width(block)?);
    let index = block.positive(&["index_head_dim"])?.unwrap_or(0);
    let window_tokens = block.positive(&super::mixers::WINDOWS)?.unwrap_or(128);
    let cache = |ratio: u64| Cache::Compressed {
        elements,
        window_tokens,
        ratio,
        // Strongly compressed entries are all read, and need no index.
        index_elements: if (1..64).contains(&ratio) { index } else { 0 },
    };
    Ok(Some(ratios.into_iter().map(cache).collect()))
}

fn compression(block: &Block<'_>, layers: usize) -> Result<Option<Vec<u64>>, Error> {
    if let Some(ratios) = block.counts("compress_ratios", layers)? {
        return Ok(Some(ratios));
    }
    if !block.is(&["deepseek_v4"]) {
        return Ok(None);
    }
    let rates = block.inner("compress_rates");
    let rate = |name: &str, default| match &rates {
        Some(rates) => Ok::<_, Error>(rates.positive(&[name])?.unwrap_or(default)),
        None => Ok(default),
    };
    let sparse = rate("compressed_sparse_attention", 4)?;
    let heavy = rate("heavily_compressed_attention", 128)?;
    let Some(types) = block.list("layer_types") else {
        let of = |layer: usize| if layer < 2 || layer.is_multiple_of(2) { heavy } else { sparse };
        return Ok(Some((0..layers).map(of).collect()));
    };
    let of = |kind: &Value| match kind.as_str() {
        Some("compressed_sparse_attention") => sparse,
        Some("heavily_compressed_attention") => heavy,
        _ => 0,
    };
    Ok(Some(first_of("layer_types", types, layers)?.iter().map(of).collect()))
}

/// Reads models whose layers were searched one by one: each says its own heads, or that it has no attention.
pub(super) fn searched(block: &Block<'_>, layers: usize) -> Result<Option<Vec<Cache>>, Error> {
    let name = "block_configs";
    let Some(list) = block.list(name) else {
        return Ok(None);
    };
    let heads = block.heads()?.ok_or_else(|| Error::Missing("num_attention_heads".to_owned()))?;
    let width = head_width(block)?;
    let cache = |entry: &Value| {
        let Some(attention) = entry.get("attention").filter(|attention| attention.is_object())
        else {
            return Err(unusable(name, entry, "an object with `attention`"));
        };
        let is_set = |name| attention.get(name).and_then(Value::as_bool) == Some(true);
        if is_set("no_op") || is_set("replace_with_linear") {
            return Ok(Cache::None);
        }
        let count = |name| attention.get(name).and_then(whole_number).filter(|count| *count > 0);
        let shared_by = count("n_heads_in_group").map(|group| heads.div_ceil(group));
        let heads = count("num_key_value_heads").or(shared_by).unwrap_or(heads);
        let elements = heads.saturating_mul(width).saturating_mul(2);
        Ok(match count("window_length") {
            Some(window_tokens) => Cache::Window { elements, window_tokens },
            None => Cache::Full { elements },
        })
    };
    first_of(name, list, layers)?.iter().map(cache).collect::<Result<_, _>>().map(Some)
}
