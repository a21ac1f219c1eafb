//! Pages of prompts and answers that were computed before, for prompts that begin the same.
//!
//! Only whole pages are kept, and a page is kept from the moment that its last position is
//! computed: whatever ends a sequence then finds nothing left to save. The cache never decides
//! what is computed, only what need not be.

#[cfg(test)]
mod reference;
mod table;

use table::Table;
use toko_model::{KvCache, PAGE_TOKENS, PageTable};

/// The kept pages; each is held in a table of its own.
pub(crate) struct PrefixCache {
    table: Table<PageTable>,
    /// Pages that sequences and kept pages may take together while there is a kept page to give up.
    room_pages: usize,
}

impl PrefixCache {
    /// Makes an empty cache for `tokens` tokens, rounded down to whole pages; 0 keeps nothing.
    ///
    /// `running_pages` is what all sequences can take. Kept pages give way to them, so that both
    /// together stay within that, or within the cache's own bound where it is the larger.
    pub(crate) fn new(tokens: usize, running_pages: usize) -> Self {
        let capacity = tokens / PAGE_TOKENS;
        Self { table: Table::new(capacity), room_pages: running_pages.max(capacity) }
    }

    /// Appends the kept pages that a prompt can go on with to those that it was given before, and
    /// returns the tokens at its beginning that need not be computed: always less than all, for
    /// the last one's logits.
    pub(crate) fn reuse(
        &mut self,
        prompt: &[u32],
        pages: &mut PageTable,
        kv: &mut KvCache,
    ) -> usize {
        let Some((_, needed)) = prompt.split_last() else { return 0 };
        let mut tokens = 0;
        self.table.find(needed, |page| {
            tokens += PAGE_TOKENS;
            if pages.missing_pages(tokens) > 0 {
                kv.share(page, 0..1, pages);
            }
        });
        tokens
    }

    /// Keeps the whole pages of `tokens`, all of which are computed in `pages`.
    pub(crate) fn keep(&mut self, tokens: &[u32], pages: &PageTable, kv: &mut KvCache) {
        let evicted = self.table.insert(tokens, |index| {
            let mut page = PageTable::default();
            kv.share(pages, index..index + 1, &mut page);
            page
        });
        for page in evicted {
            kv.release(page);
        }
    }

    /// Gives up kept pages until `pages` more fit, or until none is left.
    pub(crate) fn make_room(&mut self, pages: usize, kv: &mut KvCache) {
        while pages > 0 && kv.pages_in_use() + pages > self.room_pages {
            let Some(page) = self.table.evict() else { return };
            kv.release(page);
        }
    }

    /// Gives up all kept pages.
    pub(crate) fn clear(&mut self, kv: &mut KvCache) {
        for page in self.table.clear() {
            kv.release(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use toko_fixtures::embedded_model_path;
    use toko_gguf::Gguf;
    use toko_model::{Config, KvCache, KvType, PAGE_TOKENS, PageTable};

    use super::PrefixCache;
    use super::reference::{Reference, tokens};

    const SEQUENCES: usize = 3;
    const LETTERS: usize = 5;
    const RUNNING_PAGES: usize = SEQUENCES * (LETTERS + 1);

    /// What may happen; numbers are taken modulo what there is.
    #[derive(Debug, Clone)]
    enum Step {
        /// A prompt of whole blocks and a beginning of a further one.
        Start {
            letters: Vec<u32>,
            rest: usize,
        },
        Compute {
            sequence: usize,
            tokens: usize,
        },
        End {
            sequence: usize,
        },
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let letters = proptest::collection::vec(0u32..2, 0..=LETTERS);
        let start = (letters, 0..PAGE_TOKENS);
        let step = prop_oneof![
            6 => start.prop_map(|(letters, rest)| Step::Start { letters, rest }),
            12 => (0..SEQUENCES, 1usize..250)
                .prop_map(|(sequence, tokens)| Step::Compute { sequence, tokens }),
            4 => (0..SEQUENCES).prop_map(|sequence| Step::End { sequence }),
            1 => Just(Step::Clear),
        ];
        proptest::collection::vec(step, 1..60)
    }

    struct Sequence {
        tokens: Vec<u32>,
        letters: Vec<u32>,
        done: usize,
        table: PageTable,
        /// The numbers that the reference gave to the pages.
        pages: Vec<usize>,
    }

    /// The cache under test, the sequences around it, and what ought to be.
    struct Scene {
        cache: PrefixCache,
        kv: KvCache,
        running: Vec<Sequence>,
        reference: Reference,
        capacity: usize,
        last_page: usize,
    }

    impl Scene {
        fn new(config: &Config, capacity: usize) -> Self {
            // The tokens beyond the last whole page count for nothing.
            let tokens = capacity * PAGE_TOKENS + PAGE_TOKENS - 1;
            Self {
                cache: PrefixCache::new(tokens, RUNNING_PAGES),
                kv: KvCache::new(config, KvType::F16),
                running: Vec::new(),
                reference: Reference::new(capacity),
                capacity,
                last_page: 0,
            }
        }

        fn pages_in_use(&self) -> usize {
            let running = self.running.iter().flat_map(|sequence| &sequence.pages).copied();
            running.chain(self.reference.pages()).collect::<BTreeSet<usize>>().len()
        }

        fn start(&mut self, letters: Vec<u32>, rest: usize) -> Result<(), TestCaseError> {
            let tokens = [tokens(&letters), vec![9; rest]].concat();
            if tokens.is_empty() || self.running.len() == SEQUENCES {
                return Ok(());
            }
            let mut table = PageTable::default();
            let done = self.cache.reuse(&tokens, &mut table, &mut self.kv);
            let needed = (tokens.len() - 1) / PAGE_TOKENS;
            let pages = self.reference.find(&letters[..needed]);
            prop_assert_eq!(done, pages.len() * PAGE_TOKENS);
            prop_assert!(done < tokens.len());
            prop_assert_eq!(table.missing_pages(done), 0);
            prop_assert_eq!(table.missing_pages(done + 1), 1);
            self.running.push(Sequence { tokens, letters, done, table, pages });
            Ok(())
        }

        fn compute(&mut self, sequence: usize, tokens: usize) {
            let Some(mut sequence) = self.take(sequence) else { return };
            let done = (sequence.done + tokens).min(sequence.tokens.len());
            let missing = sequence.table.missing_pages(done);
            self.cache.make_room(missing, &mut self.kv);
            self.running.push(sequence);
            let room = RUNNING_PAGES.max(self.capacity);
            while missing > 0 && self.pages_in_use() + missing > room {
                if self.reference.evict().is_none() {
                    break;
                }
            }
            sequence = self.running.pop().expect("it was just put there");
            self.kv.grow(&mut sequence.table, done);
            for _ in 0..missing {
                self.last_page += 1;
                sequence.pages.push(self.last_page);
            }
            sequence.done = done;
            self.cache.keep(&sequence.tokens[..done], &sequence.table, &mut self.kv);
            self.reference.insert(&sequence.letters[..done / PAGE_TOKENS], &sequence.pages);
            self.running.push(sequence);
        }

        fn end(&mut self, sequence: usize) {
            if let Some(sequence) = self.take(sequence) {
                self.kv.release(sequence.table);
            }
        }

        fn take(&mut self, sequence: usize) -> Option<Sequence> {
            let count = self.running.len();
            (count > 0).then(|| self.running.remove(sequence % count))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn no_page_is_lost_or_freed_too_early_or_beyond_the_room(
            capacity in prop_oneof![0usize..6, Just(40)],
            steps in steps(),
        ) {
            let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
            let config = Config::from_gguf(&file).expect("the embedded model runs");
            let mut scene = Scene::new(&config, capacity);
            for step in steps {
                match step {
                    Step::Start { letters, rest } => scene.start(letters, rest)?,
                    Step::Compute { sequence, tokens } => scene.compute(sequence, tokens),
                    Step::End { sequence } => scene.end(sequence),
                    Step::Clear => {
                        scene.cache.clear(&mut scene.kv);
                        scene.reference = Reference::new(capacity);
                    }
                }
                prop_assert_eq!(scene.kv.pages_in_use(), scene.pages_in_use());
                prop_assert!(scene.kv.pages_in_use() <= RUNNING_PAGES.max(capacity));
            }
            while !scene.running.is_empty() {
                scene.end(0);
            }
            prop_assert_eq!(scene.kv.pages_in_use(), scene.reference.pages().len());
            scene.cache.clear(&mut scene.kv);
            prop_assert_eq!(scene.kv.pages_in_use(), 0);
        }
    }
}
