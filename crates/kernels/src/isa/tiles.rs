//! Eight matrix tiles of up to 16 rows of 64 bytes, and the six things that can be done with them.
//!
//! Invariant: what an implementation does is what Intel's manual says of the instruction, so code
//! that is generic over [`Tiles`] computes the same with each. Knows nothing of what is multiplied.
#![expect(unsafe_code, reason = "tiles read and write by address")]

#[cfg(test)]
pub(crate) mod emulated;

/// Rows of a tile, at most.
pub(crate) const TILE_ROWS: usize = 16;

/// Bytes of a row of a tile, at most.
pub(crate) const TILE_ROW_BYTES: usize = 64;

/// The shapes of the tiles, as `ldtilecfg` reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Of which the first eight are in use.
    row_bytes: [u16; 16],
    /// As above.
    rows: [u8; 16],
}

impl Shapes {
    /// No tile has a shape.
    pub(crate) const NONE: Self =
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };

    /// Gives tile number `tile` one to 16 rows of 4 to 64 bytes.
    pub(crate) fn set(&mut self, tile: u8, rows: usize, row_bytes: usize) {
        let fits = (1..=TILE_ROWS).contains(&rows) && (4..=TILE_ROW_BYTES).contains(&row_bytes);
        assert!(tile < 8 && fits, "tile {tile} can have {rows} rows of {row_bytes} bytes");
        #[expect(clippy::cast_possible_truncation, reason = "at most 16 and 64")]
        let (rows, row_bytes) = (rows as u8, row_bytes as u16);
        self.rows[usize::from(tile)] = rows;
        self.row_bytes[usize::from(tile)] = row_bytes;
    }
}

/// The tiles of a thread; all but [`Self::configure`] fault unless they have shapes that fit.
pub(crate) trait Tiles {
    /// Gives the tiles their shapes, and zeros as their values.
    fn configure(&mut self, shapes: &Shapes);

    /// Fills a tile with zeros.
    fn zero<const TILE: u8>(&mut self);

    /// Reads each row of a tile, `stride` bytes after the one before.
    ///
    /// # Safety
    /// All rows lie in memory that may be read.
    unsafe fn load<const TILE: u8>(&mut self, from: *const u8, stride: usize);

    /// Writes each row of a tile, `stride` bytes after the one before.
    ///
    /// # Safety
    /// All rows lie in memory that may be written.
    unsafe fn store<const TILE: u8>(&mut self, to: *mut u8, stride: usize);

    /// Adds to each 32-bit integer of `SUM`, in row m and column n, the products of all signed bytes
    /// of row m of `A` with those of column n of `B`, where rows of four bytes are one column's.
    fn multiply<const SUM: u8, const A: u8, const B: u8>(&mut self);

    /// Gives the tiles back, so that no thread switch has to save them.
    fn release(&mut self);
}

/// Returns whether the tiles multiply as plain integers do: a product of 5 times 36 with 36 times 7.
pub(crate) fn multiply_rightly(tiles: &mut impl Tiles) -> bool {
    const ROWS: usize = 5;
    const DEPTH: usize = 36;
    const COLUMNS: usize = 7;
    // Both strides are larger than the rows.
    let mut a = [[0_i8; DEPTH + 4]; ROWS];
    let mut b = [[[0_i8; 4]; COLUMNS + 1]; DEPTH / 4];
    let mut noise = 1_u32;
    for byte in a.as_flattened_mut().iter_mut().chain(b.as_flattened_mut().as_flattened_mut()) {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = noise.to_le_bytes()[3].cast_signed();
    }
    let mut shapes = Shapes::NONE;
    shapes.set(2, ROWS, 4 * COLUMNS);
    shapes.set(4, ROWS, DEPTH);
    shapes.set(7, DEPTH / 4, 4 * COLUMNS);
    let mut sums = [[0_i32; COLUMNS + 2]; ROWS];
    tiles.configure(&shapes);
    tiles.zero::<2>();
    // SAFETY: `a` has the rows of tile 4, one stride after the other.
    unsafe { tiles.load::<4>(a.as_ptr().cast(), size_of_val(&a[0])) };
    // SAFETY: `b` has the rows of tile 7, one stride after the other.
    unsafe { tiles.load::<7>(b.as_ptr().cast(), size_of_val(&b[0])) };
    // Twice: the second product is added to the first.
    tiles.multiply::<2, 4, 7>();
    tiles.multiply::<2, 4, 7>();
    // SAFETY: `sums` has the rows of tile 2, one stride after the other.
    unsafe { tiles.store::<2>(sums.as_mut_ptr().cast(), size_of_val(&sums[0])) };
    tiles.release();
    (0..ROWS).all(|m| {
        (0..COLUMNS + 2).all(|n| {
            let product = |k: usize| i32::from(a[m][k]) * i32::from(b[k / 4][n][k % 4]);
            let expected = if n < COLUMNS { 2 * (0..DEPTH).map(product).sum::<i32>() } else { 0 };
            sums[m][n] == expected
        })
    })
}
