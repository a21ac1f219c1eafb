//! Tensors bound to kernels: each is looked up, shape-checked and given its kernel once.

use toko_gguf::Gguf;
use toko_gguf::tensor::{TensorData, TensorInfo};
use toko_kernels::isa::Tier;
use toko_kernels::kernel::Kernel;
use toko_kernels::matmul::Weights;

use crate::format::format_of;
use crate::{Config, Error};

/// A weight matrix in the file's own bytes, with the kernel that reads it.
pub(crate) struct Matrix {
    kernel: Kernel,
    data: TensorData,
    rows: usize,
    cols: usize,
}

impl Matrix {
    pub(crate) fn weights(&self) -> Weights<'_> {
        Weights::new(self.kernel, &self.data, self.rows, self.cols)
            .expect("the shape was checked when the tensor was bound")
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn is_float(&self) -> bool {
        self.kernel.is_float()
    }
}

/// One transformer layer.
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    /// Biases of Q, K and V, where the family has them.
    pub(crate) biases: Option<[Vec<f32>; 3]>,
    /// Norms of each query and key head, where the family has them.
    pub(crate) head_norms: Option<[Vec<f32>; 2]>,
    pub(crate) output: Matrix,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

/// The fewest tensors of a layer.
const LAYER_TENSORS: usize = 9;

/// All weights of a decoder.
pub(crate) struct Tensors {
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: Vec<f32>,
    /// The output matrix, unless it is the embedding.
    pub(crate) head: Option<Matrix>,
}

impl Tensors {
    pub(crate) fn bind(file: &Gguf, config: &Config, tier: Tier) -> Result<Self, Error> {
        refuse_unknown_biases(file)?;
        let binder = Binder { file, tier };
        let layers = (0..config.layers)
            .map(|index| binder.layer(index, config))
            .collect::<Result<_, _>>()?;
        let head = match file.tensor("output.weight") {
            Some(_) => Some(binder.matrix("output.weight", config.vocabulary, config.hidden)?),
            None => None,
        };
        Ok(Self {
            embedding: binder.matrix("token_embd.weight", config.vocabulary, config.hidden)?,
            layers,
            output_norm: read_floats(file, "output_norm.weight", config.hidden)?,
            head,
        })
    }
}

/// Returns the bytes of what binding copies out of a file: its vectors, as 32-bit floats, and a record for each layer.
pub(crate) fn copied_bytes(file: &Gguf) -> u64 {
    let vectors = file.tensors().iter().filter(|tensor| tensor.shape.len() == 1);
    let floats = vectors.fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements()));
    let records = file.tensors().len().saturating_mul(size_of::<Layer>() / LAYER_TENSORS);
    floats.saturating_mul(size_of::<f32>() as u64).saturating_add(records as u64)
}

/// A bias that no layer adds would be left out of the sum without a word.
fn refuse_unknown_biases(file: &Gguf) -> Result<(), Error> {
    let known = ["attn_q", "attn_k", "attn_v"];
    let unknown = file.tensors().iter().find(|tensor| match tensor.name.rsplit_once('.') {
        Some((part, "bias")) => !known.iter().any(|known| part.ends_with(known)),
        _ => false,
    });
    match unknown {
        Some(tensor) => Err(Error::UnknownTensor { name: tensor.name.clone() }),
        None => Ok(()),
    }
}

struct Binder<'a> {
    file: &'a Gguf,
    tier: Tier,
}

impl Binder<'_> {
    fn layer(&self, index: usize, config: &Config) -> Result<Layer, Error> {
        let (hidden, wide) = (config.hidden, config.feed_forward);
        let (query, kv) = (config.query_length(), config.kv_length());
        let name = |part: &str| format!("blk.{index}.{part}");
        let matrix = |part: &str, rows, cols| self.matrix(&name(part), rows, cols);
        let floats = |part: &str, length| read_floats(self.file, &name(part), length);
        let has = |part: &str| self.file.tensor(&name(part)).is_some();
        let qwen2 = config.architecture == crate::Architecture::Qwen2;
        let qwen3 = config.architecture == crate::Architecture::Qwen3;
        Ok(Layer {
            attention_norm: floats("attn_norm.weight", hidden)?,
            query: matrix("attn_q.weight", query, hidden)?,
            key: matrix("attn_k.weight", kv, hidden)?,
            value: matrix("attn_v.weight", kv, hidden)?,
            biases: if qwen2 || has("attn_q.bias") {
                Some([
                    floats("attn_q.bias", query)?,
                    floats("attn_k.bias", kv)?,
                    floats("attn_v.bias", kv)?,
                ])
            } else {
                None
            },
            head_norms: if qwen3 {
                Some([
                    floats("attn_q_norm.weight", config.head_dim)?,
                    floats("attn_k_norm.weight", config.head_dim)?,
                ])
            } else {
                None
            },
            output: matrix("attn_output.weight", hidden, query)?,
            feed_forward_norm: floats("ffn_norm.weight", hidden)?,
            gate: matrix("ffn_gate.weight", wide, hidden)?,
            up: matrix("ffn_up.weight", wide, hidden)?,
            down: matrix("ffn_down.weight", hidden, wide)?,
        })
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let tensor = checked(self.file, name, &[cols as u64, rows as u64])?;
        let data = self.file.data(tensor);
        let kernel = Kernel::new(format_of(self.file, tensor)?, self.tier);
        // The file's own bytes decide: a row must divide into the type's blocks.
        if Weights::new(kernel, &data, rows, cols).is_none() {
            return Err(Error::TensorShape {
                name: name.to_owned(),
                found: vec![cols as u64, rows as u64],
                expected: vec![kernel.format().block_elements() as u64, rows as u64],
            });
        }
        Ok(Matrix { kernel, data, rows, cols })
    }
}

/// Reads a vector of floats stored as F32, F16 or BF16.
pub(crate) fn read_floats(file: &Gguf, name: &str, length: usize) -> Result<Vec<f32>, Error> {
    let tensor = checked(file, name, &[length as u64])?;
    let format = format_of(file, tensor)?;
    if !format.is_float() {
        return Err(Error::TensorType {
            name: name.to_owned(),
            kind: format.name().to_owned(),
            advice: "vectors must be F32, F16 or BF16".to_owned(),
        });
    }
    let mut floats = vec![0.0; length];
    Weights::new(Kernel::new(format, Tier::Reference), &file.data(tensor), 1, length)
        .expect("the reader sized the tensor by its type")
        .dequantize_row(0, &mut floats);
    Ok(floats)
}

fn checked<'a>(file: &'a Gguf, name: &str, expected: &[u64]) -> Result<&'a TensorInfo, Error> {
    let tensor = file.tensor(name).ok_or_else(|| Error::MissingTensor {
        name: name.to_owned(),
        expected: expected.to_vec(),
    })?;
    if tensor.shape != expected {
        return Err(Error::TensorShape {
            name: name.to_owned(),
            found: tensor.shape.clone(),
            expected: expected.to_vec(),
        });
    }
    Ok(tensor)
}
