//! A split model is opened by its first file, and only whole.
#![expect(clippy::unwrap_used, reason = "a test stops where its own material is wrong")]

use std::path::PathBuf;

use toko_gguf::tensor::TensorType;
use toko_gguf::write::Writer;
use toko_gguf::{Error, Gguf};

/// A folder with `model-0000N-of-00003.gguf`; each part holds one tensor of 8 floats, all of its number.
struct Parts {
    folder: tempfile::TempDir,
}

impl Parts {
    fn new() -> Self {
        let parts = Self { folder: tempfile::tempdir().unwrap() };
        for number in 1..=3 {
            parts.write(number, |_| ());
        }
        parts
    }

    fn path(&self, number: u16) -> PathBuf {
        self.folder.path().join(format!("model-{number:05}-of-00003.gguf"))
    }

    fn write(&self, number: u16, change: impl FnOnce(&mut Part)) {
        let mut part =
            Part { number: number - 1, count: 3, tensors: 3, name: format!("t{number}") };
        change(&mut part);
        let mut writer = Writer::new();
        writer
            .set("split.no", part.number)
            .set("split.count", part.count)
            .set("split.tensors.count", part.tensors)
            .set("part", u32::from(number))
            .tensor(&part.name, &[8], TensorType::F32, vec![u8::try_from(number).unwrap(); 32]);
        writer.save(self.path(number)).unwrap();
    }

    fn open(&self) -> Result<Gguf, Error> {
        Gguf::open(self.path(1))
    }

    #[track_caller]
    fn check(&self, expected: &str) {
        let error = self.open().map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

struct Part {
    number: u16,
    count: u16,
    tensors: i32,
    name: String,
}

#[test]
fn the_first_part_opens_all_of_them() {
    let parts = Parts::new();
    let gguf = parts.open().unwrap();
    let names: Vec<&str> = gguf.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["t1", "t2", "t3"]);
    assert_eq!(gguf.metadata().u32("part").unwrap(), 1);
    for (shard, name) in names.into_iter().enumerate() {
        let tensor = gguf.tensor(name).unwrap();
        assert_eq!(tensor.shard, shard);
        assert_eq!(gguf.data(tensor)[..], vec![u8::try_from(shard + 1).unwrap(); 32]);
    }
}

#[test]
fn another_part_says_which_to_open() {
    let parts = Parts::new();
    let error = Gguf::open(parts.path(2)).unwrap_err().to_string();
    assert!(error.contains("is part 2 of 3"), "{error}");
    assert!(
        error.contains(&format!("open the first part, {}", parts.path(1).display())),
        "{error}"
    );
}

#[test]
fn a_missing_part_is_named() {
    let parts = Parts::new();
    std::fs::remove_file(parts.path(2)).unwrap();
    let error = parts.open().unwrap_err();
    let Error::MissingShard { number: 2, count: 3, path } = error else { panic!("{error}") };
    assert_eq!(path, parts.path(2));
    parts.check("part 2 of 3 of the model is missing");
}

#[test]
fn a_part_of_another_model_is_refused() {
    let parts = Parts::new();
    parts.write(3, |part| part.count = 4);
    parts.check("model-00003-of-00003.gguf: split.count is 4, expected 3");
    parts.write(3, |part| part.number = 1);
    parts.check("model-00003-of-00003.gguf: split.no is 1, expected 2");
}

#[test]
fn parts_with_fewer_tensors_than_stated_are_refused() {
    let parts = Parts::new();
    parts.write(1, |part| part.tensors = 4);
    parts.check("split.tensors.count is 4, expected 3");
}

#[test]
fn a_tensor_in_two_parts_is_refused() {
    let parts = Parts::new();
    parts.write(3, |part| "t1".clone_into(&mut part.name));
    parts.check("tensor name `t1` occurs in shard 1 and in shard 3");
}

#[test]
fn a_damaged_part_is_named() {
    let parts = Parts::new();
    let bytes = std::fs::read(parts.path(2)).unwrap();
    std::fs::write(parts.path(2), &bytes[..100]).unwrap();
    parts.check("model-00002-of-00003.gguf: ");
}

#[test]
fn a_part_under_another_name_is_told_its_own() {
    let parts = Parts::new();
    let renamed = parts.folder.path().join("renamed.gguf");
    std::fs::rename(parts.path(1), &renamed).unwrap();
    let error = Gguf::open(&renamed).unwrap_err().to_string();
    assert!(error.contains("expected one that ends in -00001-of-00003.gguf"), "{error}");
}

#[test]
fn a_part_in_memory_is_refused() {
    let bytes = std::fs::read(Parts::new().path(1)).unwrap();
    let error = Gguf::from_bytes(bytes).unwrap_err();
    assert!(matches!(error, Error::SplitInMemory { count: 3 }), "{error}");
}

#[test]
fn a_whole_model_may_state_a_split_of_one() {
    let mut writer = Writer::new();
    writer.set("split.no", 0_u16).set("split.count", 1_u16);
    assert!(Gguf::from_bytes(writer.into_bytes().unwrap()).is_ok());
}
