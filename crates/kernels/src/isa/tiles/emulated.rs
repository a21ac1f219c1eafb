//! The tiles of AMX in plain code, for machines without.
//!
//! Invariant: each function does what the section "Operation" of its instruction says in Intel's
//! manual, and panics where the instruction faults.
#![expect(unsafe_code, reason = "tiles read and write by address")]

use super::{Shapes, TILE_ROW_BYTES, TILE_ROWS, Tiles};

/// Eight tiles without a processor.
pub(crate) struct Emulated {
    shapes: Shapes,
    tiles: [[[u8; TILE_ROW_BYTES]; TILE_ROWS]; 8],
}

impl Emulated {
    /// Returns tiles without shapes.
    pub(crate) fn new() -> Self {
        Self { shapes: Shapes::NONE, tiles: [[[0; TILE_ROW_BYTES]; TILE_ROWS]; 8] }
    }

    /// Returns whether no tile has a shape.
    pub(crate) fn are_released(&self) -> bool {
        self.shapes == Shapes::NONE
    }

    /// Returns the rows of a tile and the bytes of each.
    fn shape(&self, tile: u8) -> (usize, usize) {
        let tile = usize::from(tile);
        let shape = (usize::from(self.shapes.rows[tile]), usize::from(self.shapes.row_bytes[tile]));
        assert!(shape != (0, 0), "tile {tile} has a shape");
        shape
    }
}

impl Tiles for Emulated {
    fn configure(&mut self, shapes: &Shapes) {
        assert_eq!(shapes.palette, 1, "there is one palette");
        assert_eq!(shapes.reserved, [0; 14], "reserved bytes are zero");
        assert_eq!((&shapes.rows[8..], &shapes.row_bytes[8..]), (&[0; 8][..], &[0; 8][..]));
        for (&rows, &bytes) in shapes.rows.iter().zip(&shapes.row_bytes) {
            assert!(rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0), "a possible shape");
        }
        *self = Self { shapes: *shapes, ..Self::new() };
    }

    fn zero<const TILE: u8>(&mut self) {
        let _in_use = self.shape(TILE);
        self.tiles[usize::from(TILE)] = [[0; TILE_ROW_BYTES]; TILE_ROWS];
    }

    unsafe fn load<const TILE: u8>(&mut self, from: *const u8, stride: usize) {
        let (rows, bytes) = self.shape(TILE);
        let tile = &mut self.tiles[usize::from(TILE)];
        *tile = [[0; TILE_ROW_BYTES]; TILE_ROWS];
        for (row, to) in tile.iter_mut().enumerate().take(rows) {
            let from = from.wrapping_add(row * stride);
            // SAFETY: the caller says that each row may be read.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), bytes) };
        }
    }

    unsafe fn store<const TILE: u8>(&mut self, to: *mut u8, stride: usize) {
        let (rows, bytes) = self.shape(TILE);
        for (row, from) in self.tiles[usize::from(TILE)].iter().enumerate().take(rows) {
            let to = to.wrapping_add(row * stride);
            // SAFETY: the caller says that each row may be written.
            unsafe { from.as_ptr().copy_to_nonoverlapping(to, bytes) };
        }
    }

    fn multiply<const SUM: u8, const A: u8, const B: u8>(&mut self) {
        let [(rows, bytes), a, b] = [SUM, A, B].map(|tile| self.shape(tile));
        assert!(SUM != A && SUM != B && A != B, "the three tiles are different ones");
        assert_eq!(a, (rows, 4 * b.0), "A has the rows of the sum and as many fours as B has rows");
        assert_eq!(b.1, bytes, "B has the columns of the sum");
        let [a_tile, b_tile] = [A, B].map(|tile| self.tiles[usize::from(tile)]);
        for (sums, a) in self.tiles[usize::from(SUM)].iter_mut().zip(&a_tile).take(rows) {
            for (n, sum) in sums.as_chunks_mut().0.iter_mut().enumerate().take(bytes / 4) {
                let mut total = i32::from_le_bytes(*sum);
                for (a, b) in a.as_chunks::<4>().0.iter().zip(&b_tile).take(b.0) {
                    for (&a, &b) in a.iter().zip(&b.as_chunks::<4>().0[n]) {
                        let product = i32::from(a.cast_signed()) * i32::from(b.cast_signed());
                        total = total.wrapping_add(product);
                    }
                }
                *sum = total.to_le_bytes();
            }
            sums[bytes..].fill(0);
        }
    }

    fn release(&mut self) {
        *self = Self::new();
    }
}

#[test]
fn emulated_tiles_multiply_as_plain_integers_do() {
    let mut tiles = Emulated::new();
    assert!(super::multiply_rightly(&mut tiles));
    assert!(tiles.are_released());
}
