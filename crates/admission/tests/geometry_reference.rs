//! The coarse geometry of `config.json`, and which file it is read from, against the golden values.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use serde_json::{Value, json};
use toko_admission::geometry::checkpoint::{GeometryCache, Places, read_config, snapshot, weights};
use toko_admission::geometry::reference::ReferenceGeometry;
use toko_admission::units::Bytes;

fn check(name: &str, config: &str, expected: Option<ReferenceGeometry>) {
    assert_eq!(ReferenceGeometry::from_config(config), expected, "{name}");
}

fn geometry(kv: u64, fixed: u64, prefill: u64, vocab_size: Option<u64>) -> ReferenceGeometry {
    ReferenceGeometry {
        kv_bytes_per_token: kv,
        fixed_state_bytes: fixed,
        prefill_bytes_per_token: prefill,
        vocab_size,
    }
}

#[test]
fn every_golden_config_gives_its_geometry() {
    let golden = toko_fixtures::golden_json("admission.json");
    let rows = golden["geometries"].as_array().unwrap();
    assert_eq!(rows.len(), 26);
    for row in rows {
        let number = |name: &str| row["geometry"][name].as_u64();
        let expected = number("kv_bytes_per_token").map(|kv| {
            geometry(
                kv,
                number("fixed_state_bytes").unwrap(),
                number("prefill_bytes_per_token").unwrap(),
                number("vocab_size"),
            )
        });
        check(row["name"].as_str().unwrap(), &row["config"].to_string(), expected);
    }
}

#[test]
fn gpt_oss_counts_its_windows_in_full() {
    let config = r#"{"num_hidden_layers": 24, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880,
        "vocab_size": 201088, "sliding_window": 128}"#;
    check("gpt-oss-20b", config, Some(geometry(49_152, 0, 23_040, Some(201_088))));
}

#[test]
fn the_newer_key_of_the_element_type_is_read_like_the_older() {
    let config = |element: Value| {
        let mut config =
            json!({"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128});
        config.as_object_mut().unwrap().extend(element.as_object().unwrap().clone());
        config.to_string()
    };
    let wide = Some(geometry(294_912, 0, 0, None));
    let half = Some(geometry(147_456, 0, 0, None));
    check("newer", &config(json!({"dtype": "float32"})), wide);
    check("both", &config(json!({"dtype": "float32", "torch_dtype": "bfloat16"})), half);
    check("null", &config(json!({"dtype": "float32", "torch_dtype": null})), wide);
    let cache = json!({"dtype": "float32", "kv_cache_dtype": "fp8"});
    check("cache", &config(cache), Some(geometry(73_728, 0, 0, None)));
    let inner = config(json!({}));
    check("inherited", &format!(r#"{{"dtype": "float32", "text_config": {inner}}}"#), wide);
    let inner = config(json!({"dtype": "bfloat16"}));
    check("inner", &format!(r#"{{"torch_dtype": "float32", "llm_config": {inner}}}"#), half);
}

#[test]
fn a_field_of_the_wrong_type_leaves_no_geometry() {
    let usable = json!({"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 64});
    check("usable", &usable.to_string(), Some(geometry(1024, 0, 0, None)));
    let wrong = [
        ("num_hidden_layers", json!(-1)),
        ("num_hidden_layers", json!(2.0)),
        ("num_hidden_layers", json!(1e30)),
        ("head_dim", json!("64")),
        ("num_key_value_heads", json!([2])),
        ("vocab_size", json!(-5)),
        ("torch_dtype", json!(16)),
        ("layer_types", json!("linear_attention")),
        ("layer_types", json!([1])),
        ("model_type", json!({})),
        ("v_head_dim", json!(true)),
    ];
    for (name, value) in wrong {
        let mut config = usable.clone();
        config[name] = value;
        check(name, &config.to_string(), None);
    }
    let shadowed = json!({"num_hidden_layers": null, "text_config": usable});
    check("a null above", &shadowed.to_string(), None);
    check("only layers", r#"{"num_hidden_layers": 2}"#, None);
    for text in ["", "[]", "3", "{", "\u{0}"] {
        check("no object", text, None);
    }
}

const SMALL: &str = r#"{"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 64}"#;
const LARGE: &str = r#"{"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64}"#;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("the path has a folder"))
        .expect("the folder can be made");
    fs::write(path, text).expect("the file can be written");
}

fn places(root: &Path) -> Places {
    Places { models_dir: root.join("models"), hub_dir: Some(root.join("hub")) }
}

#[test]
fn the_managed_folder_comes_before_the_cache() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    let managed = root.path().join("models/m/config.json");
    assert_eq!(places.config_path("m", Some("org/repo")), managed);
    let repo = root.path().join("hub/models--org--repo");
    write(&repo.join("snapshots/abc/config.json"), SMALL);
    let cached = repo.join("snapshots/abc/config.json");
    assert_eq!(places.config_path("m", Some("org/repo")), cached);
    assert_eq!(places.config_path("m", None), managed, "an engine that does not load from it");
    let without = Places { hub_dir: None, ..places.clone() };
    assert_eq!(without.config_path("m", Some("org/repo")), managed);
    write(&managed, SMALL);
    assert_eq!(places.config_path("m", Some("org/repo")), managed);
}

#[test]
fn the_main_branch_names_the_snapshot_and_else_the_newest_counts() {
    let root = tempfile::tempdir().unwrap();
    let repo = root.path();
    assert_eq!(snapshot(repo), None);
    write(&repo.join("snapshots/old/sub/model.safetensors"), "weights");
    write(&repo.join("snapshots/new/model_index.json"), "{}");
    write(&repo.join("snapshots/empty/model.safetensors"), "");
    let day = Duration::from_hours(24);
    for (name, days) in [("old", 1), ("new", 2), ("empty", 3)] {
        let folder = fs::File::open(repo.join("snapshots").join(name)).unwrap();
        folder.set_modified(SystemTime::UNIX_EPOCH + day * days).unwrap();
    }
    assert_eq!(snapshot(repo), Some(repo.join("snapshots/new")));
    write(&repo.join("refs/main"), " old\n");
    assert_eq!(snapshot(repo), Some(repo.join("snapshots/old")));
    write(&repo.join("refs/main"), "empty");
    assert_eq!(snapshot(repo), Some(repo.join("snapshots/new")), "what is named is not complete");
    write(&repo.join("elsewhere/config.json"), SMALL);
    write(&repo.join("refs/main"), "../elsewhere");
    assert_eq!(snapshot(repo), Some(repo.join("snapshots/new")), "what is named lies outside");
}

#[test]
fn a_file_is_read_again_only_where_its_stamp_changed() {
    let root = tempfile::tempdir().unwrap();
    let cache = GeometryCache::new(places(root.path()));
    let kv = || cache.geometry("org/m", "m", None).map(|found| found.kv_bytes_per_token);
    assert_eq!(kv(), None);
    let path = root.path().join("models/m/config.json");
    write(&path, SMALL);
    let stamped = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let stamp =
        || fs::File::options().write(true).open(&path).unwrap().set_modified(stamped).unwrap();
    stamp();
    assert_eq!(kv(), Some(1024));
    write(&path, LARGE);
    stamp();
    assert_eq!(kv(), Some(1024), "time and length are the same");
    write(&path, &format!("{LARGE} "));
    stamp();
    assert_eq!(kv(), Some(2048), "the length is another");
    write(&path, "{");
    assert_eq!(kv(), None);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(kv(), None, "a folder is no file");
}

#[test]
fn another_folder_of_models_forgets_what_was_read() {
    let root = tempfile::tempdir().unwrap();
    let cache = GeometryCache::new(places(root.path()));
    write(&root.path().join("models/m/config.json"), SMALL);
    write(&root.path().join("others/m/config.json"), LARGE);
    let kv = || cache.geometry("m", "m", None).map(|found| found.kv_bytes_per_token);
    assert_eq!(kv(), Some(1024));
    cache.set_models_dir(&root.path().join("others"));
    assert_eq!(cache.models_dir(), root.path().join("others"));
    assert_eq!(kv(), Some(2048));
}

#[test]
fn weights_are_the_files_of_a_checkpoint_as_they_lie_on_disk() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("m");
    write(&folder.join("config.json"), SMALL);
    assert_eq!(weights(&folder), None);
    write(&folder.join("pytorch_model.bin"), "12345");
    assert_eq!(weights(&folder), Some(Bytes::new(5)));
    write(&folder.join("model-00001-of-00002.safetensors"), "123");
    write(&folder.join("unet/model.safetensors"), "1234");
    assert_eq!(weights(&folder), Some(Bytes::new(7)));
    assert_eq!(weights(&root.path().join("nowhere")), None);
}

#[test]
fn a_configuration_that_is_no_regular_file_or_too_large_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("config.json");
    write(&path, SMALL);
    assert_eq!(read_config(&path).unwrap(), SMALL);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len((16 << 20) + 1).unwrap();
    assert!(read_config(&path).unwrap_err().to_string().contains("16 MiB"));
    assert!(read_config(root.path()).unwrap_err().to_string().contains("regular file"));
    assert!(read_config(&root.path().join("nothing")).is_err());
}

proptest! {
    #[test]
    fn any_text_gives_a_geometry_or_none(text in "[ -~]{0,200}|\\{(\"(num_hidden_layers|head_dim|num_key_value_heads|linear_num_key_heads|full_attention_interval)\":-?[0-9]{1,22},){0,6}\"a\":NaN\\}") {
        let found = ReferenceGeometry::from_config(&text);
        prop_assert!(found.is_none() || text.contains("num_hidden_layers"));
    }
}
