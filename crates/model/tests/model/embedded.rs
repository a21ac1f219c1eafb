//! The embedded model against its own reference, computed in float32 by another program.

use toko_fixtures::{embedded_model_golden, embedded_model_path};
use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_model::KvType;

use crate::harness::{Runner, ids, numbers};

#[test]
fn logits_along_the_golden_answers_are_near_the_reference() {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let mut runner = Runner::new(&file, Tier::detect(), 2, KvType::F16, 512);
    for prompt in embedded_model_golden().as_array().expect("an array of prompts") {
        let prompt_ids = ids(&prompt["prompt_ids"]);
        let greedy = ids(&prompt["greedy_ids"]);
        let tokens = [&prompt_ids[..], &greedy[..greedy.len() - 1]].concat();
        let logits = runner.logits(&tokens, 64);
        let row = |index: usize| &logits[index * runner.vocabulary()..][..runner.vocabulary()];
        for (name, index) in
            [("first_top10", prompt_ids.len() - 1), ("last_top10", tokens.len() - 1)]
        {
            for entry in prompt[name].as_array().expect("ten best") {
                let id = usize::try_from(entry["id"].as_u64().expect("an id")).expect("ids fit");
                let expected = entry["logit"].as_f64().expect("a logit");
                let found = f64::from(row(index)[id]);
                assert!((found - expected).abs() < 0.02, "{name} {id}: {found}, not {expected}");
            }
        }
        // Teacher-forced, every clear choice must be the reference's.
        let margins = numbers(&prompt["margins"]);
        for (step, (&expected, margin)) in greedy.iter().zip(margins).enumerate() {
            let row = row(prompt_ids.len() - 1 + step);
            let best = (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a });
            if margin > 0.05 {
                assert_eq!(best, Some(expected as usize), "step {step}");
            }
        }
    }
}
