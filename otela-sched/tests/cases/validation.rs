//! What the program's factors foretell, against measurements that are kept outside of the repository, in a folder `shared`
//! beside it or where `OTELA_SHARED` says. Where they are missing, `make test` leaves these out and says so.

use otela_sched::{
    calibrate::{Errors, Evidence, Measurement, Recording, Table, Timeline, errors, predict, sort, speeds},
    catalog::Catalog,
    sim::{Factors, Variant},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A file below the folder of measurements.
#[expect(clippy::disallowed_methods, reason = "where measurements are is told by the environment")]
fn measurements(name: &str) -> String {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let path = std::env::var("OTELA_SHARED").map_or(beside, PathBuf::from).join("cases").join(name);
    let why = "measurements are kept outside of the repository: OTELA_SHARED names the folder above cases/";
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; {why}", path.display()))
}

#[test]
fn lab_measurements_of_models_that_were_not_fitted_on_are_foretold() {
    let text = measurements("measured_latency.csv");
    let measured = Measurement::read("measured_latency.csv", &text).unwrap();
    let catalog = Catalog::builtin();
    let sorted = sort(&catalog, &measured);
    assert!(sorted.cases.len() > 780 && sorted.left_out.len() < 70, "{} {:?}", sorted.cases.len(), sorted.left_out);
    let predicted = predict(&sorted.cases, &Table::builtin());
    let of_engine =
        |engine: &str| errors(&predicted, |p| p.held_out && p.case.measured.engine == engine).expect("there are some");
    let (vllm, tensorrt) = (of_engine("vLLM"), of_engine("TensorRT-LLM"));
    println!("held-out models, vLLM: {vllm:?}\nTensorRT-LLM: {tensorrt:?}");
    assert!(vllm.count >= 150 && vllm.mean_ratio <= 0.05, "{vllm:?}");
    assert!(tensorrt.count >= 80 && tensorrt.mean_ratio <= 0.08, "{tensorrt:?}");
    let speeds = speeds(&predicted, |p| p.held_out).expect("there are pairs");
    println!("relative speed of accelerators, held-out models: {speeds:?}");
    assert!(speeds.count >= 30 && speeds.median_ratio <= 0.03, "{speeds:?}");
}

/// Holds something against each recorded run: its name, what it was on, and the factors of that.
fn each_run(hold: impl Fn(&str, &Recording, Variant<'_>, Factors)) {
    let (catalog, table) = (Catalog::builtin(), Table::builtin());
    for (run, accelerator) in [("RTX4090_Llama-3.1-8B", "RTX4090"), ("RTXPRO6000_Llama-3.1-8B", "RTXPRO6000")] {
        let read = |name: &str| measurements(&format!("vllm_runs/{run}/{name}"));
        let (meta, requests) = (read("meta.json"), read("requests.jsonl"));
        let recording = Recording::read(("meta.json", &meta), ("requests.jsonl", &requests)).expect("a run");
        let accelerator = catalog.accelerator(accelerator).expect("in the catalog");
        let model = catalog.model(&recording.model).expect("in the catalog");
        let variant = Variant::new(model, accelerator, recording.tp).expect("tp is not 0");
        let fitted = table.get(&accelerator.name, &recording.engine, &recording.version).expect("it was fitted");
        hold(run, &recording, variant, fitted.factors);
    }
}

#[test]
fn lab_measurements_of_recorded_runs_are_foretold() {
    each_run(|run, recording, variant, factors| {
        // Those with odd numbers were not fitted on.
        let timeline = Timeline::new(variant, recording, |i| i % 2 == 1);
        let logs = timeline.log_errors(&factors);
        let errors = Errors::of(logs.into_iter().map(|error| (error.exp(), 1.0))).expect("there are some");
        println!("{run}: {errors:?}");
        // On the smaller card many requests were put back in between, which the recording does not say.
        assert!(errors.count > 100 && errors.median_ratio <= 0.03 && errors.mean_ratio <= 0.075, "{run}: {errors:?}");
    });
}

#[test]
fn lab_measurements_of_recorded_runs_are_served_alike() {
    each_run(|run, recording, variant, factors| {
        let summary = recording.replay(&variant, factors).expect("it fits").summary(None);
        let measured = recording.means();
        for (what, found, is) in [
            ("TTFT", summary.ttft.mean, measured.ttft_seconds),
            ("TPOT", summary.itl.mean, measured.itl_seconds),
            ("end to end", summary.latency.mean, measured.latency_seconds),
        ] {
            let off = found / is - 1.0;
            println!("{run}: mean {what} {found:.4} s, measured {is:.4} s: {:+.1} %", off * 100.0);
            assert!(off.abs() <= 0.10, "{run}: mean {what} {found} s, measured {is} s");
        }
    });
}
