//! The one door through which these tests run a model.

use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_model::{KvCache, KvType, Model, PageTable, Rows, Scratch, Slot};

/// A model with room for one sequence.
pub(crate) struct Runner {
    model: Model,
    kv: KvCache,
    scratch: Scratch,
}

impl Runner {
    pub(crate) fn new(
        file: &Gguf,
        tier: Tier,
        threads: usize,
        kv: KvType,
        positions: usize,
    ) -> Self {
        let model = Model::bind(file, tier, threads).expect("the golden models run");
        let kv = KvCache::new(model.config(), kv);
        let scratch = Scratch::new(model.config(), positions, positions, positions, threads);
        Self { model, kv, scratch }
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.model.config().vocabulary
    }

    /// The logits after each token of a sequence that starts here, computed in chunks.
    pub(crate) fn logits(&mut self, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let mut pages = PageTable::default();
        let mut logits = Vec::new();
        for (index, chunk_tokens) in tokens.chunks(chunk).enumerate() {
            let start = index * chunk;
            self.kv.grow(&mut pages, start + chunk_tokens.len());
            let slot = Slot { tokens: chunk_tokens, start, pages: &pages, rows: Rows::All };
            logits.extend_from_slice(self.model.forward(&[slot], &mut self.kv, &mut self.scratch));
        }
        self.kv.release(pages);
        logits
    }

    /// The logits after the last token.
    pub(crate) fn last_logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let logits = self.logits(tokens, tokens.len());
        logits[logits.len() - self.vocabulary()..].to_vec()
    }

    /// Continues a prompt by `count` most likely tokens.
    pub(crate) fn greedy(&mut self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut pages = PageTable::default();
        let mut tokens = prompt.to_vec();
        let mut done = 0;
        while tokens.len() < prompt.len() + count {
            self.kv.grow(&mut pages, tokens.len());
            let slot =
                Slot { tokens: &tokens[done..], start: done, pages: &pages, rows: Rows::Last };
            let logits = self.model.forward(&[slot], &mut self.kv, &mut self.scratch);
            let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a });
            done = tokens.len();
            tokens
                .push(u32::try_from(best.expect("a vocabulary has tokens")).expect("ids are u32"));
        }
        self.kv.release(pages);
        tokens.split_off(prompt.len())
    }
}

/// A JSON array of token ids.
pub(crate) fn ids(json: &serde_json::Value) -> Vec<u32> {
    json.as_array()
        .expect("an array of ids")
        .iter()
        .map(|id| u32::try_from(id.as_u64().expect("an id")).expect("ids are u32"))
        .collect()
}

/// A JSON array of numbers.
pub(crate) fn numbers(json: &serde_json::Value) -> Vec<f64> {
    json.as_array().expect("an array").iter().map(|n| n.as_f64().expect("a number")).collect()
}
