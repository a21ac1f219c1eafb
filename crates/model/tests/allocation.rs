//! A forward pass lives in the buffers that were made for it.

use peak_alloc::PeakAlloc;
use toko_fixtures::embedded_model_path;
use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_model::{KvCache, KvType, Model, PageTable, Rows, Scratch, Slot};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[test]
fn a_forward_pass_allocates_nothing() {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let model = Model::bind(&file, Tier::detect(), 2).expect("the embedded model runs");
    let mut kv = KvCache::new(model.config(), KvType::F16);
    let mut scratch = Scratch::new(model.config(), 80, 80, 80, 2);
    let mut pages = PageTable::default();
    kv.grow(&mut pages, 80);
    let prompt: Vec<u32> = (0..80).collect();
    let slot = |tokens| Slot { tokens, start: 0, pages: &pages, rows: Rows::All };
    // The first pass waits until the pool's threads have started, which allocates.
    model.forward(&[slot(&prompt)], &mut kv, &mut scratch);
    for tokens in [&prompt[..], &prompt[..1]] {
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let rows = model.forward(&[slot(tokens)], &mut kv, &mut scratch).len();
        assert_eq!(ALLOCATOR.peak_usage(), before, "{} tokens", tokens.len());
        assert_eq!(rows, tokens.len() * model.config().vocabulary);
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let rows = model.hidden(&[slot(tokens)], &mut kv, &mut scratch).len();
        assert_eq!(ALLOCATOR.peak_usage(), before, "{} tokens", tokens.len());
        assert_eq!(rows, tokens.len() * model.config().hidden);
    }
}
