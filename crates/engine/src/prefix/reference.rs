//! The obvious prefix table for the tests: a list of whole prefixes, searched from end to end.
//!
//! Texts are spelled in letters, one a block.

use toko_model::PAGE_TOKENS;

/// Spells blocks that differ in their last token only.
pub(crate) fn tokens(letters: &[u32]) -> Vec<u32> {
    letters.iter().flat_map(|&letter| [vec![7; PAGE_TOKENS - 1], vec![letter]].concat()).collect()
}

struct Entry {
    /// The text up to the block's end.
    letters: Vec<u32>,
    page: usize,
    used: usize,
}

/// At most so many prefixes and their pages.
pub(crate) struct Reference {
    capacity: usize,
    entries: Vec<Entry>,
    clock: usize,
}

impl Reference {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, entries: Vec::new(), clock: 0 }
    }

    /// The pages of the longest known prefix.
    pub(crate) fn find(&mut self, letters: &[u32]) -> Vec<usize> {
        self.clock += 1;
        let mut pages = Vec::new();
        for end in 1..=letters.len() {
            let known = self.entries.iter_mut().find(|entry| entry.letters == letters[..end]);
            let Some(entry) = known else { break };
            entry.used = self.clock;
            pages.push(entry.page);
        }
        pages
    }

    /// Adds the prefixes that are missing, with their pages, and returns the pages that went.
    pub(crate) fn insert(&mut self, letters: &[u32], pages: &[usize]) -> Vec<usize> {
        let letters = &letters[..letters.len().min(self.capacity)];
        let known = self.find(letters).len();
        let mut evicted = Vec::new();
        for index in known..letters.len() {
            if self.entries.len() == self.capacity {
                evicted.extend(self.evict());
            }
            let letters = letters[..=index].to_vec();
            self.entries.push(Entry { letters, page: pages[index], used: self.clock });
        }
        evicted
    }

    /// Removes the prefix used longest ago among those that no longer one begins with.
    pub(crate) fn evict(&mut self) -> Option<usize> {
        let is_leaf = |entry: &Entry| {
            let longer = |other: &Entry| other.letters.len() > entry.letters.len();
            !self
                .entries
                .iter()
                .any(|other| longer(other) && other.letters.starts_with(&entry.letters))
        };
        let leaves = self.entries.iter().enumerate().filter(|(_, entry)| is_leaf(entry));
        let (oldest, _) = leaves.min_by_key(|(_, entry)| entry.used)?;
        Some(self.entries.remove(oldest).page)
    }

    /// All pages.
    pub(crate) fn pages(&self) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.page).collect()
    }
}
