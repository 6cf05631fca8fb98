use super::*;
use crate::{calibrate::Table, catalog::Catalog};

const NOON: &str = r#"
seconds = 600
seed = 4

[[models]]
model = "Llama-3.1-8B"
policy = "p2c"
slo = { ttft = 2, itl = 0.1 }
workload = { arrivals = { rates = [[0, 20.0]] }, prompt = { normal = { mean = 700, deviation = 400 } }, answer = { log_normal = { mean = 200, deviation = 150 } } }

[[models.replicas]]
accelerator = "A100-80GB"
count = 4
"#;

fn run(text: &str) -> Result<Report, ScenarioError> {
    Scenario::read("noon.toml", text)?.run("noon.toml", &Catalog::builtin(), &Table::builtin())
}

#[test]
fn what_is_lost_shows_in_the_tail() {
    let calm = &run(NOON).unwrap().models[0];
    let lost = &run(&format!("{NOON}\n[[losses]]\nat = 300\naccelerator = 'A100-80GB'\ncount = 3")).unwrap().models[0];
    assert_eq!((calm.summary.not_served, lost.summary.not_served), (0, 0));
    assert_eq!((calm.replicas[0].lost, lost.replicas[0].lost), (0, 3));
    assert!(lost.summary.latency.p95 > 1.5 * calm.summary.latency.p95, "{:?} {:?}", calm.summary, lost.summary);
    assert!(lost.summary.restarts > 0 && calm.summary.restarts == 0);
    assert!(lost.summary.attained_ratio < calm.summary.attained_ratio);
    // Before it everything is the same.
    let early =
        |report: &ModelReport| report.timeline[..20].iter().map(|moment| moment.latency_p50).collect::<Vec<_>>();
    assert_eq!(early(calm), early(lost));
    let busy = |report: &ModelReport| report.replicas[0].busy_ratio;
    assert!(busy(lost) > busy(calm) && busy(lost) <= 1.0, "{} {}", busy(lost), busy(calm));
    // Of four replicas one is left, with the requests of all.
    let mean = |parts: &[Option<f64>]| parts.iter().flatten().sum::<f64>() / parts.len() as f64;
    let (before, after) = (mean(&lost.replicas[0].running[20..30]), mean(&lost.replicas[0].running[32..60]));
    assert!(after > 3.0 * before, "{before} {after}");
    // By Little's law all replicas together have as many as come in the time that one takes.
    let all = 4.0 * mean(&calm.replicas[0].running[5..55]);
    assert!((all / (20.0 * calm.summary.latency.mean) - 1.0).abs() < 0.15, "{all} {:?}", calm.summary);
    assert!(calm.latencies.is_sorted() && calm.latencies.len() == 1000);
    assert!(calm.replicas[0].energy_joules.is_some_and(|joules| joules > 0.0));
}

#[test]
fn the_same_file_has_the_same_outcome_and_another_seed_another() {
    let latency = |text: &str| run(text).unwrap().models[0].summary.latency;
    assert_eq!(latency(NOON), latency(NOON));
    assert!(latency(NOON) != latency(&NOON.replace("seed = 4", "seed = 5")));
    for policy in ["random", "round-robin", "weighted", "least-loaded"] {
        assert!(latency(&NOON.replace("p2c", policy)).p50 > 0.0, "{policy}");
    }
}

#[test]
fn prompts_and_answers_can_be_apart() {
    let split = NOON.replace(
        "count = 4",
        "count = 2\nrole = 'prefill'\n[[models.replicas]]\naccelerator = 'A100-80GB'\ncount = 2\nrole = 'decode'",
    );
    let report = run(&split).unwrap();
    assert_eq!((report.models[0].summary.not_served, report.models[0].replicas.len()), (0, 2));
    assert!(
        report.models[0].replicas.iter().all(|replicas| replicas.busy_ratio > 0.1),
        "{:?}",
        report.models[0].replicas
    );
}

#[test]
fn those_under_way_are_counted_at_the_beginnings_of_parts() {
    let report = run(NOON).unwrap();
    let moments = &report.models[0].timeline;
    assert_eq!(moments[0].under_way, 0);
    // Little: as many as come in the time that one takes.
    let expected = 20.0 * report.models[0].summary.latency.mean;
    let mean = moments[5..50].iter().map(|moment| moment.under_way as f64).sum::<f64>() / 45.0;
    assert!((mean / expected - 1.0).abs() < 0.15, "{mean} {expected}");
}

#[test]
fn what_cannot_be_simulated_is_told() {
    let told = |text: &str| run(text).unwrap_err().to_string();
    for (from, to, expected) in [
        ("seconds = 600", "seconds = 0", "noon.toml: seconds cannot be 0"),
        ("seed = 4", "sed = 4", "noon.toml: line 3: unknown field `sed`"),
        ("Llama-3.1-8B", "Llama-3.1-9B", "Llama-3.1-8B"),
        ("A100-80GB", "A100-81GB", "A100-80GB"),
        ("Llama-3.1-8B", "Llama-3.1-405B", "does not fit on 1 A100-80GB: give more of them with tp"),
        ("count = 4", "count = 0", "models, Llama-3.1-8B: it has no replicas"),
        ("[[0, 20.0]]", "[[5, 20.0]]", "models, Llama-3.1-8B: rates are pairs"),
        ("p2c", "best", "line 7: unknown variant `best`"),
    ] {
        let said = told(&NOON.replace(from, to));
        assert!(said.contains(expected), "{to}: {said}");
    }
    let loss = "\n[[losses]]\nat = 300\naccelerator = 'A100-80GB'\ncount = 5";
    assert!(told(&format!("{NOON}{loss}")).contains("losses: 5 A100-80GB cannot be lost, there are 4 then"));
}

#[test]
fn the_example_of_the_docs_is_one() {
    let docs = include_str!("../../../docs/simulator.md");
    let begin = docs.find("```toml\nseconds").unwrap() + 8;
    let text = &docs[begin..begin + docs[begin..].find("```").unwrap()];
    let day = Scenario::read("docs", text).unwrap();
    assert_eq!((day.seconds, day.losses.len()), (86_400.0, 1));
    let hour = Scenario { seconds: 60.0, ..day };
    let report = hour.run("docs", &Catalog::builtin(), &Table::builtin()).unwrap();
    assert!(report.models[0].summary.served > 1_000 && report.models[0].summary.not_served == 0);
}
