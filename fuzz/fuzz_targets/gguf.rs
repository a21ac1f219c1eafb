//! Opens arbitrary bytes as a model and uses everything that it then offers.
//!
//! Finds panics, overflows and runaway allocation in the reader, and files that the writer can't repeat.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toko_gguf::Gguf;
use toko_gguf::write::Writer;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else { return };
    let mut writer = Writer::new();
    let meta = gguf.metadata();
    for (key, value) in meta.iter() {
        assert!(meta.value_offset(key).is_some(), "a key that was listed is found");
        assert!(!value.to_string().is_empty(), "a value shows its type");
        drop(meta.string_array(key));
        drop(meta.i32_array(key));
        drop(meta.f32_array(key));
        writer.copy(key, value);
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor), "a tensor that was listed is found");
        writer.tensor(&tensor.name, &tensor.shape, tensor.kind, gguf.data(tensor).to_vec());
    }
    drop(gguf.q2_layout());
    // An alignment of another integer type than u32 is read but not written.
    if let Ok(copy) = writer.into_bytes() {
        let copy = Gguf::from_bytes(copy).expect("what was written is read");
        assert!(meta.iter().map(|(key, _)| key).eq(copy.metadata().iter().map(|(key, _)| key)));
    }
});
