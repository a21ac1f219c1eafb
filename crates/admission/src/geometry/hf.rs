//! Layers from the `config.json` of a Hugging Face checkpoint.
//!
//! Invariant: rules follow fields and families of architectures, never a model's name. What is not known is counted as
//! full attention and said to be an upper bound. Reads no file.

mod attention;
mod block;
mod mixers;
mod recurrence;

use super::{Cache, Error, Exactness, LatentForm, Layer, Shape, State, json};
use attention::Attention;
use block::Block;
use mixers::Mixer;

/// Reads the layers from the text of a `config.json`.
pub fn read(text: &str) -> Result<Shape, Error> {
    let config = json::parse(text)?;
    let whole =
        config.as_object().ok_or_else(|| Error::NotJson("it is not an object".to_owned()))?;
    let block = Block::find(whole);
    let mut notes = Vec::new();
    let mut layers = layers(&block, &mut notes)?;
    share(&block, &mut layers)?;
    if !is_known(block.architecture) {
        let name =
            if block.architecture.is_empty() { "without a name" } else { block.architecture };
        notes.push(format!("the architecture is not known ({name})"));
    }
    Ok(Shape {
        architecture: block.architecture.to_owned(),
        layers,
        draft_layers: Vec::new(),
        latent_form: LatentForm::Latent,
        vocab: block.vocab(),
        hidden: block.hidden()?,
        trained_context: block.trained_context()?,
        exactness: if notes.is_empty() {
            Exactness::Exact
        } else {
            Exactness::UpperBound(notes.join("; "))
        },
    })
}

fn layers(block: &Block<'_>, notes: &mut Vec<String>) -> Result<Vec<Layer>, Error> {
    let count = block.layers()?;
    let special = attention::compressed(block, count)?.or(attention::searched(block, count)?);
    if let Some(caches) = special {
        return Ok(caches.into_iter().map(Layer::caching).collect());
    }
    let mut mixers = mixers::read(block, count)?;
    let is_recurrent = |mixer: &Mixer| matches!(mixer, Mixer::Recurrent | Mixer::Both);
    if !is_known(block.architecture)
        && !mixers.iter().any(is_recurrent)
        && recurrence::state(block)?.is_some()
    {
        // Nothing says which layers have the state that the file describes.
        mixers.fill(Mixer::Both);
    }
    let state = state(block, &mixers, notes)?;
    let is_full = |mixer: &Mixer| match mixer {
        Mixer::Attention | Mixer::Window | Mixer::Chunk | Mixer::Both | Mixer::Unknown => true,
        Mixer::Recurrent => state.is_none(),
        Mixer::Convolution | Mixer::Nothing => false,
    };
    if mixers.contains(&Mixer::Unknown) {
        notes.push("some layers are of a kind that is not known".to_owned());
    }
    let attention =
        if mixers.iter().any(is_full) { Some(Attention::read(block, count)?) } else { None };
    let convolution = if mixers.contains(&Mixer::Convolution) {
        Some(recurrence::short_convolution(block)?)
    } else {
        None
    };
    let window = mixers::window(block)?;
    let chunk = block.positive(&["attention_chunk_size"])?;
    let index = attention::index(block, count)?;
    let made = mixers.iter().zip(index).enumerate().map(|(at, (mixer, index))| {
        let cache = |window| attention.as_ref().map_or(Cache::None, |read| read.cache(at, window));
        let full = Layer { index_elements: index, ..Layer::caching(cache(None)) };
        match mixer {
            Mixer::Attention | Mixer::Unknown => full,
            Mixer::Window => Layer::caching(cache(window)),
            Mixer::Chunk => Layer::caching(cache(chunk)),
            Mixer::Both => Layer { state, ..full },
            Mixer::Recurrent => state.map_or(full, Layer::recurrent),
            Mixer::Convolution => convolution.map_or(Layer::NOTHING, Layer::recurrent),
            Mixer::Nothing => Layer::NOTHING,
        }
    });
    let made = made.collect();
    Ok(if block.is(&["longcat_flash", "longcat_flash_ngram"]) {
        doubled(block, made)?
    } else {
        made
    })
}

/// Returns the state of recurrent layers; notes where there are some and it is not known.
fn state(
    block: &Block<'_>,
    mixers: &[Mixer],
    notes: &mut Vec<String>,
) -> Result<Option<State>, Error> {
    if !mixers.iter().any(|mixer| matches!(mixer, Mixer::Recurrent | Mixer::Both)) {
        return Ok(None);
    }
    let state = recurrence::state(block)?;
    if state.is_none() {
        notes.push("the dimensions of recurrent layers are not given".to_owned());
    }
    Ok(state)
}

/// Counts each layer twice where two attentions make one layer, unless the file already counts them so.
fn doubled(block: &Block<'_>, layers: Vec<Layer>) -> Result<Vec<Layer>, Error> {
    if block.count(&["num_layers"])?.is_none() {
        return Ok(layers);
    }
    let pairs = block.count(&["num_layers"])?;
    let is_doubled =
        block.count(&["num_hidden_layers"])? == pairs.map(|pairs| pairs.saturating_mul(2));
    Ok(if is_doubled { layers } else { layers.iter().chain(&layers).copied().collect() })
}

/// Marks the layers that read the keys and values of another.
fn share(block: &Block<'_>, layers: &mut [Layer]) -> Result<(), Error> {
    let assumed = block.architecture.starts_with("gemma3n").then_some(15);
    let last = block.count(&["num_kv_shared_layers"])?.or(assumed).unwrap_or(0);
    let factor = match block.flag("use_cla") {
        Some(true) => block.positive(&["cla_share_factor"])?.unwrap_or(1),
        _ => 1,
    };
    let sources = block.counts("kv_source_layers", layers.len())?;
    let first_shared = (layers.len() as u64).saturating_sub(last);
    for (at, layer) in (0_u64..).zip(layers) {
        let source = sources.as_ref().and_then(|sources| sources.get(usize::try_from(at).ok()?));
        let is_another = source.is_some_and(|source| *source != at);
        let is_shared = at >= first_shared || at % factor != 0 || is_another;
        if is_shared && layer.cache != Cache::None {
            layer.cache = Cache::Shared;
            layer.index_elements = 0;
        }
    }
    Ok(())
}

/// Says whether the rules here were made for an architecture.
fn is_known(architecture: &str) -> bool {
    FAMILIES.iter().any(|family| architecture.starts_with(family)) || KNOWN.contains(&architecture)
}

/// Beginnings of names of architectures that are all known.
const FAMILIES: [&str; 24] = [
    "bailing", "cohere", "deepseek", "ernie4_5", "exaone", "falcon", "gemma", "glm", "gpt_neo",
    "granite", "hunyuan", "internlm", "kimi", "lfm2", "llama", "mamba", "minimax", "mistral",
    "nemotron", "olmo", "qwen", "rwkv", "sarvam", "zamba",
];

/// Other architectures that are known.
const KNOWN: [&str; 77] = [
    "RefinedWeb",
    "RefinedWebModel",
    "afmoe",
    "apertus",
    "aquila",
    "arcee",
    "arctic",
    "axk1",
    "axk2",
    "baichuan",
    "bamba",
    "biogpt",
    "bitnet",
    "bloom",
    "chameleon",
    "chatglm",
    "codegen",
    "codeshell",
    "cwm",
    "dbrx",
    "deci",
    "diffllama",
    "doge",
    "dots1",
    "flex_olmo",
    "gpt2",
    "gpt_bigcode",
    "gpt_oss",
    "gptj",
    "grok-1",
    "helium",
    "hy_v3",
    "hy_v4",
    "iquestcoder",
    "jais",
    "jais2",
    "jamba",
    "jetmoe",
    "laguna",
    "longcat_flash",
    "longcat_flash_ngram",
    "mellum",
    "mimo",
    "mimo_v2_flash",
    "minicpm",
    "minicpm3",
    "ministral",
    "ministral3",
    "mixtral",
    "modernbert-decoder",
    "mpt",
    "nanochat",
    "openelm",
    "opt",
    "orion",
    "persimmon",
    "phi",
    "phi-msft",
    "phi3",
    "phi3_v",
    "phi3small",
    "phi4_multimodal",
    "phi4mm",
    "phimoe",
    "recurrent_gemma",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "solar_open",
    "stablelm",
    "starcoder2",
    "step3p5",
    "step3p7",
    "vaultgemma",
    "xglm",
    "xverse",
    "youtu",
];
