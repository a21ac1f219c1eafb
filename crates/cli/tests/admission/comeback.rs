//! Memory comes back: a server that has loaded and unloaded ten models is about as small as before.

use std::os::unix::fs::symlink;

use crate::{
    memory::resident,
    place::{Place, text},
};

/// What may stay of ten models: code that has run, and what the allocator could not give back.
const KEPT_BYTES: u64 = 16 << 20;
const MODELS: usize = 10;

#[test]
fn ten_models_that_came_and_went_leave_nothing_behind() {
    let place = Place::new();
    let large = toko_fixtures::smollm2_path();
    let mut arguments = vec!["--replicas".to_owned(), "1".to_owned(), "embedded".to_owned()];
    for index in 0..MODELS {
        let link = place.path(&format!("model-{index}.gguf"));
        symlink(&large, &link).unwrap();
        arguments.push(text(&link).to_owned());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let server = place.serve(&arguments);
    server.ask("embedded");
    let before = resident(server.pid());
    let mut after = Vec::new();
    for index in 0..MODELS {
        let model = format!("model-{index}");
        server.manage("load", &model);
        server.ask(&model);
        let loaded = resident(server.pid());
        assert!(loaded > before + 2 * KEPT_BYTES, "loading shows: {before}, {loaded}");
        server.manage("unload", &model);
        after.push(resident(server.pid()));
    }
    let last = after.last().copied().unwrap();
    assert!(last < before + KEPT_BYTES, "{before}, then {after:?}");
    // Only what was there before is charged.
    let holders = place.holders();
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(holders[0]["model"], "embedded");
}
