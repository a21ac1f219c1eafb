//! Prints as JSON what a model file will take in memory: `footprint FILE CONTEXT REPLICAS`. Nothing is loaded.

use std::error::Error;
use std::time::Duration;

use toko_engine::{KvType, Options, footprint};
use toko_gguf::Gguf;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, context_tokens, replicas] = arguments.as_slice() else {
        return Err("three arguments are needed: FILE CONTEXT REPLICAS".into());
    };
    let options = Options {
        context_tokens: Some(context_tokens.parse()?),
        threads: None,
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(replicas.parse()?),
        queue_limit: 64,
        queue_timeout: Duration::ZERO,
        seed: 0,
        prefix_cache_tokens: None,
    };
    let footprint = footprint(&Gguf::open(file)?, &options)?;
    #[expect(clippy::print_stdout, reason = "it is what the example is for")]
    {
        println!("{}", serde_json::to_string(&footprint)?);
    }
    Ok(())
}
