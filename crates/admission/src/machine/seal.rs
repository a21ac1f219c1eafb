//! Text that shows whether it is whole: one line, then its checksum. Invariant: whatever was cut off, or changed in one
//! byte, does not open.

/// Returns the line with its checksum below it. The line must not contain a line break.
pub(crate) fn seal(line: &str) -> String {
    debug_assert!(!line.contains('\n'), "a sealed text is one line");
    format!("{line}\n{:016x}\n", checksum(line.as_bytes()))
}

/// Returns the line if it is whole.
pub(crate) fn open(sealed: &[u8]) -> Option<&str> {
    let mut lines = std::str::from_utf8(sealed).ok()?.split('\n');
    let (line, sum, end) = (lines.next()?, lines.next()?, lines.next()?);
    let is_whole = end.is_empty()
        && lines.next().is_none()
        && sum == format!("{:016x}", checksum(line.as_bytes()));
    is_whole.then_some(line)
}

/// FNV-1a with 64 bits. Each step is reversible, so a change of one byte always shows.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{checksum, open, seal};

    #[test]
    fn the_checksum_is_the_published_one() {
        // The vectors of the algorithm's authors.
        assert_eq!(checksum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(checksum(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn nothing_that_was_cut_or_changed_opens() {
        let sealed = seal("a line of text").into_bytes();
        assert_eq!(open(&sealed), Some("a line of text"));
        for length in 0..sealed.len() {
            assert_eq!(open(&sealed[..length]), None, "cut to {length}");
        }
        for (at, bit) in (0..sealed.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut changed = sealed.clone();
            changed[at] ^= 1 << bit;
            assert_eq!(open(&changed), None, "bit {bit} of byte {at}");
        }
        assert_eq!(open(&[sealed.clone(), sealed].concat()), None);
    }
}
