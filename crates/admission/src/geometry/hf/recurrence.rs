//! The states of recurrent layers of a `config.json`.
//!
//! Invariant: a convolution keeps one column less than its width. Knows not which layers are recurrent.

use super::super::{Error, Recurrence, State};
use super::block::Block;

/// Returns the state of one recurrent layer; `None` where the file does not give its dimensions.
pub(super) fn state(block: &Block<'_>) -> Result<Option<State>, Error> {
    if block.architecture.starts_with("rwkv") {
        return rwkv(block).map(Some);
    }
    if block.is(&["recurrent_gemma"]) || block.get("lru_width").is_some() {
        return rglru(block).map(Some);
    }
    if let Some(state) = kda(block)?.or(gated_delta(block)?).or(lightning(block)?) {
        return Ok(Some(state));
    }
    mamba(block)
}

/// Returns the state of one layer that is a short convolution.
pub(super) fn short_convolution(block: &Block<'_>) -> Result<State, Error> {
    let columns = block.positive(&["conv_L_cache"])?.unwrap_or(3);
    let width = match block.positive(&["conv_dim"])? {
        Some(width) => width,
        None => block.hidden()?.ok_or_else(|| Error::Missing("hidden_size".to_owned()))?,
    };
    Ok(made(Recurrence::ShortConv, width, columns, 0))
}

fn made(recurrence: Recurrence, width: u64, columns: u64, state_elements: u64) -> State {
    let conv_elements = width.saturating_mul(columns.saturating_sub(1));
    State { recurrence, conv_elements, state_elements }
}

fn hidden(block: &Block<'_>) -> Result<u64, Error> {
    block.hidden()?.ok_or_else(|| Error::Missing("hidden_size".to_owned()))
}

fn heads(block: &Block<'_>) -> Result<u64, Error> {
    block.heads()?.ok_or_else(|| Error::Missing("num_attention_heads".to_owned()))
}

fn rwkv(block: &Block<'_>) -> Result<State, Error> {
    let hidden = hidden(block)?;
    let attended = block.positive(&["attention_hidden_size", "dim_att"])?.unwrap_or(hidden);
    let head = block.positive(&["head_size", "head_dim", "wkv_head_size"])?;
    // The fourth generation keeps a numerator, a denominator and an exponent; later ones a matrix for each head.
    let is_fourth = block.is(&["rwkv"]) && head.is_none();
    let head = if is_fourth { 3 } else { head.unwrap_or(64) };
    Ok(State {
        recurrence: Recurrence::Rwkv,
        conv_elements: hidden.saturating_mul(2),
        state_elements: attended.saturating_mul(head),
    })
}

fn rglru(block: &Block<'_>) -> Result<State, Error> {
    let width = match block.positive(&["lru_width"])? {
        Some(width) => width,
        None => hidden(block)?,
    };
    let columns = block.positive(&["conv1d_width"])?.unwrap_or(4);
    Ok(made(Recurrence::Rglru, width, columns, width))
}

fn kda(block: &Block<'_>) -> Result<Option<State>, Error> {
    let dimensions = |from: &Block<'_>, head, heads, columns| {
        let columns = from.positive(&[columns])?.unwrap_or(4);
        Ok::<_, Error>(
            from.positive(&[head])?.zip(from.positive(&[heads])?).map(|pair| (pair, columns)),
        )
    };
    let named = match block.inner("linear_attn_config") {
        Some(linear) => dimensions(&linear, "head_dim", "num_heads", "short_conv_kernel_size")?,
        None => None,
    };
    let flat = dimensions(block, "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")?;
    let grouped = if block.is(&["bailing_hybrid"]) {
        dimensions(block, "head_dim", "num_attention_heads", "short_conv_kernel_size")?
    } else {
        None
    };
    let found = named.or(flat).or(grouped);
    Ok(found.map(|((head, heads), columns)| {
        let width = heads.saturating_mul(head);
        // Queries, keys and values are convolved one by one.
        made(Recurrence::Kda, width.saturating_mul(3), columns, width.saturating_mul(head))
    }))
}

fn gated_delta(block: &Block<'_>) -> Result<Option<State>, Error> {
    let assumes = block.architecture.starts_with("qwen3_5") || block.is(&["qwen3_next"]);
    let names = [
        ("linear_num_key_heads", 16),
        ("linear_key_head_dim", 128),
        ("linear_num_value_heads", 32),
        ("linear_value_head_dim", 128),
    ];
    let mut sizes = [0; 4];
    for (size, (name, default)) in sizes.iter_mut().zip(names) {
        let found = block.positive(&[name])?.or(assumes.then_some(default));
        *size = match (found, block.is(&["olmo_hybrid"])) {
            (Some(found), _) => found,
            (None, true) => olmo_hybrid(block, name)?,
            (None, false) => return Ok(None),
        };
    }
    let [key_heads, key_width, value_heads, value_width] = sizes;
    let columns = block.positive(&["linear_conv_kernel_dim"])?.unwrap_or(4);
    let keys = key_heads.saturating_mul(key_width);
    let values = value_heads.saturating_mul(value_width);
    let convolved = keys.saturating_mul(2).saturating_add(values);
    Ok(Some(made(Recurrence::GatedDelta, convolved, columns, values.saturating_mul(key_width))))
}

/// Derives a dimension that `olmo_hybrid` leaves to its class: keys of three quarters of a head, values of twice that.
fn olmo_hybrid(block: &Block<'_>, name: &str) -> Result<u64, Error> {
    let heads = heads(block)?;
    let key = (hidden(block)? / heads).saturating_mul(3) / 4;
    Ok(match name {
        "linear_key_head_dim" => key.max(1),
        "linear_value_head_dim" => key.saturating_mul(2).max(1),
        _ => heads,
    })
}

fn lightning(block: &Block<'_>) -> Result<Option<State>, Error> {
    let sizes = [block.positive(&["lightning_nh"])?, block.positive(&["lightning_head_dim"])?];
    if let [Some(heads), Some(head)] = sizes {
        return Ok(Some(of_heads(heads, head)));
    }
    let is_one = ["minimax", "bailing"].iter().any(|name| block.architecture.starts_with(name));
    if !is_one {
        return Ok(None);
    }
    let heads = heads(block)?;
    let head = match block.positive(&["head_dim"])? {
        Some(head) => head,
        None => hidden(block)? / heads,
    };
    Ok(Some(of_heads(heads, head)))
}

/// Makes the state of linear attention with a matrix for each head.
fn of_heads(heads: u64, head: u64) -> State {
    let state_elements = heads.saturating_mul(head).saturating_mul(head);
    State { recurrence: Recurrence::Lightning, conv_elements: 0, state_elements }
}

/// Names of the heads of the second form of a selective state space.
const MAMBA_HEADS: [&str; 3] = ["mamba_n_heads", "mamba_num_heads", "n_mamba_heads"];

fn mamba(block: &Block<'_>) -> Result<Option<State>, Error> {
    let inner_config = block.inner("ssm_cfg");
    let is_second_by_name = |config: &Block<'_>| config.text("layer") == Some("Mamba2");
    let is_bare_second = inner_config.as_ref().is_some_and(is_second_by_name);
    let is_bare = block.is(&["mamba", "falcon_mamba", "mamba2"]) || inner_config.is_some();
    let size = block.positive(&["mamba_d_state", "ssm_state_size", "state_size", "d_state"])?;
    let Some(size) = size.or(is_bare.then_some(if is_bare_second { 128 } else { 16 })) else {
        return Ok(None);
    };
    let columns = block.positive(&["mamba_d_conv", "conv_kernel", "d_conv"])?.unwrap_or(4);
    let expand = block.positive(&["mamba_expand", "expand"])?.unwrap_or(2);
    let is_second = block.is(&["mamba2"])
        || is_bare_second
        || block.get(MAMBA_HEADS[0]).or(block.get(MAMBA_HEADS[1])).is_some()
        || block.is(&["zamba2"]);
    if !is_second {
        // Elsewhere this field is the width of the feed-forward network.
        let own = block.is(&["mamba", "falcon_mamba"]);
        let own = if own { block.positive(&["intermediate_size"])? } else { None };
        let width = match own {
            Some(width) => width,
            None => hidden(block)?.saturating_mul(expand),
        };
        return Ok(Some(made(Recurrence::Mamba1, width, columns, width.saturating_mul(size))));
    }
    let width = second_width(block, expand)?;
    let groups =
        block.positive(&["mamba_n_groups", "n_groups", "mamba_ngroups", "ngroups"])?.unwrap_or(1);
    let convolved = width.saturating_add(groups.saturating_mul(size).saturating_mul(2));
    Ok(Some(made(Recurrence::Mamba2, convolved, columns, width.saturating_mul(size))))
}

/// Returns the inner width of the second form: declared, else heads times their width, else a multiple of the hidden.
fn second_width(block: &Block<'_>, expand: u64) -> Result<u64, Error> {
    if let Some(width) = block.positive(&["mamba_d_ssm"])? {
        return Ok(width);
    }
    let is_bare = block.is(&["mamba2"]);
    let heads = block.positive(&MAMBA_HEADS)?.or(if is_bare {
        block.positive(&["num_heads"])?
    } else {
        None
    });
    // `auto` stands for the multiple of the hidden width.
    let numeric = |name: &&str| block.get(name).is_some_and(|value| !value.is_string());
    let names = ["mamba_d_head", "mamba_head_dim", "mamba_headdim"];
    let head = match names.iter().find(|name| numeric(name)) {
        Some(name) => block.positive(&[name])?,
        None if is_bare => block.positive(&["head_dim"])?,
        None => None,
    };
    match heads.zip(head) {
        Some((heads, head)) => Ok(heads.saturating_mul(head)),
        None => Ok(hidden(block)?.saturating_mul(expand)),
    }
}
