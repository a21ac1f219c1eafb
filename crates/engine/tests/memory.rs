//! What a model takes of the process's memory, and that it is given back; alone in its process, or others would count.

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::Duration;

use toko_admission::handles::Admission;
use toko_engine::{
    Applicant, Engine, Error, Event, Host, KvType, Opening, Options, Params, Prompt, Sampling,
};
use toko_gguf::Gguf;

/// Bytes of this process that are in memory, mapped files included.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has a size");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

fn load(path: &std::path::Path) -> Result<Engine, Error> {
    let options = Options {
        context_tokens: Some(512),
        threads: Some(2),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(2),
        queue_limit: 0,
        queue_timeout: Duration::MAX,
        seed: 0,
        prefix_cache_tokens: None,
    };
    Engine::load(&Gguf::open(path)?, &options, &Applicant::new(&Admission::unlimited(), "test"))
}

/// Makes the model read all its weights.
fn generate(engine: &Engine) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let lease = runtime.block_on(engine.pool().acquire(pending())).expect("idle");
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        penalty_window_tokens: 0,
        seed: None,
    };
    let params = Params {
        sampling,
        max_tokens: Some(3),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    let (sender, events) = channel();
    let prompt = Prompt { tokens: vec![500; 300], opening: Opening::Answer };
    lease
        .generate(prompt, params, move |event| {
            sender.send(event).map_or(ControlFlow::Break(()), ControlFlow::Continue)
        })
        .expect("the request is good");
    assert!(events.iter().any(|event| matches!(event, Event::Finished(_))));
}

#[test]
fn p20_unloading_gives_the_memory_back_to_the_system() {
    let path = toko_fixtures::smollm2_path();
    let weight_bytes = std::fs::metadata(&path).expect("it is a file").len();
    let host = Host::default();
    let before = resident_bytes();
    let left = [(); 3].map(|()| {
        let engine = host.get(|| load(&path)).expect("the model loads");
        generate(&engine);
        assert!(resident_bytes() > before + weight_bytes * 9 / 10, "the weights are in memory");
        drop(engine);
        let drain = |engine: &Engine| {
            engine.pool().close();
            assert!(engine.pool().wait_idle(Duration::from_mins(1)));
        };
        assert!(host.unload(drain));
        resident_bytes().saturating_sub(before)
    });
    // What stays is code that has run, and what the allocator keeps for the next small things; a leak would be the
    // weights, once a load.
    let most = left.into_iter().max().expect("there were loads");
    assert!(most < weight_bytes / 2, "{left:?} bytes of {weight_bytes} are still there");
}
