//! Whatever a file claims, it leads to one error that names the place, or to a model; never to a panic.
#![expect(clippy::unwrap_used, reason = "a test stops where its own material is wrong")]

use std::path::Path;

use proptest::prelude::*;
use toko_fixtures::hostile;
use toko_gguf::tensor::TensorType;
use toko_gguf::write::Writer;
use toko_gguf::{Error, Gguf};

/// A file with every kind of value and a few tensors, small enough to be cut at every byte.
fn small_file() -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "none")
        .set("general.alignment", 32_u32)
        .set("a.number", 5_u64)
        .set("a.flag", true)
        .set("a.float", 0.25_f32)
        .set("words", ["one", "", "three"])
        .set("flags", [true, false])
        .set("nested", vec![vec![1_u8, 2], vec![], vec![3]])
        .tensor("first", &[8], TensorType::F32, vec![1; 32])
        .tensor("second", &[32, 2], TensorType::Q4_0, vec![2; 36])
        .tensor("third", &[64, 2], TensorType::Q2_0, vec![3; 36])
        .tensor("fourth", &[3], TensorType(999), vec![4; 7]);
    writer.into_bytes().unwrap()
}

/// Uses all that a file offers; what is wrong with it may only show as an error.
fn walk(bytes: Vec<u8>) -> Result<(), Error> {
    let gguf = Gguf::from_bytes(bytes)?;
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).unwrap().value_type(), value.value_type());
        let _shown = value.to_string();
        drop(gguf.metadata().string_array(key));
        drop(gguf.metadata().i32_array(key));
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.data(tensor).len() as u64, tensor.bytes);
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
    }
    drop(gguf.q2_layout());
    Ok(())
}

#[test]
fn every_hostile_file_is_refused_with_the_place() {
    let mut wrong = Vec::new();
    for (name, bytes, expected) in hostile::files() {
        let error = Gguf::from_bytes(bytes).expect_err(name).to_string();
        if !error.contains(expected) || error.contains('\n') || error.len() > 400 {
            wrong.push(format!("{name}: {error}, expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_that_make_no_model_can_still_be_shown() {
    for (name, bytes, _) in hostile::models() {
        walk(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn no_two_hostile_files_share_a_name() {
    let mut names: Vec<&str> = hostile::all().into_iter().map(|(name, ..)| name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn a_file_cut_anywhere_before_its_end_names_a_byte() {
    let whole = small_file();
    let needed = whole.len() - (32 - 7);
    walk(whole.clone()).unwrap();
    for len in 1..=needed - 7 {
        let error = walk(whole[..len].to_vec()).expect_err("a cut file is refused").to_string();
        assert!(error.contains(" at byte "), "cut to {len} bytes: {error}");
    }
}

#[test]
fn every_byte_may_have_every_extreme_value() {
    let whole = small_file();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at].wrapping_add(1)] {
            let mut changed = whole.clone();
            changed[at] = value;
            drop(walk(changed));
        }
    }
}

proptest! {
    #[test]
    fn random_changes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = small_file();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        drop(walk(bytes.clone()));
        bytes.truncate(cut.index(bytes.len()));
        drop(walk(bytes));
    }

    #[test]
    fn random_bytes_behind_a_header_never_panic(
        tensors in 0_u64..4,
        pairs in 0_u64..4,
        body in prop::collection::vec(prop_oneof![Just(0_u8), 0..13_u8, any::<u8>()], 0..400),
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(pairs.to_le_bytes());
        bytes.extend(body);
        drop(walk(bytes));
    }
}

#[track_caller]
fn check_path(path: &Path, expected: &str) {
    let error = Gguf::open(path).expect_err("it is no file").to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_is_no_regular_file_is_refused_by_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    check_path(folder.path(), "is a directory");
    check_path(&folder.path().join("absent.gguf"), "cannot open the file");
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    check_path(&empty, "is empty");
}

#[cfg(unix)]
#[test]
fn a_fifo_or_a_device_is_refused_without_waiting_for_it() {
    check_path(Path::new("/dev/zero"), "is a device");
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo.gguf");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    check_path(&fifo, "is a FIFO");
    let link = folder.path().join("link.gguf");
    std::os::unix::fs::symlink(&fifo, &link).unwrap();
    check_path(&link, "is a FIFO");
}
