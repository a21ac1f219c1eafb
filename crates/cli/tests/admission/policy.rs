//! A policy's file that is torn at any byte never allows more than it did when it was whole.

use serde_json::Value;

use crate::place::Place;

const FILE: &str = "model-resource-policy.json";

fn shown(place: &Place) -> Value {
    let finished = place.run(&["policy", "show", "--json"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).unwrap()
}

fn ceiling(shown: &Value) -> u64 {
    shown["budget"]["effective_new_load_ceiling_mb"].as_u64().unwrap()
}

#[test]
fn a_policy_torn_at_any_byte_leaves_the_last_one_in_force() {
    let place = Place::new();
    assert_eq!(place.run(&["policy", "set", "custom:0.5GB"]).code, Some(0));
    let path = place.state_root().join(FILE);
    let whole = std::fs::read(&path).unwrap();
    let before = shown(&place);
    assert_eq!((&before["source"], ceiling(&before)), (&"loaded".into(), 512), "{before}");
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let torn = shown(&place);
        assert_eq!(
            (&torn["source"], ceiling(&torn)),
            (&"last_good".into(), 512),
            "{length}: {torn}"
        );
        let warning = torn["warning"].as_str().unwrap();
        assert!(warning.contains("could not be loaded"), "{length}: {warning}");
    }
    let doctor = place.run(&["doctor"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains("could not be loaded"), "{doctor:?}");

    // The load that was refused before is refused still.
    assert_eq!(place.run(&["policy", "set", "custom:0GB"]).code, Some(0));
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let refused = place.run(&["run", "embedded", "Hello."]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("could not be loaded"), "{refused:?}");
    assert!(refused.stderr.contains("the policy custom:0GB"), "{refused:?}");
}

#[test]
fn where_the_copy_is_torn_too_the_default_holds_and_not_more() {
    let place = Place::new();
    let everyday = ceiling(&shown(&place));
    assert_eq!(place.run(&["policy", "set", "local-focused"]).code, Some(0));
    assert!(ceiling(&shown(&place)) > everyday);
    let paths =
        [FILE, "model-resource-policy.last-good.json"].map(|name| place.state_root().join(name));
    let whole = std::fs::read(&paths[0]).unwrap();
    for length in 0..whole.len() {
        for path in &paths {
            std::fs::write(path, &whole[..length]).unwrap();
        }
        let torn = shown(&place);
        let told = (&torn["source"], ceiling(&torn));
        assert_eq!(told, (&"corrupt_default".into(), everyday), "{length}: {torn}");
    }
}
