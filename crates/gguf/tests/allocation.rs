//! No file makes the reader allocate more than a little over its own size.
//!
//! A binary of its own with a single test, because the allocator counts for the whole process.

use peak_alloc::PeakAlloc;
use toko_fixtures::hostile;
use toko_gguf::Gguf;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// What a refusal may cost beside the file's bytes.
const ALLOWED_BYTES: usize = 64 << 10;

/// What the reader may hold for any file whatsoever.
const CEILING_BYTES: usize = 64 << 20;

/// As many of the smallest tensors as are accepted, the last with the name of the first.
fn full_directory() -> Vec<u8> {
    let count = 1_u64 << 16;
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    for index in 0..count {
        let name = format!("{:0>255}", index % (count - 1));
        bytes.extend(255_u64.to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(4_u32.to_le_bytes());
        bytes.extend([1_u64; 4].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend((32 * index).to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + 32 * 65_536, 0);
    bytes
}

/// As many of the smallest pairs as are accepted, the last with the key of the first.
fn full_metadata() -> Vec<u8> {
    let count = 1_u64 << 16;
    let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend(count.to_le_bytes());
    for index in 0..count {
        let key = format!("{:05}", index % (count - 1));
        bytes.extend(5_u64.to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend([0, 0, 0, 0, 1]);
    }
    bytes
}

/// The most bytes that were allocated at once while the file was refused, without the file itself.
#[track_caller]
fn peak_of_refusal(name: &str, bytes: Vec<u8>) -> (usize, String) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let error = Gguf::from_bytes(bytes).expect_err(name);
    (ALLOCATOR.peak_usage() - before, error.to_string())
}

#[test]
fn a_refused_file_costs_next_to_nothing() {
    for (name, bytes, _) in hostile::files() {
        let file_bytes = bytes.len();
        let (peak, error) = peak_of_refusal(name, bytes);
        assert!(peak <= ALLOWED_BYTES, "{name}: {peak} bytes for a file of {file_bytes}: {error}");
    }
    for (name, bytes) in [("directory", full_directory()), ("metadata", full_metadata())] {
        let (peak, error) = peak_of_refusal(name, bytes);
        assert!(error.contains("was already used at byte"), "{name}: {error}");
        assert!(peak <= CEILING_BYTES, "{name}: {peak} bytes");
    }
}
