//! Sizes in memory. Invariant: arithmetic never wraps; a sum that is too large is the largest size, which fits nowhere.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};

use serde::{Deserialize, Serialize};

/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;

/// A size in bytes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest size, which fits nowhere.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes a size of a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Makes a size of a number of MiB.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(MIB))
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the MiB that hold this, rounded up.
    pub const fn ceil_mib(self) -> u64 {
        self.0.div_ceil(MIB)
    }

    /// Returns the whole MiB in this, rounded down.
    pub const fn floor_mib(self) -> u64 {
        self.0 / MIB
    }

    /// Returns the smallest whole number of MiB that holds this.
    #[must_use]
    pub const fn up_to_mib(self) -> Self {
        Self::from_mib(self.ceil_mib())
    }

    /// Returns what is left after `part` is taken away; nothing where `part` is the larger.
    #[must_use]
    pub const fn left_after(self, part: Self) -> Self {
        Self(self.0.saturating_sub(part.0))
    }
}

impl Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;

    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Self::add)
    }
}

impl fmt::Display for Bytes {
    /// Writes the size with three digits in the largest unit of which it has at least one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")];
        let Some((unit, name)) = units.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return write!(f, "{} B", self.0);
        };
        let hundredths = u128::from(self.0) * 100 / u128::from(unit);
        match hundredths {
            0..1_000 => write!(f, "{}.{:02} {name}", hundredths / 100, hundredths % 100),
            1_000..10_000 => write!(f, "{}.{} {name}", hundredths / 100, hundredths / 10 % 10),
            _ => write!(f, "{} {name}", hundredths / 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, MIB};

    #[test]
    fn sizes_are_written_with_three_digits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (MIB + MIB / 2, "1.50 MiB"),
            (12 * MIB + 800 * 1024, "12.7 MiB"),
            (700 * MIB, "700 MiB"),
            (4_198_000_000, "3.90 GiB"),
            (u64::MAX, "17179869183 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }

    #[test]
    fn sums_that_are_too_large_are_the_largest_size() {
        let half = Bytes::new(1 << 63);
        assert_eq!(half + half, Bytes::MAX);
        assert_eq!([half, half, half].into_iter().sum::<Bytes>(), Bytes::MAX);
        assert_eq!(half * 2, Bytes::MAX);
        assert_eq!(Bytes::from_mib(u64::MAX), Bytes::MAX);
        assert_eq!(Bytes::MAX.ceil_mib(), (u64::MAX / MIB) + 1);
    }

    #[test]
    fn sizes_round_up_to_mib() {
        assert_eq!(Bytes::new(MIB + 1).ceil_mib(), 2);
        assert_eq!(Bytes::new(MIB).ceil_mib(), 1);
        assert_eq!(Bytes::new(1).up_to_mib(), Bytes::from_mib(1));
    }
}
