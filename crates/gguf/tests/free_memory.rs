//! Freed memory goes back to the system, and what is in use stays as it is; alone in its process, or others would count.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs;

use toko_gguf::give_back_free_memory;

const PIECES: usize = 64 << 10;
const PIECE_BYTES: usize = 1 << 10;

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has a size");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn what_was_freed_goes_back_and_what_is_in_use_stays() {
    let mut pieces: Vec<Vec<u8>> =
        (0..PIECES).map(|index| vec![index.to_le_bytes()[0] | 1; PIECE_BYTES]).collect();
    let full = resident_bytes();
    // One in a hundred stays, so that what is free lies between what is in use.
    let mut index = 0;
    pieces.retain(|_| {
        index += 1;
        index % 100 == 0
    });
    give_back_free_memory();
    let left = resident_bytes();
    assert!(left + PIECES * PIECE_BYTES / 2 < full, "{left} of {full} bytes are still there");
    for (position, piece) in pieces.iter().enumerate() {
        let expected = (position * 100 + 99).to_le_bytes()[0] | 1;
        assert!(piece.iter().all(|byte| *byte == expected), "piece {position}");
    }
}
