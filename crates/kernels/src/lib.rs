//! The arithmetic of a decoder: block formats of weights, matrix products, and the small operations
//! between them.
//!
//! Invariant: a result has the same bits on every tier, thread count and batch size, because each
//! output is summed in one fixed order. Knows no files, no tensor names and no models.

pub mod attention;
pub mod blocks;
pub mod convert;
pub mod exp;
pub mod format;
pub mod isa;
pub mod kernel;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod quantized;
pub mod rope;
pub mod stream;
pub mod swiglu;

mod formats;
mod lanes;
