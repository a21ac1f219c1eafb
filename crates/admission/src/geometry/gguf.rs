//! Layers from the metadata of a GGUF file.
//!
//! Invariant: what the file says layer by layer comes before what its architecture is known for. Knows no file; whoever
//! reads one answers for the keys.

use super::{Cache, Error, Exactness, LatentForm, Layer, MAX_LAYERS, Recurrence, Shape, State};

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    /// A string.
    Text(String),
    /// A whole number from zero.
    Count(u64),
    /// Any other number.
    Real(f64),
    /// A truth value.
    Flag(bool),
    /// An array of whole numbers from zero.
    Counts(Vec<u64>),
    /// An array of truth values.
    Flags(Vec<bool>),
    /// Anything else.
    Other,
}

/// Architectures with a window of which the file does not say which layers have it: one full layer in so many.
const PERIODS: [(&str, u64); 17] = [
    ("afmoe", 4),
    ("cohere2", 4),
    ("cohere2moe", 4),
    ("exaone-moe", 4),
    ("exaone4", 4),
    ("gemma-embedding", 6),
    ("gemma2", 2),
    ("gemma3", 6),
    ("gemma3n", 5),
    ("gemma4", 6),
    ("gpt-oss", 2),
    ("llama4", 4),
    ("olmo2", 4),
    ("onyx", 4),
    ("plamo3", 8),
    ("smallthinker", 4),
    ("smollm3", 4),
];

/// Architectures whose full layer is the first of each period.
const FULL_FIRST: [&str; 2] = ["smallthinker", "granite-swa"];

/// Tokens of a chunk where the file does not say.
const LLAMA4_CHUNK_TOKENS: u64 = 8192;

/// Layers of Gemma 3n that keep keys and values, whatever its size.
const GEMMA3N_OWN_LAYERS: usize = 20;

/// Reads the layers from metadata; `lookup` returns the value of a key.
///
/// Layers that only predict drafts come last in a file and are kept apart.
pub fn read(lookup: &dyn Fn(&str) -> Option<Field>) -> Result<Shape, Error> {
    let architecture = match lookup("general.architecture") {
        Some(Field::Text(name)) => name,
        Some(other) => return Err(unusable("general.architecture", &other, "a name")),
        None => return Err(Error::Missing("general.architecture".to_owned())),
    };
    let keys = Keys { lookup, architecture: &architecture };
    let all = keys.needed("block_count")?;
    if all > MAX_LAYERS {
        return Err(Error::TooManyLayers(all));
    }
    let all = usize::try_from(all).map_err(|_| Error::TooManyLayers(all))?;
    let drafts = keys.count("nextn_predict_layers")?.unwrap_or(0);
    let drafts = usize::try_from(drafts).ok().filter(|drafts| *drafts < all).unwrap_or(0);
    let own = all - drafts;
    let attention = Attention::read(&keys, all)?;
    let mut layers = keys.layers(&attention, own)?;
    share(&keys, &mut layers)?;
    let draft_layers = (own..all).map(|at| attention.layer(at, None)).collect();
    let (hidden, trained_context) =
        (keys.count("embedding_length")?, keys.count("context_length")?);
    Ok(Shape {
        layers,
        draft_layers,
        latent_form: attention.form(),
        vocab: keys.count("vocab_size")?,
        hidden,
        trained_context,
        exactness: if is_known(&architecture) {
            Exactness::Exact
        } else {
            Exactness::UpperBound(format!("the architecture is not known ({architecture})"))
        },
        architecture,
    })
}

/// The metadata of one architecture.
struct Keys<'a> {
    lookup: &'a dyn Fn(&str) -> Option<Field>,
    architecture: &'a str,
}

impl Keys<'_> {
    fn get(&self, name: &str) -> Option<(String, Field)> {
        let key = format!("{}.{name}", self.architecture);
        let field = (self.lookup)(&key)?;
        Some((key, field))
    }

    fn count(&self, name: &str) -> Result<Option<u64>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some((_, Field::Count(count))) => Ok(Some(count)),
            Some((key, other)) => Err(unusable(&key, &other, "a whole number from 0")),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<u64>, Error> {
        Ok(self.count(name)?.filter(|count| *count > 0))
    }

    fn needed(&self, name: &str) -> Result<u64, Error> {
        let key = || format!("{}.{name}", self.architecture);
        match self.count(name)? {
            None => Err(Error::Missing(key())),
            Some(0) => Err(unusable(&key(), &Field::Count(0), "a positive number")),
            Some(count) => Ok(count),
        }
    }

    /// Returns one count for each layer; a single one counts for all, and a list that is too short begins anew.
    fn counts(&self, name: &str, layers: usize) -> Result<Option<Vec<u64>>, Error> {
        let list = match self.get(name) {
            None => return Ok(None),
            Some((_, Field::Count(count))) => vec![count],
            Some((_, Field::Counts(list))) => list,
            Some((_, Field::Flags(list))) => list.into_iter().map(u64::from).collect(),
            Some((key, other)) => {
                return Err(unusable(&key, &other, "a whole number or a list of them"));
            }
        };
        if list.is_empty() {
            return Ok(None);
        }
        Ok(Some(list.into_iter().cycle().take(layers).collect()))
    }

    fn is(&self, architectures: &[&str]) -> bool {
        architectures.contains(&self.architecture)
    }

    fn layers(&self, attention: &Attention, layers: usize) -> Result<Vec<Layer>, Error> {
        if let Some(ratios) = self.counts("attention.compress_ratios", layers)? {
            return self.compressed(attention, ratios);
        }
        let state = self.state()?;
        let roles = self.roles(attention, state.is_some(), layers)?;
        let windows = self.windows(layers)?;
        let made =
            roles.into_iter().zip(windows).enumerate().map(|(at, (role, window))| match role {
                Role::Attends => attention.layer(at, window),
                Role::Remembers => state.map_or(Layer::NOTHING, Layer::recurrent),
                Role::DoesBoth => Layer { state, ..attention.layer(at, window) },
                Role::Nothing => Layer::NOTHING,
            });
        Ok(made.collect())
    }

    fn compressed(&self, attention: &Attention, ratios: Vec<u64>) -> Result<Vec<Layer>, Error> {
        let index = self.count("attention.indexer.key_length")?.unwrap_or(0);
        let window_tokens = self.positive("attention.sliding_window")?.unwrap_or(128);
        let layer = |(at, ratio): (usize, u64)| {
            Layer::caching(Cache::Compressed {
                elements: attention.keys_of(at),
                window_tokens,
                ratio,
                index_elements: if (1..64).contains(&ratio) { index } else { 0 },
            })
        };
        Ok(ratios.into_iter().enumerate().map(layer).collect())
    }

    /// Says which layers attend and which have a state.
    fn roles(
        &self,
        attention: &Attention,
        has_state: bool,
        layers: usize,
    ) -> Result<Vec<Role>, Error> {
        if self.is(&["mamba", "mamba2"]) || self.get("wkv.head_size").is_some() {
            return Ok(vec![Role::Remembers; layers]);
        }
        let listed = self.counts("attention.recurrent_layers", layers)?;
        let assumed = self.is(&["qwen3next", "qwen35", "qwen35moe"]).then_some(4);
        let interval = self.positive("full_attention_interval")?.or(assumed);
        let says_which = listed.is_some() || interval.is_some() || attention.is_absent_somewhere();
        if has_state && !says_which {
            return Ok(vec![Role::DoesBoth; layers]);
        }
        let feeds = self.counts("feed_forward_length", layers)?;
        let feeds_forward = |at: usize| feeds.as_ref().is_some_and(|widths| widths[at] > 0);
        // In these a layer does one thing: it attends, remembers or feeds forward.
        let is_single = self.architecture.starts_with("nemotron_h");
        let role = |at: usize| {
            let is_recurrent = match (&listed, interval) {
                (Some(listed), _) => listed[at] > 0,
                (None, Some(interval)) => has_state && !(at as u64 + 1).is_multiple_of(interval),
                (None, None) => attention.is_absent(at),
            };
            match is_recurrent {
                false => Role::Attends,
                true if !has_state || is_single && feeds_forward(at) => Role::Nothing,
                true => Role::Remembers,
            }
        };
        Ok((0..layers).map(role).collect())
    }

    /// Returns the state of one recurrent layer.
    fn state(&self) -> Result<Option<State>, Error> {
        let columns_before = |columns: Option<u64>| columns.unwrap_or(0).saturating_sub(1);
        if let Some(head) = self.positive("wkv.head_size")? {
            let hidden = self.needed("embedding_length")?;
            let shifts = self.positive("token_shift_count")?.unwrap_or(2);
            return Ok(Some(State {
                recurrence: Recurrence::Rwkv,
                conv_elements: hidden.saturating_mul(shifts),
                state_elements: hidden.saturating_mul(head),
            }));
        }
        if let Some(columns) = self.positive("shortconv.l_cache")? {
            let hidden = self.needed("embedding_length")?;
            return Ok(Some(State {
                recurrence: Recurrence::ShortConv,
                conv_elements: hidden.saturating_mul(columns - 1),
                state_elements: 0,
            }));
        }
        let columns = columns_before(self.count("ssm.conv_kernel")?);
        if let Some(head) = self.positive("kda.head_dim")? {
            let heads =
                self.counts("attention.head_count", 1)?.and_then(|heads| heads.first().copied());
            let width = heads.unwrap_or(0).saturating_mul(head);
            return Ok(Some(State {
                recurrence: Recurrence::Kda,
                conv_elements: width.saturating_mul(3).saturating_mul(columns),
                state_elements: width.saturating_mul(head),
            }));
        }
        let Some(inner) = self.positive("ssm.inner_size")? else {
            return Ok(None);
        };
        let size = self.count("ssm.state_size")?.unwrap_or(0);
        let groups = self.count("ssm.group_count")?.unwrap_or(0);
        let recurrence = match self.architecture {
            name if name.starts_with("qwen3") => Recurrence::GatedDelta,
            _ if groups == 0 => Recurrence::Mamba1,
            _ => Recurrence::Mamba2,
        };
        let convolved = inner.saturating_add(groups.saturating_mul(size).saturating_mul(2));
        Ok(Some(State {
            recurrence,
            conv_elements: convolved.saturating_mul(columns),
            state_elements: inner.saturating_mul(size),
        }))
    }

    /// Returns the window of each layer that has one.
    fn windows(&self, layers: usize) -> Result<Vec<Option<u64>>, Error> {
        let assumed = self.is(&["llama4"]).then_some(LLAMA4_CHUNK_TOKENS);
        let longest = self.count("context_length")?.unwrap_or(u64::MAX);
        let window = self.count("attention.sliding_window")?.or(assumed);
        let Some(window) = window.filter(|window| (1..longest).contains(window)) else {
            return Ok(vec![None; layers]);
        };
        let by_period = |period: u64| {
            let first = FULL_FIRST.contains(&self.architecture);
            let is_full = move |at: u64| match period {
                0 => false,
                period if first => at.is_multiple_of(period),
                period => (at + 1).is_multiple_of(period),
            };
            (0..layers as u64).map(|at| (!is_full(at)).then_some(window)).collect()
        };
        let known = PERIODS.iter().find(|(name, _)| *name == self.architecture);
        Ok(match self.get("attention.sliding_window_pattern") {
            Some((_, Field::Count(period))) => by_period(period),
            Some(_) => {
                let flags = self.counts("attention.sliding_window_pattern", layers)?;
                let flags = flags.unwrap_or_else(|| vec![0; layers]);
                flags.into_iter().map(|flag| (flag > 0).then_some(window)).collect()
            }
            None => known.map_or_else(|| vec![None; layers], |(_, period)| by_period(*period)),
        })
    }
}

/// What a layer does with the tokens before.
#[derive(Clone, Copy)]
enum Role {
    Attends,
    Remembers,
    DoesBoth,
    Nothing,
}

/// What attention layers keep of each token.
struct Attention {
    kv_heads: Vec<u64>,
    key: u64,
    value: u64,
    key_in_window: u64,
    value_in_window: u64,
    latent: Option<Latent>,
    index: u64,
}

struct Latent {
    elements: u64,
    expanded: u64,
    form: LatentForm,
}

impl Attention {
    fn read(keys: &Keys<'_>, layers: usize) -> Result<Self, Error> {
        let heads = keys.counts("attention.head_count", layers)?;
        let kv_heads = keys.counts("attention.head_count_kv", layers)?.or_else(|| heads.clone());
        let heads = heads.and_then(|heads| heads.into_iter().find(|heads| *heads > 0));
        // Models without attention say neither.
        let Some(kv_heads) = kv_heads.filter(|kv_heads| kv_heads.iter().any(|heads| *heads > 0))
        else {
            return Self::absent(keys, layers);
        };
        let key = match keys.positive("attention.key_length")? {
            Some(key) => key,
            None => derived_width(keys, heads)?,
        };
        let value = keys.positive("attention.value_length")?.unwrap_or(key);
        let own_key = keys.positive("attention.key_length_swa")?;
        let own_value = keys.positive("attention.value_length_swa")?.or(own_key);
        let mut read = Self {
            kv_heads,
            key,
            value,
            key_in_window: own_key.unwrap_or(key),
            value_in_window: own_value.unwrap_or(value),
            latent: None,
            index: keys.count("attention.indexer.key_length")?.unwrap_or(0),
        };
        read.latent = read.read_latent(keys, heads)?;
        Ok(read)
    }

    fn absent(keys: &Keys<'_>, layers: usize) -> Result<Self, Error> {
        if keys.state()?.is_none() {
            return Err(Error::Missing(format!("{}.attention.head_count", keys.architecture)));
        }
        Ok(Self {
            kv_heads: vec![0; layers],
            key: 0,
            value: 0,
            key_in_window: 0,
            value_in_window: 0,
            latent: None,
            index: 0,
        })
    }

    fn read_latent(&self, keys: &Keys<'_>, heads: Option<u64>) -> Result<Option<Latent>, Error> {
        let Some(rank) = keys.positive("attention.kv_lora_rank")? else {
            return Ok(None);
        };
        let rope = keys.count("rope.dimension_count")?;
        let Some(key) = keys.positive("attention.key_length_mla")? else {
            // Files of this kind are run with the keys and values of every head.
            let heads = self.kv_heads.iter().copied().max().unwrap_or(0);
            return Ok(Some(Latent {
                elements: rank.saturating_add(rope.unwrap_or(64)),
                expanded: heads.saturating_mul(self.key.saturating_add(self.value)),
                form: LatentForm::Expanded,
            }));
        };
        let value = keys.positive("attention.value_length_mla")?.unwrap_or(key);
        let rope = self.key.checked_sub(rank).or(rope).unwrap_or(64);
        Ok(Some(Latent {
            elements: rank.saturating_add(rope),
            expanded: heads.unwrap_or(0).saturating_mul(key.saturating_add(value)),
            form: LatentForm::Latent,
        }))
    }

    fn form(&self) -> LatentForm {
        self.latent.as_ref().map_or(LatentForm::Latent, |latent| latent.form)
    }

    fn is_absent(&self, layer: usize) -> bool {
        self.kv_heads.get(layer) == Some(&0)
    }

    fn is_absent_somewhere(&self) -> bool {
        self.kv_heads.contains(&0)
    }

    fn keys_of(&self, layer: usize) -> u64 {
        self.kv_heads.get(layer).copied().unwrap_or(0).saturating_mul(self.key)
    }

    fn layer(&self, at: usize, window: Option<u64>) -> Layer {
        let heads = self.kv_heads.get(at).copied().unwrap_or(0);
        let cache = match (&self.latent, window) {
            _ if heads == 0 => Cache::None,
            (Some(latent), _) => {
                Cache::Latent { elements: latent.elements, expanded_elements: latent.expanded }
            }
            (None, Some(window_tokens)) => Cache::Window {
                elements: heads
                    .saturating_mul(self.key_in_window.saturating_add(self.value_in_window)),
                window_tokens,
            },
            (None, None) => {
                Cache::Full { elements: heads.saturating_mul(self.key.saturating_add(self.value)) }
            }
        };
        let index_elements = if cache == Cache::None { 0 } else { self.index };
        Layer { index_elements, ..Layer::caching(cache) }
    }
}

fn derived_width(keys: &Keys<'_>, heads: Option<u64>) -> Result<u64, Error> {
    let key = |name: &str| format!("{}.{name}", keys.architecture);
    let hidden = keys.needed("embedding_length")?;
    let heads = heads.ok_or_else(|| Error::Missing(key("attention.head_count")))?;
    if !hidden.is_multiple_of(heads) {
        return Err(unusable(
            &key("embedding_length"),
            &Field::Count(hidden),
            "a multiple of the number of heads, and the width of a head is not given",
        ));
    }
    Ok(hidden / heads)
}

/// Marks the layers that read the keys and values of another.
fn share(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), Error> {
    let own = match keys.count("attention.shared_kv_layers")? {
        Some(shared) => {
            let shared = usize::try_from(shared).unwrap_or(usize::MAX);
            layers.len().saturating_sub(shared)
        }
        None if keys.is(&["gemma3n"]) => GEMMA3N_OWN_LAYERS,
        None => layers.len(),
    };
    for layer in layers.iter_mut().skip(own).filter(|layer| layer.cache != Cache::None) {
        layer.cache = Cache::Shared;
        layer.index_elements = 0;
    }
    Ok(())
}

fn unusable(key: &str, field: &Field, wanted: &'static str) -> Error {
    let found = match field {
        Field::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        Field::Count(count) => count.to_string(),
        Field::Real(number) => number.to_string(),
        Field::Flag(flag) => flag.to_string(),
        Field::Counts(list) => format!("a list of {} numbers", list.len()),
        Field::Flags(list) => format!("a list of {} flags", list.len()),
        Field::Other => "something else".to_owned(),
    };
    Error::Unusable { field: key.to_owned(), found, wanted }
}

/// Says whether the rules here were made for an architecture.
fn is_known(architecture: &str) -> bool {
    FAMILIES.iter().any(|family| architecture.starts_with(family))
}

/// Beginnings of the names of architectures that are known.
const FAMILIES: [&str; 63] = [
    "afmoe",
    "apertus",
    "arcee",
    "arctic",
    "arwkv",
    "baichuan",
    "bailing",
    "bitnet",
    "bloom",
    "chameleon",
    "chatglm",
    "codeshell",
    "cogvlm",
    "cohere",
    "command-r",
    "dbrx",
    "deci",
    "deepseek",
    "dots1",
    "dream",
    "ernie4",
    "exaone",
    "falcon",
    "gemma",
    "glm",
    "gpt",
    "granite",
    "grok",
    "grovemoe",
    "hunyuan",
    "internlm",
    "jais",
    "jamba",
    "kimi",
    "lfm2",
    "llada",
    "llama",
    "maincoder",
    "mamba",
    "mimo",
    "minicpm",
    "minimax",
    "mistral",
    "mpt",
    "nemotron",
    "olmo",
    "openelm",
    "orion",
    "pangu",
    "phi",
    "plamo",
    "plm",
    "qwen",
    "refact",
    "rnd1",
    "rwkv",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "stablelm",
    "starcoder",
    "step35",
    "xverse",
];
