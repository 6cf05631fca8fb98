//! How long the cost model takes to answer: one evaluation is to take a microsecond at most.
//!
//! `cargo bench -p otela-sched --bench costs`. What searches placements and what simulates engines asks it millions of
//! times.

use criterion::{Criterion, criterion_group, criterion_main};
use otela_sched::{
    catalog::Catalog,
    sim::{Factors, Roofline, Step, StepCosts, Variant},
};
use std::hint::black_box;

fn costs(criterion: &mut Criterion) {
    let catalog = Catalog::builtin();
    let variant = |model, tp| {
        let model = catalog.model(model).expect("in the catalog");
        let accelerator = catalog.accelerator("H100").expect("in the catalog");
        Variant::new(model, accelerator, tp).expect("tp is not 0")
    };
    for (name, model, tp) in [("dense", "Qwen2.5-72B", 4), ("experts", "Qwen3-30B-A3B", 2)] {
        let variant = variant(model, tp);
        let roofline = Roofline::new(&variant);
        let costs = StepCosts::new(&variant, Factors::IDEAL);
        criterion.bench_function(&format!("{name}: latency of a batch, Eq. 5, 5,120 tokens"), |bench| {
            bench.iter(|| black_box(&roofline).latency_seconds(black_box(32.0), black_box(512.0), black_box(5120.0)));
        });
        criterion.bench_function(&format!("{name}: the same from a new variant"), |bench| {
            bench.iter(|| Roofline::new(black_box(&variant)).latency_seconds(black_box(32.0), 512.0, 5120.0));
        });
        let step = Step::default().prefill(512.0, 512.0).decode(64.0, 64_000.0);
        criterion.bench_function(&format!("{name}: one mixed step"), |bench| {
            bench.iter(|| black_box(&costs).step_seconds(black_box(&step)));
        });
        criterion.bench_function(&format!("{name}: 1,024 decoding steps"), |bench| {
            bench.iter(|| black_box(&costs).decode_seconds(black_box(64.0), black_box(1024.0), black_box(1024.0)));
        });
    }
}

criterion_group!(benches, costs);
criterion_main!(benches);
