//! `--force`: loaded all the same, and charged all the same.

use serde_json::Value;

use crate::place::Place;

#[test]
fn a_forced_load_works_says_so_and_is_charged_to_everybody() {
    let place = Place::new();
    let total = place.total("embedded", &["--replicas", "1"]);
    place.limit(total - 1);
    let refused = place.start(&["--replicas", "1"]).ready().err().unwrap();
    refused.assert_refused();
    assert!(refused.stderr.contains("--force"), "{refused:?}");

    let server = place.serve(&["--replicas", "1", "--force"]);
    server.ask("embedded");
    assert!(server.told().contains("loaded all the same: embedded needs"), "{}", server.told());
    let holders = place.holders();
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(holders[0]["process"], Value::from(format!("toko serve, process {}", server.pid())));
    assert_eq!((&holders[0]["model"], &holders[0]["bytes"]), (&"embedded".into(), &total.into()));

    // It leaves less room than none, which is told as none.
    let told = place.explain("embedded", &[]).json;
    assert_eq!(told["have"]["room_bytes"], Value::from(0), "{told}");
    place.run(&["run", "embedded", "Hello."]).assert_refused();
}

#[test]
fn a_load_that_fits_is_not_called_forced() {
    let place = Place::new();
    let finished = place.run(&["run", "embedded", "--force", "--max-tokens", "2", "Hello."]);
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{finished:?}");
}
