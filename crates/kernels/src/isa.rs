//! The instruction sets a build can use, and the proof that this machine has them.
//!
//! Invariant: a token ([`Avx2`], [`Avx512`], `Neon`) exists only after detection found every
//! feature it stands for, so code that holds one may run that code. Knows no formats.

use std::fmt;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod lanes;
pub(crate) mod tiered;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

/// Proof that the machine has AVX2, F16C and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Proof that the machine has AVX-VNNI and all of [`Avx2`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvxVnni(Avx2);

/// Proof that the machine has AVX-512 F, BW, DQ, VL, VNNI and VBMI, GFNI, and all of [`Avx2`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

/// Proof that this process may use AMX tiles of bytes, and of all of [`Avx512`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amx(Avx512);

/// Proof that the machine has NEON.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

/// Proof that the machine has the dot products of bytes and all of [`Neon`].
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeonDot(Neon);

/// Names the instruction set a kernel is written for; all tiers give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Plain scalar code: what every other tier must equal.
    Reference,
    /// 256-bit integer vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 256-bit integer vectors with dot products of words.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// 512-bit vectors with dot products of bytes and bit matrices.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// Matrix tiles of bytes for many tokens, and else 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// 128-bit vectors of 64-bit Arm.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// 128-bit vectors of 64-bit Arm with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDot(NeonDot),
}

impl Tier {
    /// Returns every tier this machine can run, slowest first; the first is always `Reference`.
    pub fn available() -> Vec<Self> {
        let mut tiers = vec![Self::Reference];
        #[cfg(target_arch = "x86_64")]
        {
            tiers.extend(Avx2::detect().map(Self::Avx2));
            tiers.extend(AvxVnni::detect().map(Self::AvxVnni));
            tiers.extend(Avx512::detect().map(Self::Avx512));
            tiers.extend(Amx::detect().map(Self::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        {
            tiers.extend(Neon::detect().map(Self::Neon));
            tiers.extend(NeonDot::detect().map(Self::NeonDot));
        }
        tiers
    }

    /// Returns the fastest tier this machine can run.
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Reference)
    }

    /// Returns the tier of this machine that has a name, as [`Self::name`] spells it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|tier| tier.name() == name)
    }

    /// Returns the proof of AVX-512 that the tier has.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn avx512(self) -> Option<Avx512> {
        match self {
            Self::Avx512(isa) => Some(isa),
            Self::Amx(isa) => Some(isa.vectors()),
            _ => None,
        }
    }

    /// Returns the lower-case name: `reference`, `avx2`, `avx-vnni`, `avx512`, `amx`,
    /// `neon` or `neon-dot`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot(_) => "neon-dot",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma"))
        .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl AvxVnni {
    fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }

    /// Returns the proof of the vectors that have the dot products.
    pub(crate) fn vectors(self) -> Avx2 {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    fn detect() -> Option<Self> {
        (Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("gfni"))
        .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Amx {
    fn detect() -> Option<Self> {
        Avx512::detect().filter(|_| amx::found()).map(Self)
    }

    /// Returns the proof of the vectors that come with the tiles.
    pub(crate) fn vectors(self) -> Avx512 {
        self.0
    }
}

#[cfg(target_arch = "aarch64")]
impl Neon {
    fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

#[cfg(target_arch = "aarch64")]
impl NeonDot {
    fn detect() -> Option<Self> {
        Neon::detect().filter(|_| std::arch::is_aarch64_feature_detected!("dotprod")).map(Self)
    }

    /// Returns the proof of the vectors that have the dot products.
    pub(crate) fn vectors(self) -> Neon {
        self.0
    }
}
