use super::*;
use crate::catalog::{Catalog, Model};
use proptest::prelude::*;

const MODELS: [&str; 6] =
    ["Qwen2.5-1.5B", "Llama-2-13b", "Qwen3-30B-A3B", "Llama-3.3-70B-FP8", "Qwen2.5-32B-AWQ", "bloom-7b1"];
const ACCELERATORS: [&str; 4] = ["A100-80GB", "H100", "GH200", "RTX3090"];
const ENGINE: Factors = Factors {
    compute_ratio: 0.7,
    bandwidth_ratio: 0.8,
    attention_ratio: 0.75,
    regroup_passes: 0.2,
    kv_write_passes: 3.0,
    logit_passes: 10.0,
    layer_seconds: 1e-6,
    step_seconds: 1e-3,
    sequence_seconds: 4e-5,
    all_reduce_seconds: 2e-5,
    link_ratio: 0.4,
};

fn variant<'a>(catalog: &'a Catalog, model: &str, accelerator: &str, tp: u32) -> Variant<'a> {
    Variant::new(catalog.model(model).unwrap(), catalog.accelerator(accelerator).unwrap(), tp).unwrap()
}

/// A model, an accelerator, a tp.
fn variants() -> impl Strategy<Value = (&'static str, &'static str, u32)> {
    (
        prop::sample::select(&MODELS[..]),
        prop::sample::select(&ACCELERATORS[..]),
        prop::sample::select(&[1u32, 2, 4, 8][..]),
    )
}

proptest! {
    #[test]
    fn the_closed_form_is_the_sum_of_its_steps(
        (model, accelerator, tp) in variants(), batch in 1u32..800, prompt in 1u32..600, answer in 0u32..300,
    ) {
        let catalog = Catalog::builtin();
        let variant = variant(&catalog, model, accelerator, tp);
        let (batch, prompt) = (f64::from(batch), f64::from(prompt));
        let contexts = || (0..answer).map(|k| prompt + f64::from(k));
        let roofline = Roofline::new(&variant);
        let literal = roofline.prefill_seconds(batch, prompt)
            + contexts().map(|k| roofline.decode_step_seconds(batch, k)).sum::<f64>();
        let closed = roofline.latency_seconds(batch, prompt, f64::from(answer));
        prop_assert!((closed / literal - 1.0).abs() < 1e-9, "{closed} {literal}");
        for factors in [Factors::IDEAL, ENGINE] {
            let costs = StepCosts::new(&variant, factors);
            let steps = contexts().map(|k| costs.step_seconds(&Step::default().decode(batch, batch * k)));
            let literal: f64 = steps.sum();
            let closed = costs.decode_seconds(batch, prompt, f64::from(answer));
            prop_assert!((closed - literal).abs() <= 1e-9 * literal, "{closed} {literal}");
        }
    }

    #[test]
    fn more_work_takes_longer(
        (model, accelerator, tp) in variants(), batch in 1u32..500, prompt in 1u32..4000, answer in 1u32..4000, more in 1u32..100,
    ) {
        let catalog = Catalog::builtin();
        let variant = variant(&catalog, model, accelerator, tp);
        let (batch, prompt, answer, more) = (f64::from(batch), f64::from(prompt), f64::from(answer), f64::from(more));
        let roofline = Roofline::new(&variant);
        let costs = StepCosts::new(&variant, ENGINE);
        let times = |batch: f64, prompt: f64, answer: f64| [
            roofline.latency_seconds(batch, prompt, answer),
            costs.prefill_seconds(batch, prompt) + costs.decode_seconds(batch, prompt, answer),
        ];
        let base = times(batch, prompt, answer);
        for longer in [times(batch + more, prompt, answer), times(batch, prompt + more, answer), times(batch, prompt, answer + more)] {
            for (base, longer) in base.iter().zip(longer) {
                prop_assert!(longer >= base * (1.0 - 1e-12), "{base} {longer}");
            }
        }
    }

    #[test]
    fn better_hardware_is_not_slower(
        (model, accelerator, tp) in variants(), batch in 1u32..500, prompt in 1u32..4000, which in 0usize..4, times in 1.0..4.0f64,
    ) {
        let catalog = Catalog::builtin();
        let old = variant(&catalog, model, accelerator, tp);
        let mut better = old.accelerator.clone();
        match which {
            0 => better.bandwidth_bytes_per_s *= times,
            1 => better.link_bytes_per_s *= times,
            2 => better.network_bytes_per_s *= times,
            _ => {
                better.peaks.bf16 *= times;
                better.peaks.fp8 = better.peaks.fp8.map(|peak| peak * times);
            }
        }
        let new = Variant::new(old.model, &better, tp).unwrap();
        let (batch, prompt) = (f64::from(batch), f64::from(prompt));
        let seconds = |variant: &Variant<'_>| {
            let costs = StepCosts::new(variant, ENGINE);
            [
                Roofline::new(variant).latency_seconds(batch, prompt, 100.0),
                costs.prefill_seconds(batch, prompt) + costs.decode_seconds(batch, prompt, 100.0),
            ]
        };
        for (old, new) in seconds(&old).iter().zip(seconds(&new)) {
            prop_assert!(new <= old * (1.0 + 1e-12));
        }
    }

    #[test]
    fn what_is_said_to_fit_fits(
        (model, accelerator, tp) in variants(), tokens in 1u32..100_000, ratio in 0.1..1.0f64,
    ) {
        let catalog = Catalog::builtin();
        let variant = variant(&catalog, model, accelerator, tp);
        let memory = ratio * f64::from(tp) * variant.accelerator.memory_bytes;
        // Both what Eq. 2 says and what an engine holds.
        let weights = variant.model.weight_bytes_eq2().max(variant.model.weight_bytes());
        let kv = variant.model.kv_bytes_per_token(tp) * f64::from(tokens);
        let batch = variant.batch_max(f64::from(tokens), ratio);
        prop_assert!(batch >= 0.0 && batch.fract() == 0.0);
        if batch > 0.0 {
            prop_assert!(weights + batch * kv <= memory * (1.0 + 1e-12));
        }
        prop_assert!(weights + (batch + 1.0) * kv > memory * (1.0 - 1e-12));
        prop_assert!(variant.kv_tokens_max(ratio) >= batch * f64::from(tokens));
        prop_assert_eq!(variant.weights_fit(ratio), weights <= memory);
    }
}

#[test]
fn there_is_no_variant_over_nothing() {
    let catalog = Catalog::builtin();
    let (model, accelerator) = (catalog.model("phi-4").unwrap(), catalog.accelerator("H100").unwrap());
    assert_eq!(Variant::new(model, accelerator, 0).unwrap_err(), VariantError::NoAccelerators);
}

#[test]
fn heads_decide_how_a_model_is_split() {
    let catalog = Catalog::builtin();
    let splits = |model: &str| {
        [1, 2, 3, 4, 8, 16].into_iter().filter(|tp| variant(&catalog, model, "H100", *tp).divides()).collect::<Vec<_>>()
    };
    assert_eq!(splits("Qwen2.5-1.5B"), [1, 2, 4]);
    assert_eq!(splits("Qwen2.5-7B"), [1, 2, 4]);
    assert_eq!(splits("Llama-3.3-70B"), [1, 2, 4, 8, 16]);
    assert!(variant(&catalog, "Llama-3.3-70B", "GH200", 4).within_node());
    assert!(!variant(&catalog, "Llama-3.3-70B", "GH200", 8).within_node());
}

#[test]
fn experts_are_read_as_often_as_tokens_reach_them() {
    let catalog = Catalog::builtin();
    let costs = StepCosts::new(&variant(&catalog, "Mixtral-8x7B-v0.1", "H100", 4), Factors::IDEAL);
    let step = |batch: f64, distinct: f64| costs.decode_distinct_seconds(batch, distinct, 100.0, 1.0);
    // One token passes through two of eight experts, sixty-four through all.
    let layers = 32.0 * 3.0 * 4096.0 * 14336.0 * 2.0 / 4.0 / 3352e9;
    assert!((step(1.0, 1.0) / (2.0 * layers) - 1.0).abs() < 0.15);
    assert!((step(64.0, 64.0) / (8.0 * layers) - 1.0).abs() < 0.15);
    // Equal sequences pass through those of one.
    assert!(step(64.0, 1.0) < 1.2 * step(1.0, 1.0));
}

#[test]
fn quantized_weights_and_keys_are_read_faster() {
    let catalog = Catalog::builtin();
    let mut model: Model = catalog.model("Qwen2.5-72B").unwrap().clone();
    let seconds = |model: &Model, batch: f64| {
        let variant = Variant::new(model, catalog.accelerator("A100-80GB").unwrap(), 4).unwrap();
        Roofline::new(&variant).decode_step_seconds(batch, 4096.0)
    };
    let (alone, many) = (seconds(&model, 1.0), seconds(&model, 64.0));
    model.bits.kv = 8.0;
    assert!(seconds(&model, 64.0) < 0.85 * many && seconds(&model, 1.0) > 0.99 * alone);
    model.bits.weights = 4.16;
    let ratio = seconds(&model, 1.0) / alone;
    assert!((0.26..0.35).contains(&ratio), "{ratio}");
}

#[test]
fn nothing_is_a_number_even_where_all_experts_are_active() {
    let catalog = Catalog::builtin();
    let mut model: Model = catalog.model("Mixtral-8x7B-v0.1").unwrap().clone();
    let experts = model.mlp.experts.as_mut().unwrap();
    experts.active = experts.count;
    let variant = Variant::new(&model, catalog.accelerator("H100").unwrap(), 4).unwrap();
    let roofline = Roofline::new(&variant);
    assert!(roofline.latency_seconds(0.0, 100.0, 100.0).is_finite());
    assert!(
        roofline.decode_step_seconds(1.0, 100.0)
            > Roofline::new(&self::variant(&catalog, "Mixtral-8x7B-v0.1", "H100", 4)).decode_step_seconds(1.0, 100.0)
    );
}

#[test]
fn an_empty_step_costs_nothing_and_parts_of_a_prompt_as_much_as_attention_says() {
    let catalog = Catalog::builtin();
    let costs = StepCosts::new(&variant(&catalog, "Llama-3.1-8B", "H100", 1), Factors::IDEAL);
    assert_eq!(costs.step_seconds(&Step::default()), 0.0);
    let (whole, first, second) = (
        Step::default().prefill(1024.0, 0.0),
        Step::default().prefill(512.0, 0.0),
        Step::default().prefill(512.0, 512.0),
    );
    assert_eq!(whole.scores, first.scores + second.scores);
    assert!(costs.step_seconds(&first) + costs.step_seconds(&second) > costs.step_seconds(&whole));
    assert!(costs.step_seconds(&second) > costs.step_seconds(&first));
}

#[test]
fn replicas_that_only_changed_their_order_cost_nothing() {
    let catalog = Catalog::builtin();
    let group = |tp, count| Group {
        model: catalog.model("Qwen2.5-7B").unwrap(),
        accelerator: catalog.accelerator("H100").unwrap(),
        tp,
        count,
    };
    let cost = |old: &[Group<'_>], new: &[Group<'_>]| reconfiguration(old, new, LoadScope::Changed).total_seconds();
    assert_eq!(cost(&[group(1, 2), group(2, 1)], &[group(2, 1), group(1, 1), group(1, 1), group(4, 0)]), 0.0);
    // One more replica: the model pays for both ways, as printed.
    let once = transfer_seconds(group(1, 1).model, group(1, 1).accelerator);
    assert_eq!(cost(&[group(1, 2)], &[group(1, 3)]), 2.0 * once);
    assert_eq!(cost(&[group(1, 2)], &[group(1, 0)]), once);
}
