//! The KV cache: keys and values of every layer in pages of 64 positions.
//!
//! A page is allocated when a sequence grows into it and freed when the sequence ends, so what
//! is resident is what is in use. The cache knows no sequence: whoever owns a [`PageTable`] does.

use half::f16;
use toko_kernels::attention::KvSlice;
use toko_kernels::convert::to_f16;

use crate::Config;

/// Positions in one page.
pub const PAGE_TOKENS: usize = 64;

/// Element type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
}

impl KvType {
    /// Returns the bytes of one element.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The pages of one sequence, in order of position.
///
/// Made and grown by [`KvCache::grow`]; given back by [`KvCache::release`].
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<usize>,
}

enum Page {
    F32(Box<[f32]>),
    F16(Box<[f16]>),
}

/// Keys and values of all sequences.
///
/// Inside a page: `[layers][keys, values][kv_heads][PAGE_TOKENS][head_dim]`.
pub struct KvCache {
    kind: KvType,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    pages: Vec<Option<Page>>,
    free: Vec<usize>,
}

impl KvCache {
    /// Makes an empty cache for a model; no page is allocated yet.
    pub fn new(config: &Config, kind: KvType) -> Self {
        Self {
            kind,
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            pages: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        self.page_elements() * self.kind.element_bytes()
    }

    /// Pages in use by all sequences.
    pub fn pages_in_use(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Allocates pages until `table` has room for `positions`.
    pub fn grow(&mut self, table: &mut PageTable, positions: usize) {
        while table.pages.len() * PAGE_TOKENS < positions {
            let page = self.allocate();
            table.pages.push(page);
        }
    }

    /// Frees all pages of a sequence.
    pub fn release(&mut self, table: PageTable) {
        for page in table.pages {
            self.pages[page] = None;
            self.free.push(page);
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
        };
        if let Some(index) = self.free.pop() {
            self.pages[index] = Some(page);
            return index;
        }
        self.pages.push(Some(page));
        self.pages.len() - 1
    }

    /// Offset of a head's first position inside a page; `part` is 0 for keys and 1 for values.
    fn offset(&self, layer: usize, part: usize, head: usize) -> usize {
        ((layer * 2 + part) * self.kv_heads + head) * PAGE_TOKENS * self.head_dim
    }

    /// Stores the keys and values of one position in one layer, each `[kv_heads, head_dim]`.
    pub(crate) fn store(
        &mut self,
        table: &PageTable,
        layer: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let page = table.pages[position / PAGE_TOKENS];
        let row = position % PAGE_TOKENS * self.head_dim;
        for (part, source) in [keys, values].into_iter().enumerate() {
            for (head, source) in source.chunks_exact(self.head_dim).enumerate() {
                let start = self.offset(layer, part, head) + row;
                let range = start..start + self.head_dim;
                match self.pages[page].as_mut().expect("a table holds live pages") {
                    Page::F32(page) => page[range].copy_from_slice(source),
                    Page::F16(page) => to_f16(source, &mut page[range]),
                }
            }
        }
    }

    /// Yields the first `positions` keys and values of one head, page by page.
    pub(crate) fn head<'a>(
        &'a self,
        table: &'a PageTable,
        layer: usize,
        head: usize,
        positions: usize,
    ) -> impl Iterator<Item = KvSlice<'a>> + Clone + 'a {
        let (keys, values) = (self.offset(layer, 0, head), self.offset(layer, 1, head));
        table.pages[..positions.div_ceil(PAGE_TOKENS)].iter().enumerate().map(
            move |(index, &page)| {
                let length = (positions - index * PAGE_TOKENS).min(PAGE_TOKENS) * self.head_dim;
                let (keys, values) = (keys..keys + length, values..values + length);
                match self.pages[page].as_ref().expect("a table holds live pages") {
                    Page::F32(page) => KvSlice::F32 { keys: &page[keys], values: &page[values] },
                    Page::F16(page) => KvSlice::F16 { keys: &page[keys], values: &page[values] },
                }
            },
        )
    }
}
