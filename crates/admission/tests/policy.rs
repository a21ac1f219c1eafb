//! What a policy means in MB, and how it is written.

use std::str::FromStr;

use proptest::prelude::*;
use serde_json::{Value, json};
use toko_admission::policy::{CUSTOM_STEP_MB, Error, Policy, Profile};
use toko_fixtures::golden_json;

/// The rule book's table: total, reserve, safe, everyday, local-focused.
const BUDGETS: [[u64; 5]; 22] = [
    [0, 2048, 0, 0, 0],
    [2048, 2048, 0, 0, 0],
    [2049, 2048, 1, 1, 1],
    [4096, 2048, 2048, 1638, 2048],
    [5120, 2048, 3072, 2048, 3072],
    [8192, 2048, 6144, 3276, 6144],
    [10239, 2048, 8191, 4095, 8191],
    [10240, 2048, 8192, 4096, 8192],
    [16384, 2048, 14336, 6553, 13107],
    [20479, 2048, 18431, 8191, 16383],
    [20480, 2048, 18432, 8192, 16384],
    [20490, 2049, 18441, 8196, 16392],
    [24576, 2457, 22119, 9830, 19660],
    [32768, 3276, 29492, 13107, 26214],
    [49152, 4915, 44237, 19660, 39321],
    [65536, 6553, 58983, 26214, 52428],
    [98304, 9830, 88474, 39321, 78643],
    [131_072, 13107, 117_965, 52428, 104_857],
    [262_144, 26214, 235_930, 104_857, 209_715],
    [
        u64::MAX,
        1_844_674_407_370_955_161,
        16_602_069_666_338_596_454,
        7_378_697_629_483_820_646,
        14_757_395_258_967_641_292,
    ],
    // The last total at which all but the reserve is less than two fifths, and the next.
    [3413, 2048, 1365, 1365, 1365],
    [3414, 2048, 1366, 1365, 1366],
];

fn custom(mb: u64) -> Policy {
    Policy { profile: Profile::Custom, custom_max_model_mb: Some(mb) }
}

fn ceiling(policy: Policy, total_mb: u64) -> u64 {
    policy.effective_budget(total_mb).effective_new_load_ceiling_mb
}

#[test]
fn every_golden_budget_comes_out() {
    let golden = golden_json("admission.json");
    let cases = golden["budgets"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let policy: Policy = serde_json::from_value(json!({
            "profile": case["profile"],
            "custom_max_model_mb": case["custom_max_model_mb"],
        }))
        .unwrap();
        let total_mb = case["total_memory_mb"].as_u64().unwrap();
        let budget = serde_json::to_value(policy.effective_budget(total_mb)).unwrap();
        assert_eq!(budget["total_memory_mb"], case["total_memory_mb"], "{case}");
        assert_eq!(budget["emergency_reserve_mb"], case["emergency_reserve_mb"], "{case}");
        let ceiling = &case["configured_model_ceiling_mb"];
        assert_eq!(&budget["configured_model_ceiling_mb"], ceiling, "{case}");
        assert_eq!(&budget["effective_new_load_ceiling_mb"], ceiling, "{case}");
        assert_eq!(budget["normalization_notice"].is_string(), case["notice"] == true, "{case}");
        assert_eq!(budget.as_object().unwrap().len(), 5, "{case}");
    }
}

#[test]
fn every_budget_of_the_table_comes_out() {
    for [total_mb, reserve_mb, safe_mb, everyday_mb, focused_mb] in BUDGETS {
        let everyday = Policy::everyday().effective_budget(total_mb);
        assert_eq!(everyday.emergency_reserve_mb, reserve_mb, "{total_mb}");
        assert_eq!(everyday.effective_new_load_ceiling_mb, everyday_mb, "{total_mb}");
        assert_eq!(ceiling(Policy::local_focused(), total_mb), focused_mb, "{total_mb}");
        assert_eq!(ceiling(custom(u64::MAX), total_mb), safe_mb, "{total_mb}");
    }
}

#[test]
fn a_custom_ceiling_above_the_safe_one_is_cut_and_the_notice_has_the_numbers() {
    let cases = [
        (0, 0, false),
        (12_800, 12_800, false),
        (29_184, 29_184, false),
        (29_492, 29_492, false),
        (29_696, 29_492, true),
        (101_376, 29_492, true),
    ];
    for (saved_mb, ceiling_mb, is_cut) in cases {
        let policy = custom(saved_mb);
        let budget = policy.effective_budget(32_768);
        assert_eq!(budget.configured_model_ceiling_mb, ceiling_mb);
        assert_eq!(policy.custom_max_model_mb, Some(saved_mb));
        assert_eq!(budget.normalization_notice.is_some(), is_cut, "{saved_mb}");
        if let Some(notice) = budget.normalization_notice {
            for number in [saved_mb, ceiling_mb, 3276] {
                assert!(notice.contains(&format!("{number} MB")), "{notice}");
            }
        }
    }
}

#[test]
fn a_budget_without_a_notice_writes_null() {
    let budget = serde_json::to_string(&Policy::everyday().effective_budget(32_768)).unwrap();
    let expected = r#"{"total_memory_mb":32768,"emergency_reserve_mb":3276,"configured_model_ceiling_mb":13107,"effective_new_load_ceiling_mb":13107,"normalization_notice":null}"#;
    assert_eq!(budget, expected);
}

#[test]
fn the_sizes_of_a_budget_are_mib() {
    let budget = Policy::local_focused().effective_budget(32_768);
    assert_eq!(budget.new_load_ceiling().get(), 26_214 * 1_048_576);
    assert_eq!(budget.emergency_reserve().get(), 3276 * 1_048_576);
}

#[test]
fn an_accelerator_gives_all_of_its_memory() {
    let evaluation = Policy::everyday().evaluate(32_768, Some(8000));
    let expected = json!({"total_mb": 8000, "budget_mb": 8000});
    assert_eq!(serde_json::to_value(evaluation.accelerator_memory).unwrap(), expected);
    assert_eq!(evaluation.host_memory, Policy::everyday().effective_budget(32_768));
    assert_eq!(Policy::everyday().evaluate(32_768, None).accelerator_memory, None);
}

#[test]
fn every_golden_number_of_gigabytes_is_taken_or_refused() {
    let golden = golden_json("admission.json");
    let cases = golden["custom_gb"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        check_gigabytes(case["gigabytes"].as_f64().unwrap(), case["mb"].as_u64());
    }
}

#[test]
fn every_number_of_gigabytes_of_the_rule_book_is_taken_or_refused() {
    let two = 2_f64;
    let taken = [
        (-0.0, 0),
        (0.5, 512),
        (10.5, 10_752),
        (99.0, 101_376),
        (two.powi(53), 9_223_372_036_854_775_808),
        (two.powi(54) - 2.0, 18_446_744_073_709_549_568),
    ];
    for (gigabytes, mb) in taken {
        check_gigabytes(gigabytes, Some(mb));
    }
    let refused = [
        10.3,
        0.25,
        -0.5,
        -1.0,
        1e-300,
        5e-324,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        two.powi(54),
        two.powi(63),
        two.powi(64),
        f64::MAX,
        f64::MIN,
    ];
    for gigabytes in refused {
        check_gigabytes(gigabytes, None);
    }
}

fn check_gigabytes(gigabytes: f64, mb: Option<u64>) {
    match (Policy::custom_gb(gigabytes), mb) {
        (Ok(policy), Some(mb)) => {
            assert_eq!(policy, custom(mb), "{gigabytes}");
            assert_eq!(policy.validate(), Ok(()), "{gigabytes}");
        }
        (Err(Error::CustomGigabytes { gigabytes: told }), None) => {
            assert_eq!(told.to_bits(), gigabytes.to_bits());
        }
        (result, _) => panic!("{gigabytes} gave {result:?} and not {mb:?}"),
    }
}

#[test]
fn a_profile_and_its_ceiling_have_to_belong_together() {
    let largest = 18_446_744_073_709_551_104;
    for mb in [0, 512, 1024, 101_376, largest] {
        assert_eq!(custom(mb).validate(), Ok(()));
    }
    for mb in [1, 511, 513, 29_492, u64::MAX] {
        let error = custom(mb).validate().unwrap_err();
        assert_eq!(error, Error::CustomStep { mb });
        assert!(
            error.to_string().contains("0.5 GB") && error.to_string().contains(&mb.to_string())
        );
    }
    let without = Policy { profile: Profile::Custom, custom_max_model_mb: None };
    assert_eq!(without.validate(), Err(Error::CustomMissing));
    for profile in [Profile::Everyday, Profile::LocalFocused] {
        assert_eq!(Policy { profile, custom_max_model_mb: None }.validate(), Ok(()));
        for mb in [0, 512] {
            let error = Policy { profile, custom_max_model_mb: Some(mb) }.validate().unwrap_err();
            assert_eq!(error, Error::CustomUnwanted { profile, mb });
            assert!(error.to_string().contains(&format!("{profile:?}")), "{error}");
        }
    }
}

#[test]
fn what_is_written_on_a_command_line_is_read() {
    let cases = [
        ("everyday", Policy::everyday()),
        ("local-focused", Policy::local_focused()),
        ("local_focused", Policy::local_focused()),
        ("custom:12.5GB", custom(12_800)),
        ("custom:12.5gb", custom(12_800)),
        ("custom:12.5 Gb", custom(12_800)),
        ("custom:0GB", custom(0)),
        ("custom:.5GB", custom(512)),
        ("custom:512MB", custom(512)),
        ("custom:18446744073709551104mb", custom(18_446_744_073_709_551_104)),
    ];
    for (text, policy) in cases {
        assert_eq!(Policy::from_str(text), Ok(policy), "{text}");
    }
}

#[test]
fn what_is_no_policy_is_refused_with_its_text_and_with_what_would_be_one() {
    let texts = [
        "",
        "Everyday",
        "localfocused",
        "local focused",
        "custom",
        "custom:",
        "custom:GB",
        "custom:12.5",
        "custom:12,5GB",
        "custom:12.5TB",
        "custom:1.5MB",
        "custom:-512MB",
        "custom:18446744073709551616MB",
        "custom:5€",
        "12.5GB",
    ];
    for text in texts {
        let error = Policy::from_str(text).unwrap_err();
        assert_eq!(error, Error::Spelling { text: text.to_owned() });
        let message = error.to_string();
        assert!(message.contains(&format!("\"{text}\"")), "{message}");
        for way in ["everyday", "local-focused", "custom:12.5GB"] {
            assert!(message.contains(way), "{message}");
        }
    }
    assert_eq!(Policy::from_str("custom:513MB"), Err(Error::CustomStep { mb: 513 }));
    for text in ["custom:10.3GB", "custom:-1GB", "custom:infGB", "custom:1e300GB", "custom:nanGB"] {
        let error = Policy::from_str(text).unwrap_err();
        assert!(matches!(error, Error::CustomGigabytes { .. }), "{text}: {error}");
    }
}

#[test]
fn the_names_in_json_are_exact() {
    let names = [
        (Profile::Everyday, "everyday"),
        (Profile::LocalFocused, "local_focused"),
        (Profile::Custom, "custom"),
    ];
    for (profile, name) in names {
        assert_eq!(serde_json::to_value(profile).unwrap(), json!(name));
        assert_eq!(serde_json::from_value::<Profile>(json!(name)).unwrap(), profile);
    }
    for name in ["Everyday", "local-focused", "localfocused", "LOCAL_FOCUSED", ""] {
        let error = serde_json::from_value::<Profile>(json!(name)).unwrap_err().to_string();
        assert!(error.contains(&format!("\"{name}\"")), "{error}");
    }
    assert!(serde_json::from_value::<Profile>(json!({"everyday": Value::Null})).is_err());
}

fn policies() -> impl Strategy<Value = Policy> {
    let steps = prop_oneof![0..300_u64, 0..=(u64::MAX / CUSTOM_STEP_MB)];
    prop_oneof![
        Just(Policy::everyday()),
        Just(Policy::local_focused()),
        steps.prop_map(|steps| custom(steps * CUSTOM_STEP_MB)),
    ]
}

fn totals() -> impl Strategy<Value = u64> {
    prop_oneof![0..30_000_u64, 0..2_000_000_u64, any::<u64>()]
}

proptest! {
    #[test]
    fn no_ceiling_touches_the_reserve(policy in policies(), total_mb in totals()) {
        let budget = policy.effective_budget(total_mb);
        let (total, reserve) = (u128::from(total_mb), u128::from(budget.emergency_reserve_mb));
        let ceiling = u128::from(budget.configured_model_ceiling_mb);
        prop_assert!(reserve >= 2048 && reserve * 10 <= total.max(20_480));
        prop_assert!(reserve * 10 + 10 > total);
        prop_assert!(ceiling == 0 || ceiling + reserve <= total);
        let asked = match policy.profile {
            Profile::Everyday => total * 2 / 5,
            Profile::LocalFocused => total * 4 / 5,
            Profile::Custom => u128::from(policy.custom_max_model_mb.unwrap()),
        };
        // Nothing is lost either: what was asked for, or all but the reserve.
        prop_assert_eq!(ceiling, asked.min(total.max(reserve) - reserve));
        let is_cut = policy.profile == Profile::Custom && ceiling < asked;
        prop_assert_eq!(budget.normalization_notice.is_some(), is_cut);
    }

    #[test]
    fn more_memory_never_gives_a_smaller_ceiling(policy in policies(), one in totals(), other in totals()) {
        let (less, more) = (one.min(other), one.max(other));
        prop_assert!(ceiling(policy, less) <= ceiling(policy, more));
        prop_assert!(ceiling(policy, less) <= ceiling(policy, less.saturating_add(1)));
    }

    #[test]
    fn a_policy_within_another_never_gives_more(one in policies(), other in policies(), total_mb in totals()) {
        prop_assert!(one.is_within(&one));
        prop_assert!(Policy::everyday().is_within(&Policy::local_focused()));
        if one.is_within(&other) {
            prop_assert!(ceiling(one, total_mb) <= ceiling(other, total_mb));
        }
        if one.profile == other.profile {
            prop_assert!(one.is_within(&other) || other.is_within(&one));
        }
    }

    #[test]
    fn what_a_policy_writes_it_reads(policy in policies()) {
        prop_assert_eq!(Policy::from_str(&policy.to_string()), Ok(policy));
        let document = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<Policy>(&document).unwrap(), policy);
    }

    #[test]
    fn no_text_is_read_as_an_impossible_policy(text in "(custom:)?[-+.0-9eE]{0,24} ?[gGmM]?[bB]?|.{0,12}") {
        if let Ok(policy) = Policy::from_str(&text) {
            prop_assert_eq!(policy.validate(), Ok(()));
        }
    }

    #[test]
    fn gigabytes_are_taken_exactly_or_not_at_all(gigabytes in prop_oneof![
        any::<f64>(), (0..4_000_u32).prop_map(|halves| f64::from(halves) / 2.0), 0.0..200.0_f64,
    ]) {
        let halves = gigabytes * 2.0;
        if let Ok(policy) = Policy::custom_gb(gigabytes) {
            let mb = policy.custom_max_model_mb.unwrap();
            prop_assert_eq!(mb % CUSTOM_STEP_MB, 0);
            #[expect(clippy::cast_precision_loss, reason = "its number of steps was a float")]
            let back = mb as f64 / 1024.0;
            prop_assert_eq!(back.to_bits(), gigabytes.abs().to_bits());
        } else {
            let is_whole = halves.trunc().to_bits() == halves.to_bits();
            prop_assert!(!(0.0..2_f64.powi(55)).contains(&halves) || !is_whole);
        }
    }
}
