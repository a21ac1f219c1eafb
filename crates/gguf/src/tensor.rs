//! What a tensor directory says: names, shapes, types by id, and where the bytes are.
//!
//! Invariant: [`TensorData`] keeps the file's bytes alive for as long as it lives. It doesn't know how
//! a type's blocks are decoded.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::mmap::Source;

/// Names the format of a tensor's elements by its id in the file; any id can be represented.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType(pub u32);

/// States how many elements of a row lie together in how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Elements in a block; a row is a whole number of blocks.
    pub elements: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

macro_rules! tensor_types {
    ($($constant:ident $name:literal = $id:literal: $block:expr, $doc:literal;)*) => {
        impl TensorType {
            $(#[doc = $doc] pub const $constant: Self = Self($id);)*

            /// Returns the name that the format is known by, or `None` for an unknown id.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($id => Some($name),)*
                    _ => None,
                }
            }

            /// Returns the block of the format, or `None` if the id is unknown or names several layouts.
            pub fn block(self) -> Option<Block> {
                match self.0 {
                    $($id => $block,)*
                    _ => None,
                }
            }
        }
    };
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "the table holds `None` where an id names several layouts"
)]
const fn block(elements: u64, bytes: u64) -> Option<Block> {
    Some(Block { elements, bytes })
}

tensor_types! {
    F32 "F32" = 0: block(1, 4), "IEEE single.";
    F16 "F16" = 1: block(1, 2), "IEEE half.";
    Q4_0 "Q4_0" = 2: block(32, 18), "4 bits, scale per 32.";
    Q4_1 "Q4_1" = 3: block(32, 20), "4 bits, scale and minimum per 32.";
    Q5_0 "Q5_0" = 6: block(32, 22), "5 bits, scale per 32.";
    Q5_1 "Q5_1" = 7: block(32, 24), "5 bits, scale and minimum per 32.";
    Q8_0 "Q8_0" = 8: block(32, 34), "8 bits, scale per 32.";
    Q8_1 "Q8_1" = 9: block(32, 36), "8 bits, scale and sum per 32; an activation format.";
    Q2_K "Q2_K" = 10: block(256, 84), "2 bits, super-blocks of 256.";
    Q3_K "Q3_K" = 11: block(256, 110), "3 bits, super-blocks of 256.";
    Q4_K "Q4_K" = 12: block(256, 144), "4 bits, super-blocks of 256.";
    Q5_K "Q5_K" = 13: block(256, 176), "5 bits, super-blocks of 256.";
    Q6_K "Q6_K" = 14: block(256, 210), "6 bits, super-blocks of 256.";
    Q8_K "Q8_K" = 15: block(256, 292), "8 bits, super-blocks of 256; an activation format.";
    IQ2_XXS "IQ2_XXS" = 16: block(256, 66), "2.06 bits, codebook.";
    IQ2_XS "IQ2_XS" = 17: block(256, 74), "2.31 bits, codebook.";
    IQ3_XXS "IQ3_XXS" = 18: block(256, 98), "3.06 bits, codebook.";
    IQ1_S "IQ1_S" = 19: block(256, 50), "1.56 bits, codebook.";
    IQ4_NL "IQ4_NL" = 20: block(32, 18), "4 bits, non-linear.";
    IQ3_S "IQ3_S" = 21: block(256, 110), "3.44 bits, codebook.";
    IQ2_S "IQ2_S" = 22: block(256, 82), "2.5 bits, codebook.";
    IQ4_XS "IQ4_XS" = 23: block(256, 136), "4.25 bits, non-linear.";
    I8 "I8" = 24: block(1, 1), "Signed 8-bit integer.";
    I16 "I16" = 25: block(1, 2), "Signed 16-bit integer.";
    I32 "I32" = 26: block(1, 4), "Signed 32-bit integer.";
    I64 "I64" = 27: block(1, 8), "Signed 64-bit integer.";
    F64 "F64" = 28: block(1, 8), "IEEE double.";
    IQ1_M "IQ1_M" = 29: block(256, 56), "1.75 bits, codebook.";
    BF16 "BF16" = 30: block(1, 2), "The upper half of an IEEE single.";
    TQ1_0 "TQ1_0" = 34: block(256, 54), "Ternary, five to a byte.";
    TQ2_0 "TQ2_0" = 35: block(256, 66), "Ternary, four to a byte.";
    MXFP4 "MXFP4" = 39: block(32, 17), "4-bit float, shared exponent per 32.";
    NVFP4 "NVFP4" = 40: block(64, 36), "4-bit float, 8-bit float scale per 16.";
    Q1_0 "Q1_0" = 41: block(128, 18), "1 bit, scale per 128.";
    Q2_0 "Q2_0" = 42: None, "2 bits in one of three layouts: see [`Q2Layout`](crate::q2::Q2Layout).";
    PQ2_0 "PQ2_0" = 142: block(128, 34), "2 bits, scale per 128, scale first.";
    PTQ1_0 "PTQ1_0" = 143: block(128, 28), "Ternary, five to a byte, scale per 128.";
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&format!("unknown type {}", self.0)),
        }
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.0)
    }
}

/// Describes one tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, unique in the model.
    pub name: String,
    /// One to four extents, none zero, innermost (the row's length) first.
    pub shape: Vec<u64>,
    /// The format of the elements.
    pub kind: TensorType,
    /// How many bytes the data takes. For an unknown type, and for `Q2_0` where its block can't be told,
    /// the distance to the next tensor or to the end of the file, padding included.
    pub bytes: u64,
    /// Where the data starts, from the start of its file.
    pub offset: u64,
    /// Which file of a split model holds it, counted from 0.
    pub shard: usize,
}

impl TensorInfo {
    /// Returns the number of elements.
    ///
    /// It doesn't overflow for a tensor that was read from a file: the reader checks the product.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Holds the bytes of one tensor and keeps the file's bytes alive; cloning shares them.
#[derive(Clone)]
pub struct TensorData {
    source: Arc<Source>,
    range: Range<usize>,
}

impl TensorData {
    pub(crate) fn new(source: Arc<Source>, start: usize, bytes: usize) -> Self {
        let end = start.checked_add(bytes).filter(|&end| end <= source.len());
        let end = end.expect("data lies in its file");
        Self { source, range: start..end }
    }
}

impl Deref for TensorData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.source[self.range.clone()]
    }
}

impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorData({} bytes at byte {})", self.range.len(), self.range.start)
    }
}
