//! Which token prefixes have a page: a tree of whole blocks, each under the blocks before it.
//!
//! Blocks are found by comparing tokens, so a page is only ever found under the tokens that it was
//! put there for. A block is never older than the blocks that follow it, so the oldest leaf is the
//! oldest of all and what stays is never cut off from its beginning. The table does not know what
//! a page is.

use std::collections::HashMap;

use toko_model::PAGE_TOKENS;

/// The number of the place before the first block.
const ROOT: u64 = 0;

/// Pages by the tokens up to their end, at most so many.
pub(crate) struct Table<P> {
    capacity: usize,
    /// The blocks that follow a node, by the node's number.
    following: HashMap<u64, HashMap<Box<[u32]>, Node<P>>>,
    pages: usize,
    /// The last number given to a node; none is given twice.
    last_number: u64,
    /// Counts the uses of the table.
    clock: u64,
}

struct Node<P> {
    number: u64,
    page: P,
    used: u64,
}

impl<P> Table<P> {
    /// Makes an empty table for at most `capacity` pages.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, following: HashMap::new(), pages: 0, last_number: ROOT, clock: 0 }
    }

    /// Hands out the pages of the longest known prefix of whole blocks, first block first.
    pub(crate) fn find(&mut self, tokens: &[u32], mut found: impl FnMut(&P)) {
        self.clock += 1;
        let mut parent = ROOT;
        for block in blocks(tokens) {
            let Some(node) = touch(&mut self.following, parent, block, self.clock) else { return };
            found(&node.page);
            parent = node.number;
        }
    }

    /// Puts in the whole blocks of `tokens` that are missing, as many as there is room for, and
    /// returns the pages that had to make room; `page` makes the page of a block, by its index.
    pub(crate) fn insert(&mut self, tokens: &[u32], mut page: impl FnMut(usize) -> P) -> Vec<P> {
        self.clock += 1;
        let mut evicted = Vec::new();
        let mut parent = ROOT;
        for (index, block) in blocks(tokens).enumerate().take(self.capacity) {
            if let Some(node) = touch(&mut self.following, parent, block, self.clock) {
                parent = node.number;
                continue;
            }
            if self.pages == self.capacity {
                // Fewer blocks than that lead here, and they were just used: another one goes.
                evicted.extend(self.evict());
            }
            self.last_number += 1;
            self.pages += 1;
            let node = Node { number: self.last_number, page: page(index), used: self.clock };
            self.following.entry(parent).or_default().insert(block.into(), node);
            parent = self.last_number;
        }
        evicted
    }

    /// Takes out the page that was used least recently and that no other one follows.
    pub(crate) fn evict(&mut self) -> Option<P> {
        let nodes = self.following.iter().flat_map(|(&parent, blocks)| {
            blocks.iter().map(move |(block, node)| (parent, block, node))
        });
        // One use touches one path, so no two leaves have the same time.
        let (parent, block, _) = nodes
            .filter(|(_, _, node)| !self.following.contains_key(&node.number))
            .min_by_key(|(_, _, node)| node.used)?;
        let block = block.clone();
        let siblings = self.following.get_mut(&parent)?;
        let node = siblings.remove(&block)?;
        if siblings.is_empty() {
            self.following.remove(&parent);
        }
        self.pages -= 1;
        Some(node.page)
    }

    /// Takes out all pages.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = P> + use<P> {
        self.pages = 0;
        let following = std::mem::take(&mut self.following);
        following.into_values().flat_map(HashMap::into_values).map(|node| node.page)
    }
}

fn blocks(tokens: &[u32]) -> impl Iterator<Item = &[u32]> {
    tokens.as_chunks::<PAGE_TOKENS>().0.iter().map(<[u32; PAGE_TOKENS]>::as_slice)
}

/// Finds the node of a block and notes its use.
fn touch<'a, P>(
    following: &'a mut HashMap<u64, HashMap<Box<[u32]>, Node<P>>>,
    parent: u64,
    block: &[u32],
    now: u64,
) -> Option<&'a Node<P>> {
    let node = following.get_mut(&parent)?.get_mut(block)?;
    node.used = now;
    Some(node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Table;
    use crate::prefix::reference::{Reference, tokens};

    fn found(table: &mut Table<usize>, letters: &[u32]) -> Vec<usize> {
        let mut pages = Vec::new();
        table.find(&tokens(letters), |&page| pages.push(page));
        pages
    }

    /// Puts in a text whose blocks have pages with ascending numbers.
    fn insert(table: &mut Table<usize>, letters: &[u32], first_page: usize) -> Vec<usize> {
        table.insert(&tokens(letters), |index| first_page + index)
    }

    #[test]
    fn only_whole_blocks_with_the_same_beginning_are_found() {
        let mut table = Table::new(9);
        insert(&mut table, &[1, 2, 3], 10);
        assert_eq!(found(&mut table, &[1, 2, 4]), [10, 11]);
        assert_eq!(found(&mut table, &[2, 3]), [0; 0]);
        let mut pages = Vec::new();
        table.find(&tokens(&[1, 2])[..127], |&page| pages.push(page));
        assert_eq!(pages, [10]);
    }

    #[test]
    fn a_known_block_keeps_its_page() {
        let mut table = Table::new(9);
        insert(&mut table, &[1, 2], 10);
        assert_eq!(insert(&mut table, &[1, 2, 3], 20), [0; 0]);
        assert_eq!(found(&mut table, &[1, 2, 3]), [10, 11, 22]);
    }

    #[test]
    fn the_end_of_the_text_used_longest_ago_goes_first() {
        let mut table = Table::new(4);
        insert(&mut table, &[1, 2], 10);
        insert(&mut table, &[3, 4], 20);
        found(&mut table, &[1, 2]);
        assert_eq!(insert(&mut table, &[5], 30), [21]);
        assert_eq!(insert(&mut table, &[6, 7], 40), [20, 11]);
        assert_eq!(found(&mut table, &[1, 2]), [10]);
    }

    #[test]
    fn of_a_text_longer_than_the_table_the_beginning_stays() {
        let mut table = Table::new(2);
        insert(&mut table, &[9, 9], 90);
        assert_eq!(insert(&mut table, &[1, 2, 3], 10), [91, 90]);
        assert_eq!(found(&mut table, &[1, 2, 3]), [10, 11]);
        assert_eq!(insert(&mut table, &[1, 2, 3], 20), [0; 0]);
    }

    #[test]
    fn a_table_without_room_stays_empty() {
        let mut table = Table::new(0);
        assert_eq!(insert(&mut table, &[1], 10), [0; 0]);
        assert_eq!(found(&mut table, &[1]), [0; 0]);
        assert_eq!(table.evict(), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Find(Vec<u32>),
        Insert(Vec<u32>),
        Evict,
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let letters = || proptest::collection::vec(0u32..3, 0..6);
        let step = prop_oneof![
            4 => letters().prop_map(Step::Find),
            6 => letters().prop_map(Step::Insert),
            2 => Just(Step::Evict),
            1 => Just(Step::Clear),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_of_prefixes_does(capacity in 0usize..12, steps in steps()) {
            let mut table = Table::new(capacity);
            let mut reference = Reference::new(capacity);
            for (index, step) in steps.iter().enumerate() {
                match step {
                    Step::Find(letters) => {
                        prop_assert_eq!(found(&mut table, letters), reference.find(letters));
                    }
                    Step::Insert(letters) => {
                        let first = index * 10;
                        let pages: Vec<usize> = (first..first + letters.len()).collect();
                        let evicted = insert(&mut table, letters, first);
                        prop_assert_eq!(evicted, reference.insert(letters, &pages));
                    }
                    Step::Evict => prop_assert_eq!(table.evict(), reference.evict()),
                    Step::Clear => {
                        let mut cleared: Vec<usize> = table.clear().collect();
                        cleared.sort_unstable();
                        let mut pages = reference.pages();
                        pages.sort_unstable();
                        prop_assert_eq!(cleared, pages);
                        reference = Reference::new(capacity);
                    }
                }
                prop_assert!(table.pages <= capacity);
                prop_assert_eq!(table.pages, reference.pages().len());
            }
        }
    }
}
