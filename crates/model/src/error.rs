//! Why a GGUF file does not make a model that runs here.

/// What is wrong with a model's hyper-parameters or weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is missing or has the wrong type, or the file is damaged.
    #[error(transparent)]
    Gguf(#[from] toko_gguf::Error),
    /// The network is of a family that is not built in.
    #[error("general.architecture is {found:?}; this program runs llama, qwen2 and qwen3")]
    Architecture {
        /// The file's architecture.
        found: String,
    },
    /// A hyper-parameter has a value that makes no sense or is not supported.
    #[error("{key} is {found}; expected {expected}")]
    HyperParameter {
        /// The metadata key.
        key: String,
        /// The value found.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// Keys and values cannot be kept in the blocks that were asked for.
    #[error(
        "keys and values have {head_dim} numbers a head, which blocks of {block} do not divide; keep them as f16 or f32"
    )]
    KvBlocks {
        /// Numbers in one head.
        head_dim: usize,
        /// Numbers in one block.
        block: usize,
    },
    /// A tensor that the architecture needs is not in the file.
    #[error("tensor {name} is missing; expected shape {expected:?}")]
    MissingTensor {
        /// The tensor's name.
        name: String,
        /// Its shape, innermost dimension first.
        expected: Vec<u64>,
    },
    /// A tensor has the wrong shape.
    #[error("tensor {name} has shape {found:?}; expected {expected:?}")]
    TensorShape {
        /// The tensor's name.
        name: String,
        /// The shape found, innermost dimension first.
        found: Vec<u64>,
        /// The shape that the hyper-parameters ask for.
        expected: Vec<u64>,
    },
    /// The file has a weight that these decoders do not use, so its answers would be wrong.
    #[error("tensor {name} is not part of any decoder that this program runs")]
    UnknownTensor {
        /// The tensor's name.
        name: String,
    },
    /// A tensor is stored in a type that no kernel reads.
    #[error("tensor {name} is stored as {kind}, which cannot be computed with; {advice}")]
    TensorType {
        /// The tensor's name.
        name: String,
        /// The type's name and id.
        kind: String,
        /// What to do instead.
        advice: String,
    },
}
