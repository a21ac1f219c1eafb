//! Compiles one plain function once per instruction set and picks the copy by the tier.
//!
//! Invariant: all copies give the same bits. The function fixes the order of its operations by
//! explicit lanes, and the compiler neither reorders float operations nor fuses a multiplication
//! with an addition, so wider vectors change the speed only. Knows nothing of what is computed.

/// Defines a function that takes a [`Tier`](super::Tier) and the arguments of `$body`, an
/// `#[inline(always)]` function, and runs the copy of `$body` compiled for the tier.
///
/// A generic function over closures would be shorter, but the compiler leaves large closures
/// outside of the copies, where they are compiled without the tier's instructions.
macro_rules! tiered {
    ($vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $body:expr) => {
        $vis fn $name(tier: $crate::isa::Tier, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c")]
            fn avx2($($arg: $type),*) {
                $body($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            fn avx512($($arg: $type),*) {
                $body($($arg),*);
            }
            match tier {
                $crate::isa::Tier::Reference => $body($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Tier::Avx2(_) => {
                    #[expect(unsafe_code, reason = "the call into code for detected features")]
                    // SAFETY: the token exists, so `Avx2::detect` found the features of `avx2`.
                    unsafe {
                        avx2($($arg),*);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Tier::Avx512(_) => {
                    #[expect(unsafe_code, reason = "the call into code for detected features")]
                    // SAFETY: the token exists, so `Avx512::detect` found those of `avx512`.
                    unsafe {
                        avx512($($arg),*);
                    }
                }
                // NEON is part of what every 64-bit Arm target compiles for.
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Tier::Neon(_) => $body($($arg),*),
            }
        }
    };
}
pub(crate) use tiered;
