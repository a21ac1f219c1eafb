//! The tiles of AMX: how a process comes by them, and their instructions.
//!
//! Invariant: [`found`] is true only where the processor has them, the system saves them for this
//! process's threads, and a product by them was right. There are no intrinsics for them, so the
//! instructions are written out. Tiles belong to the thread that configured them.
#![expect(unsafe_code, reason = "instructions without intrinsics")]

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max, _xgetbv};
use std::sync::LazyLock;

use super::Amx;
use super::tiles::{Shapes, TILE_ROW_BYTES, TILE_ROWS, Tiles, multiply_rightly};

/// Returns whether this process can use tiles of signed bytes; asks the system once.
pub(super) fn found() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| {
        processor_has_tiles() && system_saves_tiles() && multiply_rightly(&mut Instructions(()))
    });
    *FOUND
}

/// Asks for the tiles themselves, products of bytes, and eight tiles of 16 rows of 64 bytes.
fn processor_has_tiles() -> bool {
    const TILES: u32 = 1 << 24;
    const BYTES: u32 = 1 << 25;
    if __get_cpuid_max(0).0 < 0x1d || __cpuid_count(7, 0).edx & (TILES | BYTES) != TILES | BYTES {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    let (row_bytes, names) = (palette.ebx & 0xffff, palette.ebx >> 16);
    let rows = palette.ecx & 0xffff;
    (row_bytes as usize, names, rows as usize) == (TILE_ROW_BYTES, 8, TILE_ROWS)
}

/// Asks whether the system keeps tiles when it changes threads, and for the permission to use them.
fn system_saves_tiles() -> bool {
    const TILE_STATES: u64 = 0b11 << 17;
    if !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: the feature was found, and where programs are told of it register 0 exists.
    let states = unsafe { _xgetbv(0) };
    states & TILE_STATES == TILE_STATES && permitted()
}

/// Asks for the permission, which is the whole process's: also threads that run already have it.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let error: u64;
    // SAFETY: the call reads and writes no memory of ours; it changes the registers that are named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => error,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    error == 0
}

/// Tiles are used where it is known how to ask for them.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Runs an instruction that changes tiles; they keep their values from one to the next, since the
/// compiler knows no tiles and never touches them.
macro_rules! tiles_asm {
    ($($part:tt)*) => {
        asm!(
            $($part)*,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags),
        )
    };
}

/// The tiles of this thread.
pub(crate) struct Instructions(());

impl Instructions {
    /// Returns the tiles of the thread that runs; two of them are the same tiles.
    pub(crate) fn new(_: Amx) -> Self {
        Self(())
    }
}

impl Tiles for Instructions {
    #[inline]
    fn configure(&mut self, shapes: &Shapes) {
        // SAFETY: 64 bytes are read, which `shapes` has.
        unsafe { tiles_asm!("ldtilecfg [{shapes}]", shapes = in(reg) shapes) }
    }

    #[inline]
    fn zero<const TILE: u8>(&mut self) {
        // SAFETY: no memory is read or written.
        unsafe { tiles_asm!("tilezero tmm{tile}", tile = const TILE) }
    }

    #[inline]
    unsafe fn load<const TILE: u8>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller says that the rows may be read.
        unsafe {
            tiles_asm!(
                "tileloadd tmm{tile}, [{from} + {stride}*1]",
                tile = const TILE,
                from = in(reg) from,
                stride = in(reg) stride
            );
        }
    }

    #[inline]
    unsafe fn store<const TILE: u8>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the caller says that the rows may be written.
        unsafe {
            tiles_asm!(
                "tilestored [{to} + {stride}*1], tmm{tile}",
                tile = const TILE,
                to = in(reg) to,
                stride = in(reg) stride
            );
        }
    }

    #[inline]
    fn multiply<const SUM: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: no memory is read or written.
        unsafe {
            tiles_asm!("tdpbssd tmm{sum}, tmm{a}, tmm{b}", sum = const SUM, a = const A, b = const B);
        }
    }

    #[inline]
    fn release(&mut self) {
        // SAFETY: no memory is read or written.
        unsafe { tiles_asm!("tilerelease") }
    }
}
