//! The storage formats of weights, by name and size.
//!
//! Invariant: a row is a whole number of blocks of `block_elements` weights in `block_bytes` bytes.
//! Knows no file's type numbers: the reader of a file decides which format a tensor has.

use std::fmt;

/// Stores weights, a whole number of blocks, in exactly the room for their bytes; panics on any other
/// length.
pub type Quantizer = fn(&[f32], &mut [u8]);

/// Names how the weights of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// One sign bit per weight, a scale per 128.
    Q1_0,
    /// Two bits per weight, values −1 to 2, a leading scale per 64.
    Q2_0,
    /// Two bits per weight, values −1 to 2, a leading scale per 128.
    Q2_0G128,
    /// Two bits per weight, values −1, 0, 1, 0, a trailing scale per 128.
    Tq2_0G128,
    /// Five ternary weights per byte, a scale per 256.
    Tq1_0,
    /// Four ternary weights per byte, a scale per 256.
    Tq2_0,
    /// Four bits, a scale per 32.
    Q4_0,
    /// Four bits, a scale and a minimum per 32.
    Q4_1,
    /// Five bits, a scale per 32.
    Q5_0,
    /// Five bits, a scale and a minimum per 32.
    Q5_1,
    /// Eight bits, a scale per 32.
    Q8_0,
    /// Two bits, a scale and a minimum per 16.
    Q2K,
    /// Three bits, a scale per 16.
    Q3K,
    /// Four bits, a scale and a minimum per 32.
    Q4K,
    /// Five bits, a scale and a minimum per 32.
    Q5K,
    /// Six bits, a scale per 16.
    Q6K,
}

impl Format {
    /// Lists every format.
    pub const ALL: [Self; 19] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q1_0,
        Self::Q2_0,
        Self::Q2_0G128,
        Self::Tq2_0G128,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Returns the number of weights in a block.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2_0 => 64,
            Self::Q1_0 | Self::Q2_0G128 | Self::Tq2_0G128 => 128,
            Self::Tq1_0
            | Self::Tq2_0
            | Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K => 256,
        }
    }

    /// Returns the number of bytes in a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::Q1_0 | Self::Q2_0 | Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 | Self::Q2_0G128 | Self::Tq2_0G128 => 34,
            Self::Tq1_0 => 54,
            Self::Tq2_0 => 66,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Returns the bytes of a row of `cols` weights; `None` when `cols` is no whole number of
    /// blocks or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_elements()) {
            return None;
        }
        (cols / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Returns the name the field uses, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q1_0 => "Q1_0",
            Self::Q2_0 => "Q2_0",
            Self::Q2_0G128 => "Q2_0_G128",
            Self::Tq2_0G128 => "TQ2_0_G128",
            Self::Tq1_0 => "TQ1_0",
            Self::Tq2_0 => "TQ2_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Returns whether weights are plain floats, multiplied with unquantized activations.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Returns the function that stores weights in this format, or `None` if there is none.
    ///
    /// The bytes are those that llama.cpp stores for the same weights.
    pub fn quantizer(self) -> Option<Quantizer> {
        crate::formats::quantizer(self)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
