use super::*;
use crate::{
    catalog::Catalog,
    sim::{Factors, StepCosts, Variant},
};

const HEAD: &str = "accelerator,engine,model,tp,batch,input_tokens,output_tokens,latency_s\n";
const TRUTH: Factors = Factors {
    compute_ratio: 0.63,
    bandwidth_ratio: 0.85,
    attention_ratio: 0.9,
    regroup_passes: 0.25,
    kv_write_passes: 6.0,
    logit_passes: 10.0,
    layer_seconds: 0.0,
    step_seconds: 2e-3,
    sequence_seconds: 5e-5,
    all_reduce_seconds: 1.5e-5,
    link_ratio: 0.5,
};

/// Batches as an engine with these factors would serve them, every tenth row three times too slow if `noisy`.
fn measured(models: &[&str], truth: &Factors, noisy: bool) -> Vec<Measurement> {
    let catalog = Catalog::builtin();
    let mut rows = Vec::new();
    for model in models {
        for tp in [1, 2, 4] {
            for batch in [1, 16, 32, 64] {
                for (prompt, answer) in [(128, 128), (512, 512), (1024, 1024), (1024, 1)] {
                    let (m, a) = (catalog.model(model).unwrap(), catalog.accelerator("H100").unwrap());
                    let costs = StepCosts::new(&Variant::new(m, a, tp).unwrap(), *truth);
                    let (b, p, steps) = (f64::from(batch), f64::from(prompt), f64::from(answer - 1));
                    let exact = costs.prefill_seconds(b, p) + costs.decode_seconds(b, p + 1.0, steps);
                    let off = if noisy && answer > 1 && rows.len() % 10 == 3 { 3.0 } else { 1.0 };
                    rows.push(Measurement {
                        line: rows.len() + 2,
                        accelerator: "H100".into(),
                        engine: "vLLM".into(),
                        version: String::new(),
                        model: (*model).into(),
                        tp,
                        batch,
                        prompt,
                        answer,
                        seconds: exact * off,
                    });
                }
            }
        }
    }
    rows
}

#[test]
fn factors_are_found_again_though_some_rows_are_nonsense() {
    let catalog = Catalog::builtin();
    for noisy in [false, true] {
        let rows = measured(&["Llama-2-7b", "Mistral-7B-v0.1"], &TRUTH, noisy);
        let sorted = sort(&catalog, &rows);
        assert!(sorted.cases.len() > 80);
        let found = fit(&sorted.cases[..]);
        let unseen = measured(&["Qwen2-7B", "Llama-3.3-70B"], &TRUTH, false);
        let unseen = sort(&catalog, &unseen);
        let errors = Errors::of(unseen.cases.iter().map(|case| (case.seconds(&found), case.measured.seconds))).unwrap();
        assert!(errors.count >= 70 && errors.mean_ratio < 0.015, "{noisy}: {errors:?} {found:?}");
        assert!((found.compute_ratio / TRUTH.compute_ratio - 1.0).abs() < 0.03, "{found:?}");
    }
}

#[test]
fn the_same_rows_give_the_same_factors() {
    let (catalog, rows) = (Catalog::builtin(), measured(&["Llama-2-7b"], &TRUTH, true));
    let sorted = sort(&catalog, &rows);
    assert_eq!(fit(&sorted.cases[..]), fit(&sorted.cases[..]));
}

#[test]
fn rows_that_say_nothing_are_left_out_with_the_reason() {
    let catalog = Catalog::builtin();
    let text = format!(
        "{HEAD}A100,vLLM,Llama-2-7b-hf,1,1,128,128,1.7\n\
         A100,vLLM,Llama-2-7b-hf,1,1,4096,128,90\n\
         A100,vLLM,Llama-2-7b-hf,1,64,2048,2048,190\n\n\
         A100,vLLM,Llama-2-7b-hf,1,1,128,128,0.5\n\
         A900,vLLM,Llama-2-7b-hf,1,1,128,128,1.7\n"
    );
    let rows = Measurement::read("rows.csv", &text).unwrap();
    let sorted = sort(&catalog, &rows);
    assert_eq!(sorted.cases.len(), 1);
    let reasons: Vec<_> = sorted.left_out.iter().map(|(row, reason)| format!("{}: {reason}", row.line)).collect();
    assert_eq!(reasons[0], "3: longer than the model's context of 4096 tokens");
    assert_eq!(reasons[1], "4: does not fit into memory at once");
    assert!(reasons[2].starts_with("6: faster than possible: 0."), "{reasons:?}");
    assert!(reasons[3].starts_with("7: the catalog has no accelerator \"A900\"; the nearest are A"), "{reasons:?}");
}

#[test]
fn what_is_written_is_read_again() {
    let text = format!("{HEAD}A100,vLLM,phi-4,1,4,128,64,1.25\n");
    let mut rows = Measurement::read("rows.csv", &text).unwrap();
    rows[0].version = "0.19, nightly".into();
    let again = Measurement::read("again.csv", &Measurement::table(&rows)).unwrap();
    rows[0].version = "0.19  nightly".into();
    assert_eq!(again, rows);
}

#[test]
fn tables_that_are_none_are_refused_on_one_line() {
    for (text, line) in [
        ("", "rows.csv: no column accelerator: the first line must name accelerator, engine, model, tp, "),
        ("accelerator,engine\n", "rows.csv: no column model: "),
        (&format!("{HEAD}A100,vLLM,phi-4,0,1,1,1,1\n"), "rows.csv: line 2: \"0\" is no tp"),
        (&format!("{HEAD}A100,vLLM,phi-4,1,1,1,1,fast\n"), "rows.csv: line 2: \"fast\" is no latency_s"),
        (&format!("{HEAD}A100,vLLM,,1,1,1,1,1\n"), "rows.csv: line 2: \"\" is no model"),
        (&format!("{HEAD}A100,vLLM,phi-4,1\n"), "rows.csv: line 2: \"\" is no latency_s"),
    ] {
        let told = Measurement::read("rows.csv", text).unwrap_err().to_string();
        assert!(told.starts_with(line) && !told.contains('\n'), "{told}");
    }
}

#[test]
fn the_table_that_comes_with_the_program_knows_what_it_stands_on() {
    let table = Table::builtin();
    assert_eq!(Table::read("again", &table.text()).unwrap(), table);
    let catalog = Catalog::builtin();
    for fitted in &table.fitted {
        assert_eq!(catalog.accelerator(&fitted.accelerator).unwrap().name, fitted.accelerator);
        for model in &fitted.models {
            assert_eq!(&catalog.model(model).unwrap().name, model);
        }
    }
    let known = |name| catalog.accelerator(name).unwrap();
    let basis = |name, engine, version| table.factors(known(name), engine, version).1;
    assert_eq!(basis("H100", "vllm", ""), Basis::Fitted);
    assert_eq!(basis("H100", "vLLM", "0.99"), Basis::OtherVersion);
    assert_eq!(basis("A100-80GB", "vLLM", "0.99"), Basis::OtherForm);
    assert_eq!(basis("T4", "vLLM", ""), Basis::OtherAccelerators);
    assert_eq!(basis("T4", "SGLang", ""), Basis::OtherEngines);
    assert_eq!(Table::default().factors(known("T4"), "SGLang", ""), (Factors::IDEAL, Basis::OtherEngines));
    // Times to first token are not among the measurements that other tests read.
    let first_tokens = table.fitted.iter().filter_map(|fitted| fitted.held_out_first_tokens);
    let first_tokens: Vec<f64> = first_tokens.map(|quality| quality.mean_ratio).collect();
    assert!(first_tokens.len() >= 5 && first_tokens.iter().all(|ratio| *ratio <= 0.03), "{first_tokens:?}");
}

#[test]
fn files_of_factors_that_are_none_are_refused_on_one_line() {
    for (text, line) in [
        ("fitted = 3", "f.toml: line 1: "),
        ("[[fitted]]\naccelerator = \"H100\"\n", "f.toml: line 1: missing field `engine`"),
        (
            &Table::builtin().text().replacen("compute_ratio = 0", "compute_ratio = 7", 1),
            "f.toml: factors of A100-40GB with",
        ),
    ] {
        let told = Table::read("f.toml", text).unwrap_err().to_string();
        assert!(told.starts_with(line) && !told.contains('\n'), "{told}");
    }
}

#[test]
fn relative_speeds_compare_what_differs_in_nothing_else() {
    let items = [("a", "X", 1.0, 1.0), ("a", "Y", 2.2, 2.0), ("b", "X", 1.0, 1.0), ("a", "X", 1.0, 1.0)];
    let errors = relative_speed(&items).unwrap();
    assert_eq!(errors.count, 2);
    assert!((errors.mean_ratio - 0.0954).abs() < 1e-3, "{errors:?}");
    assert_eq!(relative_speed(&items[2..3]), None);
}

/// A run in virtual time: three sequences at once, a prompt in each step where a place is free.
fn run(costs: &StepCosts, count: u32) -> Vec<Request> {
    let (mut now, mut next) = (0.0, 0);
    let mut running: Vec<(Request, u32)> = Vec::new();
    let mut ended = Vec::new();
    while next < count || !running.is_empty() {
        let joins = running.len() < 3 && next < count;
        let (mut step, began) = (crate::sim::Step::default(), now);
        for (request, done) in &running {
            step = step.decode(1.0, f64::from(request.prompt + done));
        }
        let prompt = 200 + 37 * (next % 9);
        if joins {
            step = step.prefill(f64::from(prompt), 0.0);
        }
        now += costs.step_seconds(&step);
        for (request, done) in &mut running {
            *done += 1;
            request.last = now;
        }
        if joins {
            let answer = 150 + 41 * (next % 7);
            running.push((Request { prompt, answer, queued: 0.0, scheduled: began, first: now, last: now }, 1));
            next += 1;
        }
        let (done, rest): (Vec<_>, Vec<_>) = running.into_iter().partition(|(request, done)| *done == request.answer);
        ended.extend(done.into_iter().map(|(request, _)| request));
        running = rest;
    }
    ended.sort_by(|a: &Request, b| a.first.total_cmp(&b.first));
    ended
}

#[test]
fn a_recorded_run_tells_how_long_its_steps_took() {
    let catalog = Catalog::builtin();
    let variant =
        Variant::new(catalog.model("Llama-3.1-8B").unwrap(), catalog.accelerator("RTX4090").unwrap(), 1).unwrap();
    let recording = Recording {
        model: "Llama-3.1-8B".into(),
        accelerator: None,
        engine: "vLLM".into(),
        version: "1".into(),
        tp: 1,
        kv_tokens: Some(10_000),
        block_tokens: None,
        sequences_max: None,
        step_tokens_max: None,
        requests: run(&StepCosts::new(&variant, TRUTH), 60),
    };
    let timeline = Timeline::new(variant, &recording, |i| i % 2 == 0);
    assert_eq!(timeline.count(), 30);
    let worst = |factors: &Factors| timeline.log_errors(factors).into_iter().map(f64::abs).fold(0.0, f64::max);
    assert!(worst(&TRUTH) < 0.01, "{}", worst(&TRUTH));
    assert!(worst(&Factors::IDEAL) > 0.15);
    assert!(worst(&fit(&timeline)) < 0.02, "{}", worst(&fit(&timeline)));
}

#[test]
fn a_recording_that_is_none_is_refused_on_one_line() {
    let meta = r#"{"model": "m", "vllm_version": "1", "engine_kwargs": {"tensor_parallel_size": 1}}"#;
    let read = |meta: &str, requests: &str| Recording::read(("meta.json", meta), ("requests.jsonl", requests));
    let fine = r#"{"input_toks": 3, "output_toks": 4, "queued_ts": 1, "scheduled_ts": 2, "first_token_ts": 3, "last_token_ts": 4}"#;
    assert_eq!(read(meta, fine).unwrap().requests.len(), 1);
    let late = fine.replace("\"scheduled_ts\": 2", "\"scheduled_ts\": 9");
    for (result, line) in [
        (read("{}", fine), "meta.json: missing field `model`"),
        (read(meta, &format!("{fine}\n{late}")), "requests.jsonl: line 2: its times are not in order"),
        (read(meta, "{}"), "requests.jsonl: line 1: missing field"),
    ] {
        let told = result.unwrap_err().to_string();
        assert!(told.starts_with(line) && !told.contains('\n'), "{told}");
    }
}
