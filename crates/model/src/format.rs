//! Which kernel format a tensor of a file has.

use toko_gguf::Gguf;
use toko_gguf::q2::Q2Layout;
use toko_gguf::tensor::{TensorInfo, TensorType};
use toko_kernels::format::Format;

use crate::Error;

/// Returns the format that a tensor is computed in.
///
/// # Errors
/// A type without kernels; one of the three layouts of `Q2_0` that the file does not tell apart.
pub(crate) fn format_of(file: &Gguf, tensor: &TensorInfo) -> Result<Format, Error> {
    Ok(match tensor.kind {
        TensorType::F32 => Format::F32,
        TensorType::F16 => Format::F16,
        TensorType::BF16 => Format::Bf16,
        TensorType::Q4_0 => Format::Q4_0,
        TensorType::Q4_1 => Format::Q4_1,
        TensorType::Q5_0 => Format::Q5_0,
        TensorType::Q5_1 => Format::Q5_1,
        TensorType::Q8_0 => Format::Q8_0,
        TensorType::Q2_K => Format::Q2K,
        TensorType::Q3_K => Format::Q3K,
        TensorType::Q4_K => Format::Q4K,
        TensorType::Q5_K => Format::Q5K,
        TensorType::Q6_K => Format::Q6K,
        TensorType::TQ1_0 => Format::Tq1_0,
        TensorType::TQ2_0 => Format::Tq2_0,
        TensorType::Q1_0 => Format::Q1_0,
        TensorType::PQ2_0 => Format::Q2_0G128,
        TensorType::Q2_0 => match file.q2_layout().expect("the tensor is of that type")?.layout {
            Q2Layout::Group64 => Format::Q2_0,
            Q2Layout::Group128ScaleFirst => Format::Q2_0G128,
            Q2Layout::Group128ScaleLast => Format::Tq2_0G128,
        },
        other => {
            return Err(Error::TensorType {
                name: tensor.name.clone(),
                kind: format!("{other:?}"),
                advice: "use a file of another type, such as Q8_0, Q4_K or Q1_0".to_owned(),
            });
        }
    })
}
