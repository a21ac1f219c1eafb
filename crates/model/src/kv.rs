//! The KV cache: keys and values of every layer in pages of 64 positions.
//!
//! A page is allocated when a table grows into it and freed when the last table that holds it is
//! released, so what is resident is what is in use. A page in several tables is never written.
//! The cache knows no sequence: whoever owns a [`PageTable`] does.

use std::ops::Range;

use half::f16;
use toko_kernels::attention::{Codes, PAGE, Page as Seen, put_key, put_value};
use toko_kernels::convert::{Q8_LENGTH, to_f16, to_q8_0};
use toko_kernels::format::Format;
use toko_kernels::isa::Tier;

use crate::{Config, Error};

/// Positions in one page.
pub const PAGE_TOKENS: usize = PAGE;

/// Element type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Signed bytes in blocks of 32 with a 16-bit scale.
    Q8_0,
}

impl KvType {
    fn format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::Q8_0 => Format::Q8_0,
        }
    }

    /// Returns the bytes of one key or value; `None` when `head_dim` is no whole number of blocks.
    pub fn row_bytes(self, head_dim: usize) -> Option<usize> {
        self.format().row_bytes(head_dim)
    }

    /// Returns the bytes of one page of a model; `None` when its heads are no whole number of blocks.
    pub fn page_bytes(self, config: &Config) -> Option<u64> {
        let rows = [config.layers, 2, config.kv_heads, PAGE_TOKENS];
        let row_bytes = self.row_bytes(config.head_dim)? as u64;
        Some(rows.iter().fold(row_bytes, |bytes, &count| bytes.saturating_mul(count as u64)))
    }

    /// Tells whether a model's keys and values can be kept as this type.
    pub fn check(self, config: &Config) -> Result<(), Error> {
        let (head_dim, block) = (config.head_dim, self.format().block_elements());
        match self.row_bytes(head_dim) {
            Some(_) => Ok(()),
            None => Err(Error::KvBlocks { head_dim, block }),
        }
    }
}

/// The pages of one sequence, in order of position.
///
/// Grown by [`KvCache::grow`] and [`KvCache::share`]; given back by [`KvCache::release`].
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<usize>,
}

impl PageTable {
    /// Returns the pages that [`KvCache::grow`] has to allocate for `positions`.
    pub fn missing_pages(&self, positions: usize) -> usize {
        positions.div_ceil(PAGE_TOKENS).saturating_sub(self.pages.len())
    }
}

enum Page {
    F32(Box<[f32]>),
    F16(Box<[f16]>),
    Q8_0 { codes: Box<[i8]>, scales: Box<[f16]> },
}

/// Keys and values of all sequences.
///
/// Inside a page: `[layers][keys, values][kv_heads]` of numbers in the kernels' order.
pub struct KvCache {
    kind: KvType,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    pages: Vec<Option<Page>>,
    /// One position's keys or values, or their scales, on their way into a page.
    halves: Vec<f16>,
    /// Their codes.
    codes: Vec<i8>,
    /// How many tables hold each page.
    holders: Vec<usize>,
    free: Vec<usize>,
}

impl KvCache {
    /// Makes an empty cache for a model; no page is allocated yet.
    ///
    /// # Panics
    /// When [`KvType::check`] refuses the model.
    pub fn new(config: &Config, kind: KvType) -> Self {
        assert!(kind.check(config).is_ok(), "heads are whole blocks");
        let length = config.kv_length();
        Self {
            kind,
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            pages: Vec::new(),
            halves: match kind {
                KvType::F32 => Vec::new(),
                KvType::F16 => vec![f16::ZERO; length],
                KvType::Q8_0 => vec![f16::ZERO; length / Q8_LENGTH],
            },
            codes: if kind == KvType::Q8_0 { vec![0; length] } else { Vec::new() },
            holders: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Pages held by at least one table.
    pub fn pages_in_use(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Allocates pages until `table` has room for `positions`.
    pub fn grow(&mut self, table: &mut PageTable, positions: usize) {
        for _ in 0..table.missing_pages(positions) {
            let page = self.allocate();
            table.pages.push(page);
        }
    }

    /// Appends some pages of one table to another; from here on both hold them and neither may
    /// have positions in them written.
    ///
    /// # Panics
    /// When `from` has no such pages.
    pub fn share(&mut self, from: &PageTable, pages: Range<usize>, to: &mut PageTable) {
        for &page in &from.pages[pages] {
            self.holders[page] += 1;
            to.pages.push(page);
        }
    }

    /// Gives a table's pages back; those that no other table holds are freed.
    pub fn release(&mut self, table: PageTable) {
        for page in table.pages {
            self.holders[page] -= 1;
            if self.holders[page] == 0 {
                self.pages[page] = None;
                self.free.push(page);
            }
        }
    }

    fn page_elements(&self) -> usize {
        self.layers * 2 * self.kv_heads * PAGE_TOKENS * self.head_dim
    }

    fn allocate(&mut self) -> usize {
        let elements = self.page_elements();
        let page = match self.kind {
            KvType::F32 => Page::F32(vec![0.0; elements].into_boxed_slice()),
            KvType::F16 => Page::F16(vec![f16::ZERO; elements].into_boxed_slice()),
            KvType::Q8_0 => Page::Q8_0 {
                codes: vec![0; elements].into_boxed_slice(),
                scales: vec![f16::ZERO; elements / Q8_LENGTH].into_boxed_slice(),
            },
        };
        if let Some(index) = self.free.pop() {
            self.pages[index] = Some(page);
            self.holders[index] = 1;
            return index;
        }
        self.pages.push(Some(page));
        self.holders.push(1);
        self.pages.len() - 1
    }

    /// Where a head's numbers lie inside a page; `part` is 0 for keys and 1 for values.
    fn range(&self, layer: usize, part: usize, head: usize) -> Range<usize> {
        let length = PAGE_TOKENS * self.head_dim;
        let start = ((layer * 2 + part) * self.kv_heads + head) * length;
        start..start + length
    }

    /// Stores the keys and values of one position in one layer, each `[kv_heads, head_dim]`.
    pub(crate) fn store(
        &mut self,
        tier: Tier,
        table: &PageTable,
        layer: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let page = table.pages[position / PAGE_TOKENS];
        assert_eq!(self.holders[page], 1, "a shared page is never written");
        let place = position % PAGE_TOKENS;
        for (part, source) in [keys, values].into_iter().enumerate() {
            let (halves, codes) = (&mut self.halves[..], &mut self.codes[..]);
            match self.kind {
                KvType::F32 => {}
                KvType::F16 => to_f16(source, halves),
                KvType::Q8_0 => to_q8_0(tier, source, codes, halves),
            }
            for head in 0..self.kv_heads {
                let range = self.range(layer, part, head);
                let row = head * self.head_dim..(head + 1) * self.head_dim;
                match self.pages[page].as_mut().expect("a table holds live pages") {
                    Page::F32(page) => put(part, place, &source[row], &mut page[range]),
                    Page::F16(page) => put(part, place, &self.halves[row], &mut page[range]),
                    Page::Q8_0 { codes, scales } => {
                        put(part, place, &self.codes[row.clone()], &mut codes[range.clone()]);
                        put_key(place, &self.halves[blocks(row)], &mut scales[blocks(range)]);
                    }
                }
            }
        }
    }

    /// Yields the keys and values of one head, page by page from page `first` on.
    pub(crate) fn head<'a>(
        &'a self,
        table: &'a PageTable,
        layer: usize,
        head: usize,
        first: usize,
    ) -> impl Iterator<Item = Seen<'a>> + 'a {
        let ranges = [self.range(layer, 0, head), self.range(layer, 1, head)];
        table.pages[first..].iter().map(move |&page| {
            let [keys, values] = ranges.clone();
            match self.pages[page].as_ref().expect("a table holds live pages") {
                Page::F32(page) => Seen::F32 { keys: &page[keys], values: &page[values] },
                Page::F16(page) => Seen::F16 { keys: &page[keys], values: &page[values] },
                Page::Q8_0 { codes, scales } => {
                    let [keys, values] = [keys, values].map(|range| Codes {
                        codes: &codes[range.clone()],
                        scales: &scales[blocks(range)],
                    });
                    Seen::Q8_0 { keys, values }
                }
            }
        })
    }
}

/// Stores one head's key, which `part` 0 is, or value.
fn put<T: Copy>(part: usize, place: usize, row: &[T], page: &mut [T]) {
    if part == 0 { put_key(place, row, page) } else { put_value(place, row, page) }
}

/// The blocks that hold some whole heads' numbers.
fn blocks(numbers: Range<usize>) -> Range<usize> {
    numbers.start / Q8_LENGTH..numbers.end / Q8_LENGTH
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use toko_kernels::attention::Page as Seen;
    use toko_kernels::isa::Tier;

    use super::{KvCache, KvType, PAGE_TOKENS, PageTable};

    /// What may happen to tables; numbers are taken modulo what there is.
    #[derive(Debug, Clone)]
    enum Step {
        Grow { table: usize, pages: usize },
        Share { from: usize, pages: usize },
        Release { table: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0usize..9, 1usize..4).prop_map(|(table, pages)| Step::Grow { table, pages }),
            (0usize..9, 0usize..6).prop_map(|(from, pages)| Step::Share { from, pages }),
            (0usize..9).prop_map(|table| Step::Release { table }),
        ];
        proptest::collection::vec(step, 1..80)
    }

    fn empty() -> KvCache {
        KvCache {
            kind: KvType::F32,
            layers: 1,
            kv_heads: 1,
            head_dim: 1,
            pages: Vec::new(),
            halves: Vec::new(),
            codes: Vec::new(),
            holders: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Writes a number that no other page has into every position of a page.
    fn mark(kv: &mut KvCache, table: &PageTable, page: usize, mark: f32) {
        for position in page * PAGE_TOKENS..(page + 1) * PAGE_TOKENS {
            kv.store(Tier::Reference, table, 0, position, &[mark], &[-mark]);
        }
    }

    /// The marks of a table's pages; a page that is not marked through and through has none.
    fn marks(kv: &KvCache, table: &PageTable) -> Vec<Option<f32>> {
        kv.head(table, 0, 0, 0)
            .map(|page| {
                let Seen::F32 { keys, values } = page else { return None };
                let (key, value) = (keys[0].to_bits(), (-keys[0]).to_bits());
                let is_marked = keys.len() == PAGE_TOKENS
                    && keys.iter().all(|number| number.to_bits() == key)
                    && values.iter().all(|number| number.to_bits() == value);
                is_marked.then_some(keys[0])
            })
            .collect()
    }

    proptest! {
        #[test]
        fn a_page_lives_with_its_content_exactly_as_long_as_a_table_holds_it(steps in steps()) {
            let mut kv = empty();
            let mut tables = vec![(PageTable::default(), Vec::new())];
            let mut last = 0.0;
            for step in steps {
                match step {
                    Step::Grow { table, pages } => {
                        let index = table % tables.len();
                        let (table, expected) = &mut tables[index];
                        let whole = expected.len() + pages;
                        prop_assert_eq!(table.missing_pages(whole * PAGE_TOKENS), pages);
                        kv.grow(table, whole * PAGE_TOKENS);
                        for page in expected.len()..whole {
                            last += 1.0;
                            mark(&mut kv, table, page, last);
                            expected.push(Some(last));
                        }
                    }
                    Step::Share { from, pages } => {
                        let (from, expected) = &tables[from % tables.len()];
                        let pages = pages.min(expected.len());
                        let (mut table, expected) = (PageTable::default(), expected[..pages].to_vec());
                        kv.share(from, 0..pages, &mut table);
                        tables.push((table, expected));
                    }
                    Step::Release { table } => {
                        let (table, _) = tables.swap_remove(table % tables.len());
                        kv.release(table);
                        tables.push((PageTable::default(), Vec::new()));
                    }
                }
                let held = tables.iter().flat_map(|(_, expected)| expected).flatten();
                let distinct: BTreeSet<u32> = held.map(|mark| mark.to_bits()).collect();
                prop_assert_eq!(kv.pages_in_use(), distinct.len());
                for (table, expected) in &tables {
                    prop_assert_eq!(&marks(&kv, table), expected);
                }
            }
            for (table, _) in tables {
                kv.release(table);
            }
            prop_assert_eq!(kv.pages_in_use(), 0);
            prop_assert!(kv.pages.iter().all(Option::is_none), "a page in use by nobody is freed");
        }
    }
}
