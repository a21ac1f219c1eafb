//! Which layer of a `config.json` mixes tokens in which way.
//!
//! Invariant: one entry for each layer. Lists in the file come before periods, and periods before what the architecture
//! is known for. Knows no size.

use serde_json::Value;

use super::super::Error;
use super::block::{Block, first_of, unusable};

/// How a layer mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixer {
    /// Attention over all tokens.
    Attention,
    /// Attention over the last tokens.
    Window,
    /// Attention within a chunk.
    Chunk,
    /// A recurrent state.
    Recurrent,
    /// Attention over all tokens and a recurrent state.
    Both,
    /// A short convolution.
    Convolution,
    /// None.
    Nothing,
    /// A word that is not known here.
    Unknown,
}

/// Names of the number of tokens in a window.
pub(super) const WINDOWS: [&str; 4] =
    ["sliding_window", "sliding_window_size", "attention_window_size", "window_size"];

/// Architectures in which every layer is recurrent.
const RECURRENT: [&str; 8] =
    ["mamba", "falcon_mamba", "mamba2", "rwkv", "rwkv5", "rwkv6", "rwkv7", "rwkv6qwen2"];

/// Architectures with one full layer after some with a window: how many of them there are together.
const PERIODS: [(&[&str], u64); 7] = [
    (&["gemma2", "vaultgemma", "gpt_oss"], 2),
    (&["gemma3", "gemma3_text", "gemma4", "gemma4_text"], 6),
    (&["gemma4_unified", "gemma4_unified_text"], 6),
    (&["gemma3n", "gemma3n_text"], 5),
    (&["cohere2", "cohere2_moe", "olmo3", "afmoe"], 4),
    (&["exaone4", "exaone4_5_text", "exaone_moe"], 4),
    (&["smallthinker"], 4),
];

/// Architectures in which a window, where there is one, is that of every layer.
const WINDOW_EVERYWHERE: [&str; 11] = [
    "mistral",
    "mixtral",
    "ministral",
    "ministral3",
    "starcoder2",
    "phi3",
    "phi3_v",
    "phi4_multimodal",
    "phi4mm",
    "phimoe",
    "doge",
];

/// Architectures in which the first layers are full and a flag switches the window of the others on.
const WINDOW_ABOVE: [&str; 14] = [
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_5_omni_text",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "mimo",
    "dots1",
    "smollm3",
];

/// Returns how each layer mixes tokens.
pub(super) fn read(block: &Block<'_>, layers: usize) -> Result<Vec<Mixer>, Error> {
    if block.is(&RECURRENT) || block.get("ssm_cfg").is_some() {
        return Ok(vec![Mixer::Recurrent; layers]);
    }
    if block.is(&["falcon_h1"]) {
        return Ok(vec![Mixer::Both; layers]);
    }
    let listed = named(block, layers)?
        .or(pattern(block, layers)?)
        .or(numbered(block, layers)?)
        .or(flagged(block, layers)?);
    let mut mixers = match listed {
        Some(mixers) => mixers,
        None => periodic(block, layers)?,
    };
    if block.architecture.starts_with("gemma4")
        && let Some(last) = mixers.last_mut()
    {
        *last = Mixer::Attention;
    }
    Ok(mixers)
}

/// Returns the window of sliding layers, where it is one: not switched off, and shorter than the longest context.
pub(super) fn window(block: &Block<'_>) -> Result<Option<u64>, Error> {
    let is_off = match block.flag("use_sliding_window") {
        Some(used) => !used,
        None => block.is(&WINDOW_ABOVE) && !block.is(&["dots1"]),
    };
    if is_off {
        return Ok(None);
    }
    if block.is(&["modernbert-decoder"]) {
        return Ok(block.positive(&["local_attention"])?.map(|tokens| (tokens / 2).max(1)));
    }
    // Windows that differ from layer to layer are not followed; all tokens are the upper bound.
    if WINDOWS.iter().any(|name| block.list(name).is_some()) {
        return Ok(None);
    }
    let window = block.positive(&WINDOWS)?.or_else(|| block.assumed_window(&WINDOWS));
    let longest = block.trained_context()?.unwrap_or(u64::MAX);
    Ok(window.filter(|window| *window < longest))
}

fn named(block: &Block<'_>, layers: usize) -> Result<Option<Vec<Mixer>>, Error> {
    let names = ["layer_types", "layers_block_type", "attention_layers", "mixer_types"];
    let listed = names.into_iter().find_map(|name| Some((name, block.list(name)?)));
    if let Some((name, list)) = listed {
        let list = first_of(name, list, layers)?;
        return list.iter().map(|word| mixer(name, word)).collect::<Result<_, _>>().map(Some);
    }
    let Some(cycle) = block.list("block_types").filter(|cycle| !cycle.is_empty()) else {
        return Ok(None);
    };
    let cycle: Vec<Mixer> =
        cycle.iter().map(|word| mixer("block_types", word)).collect::<Result<_, _>>()?;
    // These models have no other attention than that over a window.
    let local = |kind: Mixer| if kind == Mixer::Attention { Mixer::Window } else { kind };
    Ok(Some(cycle.into_iter().map(local).cycle().take(layers).collect()))
}

fn mixer(name: &str, word: &Value) -> Result<Mixer, Error> {
    let text = word.as_str().ok_or_else(|| unusable(name, word, "the name of a kind of layer"))?;
    Ok(match text {
        "full_attention" | "attention" | "full" | "global" | "global_attention"
        | "indexed_attention" | "minimax_m3_sparse" | "minicpm4" => Mixer::Attention,
        // A sparse attention reads few tokens and keeps all.
        text if text.ends_with("sparse_attention") => Mixer::Attention,
        "sliding_attention" | "sliding_window" | "sliding" | "local" | "local_attention"
        | "swa" => Mixer::Window,
        "chunked_attention" => Mixer::Chunk,
        "linear_attention"
        | "mamba"
        | "mamba1"
        | "mamba2"
        | "recurrent"
        | "kda"
        | "gated_delta"
        | "lightning_attention"
        | "lightning-attn" => Mixer::Recurrent,
        "conv" | "short_conv" => Mixer::Convolution,
        "hybrid" => Mixer::Both,
        "moe" | "mlp" | "noop" | "none" => Mixer::Nothing,
        _ => Mixer::Unknown,
    })
}

/// Reads one letter for each layer.
fn pattern(block: &Block<'_>, layers: usize) -> Result<Option<Vec<Mixer>>, Error> {
    let name = "hybrid_override_pattern";
    let Some(pattern) = block.text(name) else {
        return Ok(None);
    };
    let letters = pattern.chars().filter(|letter| *letter != '|').map(|letter| match letter {
        'M' => Mixer::Recurrent,
        '*' => Mixer::Attention,
        '-' | 'E' => Mixer::Nothing,
        _ => Mixer::Unknown,
    });
    let mixers: Vec<Mixer> = letters.take(layers).collect();
    if mixers.len() < layers {
        let value = Value::from(pattern);
        return Err(unusable(name, &value, "one letter for each layer"));
    }
    Ok(Some(mixers))
}

/// Reads lists of layers by number.
fn numbered(block: &Block<'_>, layers: usize) -> Result<Option<Vec<Mixer>>, Error> {
    if let Some(linear) = block.inner("linear_attn_config") {
        let listed = |name| numbers(&linear, name, layers, 1);
        if let (Some(full), Some(kda)) = (listed("full_attn_layers")?, listed("kda_layers")?) {
            let mut mixers = vec![Mixer::Attention; layers];
            for layer in kda {
                mixers[layer] = Mixer::Recurrent;
            }
            for layer in full {
                mixers[layer] = Mixer::Attention;
            }
            return Ok(Some(mixers));
        }
    }
    let kinds = [
        ("attn_layer_indices", Mixer::Attention, Mixer::Recurrent),
        ("attn_layer_idx", Mixer::Attention, Mixer::Recurrent),
        ("full_attn_idxs", Mixer::Attention, Mixer::Convolution),
        ("hybrid_layer_ids", Mixer::Both, Mixer::Recurrent),
        ("local_layer_ids", Mixer::Window, Mixer::Attention),
        ("global_attn_idx", Mixer::Attention, Mixer::Window),
    ];
    for (name, of_listed, of_others) in kinds {
        if let Some(listed) = numbers(block, name, layers, 0)? {
            let mut mixers = vec![of_others; layers];
            for layer in listed {
                mixers[layer] = of_listed;
            }
            return Ok(Some(mixers));
        }
    }
    Ok(None)
}

/// Reads a list of layers whose first one has the number `first`; numbers behind the last layer are left out.
fn numbers(
    block: &Block<'_>,
    name: &str,
    layers: usize,
    first: usize,
) -> Result<Option<Vec<usize>>, Error> {
    let Some(list) = block.list(name) else {
        return Ok(None);
    };
    let number = |value: &Value| {
        let number =
            super::block::whole_number(value).and_then(|number| usize::try_from(number).ok());
        number
            .and_then(|number| number.checked_sub(first))
            .ok_or_else(|| unusable(name, value, "the number of a layer"))
    };
    let all = list.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(all.into_iter().filter(|layer| *layer < layers).collect()))
}

/// Reads lists with one flag for each layer.
fn flagged(block: &Block<'_>, layers: usize) -> Result<Option<Vec<Mixer>>, Error> {
    let kinds = [
        ("hybrid_layer_pattern", Mixer::Window, Mixer::Attention),
        ("sliding_window_layout", Mixer::Window, Mixer::Attention),
        ("attn_type_list", Mixer::Attention, Mixer::Recurrent),
        ("no_rope_layers", Mixer::Chunk, Mixer::Attention),
    ];
    for (name, of_set, of_clear) in kinds {
        let has_chunks = block.positive(&["attention_chunk_size"])?.is_some();
        let is_empty = block.list(name).is_some_and(<[Value]>::is_empty);
        if is_empty || name == "no_rope_layers" && !has_chunks {
            continue;
        }
        if let Some(flags) = block.counts(name, layers)? {
            let kind = |flag: u64| if flag == 0 { of_clear } else { of_set };
            return Ok(Some(flags.into_iter().map(kind).collect()));
        }
    }
    Ok(None)
}

/// Applies periods, and what the architecture is known for.
fn periodic(block: &Block<'_>, layers: usize) -> Result<Vec<Mixer>, Error> {
    let each = |kind: &dyn Fn(u64) -> Mixer| (0..layers as u64).map(kind).collect();
    if block.is(&["jamba", "zamba"]) || block.get("attn_layer_period").is_some() {
        let default = if block.is(&["zamba"]) { (6, 4) } else { (8, 4) };
        let period = block.positive(&["attn_layer_period"])?.unwrap_or(default.0);
        let offset = block.count(&["attn_layer_offset"])?.unwrap_or(default.1);
        let attends = if block.is(&["zamba"]) { Mixer::Both } else { Mixer::Attention };
        return Ok(each(&|i| if i % period == offset { attends } else { Mixer::Recurrent }));
    }
    if let Some(interval) = linear_interval(block)? {
        // Ling's layers behind the last whole group are full as well.
        let in_groups = match block.architecture {
            "bailing_moe_linear" => layers as u64 / interval * interval,
            _ => u64::MAX,
        };
        let kind = |i| if i < in_groups { Mixer::Recurrent } else { Mixer::Attention };
        return Ok(each(&|i| full_after(i, interval, kind(i))));
    }
    if block.is(&["granitemoehybrid", "bamba"]) {
        return Ok(vec![Mixer::Recurrent; layers]);
    }
    if block.is(&["zamba2"]) {
        return Ok(vec![Mixer::Both; layers]);
    }
    if block.is(&["minimax"]) {
        return Ok(each(&|i| if i % 2 == 0 { Mixer::Attention } else { Mixer::Recurrent }));
    }
    if block.is(&["mimo_v2_flash"]) {
        let kind = |i| if i == 0 { Mixer::Attention } else { full_after(i, 6, Mixer::Window) };
        return Ok(each(&kind));
    }
    if block.is(&["llama4", "llama4_text"]) {
        let interval = block.positive(&["no_rope_layer_interval"])?.unwrap_or(4);
        return Ok(each(&|i| full_after(i, interval, Mixer::Chunk)));
    }
    if block.is(&["modernbert-decoder", "granite_swa"]) {
        let period = block.positive(&["global_attn_every_n_layers"])?;
        let period = period.unwrap_or(if block.is(&["granite_swa"]) { 4 } else { 3 });
        return Ok(each(&|i| if i % period == 0 { Mixer::Attention } else { Mixer::Window }));
    }
    if let Some(letters) = block.text("sliding_window_pattern") {
        return Ok(lettered(letters, layers));
    }
    if let Some(period) = window_period(block)? {
        return Ok(each(&|i| full_after(i, period, Mixer::Window)));
    }
    if block.is(&WINDOW_EVERYWHERE) {
        return Ok(vec![Mixer::Window; layers]);
    }
    if block.is(&WINDOW_ABOVE) {
        // Without the number no layer is known to be below it, and all are counted in full.
        let full = block.count(&["max_window_layers"])?.unwrap_or(u64::MAX);
        return Ok(if block.is(&["qwen2_moe"]) {
            each(&|i| if i < full { full_after(i, 2, Mixer::Window) } else { Mixer::Attention })
        } else {
            each(&|i| if i < full { Mixer::Attention } else { Mixer::Window })
        });
    }
    Ok(vec![Mixer::Attention; layers])
}

/// Returns after how many layers, itself included, one has full attention among layers with linear attention.
fn linear_interval(block: &Block<'_>) -> Result<Option<u64>, Error> {
    if let Some(interval) = block.positive(&["full_attention_interval", "layer_group_size"])? {
        return Ok(Some(interval));
    }
    let families = ["qwen3_5", "qwen4_exp", "glm5_next"];
    let assumes = families.iter().any(|family| block.architecture.starts_with(family))
        || block.is(&["qwen3_next", "olmo_hybrid", "kimi_linear"]);
    Ok(assumes.then_some(4))
}

fn window_period(block: &Block<'_>) -> Result<Option<u64>, Error> {
    let names = ["sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"];
    let known = PERIODS.iter().find(|(architectures, _)| block.is(architectures));
    Ok(block.positive(&names)?.or(known.map(|(_, period)| *period)))
}

fn full_after(layer: u64, period: u64, otherwise: Mixer) -> Mixer {
    if (layer + 1).is_multiple_of(period) { Mixer::Attention } else { otherwise }
}

/// Repeats letters, `L` for a window; the last layer is always full.
fn lettered(letters: &str, layers: usize) -> Vec<Mixer> {
    let letters: Vec<char> = letters.chars().collect();
    let of = |layer: usize| {
        let is_local = letters.get(layer % letters.len().max(1)) == Some(&'L');
        if is_local && layer + 1 < layers { Mixer::Window } else { Mixer::Attention }
    };
    (0..layers).map(of).collect()
}
