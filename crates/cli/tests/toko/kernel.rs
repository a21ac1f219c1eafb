//! `--kernel` and `TOKO_KERNEL`: another instruction set than the fastest, on every command that computes.

use toko_kernels::isa::Tier;

use crate::command::{finish, golden_answer, run, toko};

const VOLCANO: &str = "What is a volcano?";

#[test]
fn every_instruction_set_of_this_machine_can_be_chosen_and_gives_the_answer() {
    for tier in Tier::available() {
        let mut command = toko(&["run", "-v", VOLCANO, "--temperature", "0"]);
        let finished = finish(command.env("TOKO_KERNEL", tier.name()).output().unwrap());
        assert_eq!(finished.stdout, format!("{}\n", golden_answer(VOLCANO)), "{tier}");
        let load = finished.stderr.lines().find(|line| line.starts_with("load ")).unwrap();
        assert!(load.ends_with(&format!(", {tier}")), "{load}");
    }
}

#[test]
fn the_flag_wins_over_the_variable_and_doctor_tells_what_is_in_use() {
    let mut command = toko(&["doctor", "--json", "--kernel", "reference"]);
    let finished = finish(command.env("TOKO_KERNEL", Tier::detect().name()).output().unwrap());
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["cpu"]["tier"], "reference");
}

#[test]
fn a_name_that_this_machine_does_not_have_is_refused_with_those_that_it_has() {
    let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    for name in [foreign, "sse9", ""] {
        for command in ["run", "serve", "doctor"] {
            let refused = finish(toko(&[command]).env("TOKO_KERNEL", name).output().unwrap());
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{name} {command}");
            for tier in Tier::available() {
                assert!(refused.stderr.contains(tier.name()), "{}", refused.stderr);
            }
        }
    }
    let typed = run(&["run", VOLCANO, "--kernel", foreign]);
    assert!(typed.stderr.starts_with(&format!("toko: invalid value '{foreign}'")), "{typed:?}");
}
