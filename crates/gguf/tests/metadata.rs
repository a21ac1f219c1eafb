//! Values come out by type, and a wrong one is an error that names key, found and wanted.
#![expect(clippy::unwrap_used, reason = "a test stops where its own material is wrong")]

use toko_gguf::Gguf;
use toko_gguf::value::{Value, ValueType};
use toko_gguf::write::Writer;

fn with(fill: impl FnOnce(&mut Writer<'_>)) -> Gguf {
    let mut writer = Writer::new();
    fill(&mut writer);
    Gguf::from_bytes(writer.into_bytes().unwrap()).unwrap()
}

#[track_caller]
fn check<T: std::fmt::Debug>(result: Result<T, toko_gguf::Error>, message: &str) {
    assert_eq!(result.unwrap_err().to_string(), message);
}

#[test]
fn any_integer_that_fits_is_a_u32() {
    let gguf = with(|w| {
        w.set("u8", 7_u8).set("i16", 7_i16).set("u64", 7_u64).set("i64", 7_i64);
    });
    for key in ["u8", "i16", "u64", "i64"] {
        assert_eq!(gguf.metadata().u32(key).unwrap(), 7, "{key}");
        assert_eq!(gguf.metadata().u64(key).unwrap(), 7, "{key}");
    }
}

#[test]
fn an_integer_that_does_not_fit_is_shown_in_the_error() {
    let gguf = with(|w| {
        w.set("big", 1_u64 << 32).set("negative", -1_i32);
    });
    let meta = gguf.metadata();
    assert_eq!(meta.u64("big").unwrap(), 1 << 32);
    check(
        meta.u32("big"),
        "metadata key `big` at byte 39 is u64 4294967296, expected an integer that fits u32",
    );
    check(
        meta.u64("negative"),
        "metadata key `negative` at byte 67 is i32 -1, expected an integer that fits u64",
    );
}

#[test]
fn a_float_is_never_read_as_an_integer_nor_the_reverse() {
    let gguf = with(|w| {
        w.set("f", 1.5_f32).set("d", 2.5_f64).set("i", 1_u32);
    });
    let meta = gguf.metadata();
    assert!((meta.f32("f").unwrap() - 1.5).abs() < f32::EPSILON);
    assert!((meta.f32("d").unwrap() - 2.5).abs() < f32::EPSILON);
    check(meta.f32("i"), "metadata key `i` at byte 75 is u32 1, expected a float");
    check(
        meta.u32("f"),
        "metadata key `f` at byte 37 is f32 1.5, expected an integer that fits u32",
    );
}

#[test]
fn a_missing_key_is_named_and_an_optional_one_is_none() {
    let gguf = with(|w| {
        w.set("here", "text");
    });
    let meta = gguf.metadata();
    check(meta.u32("gone"), "metadata key `gone` is missing");
    check(meta.str("gone"), "metadata key `gone` is missing");
    check(meta.string_array("gone"), "metadata key `gone` is missing");
    assert!(meta.optional_u32("gone").unwrap().is_none());
    assert!(meta.optional_str("gone").unwrap().is_none());
    assert!(meta.optional_f32_array("gone").unwrap().is_none());
    check(
        meta.optional_u32("here"),
        "metadata key `here` at byte 48 is string \"text\", expected an integer that fits u32",
    );
}

#[test]
fn an_array_of_another_type_is_refused_even_when_it_is_empty() {
    let gguf = with(|w| {
        w.set("scores", [1_u8, 2]).set("none", Vec::<u8>::new()).set("floats", [0.5_f32]);
    });
    let meta = gguf.metadata();
    check(
        meta.f32_array("scores"),
        "metadata key `scores` at byte 54 is array of 2 u8, expected an array of floats",
    );
    assert!(meta.f32_array("none").is_err());
    assert_eq!(meta.i32_array("none").unwrap(), Vec::<i32>::new());
    assert_eq!(meta.i32_array("scores").unwrap(), [1, 2]);
    assert!(meta.i32_array("floats").is_err());
    assert!(meta.string_array("floats").is_err());
    assert!(meta.str("floats").is_err());
}

#[test]
fn an_element_that_does_not_fit_refuses_the_array() {
    let gguf = with(|w| {
        w.set("ids", [1_u32, u32::MAX]);
    });
    check(
        gguf.metadata().i32_array("ids"),
        "metadata key `ids` at byte 51 is array of 2 u32, expected an array of integers that fit i32",
    );
}

#[test]
fn text_that_is_not_utf8_keeps_its_bytes() {
    let gguf = with(|w| {
        w.copy("text", Value::String(b"\xff\x00a"));
    });
    let meta = gguf.metadata();
    assert_eq!(meta.get("text"), Some(Value::String(b"\xff\x00a")));
    check(meta.str("text"), "metadata key `text` at byte 48 is not valid UTF-8");
}

#[test]
fn a_broken_string_in_an_array_is_named_by_its_index() {
    let mut writer = Writer::new();
    writer.set("words", ["one", "twXo", "three"]);
    let mut bytes = writer.into_bytes().unwrap();
    let at = bytes.iter().position(|&byte| byte == b'X').unwrap();
    bytes[at] = 0xff;
    let gguf = Gguf::from_bytes(bytes).unwrap();
    check(
        gguf.metadata().string_array("words"),
        "metadata key `words[1]` at byte 53 is not valid UTF-8",
    );
    let Some(Value::Array(array)) = gguf.metadata().get("words") else { panic!("an array") };
    assert_eq!(array.iter().nth(1), Some(Value::String(b"tw\xffo")));
}

#[test]
fn nested_arrays_yield_their_elements() {
    let gguf = with(|w| {
        w.set("nested", vec![vec![vec![1_i16, -2]], vec![], vec![vec![3], vec![]]]);
    });
    let Some(Value::Array(outer)) = gguf.metadata().get("nested") else { panic!("an array") };
    assert_eq!((outer.len(), outer.element_type()), (3, ValueType::Array));
    let mut leaves = Vec::new();
    for middle in outer.iter() {
        let Value::Array(middle) = middle else { panic!("an array") };
        for inner in middle.iter() {
            let Value::Array(inner) = inner else { panic!("an array") };
            leaves.push(inner.iter().map(|leaf| leaf.as_integer().unwrap()).collect::<Vec<_>>());
        }
    }
    assert_eq!(leaves, [vec![1, -2], vec![3], vec![]]);
}

#[test]
fn keys_come_in_file_order_and_are_found_in_any() {
    let keys = ["zeta", "alpha", "mid", "a", "zz", "alphabet"];
    let gguf = with(|w| {
        for (index, key) in (0_u32..).zip(keys) {
            w.set(key, index);
        }
    });
    let meta = gguf.metadata();
    assert_eq!(meta.iter().map(|(key, _)| key).collect::<Vec<_>>(), keys);
    for (index, key) in (0..).zip(keys) {
        assert_eq!(meta.u32(key).unwrap(), index);
    }
    assert!(meta.get("alph").is_none());
}
