//! What is written is read back, and a file appears whole or not at all.
#![expect(clippy::unwrap_used, reason = "a test stops where its own material is wrong")]

use std::io;

use proptest::prelude::*;
use toko_fixtures::{embedded_model_path, golden_path};
use toko_gguf::Gguf;
use toko_gguf::tensor::TensorType;
use toko_gguf::value::Value;
use toko_gguf::write::Writer;

fn copy_of(gguf: &Gguf) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        writer.copy(key, value);
    }
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, &tensor.shape, tensor.kind, gguf.data(tensor).to_vec());
    }
    writer.into_bytes().unwrap()
}

#[test]
fn a_copy_of_a_file_made_elsewhere_is_the_same_file() {
    for path in [embedded_model_path(), golden_path("tiny/tiny-qwen3.Q4_K_M.gguf")] {
        let original = std::fs::read(&path).unwrap();
        let copy = copy_of(&Gguf::open(&path).unwrap());
        assert!(copy == original, "{} differs", path.display());
    }
}

#[test]
fn the_bytes_of_a_small_file_are_those_of_the_format() {
    let mut writer = Writer::new();
    writer.set("n", 258_u16).tensor("t", &[2, 1], TensorType::F32, vec![9; 8]);
    let expected = [
        b"GGUF\x03\0\0\0".as_slice(),
        b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        b"\x01\0\0\0\0\0\0\0n\x02\0\0\0\x02\x01",
        b"\x01\0\0\0\0\0\0\0t\x02\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        &[0; 16],
        &[9; 8],
        &[0; 24],
    ]
    .concat();
    assert_eq!(writer.into_bytes().unwrap(), expected);
}

#[test]
fn a_larger_alignment_is_obeyed() {
    let mut writer = Writer::new();
    writer.set("general.alignment", 256_u32).tensor("a", &[1], TensorType::I8, vec![1]).tensor(
        "b",
        &[1],
        TensorType::I8,
        vec![2],
    );
    let gguf = Gguf::from_bytes(writer.into_bytes().unwrap()).unwrap();
    assert_eq!(gguf.alignment(), 256);
    let offsets: Vec<u64> = gguf.tensors().iter().map(|tensor| tensor.offset).collect();
    assert_eq!(offsets, [256, 512]);
    assert_eq!(gguf.data(&gguf.tensors()[1])[..], [2]);
}

#[track_caller]
fn check_refused(fill: impl FnOnce(&mut Writer<'_>), expected: &str) {
    let mut writer = Writer::new();
    fill(&mut writer);
    let error = writer.into_bytes().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_the_reader_would_refuse_is_not_written() {
    let f32 = TensorType::F32;
    check_refused(
        |w| {
            w.set("k", 1_u8).set("k", 2_u8).set("l", 0_u8);
        },
        "`k`: it was set twice",
    );
    check_refused(
        |w| {
            w.set("", 1_u8);
        },
        "1 to 65535 bytes",
    );
    check_refused(
        |w| {
            w.set("general.alignment", 24_u32);
        },
        "power of two",
    );
    check_refused(
        |w| {
            w.set("general.alignment", 32_u64);
        },
        "must be a u32",
    );
    let twice = |w: &mut Writer<'_>| {
        w.tensor("t", &[1], f32, vec![0; 4]).tensor("t", &[1], f32, vec![0; 4]);
    };
    check_refused(twice, "`t`: the name was used twice");
    check_refused(
        |w| {
            w.tensor("", &[1], f32, vec![0; 4]);
        },
        "1 to 255 bytes",
    );
    check_refused(
        |w| {
            w.tensor("t", &[2, 0], f32, vec![]);
        },
        "extents above 0",
    );
    check_refused(
        |w| {
            w.tensor("t", &[1; 5], f32, vec![0; 4]);
        },
        "1 to 4 extents",
    );
    check_refused(
        |w| {
            w.tensor("t", &[1 << 40, 1 << 40], f32, vec![0; 4]);
        },
        "extents",
    );
    check_refused(
        |w| {
            w.tensor("t", &[3], f32, vec![0; 11]);
        },
        "11 bytes are not those of",
    );
    let row = |w: &mut Writer<'_>| {
        w.tensor("t", &[16, 2], TensorType::Q4_0, vec![0; 18]);
    };
    check_refused(row, "in Q4_0");
    let short = |w: &mut Writer<'_>| {
        w.streamed_tensor("t", &[2], f32, 8, |out| out.write_all(&[0; 4]));
    };
    check_refused(short, "8 bytes were announced, 4 produced");
}

#[test]
fn streamed_data_is_produced_in_order_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("streamed.gguf");
    let order = std::cell::RefCell::new(Vec::new());
    let mut writer = Writer::new();
    for number in 1..=3_u8 {
        let order = &order;
        writer.streamed_tensor(&format!("t{number}"), &[10], TensorType::F32, 40, move |out| {
            order.borrow_mut().push(number);
            (0..40).try_for_each(|_| out.write_all(&[number]))
        });
    }
    writer.save(&path).unwrap();
    assert_eq!(order.into_inner(), [1, 2, 3]);
    let gguf = Gguf::open(&path).unwrap();
    for (number, tensor) in (1..).zip(gguf.tensors()) {
        assert_eq!(gguf.data(tensor)[..], [number; 40]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_failed_save_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, b"old").unwrap();
    let mut writer = Writer::new();
    writer.streamed_tensor("t", &[2], TensorType::F32, 8, |out| {
        out.write_all(&[1; 4])?;
        Err(io::Error::other("the source is gone"))
    });
    let error = writer.save(&path).unwrap_err().to_string();
    assert!(error.contains("model.gguf: cannot write: the source is gone"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_not_there_is_an_error_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent").join("model.gguf");
    let error = Writer::new().save(&path).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    assert!(error.contains("cannot create the .part file"), "{error}");
}

#[derive(Clone, Debug)]
enum Sample {
    Integers(u8, i16, u64, i64),
    Floats(f32, f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<i32>),
    Nested(Vec<Vec<f32>>),
}

impl Sample {
    fn write(&self, key: &str, writer: &mut Writer<'_>) {
        match self {
            Self::Integers(a, b, c, d) => {
                writer.set(&format!("{key}.u8"), *a).set(&format!("{key}.i16"), *b);
                writer.set(&format!("{key}.u64"), *c).set(&format!("{key}.i64"), *d);
            }
            Self::Floats(a, b) => {
                writer.set(&format!("{key}.f32"), *a).set(&format!("{key}.f64"), *b);
            }
            Self::Bool(v) => {
                writer.set(key, *v);
            }
            Self::Text(v) => {
                writer.set(key, v);
            }
            Self::Texts(v) => {
                writer.set(key, v);
            }
            Self::Numbers(v) => {
                writer.set(key, v);
            }
            Self::Nested(v) => {
                writer.set(key, v);
            }
        }
    }

    fn check(&self, key: &str, gguf: &Gguf) {
        let meta = gguf.metadata();
        let part = |suffix: &str| meta.get(&format!("{key}.{suffix}")).unwrap();
        match self {
            Self::Integers(a, b, c, d) => {
                assert_eq!((part("u8"), part("i16")), (Value::U8(*a), Value::I16(*b)));
                assert_eq!((part("u64"), part("i64")), (Value::U64(*c), Value::I64(*d)));
            }
            Self::Floats(a, b) => {
                let (Value::F32(x), Value::F64(y)) = (part("f32"), part("f64")) else {
                    panic!("floats of either width")
                };
                assert_eq!((x.to_bits(), y.to_bits()), (a.to_bits(), b.to_bits()));
            }
            Self::Bool(v) => assert_eq!(meta.bool(key).unwrap(), *v),
            Self::Text(v) => assert_eq!(meta.str(key).unwrap(), v),
            Self::Texts(v) => assert_eq!(meta.string_array(key).unwrap(), *v),
            Self::Numbers(v) => assert_eq!(meta.i32_array(key).unwrap(), *v),
            Self::Nested(v) => {
                let Some(Value::Array(outer)) = meta.get(key) else { panic!("an array") };
                let read: Vec<Vec<u32>> = outer
                    .iter()
                    .map(|inner| {
                        let Value::Array(inner) = inner else { panic!("an array") };
                        inner.iter().map(|leaf| leaf.as_f32().unwrap().to_bits()).collect()
                    })
                    .collect();
                let bits = |inner: &Vec<f32>| inner.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(read, v.iter().map(bits).collect::<Vec<_>>());
            }
        }
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    prop_oneof![
        any::<(u8, i16, u64, i64)>().prop_map(|(a, b, c, d)| Sample::Integers(a, b, c, d)),
        any::<(f32, f64)>().prop_map(|(a, b)| Sample::Floats(a, b)),
        any::<bool>().prop_map(Sample::Bool),
        ".{0,40}".prop_map(Sample::Text),
        prop::collection::vec(".{0,9}", 0..20).prop_map(Sample::Texts),
        prop::collection::vec(any::<i32>(), 0..50).prop_map(Sample::Numbers),
        prop::collection::vec(prop::collection::vec(any::<f32>(), 0..4), 0..5)
            .prop_map(Sample::Nested),
    ]
}

/// A type, a shape that it allows, and a byte that fills the data.
fn tensor() -> impl Strategy<Value = (TensorType, Vec<u64>, u8)> {
    const KINDS: [(TensorType, u64); 6] = [
        (TensorType::F32, 1),
        (TensorType::BF16, 1),
        (TensorType::Q8_0, 32),
        (TensorType::Q6_K, 256),
        (TensorType::Q1_0, 128),
        (TensorType(77), 5),
    ];
    let shape = (1_u64..5, prop::collection::vec(1_u64..4, 0..4));
    (prop::sample::select(&KINDS[..]), shape, any::<u8>()).prop_map(
        |((kind, block), shape, byte)| {
            let (blocks, outer) = shape;
            (kind, [vec![blocks * block], outer].concat(), byte)
        },
    )
}

fn data((kind, shape, byte): &(TensorType, Vec<u64>, u8)) -> Vec<u8> {
    let elements: u64 = shape.iter().product();
    let bytes = kind.block().map_or(elements, |block| elements / block.elements * block.bytes);
    vec![*byte; usize::try_from(bytes).unwrap()]
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_back(
        samples in prop::collection::vec(sample(), 0..12),
        tensors in prop::collection::vec(tensor(), 0..8),
        alignment in prop::sample::select(&[1_u32, 8, 32, 64, 4096][..]),
    ) {
        let write = || {
            let mut writer = Writer::new();
            writer.set("general.alignment", alignment);
            for (index, sample) in samples.iter().enumerate() {
                sample.write(&format!("key.{index}"), &mut writer);
            }
            for (index, tensor) in tensors.iter().enumerate() {
                writer.tensor(&format!("tensor {index}"), &tensor.1, tensor.0, data(tensor));
            }
            writer.into_bytes().unwrap()
        };
        let bytes = write();
        prop_assert_eq!(&bytes, &write());
        let gguf = Gguf::from_bytes(bytes).unwrap();
        prop_assert_eq!(gguf.alignment(), alignment);
        for (index, sample) in samples.iter().enumerate() {
            sample.check(&format!("key.{index}"), &gguf);
        }
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            let info = gguf.tensor(&format!("tensor {index}")).unwrap();
            prop_assert_eq!((info.kind, &info.shape), (tensor.0, &tensor.1));
            let expected = data(tensor);
            let read = gguf.data(info);
            // The end of a tensor of an unknown type is not known, only that of its padding.
            prop_assert_eq!(&read[..expected.len()], &expected[..]);
            prop_assert!(info.kind.block().is_none() || read.len() == expected.len());
        }
    }
}
