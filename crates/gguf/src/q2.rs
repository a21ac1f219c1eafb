//! Which of three layouts the tensors of type id 42 (`Q2_0`) use in one file.
//!
//! Invariant: a layout is named only when the evidence fits it and no other; the offsets decide between
//! groups of 64 and 128, the blocks' scales between the two layouts of 128. It doesn't decode weights.

use crate::tensor::TensorInfo;

/// Names a layout of type id 42; codes are two bits, four to a byte, least significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Q2Layout {
    /// 64 weights in 18 bytes, the f16 scale first: upstream's `Q2_0`.
    Group64,
    /// 128 weights in 34 bytes, the f16 scale first: the older ternary Bonsai files.
    Group128ScaleFirst,
    /// 128 weights in 34 bytes, the f16 scale last: the `TQ2_0_g128` of `OxiBonsai`.
    Group128ScaleLast,
}

/// Says which layout the tensors of type id 42 have, and what decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Q2Choice {
    /// The layout of every tensor of this type in the file.
    pub layout: Q2Layout,
    /// The evidence in one sentence, without a final dot.
    pub why: String,
}

/// Says what speaks against every layout, or for more than one.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// Index of the tensor that shows it.
    pub(crate) tensor: usize,
    pub(crate) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Of64,
    Of128,
}

impl Group {
    fn bytes(self, tensor: &TensorInfo) -> Option<u64> {
        let (elements, bytes) = match self {
            Self::Of64 => (64, 18),
            Self::Of128 => (128, BLOCK_BYTES as u64),
        };
        let fits = tensor.shape[0].is_multiple_of(elements);
        fits.then(|| (tensor.elements() / elements).checked_mul(bytes)).flatten()
    }
}

/// What the distance to the next tensor says about one tensor.
#[derive(Debug)]
pub(crate) struct Fit {
    /// Index of the tensor in the model.
    pub(crate) tensor: usize,
    /// From the tensor's start to the next tensor's, or to the end of the file.
    span: u64,
    /// The tensor's bytes, if the span fits groups of 64 and of 128.
    of_64: Option<u64>,
    of_128: Option<u64>,
}

impl Fit {
    pub(crate) fn new(tensor: &TensorInfo, index: usize, span: u64, alignment: u32) -> Self {
        // Padding to the alignment follows; behind the last tensor of a file it may be missing.
        let fitting = |group: Group| {
            group.bytes(tensor).filter(|&bytes| bytes <= span && span - bytes < alignment.into())
        };
        Self { tensor: index, span, of_64: fitting(Group::Of64), of_128: fitting(Group::Of128) }
    }

    /// The same fit, for a tensor that has `base` others before those of its file.
    pub(crate) fn shifted(self, base: usize) -> Self {
        Self { tensor: self.tensor + base, ..self }
    }

    /// The tensor's bytes under a group, if its span fits.
    pub(crate) fn bytes(&self, group: Group) -> Option<u64> {
        match group {
            Group::Of64 => self.of_64,
            Group::Of128 => self.of_128,
        }
    }
}

/// Decides the size of the groups for all tensors of a model; `None` if it has none of this type.
pub(crate) fn group(fits: &[Fit]) -> Option<Result<Group, Refusal>> {
    let first = fits.first()?;
    let unfit = |group| fits.iter().find(|fit| fit.bytes(group).is_none());
    let decided = match (unfit(Group::Of64), unfit(Group::Of128)) {
        (None, Some(_)) => Ok(Group::Of64),
        (Some(_), None) => Ok(Group::Of128),
        (None, None) => Err(Refusal {
            tensor: first.tensor,
            why: "its bytes fit 18 per 64 weights and 34 per 128 weights alike".to_owned(),
        }),
        (Some(fit), Some(other)) if fit.tensor == other.tensor => Err(Refusal {
            tensor: fit.tensor,
            why: format!("its {} bytes fit neither 18 per 64 nor 34 per 128 weights", fit.span),
        }),
        (Some(fit), Some(_)) => Err(Refusal {
            tensor: fit.tensor,
            why: format!(
                "its {} bytes don't fit 18 per 64 weights, those of others not 34 per 128",
                fit.span
            ),
        }),
    };
    Some(decided)
}

/// Bytes of a block of 128 weights in either layout.
const BLOCK_BYTES: usize = 34;
const SCALE_BYTES: usize = 2;
/// A ternary scale is the mean magnitude of 128 weights; codes read as a scale exceed this soon.
const HIGHEST_SCALE: f32 = 8.0;
const SAMPLED_TENSORS: usize = 8;
const SAMPLED_BLOCKS: usize = 64;

/// What the sampled blocks say about one layout.
#[derive(Default)]
struct Evidence {
    blocks: usize,
    odd_scales: usize,
    blocks_with_code_3: usize,
}

impl Evidence {
    fn add(&mut self, scale: [u8; SCALE_BYTES], codes: &[u8]) {
        self.blocks += 1;
        self.odd_scales += usize::from(!is_plausible(u16::from_le_bytes(scale)));
        // Both bits of some code are set.
        let has_code_3 = codes.iter().any(|&byte| byte & (byte >> 1) & 0x55 != 0);
        self.blocks_with_code_3 += usize::from(has_code_3);
    }
}

/// Decides between the layouts of 128 from the tensors' blocks; `tensors`: index and bytes of each.
pub(crate) fn layout_of_128(tensors: &[(usize, &[u8])]) -> Result<Q2Choice, Refusal> {
    let (mut first, mut last) = (Evidence::default(), Evidence::default());
    for (_, data) in spread(tensors.len(), SAMPLED_TENSORS).map(|index| tensors[index]) {
        let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
        for block in spread(blocks.len(), SAMPLED_BLOCKS).map(|index| &blocks[index]) {
            first.add([block[0], block[1]], &block[SCALE_BYTES..]);
            last.add([block[32], block[33]], &block[..BLOCK_BYTES - SCALE_BYTES]);
        }
    }
    let candidates = [
        (Q2Layout::Group128ScaleFirst, "first", &first, &last),
        (Q2Layout::Group128ScaleLast, "last", &last, &first),
    ];
    let tests: [fn(&Evidence) -> bool; 2] =
        [|e| e.odd_scales == 0, |e| e.odd_scales == 0 && e.blocks_with_code_3 == 0];
    for test in tests {
        let chosen = candidates.iter().find(|(_, _, own, other)| test(own) && !test(other));
        if let Some((layout, end, own, other)) = chosen {
            let why = format!(
                "the tensors take 34 bytes per 128 weights, and in {} sampled blocks the scale can only \
                 lie {end}: read the other way, {} have an impossible scale and {} hold code 3",
                own.blocks, other.odd_scales, other.blocks_with_code_3
            );
            return Ok(Q2Choice { layout: *layout, why });
        }
    }
    Err(Refusal {
        tensor: tensors.first().map_or(0, |(index, _)| *index),
        why: format!(
            "of {} sampled blocks of 34 bytes, {} have an impossible scale at the front and {} at the end",
            first.blocks, first.odd_scales, last.odd_scales
        ),
    })
}

/// At most `wanted` indices below `len`, spread evenly and including the first.
fn spread(len: usize, wanted: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(len.div_ceil(wanted).max(1))
}

/// Whether an f16 can be the scale of a ternary block: finite and of small magnitude.
fn is_plausible(bits: u16) -> bool {
    let (exponent, mantissa) = ((bits >> 10) & 0x1f, f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => mantissa / 1024.0 * 2.0_f32.powi(-14),
        0x1f => f32::INFINITY,
        _ => (1.0 + mantissa / 1024.0) * 2.0_f32.powi(i32::from(exponent) - 15),
    };
    magnitude < HIGHEST_SCALE
}
