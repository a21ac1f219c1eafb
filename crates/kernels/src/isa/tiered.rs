//! Compiles one plain function once per instruction set and picks the copy by the tier.
//!
//! Invariant: all copies give the same bits. The function fixes the order of its operations by
//! explicit lanes, and the compiler neither reorders float operations nor fuses a multiplication
//! with an addition, so wider vectors change the speed only. Knows nothing of what is computed.

/// Defines a function that takes a [`Tier`](super::Tier) and the arguments of `$body`, an
/// `#[inline(always)]` function, and runs the copy of `$body` compiled for the tier.
///
/// With `in lanes`, `$body` is generic over [`Lanes`](super::lanes::Lanes) first and takes their
/// proof token before the arguments.
///
/// A generic function over closures would be shorter, but the compiler leaves large closures
/// outside of the copies, where they are compiled without the tier's instructions.
macro_rules! tiered {
    ($vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $body:expr) => {
        $crate::isa::tiered::tiered!(@copies
            $vis fn $name($($arg: $type),*)
            plain $body($($arg),*),
            avx2 _isa => $body($($arg),*),
            avx512 _isa => $body($($arg),*),
            neon _isa => $body($($arg),*)
        );
    };
    (
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?)
            = $body:ident::<$element:ty> in lanes
    ) => {
        $crate::isa::tiered::tiered!(@copies
            $vis fn $name($($arg: $type),*)
            plain $body::<$crate::isa::lanes::Plain, $element>((), $($arg),*),
            avx2 isa => $body::<$crate::isa::lanes::Lanes256, $element>(isa, $($arg),*),
            avx512 isa => $body::<$crate::isa::lanes::Lanes512, $element>(isa, $($arg),*),
            neon isa => $body::<$crate::isa::lanes::Lanes128, $element>(isa, $($arg),*)
        );
    };
    (
        @copies $vis:vis fn $name:ident($($arg:ident: $type:ty),*)
        plain $plain:expr,
        avx2 $isa2:ident => $avx2:expr,
        avx512 $isa512:ident => $avx512:expr,
        neon $isa_neon:ident => $neon:expr
    ) => {
        $vis fn $name(tier: $crate::isa::Tier, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c,fma")]
            fn avx2($isa2: $crate::isa::Avx2, $($arg: $type),*) {
                $avx2;
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            fn avx512($isa512: $crate::isa::Avx512, $($arg: $type),*) {
                $avx512;
            }
            match tier {
                $crate::isa::Tier::Reference => $plain,
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Tier::Avx2(isa) => {
                    #[expect(unsafe_code, reason = "the call into code for detected features")]
                    // SAFETY: the token exists, so `Avx2::detect` found the features of `avx2`.
                    unsafe {
                        avx2(isa, $($arg),*);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Tier::AvxVnni(isa) => {
                    #[expect(unsafe_code, reason = "the call into code for detected features")]
                    // SAFETY: as above; `isa` has the token.
                    unsafe {
                        avx2(isa.vectors(), $($arg),*);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Tier::Avx512(isa) => {
                    #[expect(unsafe_code, reason = "the call into code for detected features")]
                    // SAFETY: the token exists, so `Avx512::detect` found those of `avx512`.
                    unsafe {
                        avx512(isa, $($arg),*);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Tier::Amx(isa) => {
                    #[expect(unsafe_code, reason = "the call into code for detected features")]
                    // SAFETY: as above; `isa` has the token.
                    unsafe {
                        avx512(isa.vectors(), $($arg),*);
                    }
                }
                // NEON is part of what every 64-bit Arm target compiles for.
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Tier::Neon($isa_neon) => $neon,
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Tier::NeonDot(isa) => {
                    let $isa_neon = isa.vectors();
                    $neon;
                }
            }
        }
    };
}
pub(crate) use tiered;
