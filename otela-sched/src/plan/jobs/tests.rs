use super::super::tests::{LLAMA, NOW, QWEN, node, policy, seen, told};
use crate::{
    catalog::Catalog,
    plan::{Avoided, Decision, Doing, JobKind, KindSeen, NodeSeen, Observation, Plan, Policy, decide},
};
use otela_proto::assignment::AssignedState;
use proptest::prelude::*;
use std::collections::BTreeMap;

const KINDS: &str = r#"
    replace_before_end = 1800
    [[slurm.jobs]]
    name = "a100x4"
    script = "worker.sbatch"
    options = ["--partition=gpu", "--gpus=a100:4", "--time=12:00:00"]
    accelerator = "A100-80GB"
    count = 4
    max = 4
    [[slurm.jobs]]
    name = "small"
    script = "worker.sbatch"
    accelerator = "RTX4090"
    models = ["Qwen/*"]
    max = 2
"#;

fn wants(models: &str) -> Policy {
    policy(&format!("{KINDS}\n{models}"))
}

fn one(model: &str, rate: f64) -> Policy {
    wants(&format!("[[models]]\nmodel = \"{model}\"\nrate = {rate}"))
}

/// Of the kind `a100x4`, so many in the queue, and of them so many whose node is still to join.
fn queue(queued: u32, coming: u32) -> Option<BTreeMap<String, KindSeen>> {
    let of = KindSeen { queued, coming, paused: None };
    Some(BTreeMap::from([("a100x4".to_owned(), of), ("small".to_owned(), KindSeen::default())]))
}

fn decides(policy: &Policy, nodes: Vec<NodeSeen>, queue: Option<BTreeMap<String, KindSeen>>) -> Decision {
    let observation = Observation { queue, ..seen(nodes) };
    decide(policy, &Catalog::builtin(), &observation, &Avoided::new())
}

fn submits(decision: &Decision) -> Vec<(&str, u32)> {
    decision.submit.iter().map(|submit| (submit.kind.as_str(), submit.count)).collect()
}

fn lacks(decision: &Decision) -> &str {
    decision.models[0].lacks.as_deref().unwrap_or("nothing")
}

#[test]
fn the_cheapest_kind_that_does_is_asked_for_once_idle_nodes_are_used() {
    assert_eq!(submits(&decides(&one(QWEN, 0.1), Vec::new(), queue(0, 0))), [("small", 1)]);
    let decision = decides(&one(LLAMA, 0.1), Vec::new(), queue(0, 0));
    assert_eq!(submits(&decision), [("a100x4", 1)], "it fits on nothing else, and the other kind may not");
    assert!(decision.submit[0].why.contains(LLAMA), "{decision:?}");
    assert!(lacks(&decision).contains("1 more jobs of kind a100x4 are submitted"), "{decision:?}");
    // An idle node is there: it is used.
    let decision = decides(&one(LLAMA, 0.1), vec![node(1, "A100-80GB", 4)], queue(0, 0));
    assert_eq!((submits(&decision), decision.steps.len()), (Vec::new(), 1));
    // As much as it takes of two models, by a kind that both can use.
    let both = format!("[[models]]\nmodel = \"{LLAMA}\"\n[[models]]\nmodel = \"Llama-3.1-8B\"");
    assert_eq!(submits(&decides(&wants(&both), Vec::new(), queue(0, 0))), [("a100x4", 2)]);
}

#[test]
fn jobs_that_wait_count_first_and_cost_nothing() {
    let decision = decides(&one(LLAMA, 0.1), Vec::new(), queue(1, 1));
    assert_eq!(submits(&decision), []);
    assert!(lacks(&decision).contains("1 jobs of kind a100x4 wait or start"), "{decision:?}");
    // One whose node has joined and serves counts as that.
    let mut serves = node(1, "A100-80GB", 4);
    serves.doing = told(LLAMA, AssignedState::Serving);
    let decision = decides(&one(LLAMA, 0.1), vec![serves], queue(1, 0));
    assert_eq!((submits(&decision), lacks(&decision)), (Vec::new(), "nothing"));
    // One that runs and has lost its node counts for the most only.
    assert_eq!(submits(&decides(&one(LLAMA, 0.1), Vec::new(), queue(3, 0))), [("a100x4", 1)]);
    let full = decides(&one(LLAMA, 0.1), Vec::new(), queue(4, 0));
    assert_eq!(submits(&full), []);
    assert!(lacks(&full).contains("no more of kind a100x4: 4 of at most 4 are in the queue"), "{full:?}");
}

#[test]
fn as_much_as_may_be_is_given_where_that_is_not_all() {
    let decision = decides(&one(LLAMA, 1e6), Vec::new(), queue(1, 1));
    assert_eq!(submits(&decision), [("a100x4", 3)]);
    // A model that no kind can serve keeps nobody from anything, wherever it stands.
    let large = format!("[[models]]\nmodel = \"Llama-3.1-405B\"\n[[models]]\nmodel = \"{LLAMA}\"\nrate = 1e6");
    assert_eq!(submits(&decides(&wants(&large), Vec::new(), queue(0, 0))), [("a100x4", 4)]);
    let nothing = decides(&one("Llama-3.1-405B", 1.0), Vec::new(), queue(0, 0));
    assert_eq!(submits(&nothing), []);
    assert!(lacks(&nothing).contains("larger ones, would help"), "{nothing:?}");
}

#[test]
fn where_the_queue_is_not_known_or_a_kind_is_paused_nothing_is_submitted() {
    let unknown = decides(&one(LLAMA, 0.1), Vec::new(), None);
    assert_eq!(submits(&unknown), []);
    assert!(lacks(&unknown).contains("Slurm's queue is not known, so nothing is submitted"), "{unknown:?}");
    let mut paused = queue(0, 0).unwrap();
    paused.get_mut("a100x4").unwrap().paused = Some("its last job failed".into());
    let decision = decides(&one(LLAMA, 0.1), Vec::new(), Some(paused.clone()));
    assert_eq!(submits(&decision), []);
    assert!(lacks(&decision).contains("no jobs of kind a100x4 for now: its last job failed"), "{decision:?}");
    assert_eq!(submits(&decides(&one(QWEN, 0.1), Vec::new(), Some(paused))), [("small", 1)], "another kind is there");
    let none = "[[models]]\nmodel = \"Qwen2.5-7B\"";
    assert!(lacks(&decides(&policy(none), Vec::new(), None)).contains("more idle nodes"));
}

#[test]
fn p57_nodes_that_end_soon_are_left_alone_and_their_successors_are_asked_for() {
    let ends_in = |doing: Doing, seconds: u64| {
        let mut node = node(1, "A100-80GB", 4);
        (node.doing, node.ends_at_ms) = (doing, Some(NOW + seconds * 1000));
        node
    };
    let serving = || told(LLAMA, AssignedState::Serving);
    let late = decides(&one(LLAMA, 0.1), vec![ends_in(serving(), 1800)], queue(1, 0));
    assert_eq!((submits(&late), lacks(&late)), (Vec::new(), "nothing"));
    for doing in [serving(), Doing::Own(vec![LLAMA.into()]), told("old", AssignedState::Serving)] {
        let soon = decides(&one(LLAMA, 0.1), vec![ends_in(doing, 1799)], queue(1, 0));
        assert_eq!(submits(&soon), [("a100x4", 1)]);
        assert_eq!((soon.steps.len(), soon.idle.len()), (0, 0), "it is left alone: {soon:?}");
    }
    for doing in [Doing::Nothing, told(LLAMA, AssignedState::Failed)] {
        let idle = decides(&one(LLAMA, 0.1), vec![ends_in(doing, 60)], queue(1, 0));
        assert_eq!((submits(&idle), idle.steps.len()), (vec![("a100x4", 1)], 0));
        assert!(idle.idle[0].why.starts_with("it ends in 60 s, and nodes that end within 1800 s"), "{idle:?}");
    }
    // The successor is there: it gets the model, though the old one still serves.
    let mut new = node(2, "A100-80GB", 4);
    new.ends_at_ms = Some(NOW + 43_200_000);
    let decision = decides(&one(LLAMA, 0.1), vec![ends_in(serving(), 700), new], queue(2, 0));
    assert_eq!((submits(&decision), decision.steps.len()), (Vec::new(), 1));
}

#[test]
fn plans_of_before_there_were_jobs_are_read() {
    let plan: Plan = serde_json::from_str(
        r#"{"number": 1, "generation": 1, "scheduler": "s", "mesh": "m", "made_at_ms": 1, "models": [], "steps": [],
        "idle": []}"#,
    )
    .unwrap();
    assert_eq!(plan.submit, []);
}

#[test]
fn the_example_of_the_docs_is_read() {
    let docs = include_str!("../../../../docs/scheduler.md");
    let text = docs.split("```toml\n").find(|text| text.contains("[[slurm.jobs]]")).unwrap();
    let policy = policy(text.split("```").next().unwrap());
    assert_eq!((policy.slurm.jobs[0].max, policy.replace_before_end.as_secs()), (4, 1800));
}

#[test]
fn kinds_that_cannot_be_used_are_told_on_one_line() {
    let kind = "[[models]]\nmodel = \"Qwen2.5-7B\"\n[[slurm.jobs]]\nname = \"a\"\nscript = \"s\"\naccelerator = \"H100\"\nmax = 1\n";
    policy(kind);
    for (from, to, what) in [
        ("\"a\"", "\"a-b\"", "name: 1 to 64 letters"),
        ("max = 1", "max = 0", "count and max are from 1 on"),
        ("max = 1", "max = 1\ncount = 0", "count and max are from 1 on"),
        ("\"H100\"", "\"H101\"", "accelerator: the catalog has no accelerator"),
        ("max = 1", "max = 1\noptions = [\"gpu\"]", "would be taken for the script"),
        ("max = 1", "max = 1\noptions = [\"--array=1-9\"]", "\"--array=1-9\" is not allowed: each job is one node"),
        ("max = 1", "max = 1\noptions = [\"-a1-9\"]", "\"-a1-9\" is not allowed"),
        ("max = 1", "max = 1\noptions = [\"--job=x\"]", "\"--job=x\" is not allowed"),
        ("max = 1", "max = 1\noptions = [\"-W\"]", "\"-W\" is not allowed: sbatch would not come back"),
        (
            "max = 1",
            "max = 1\n[[slurm.jobs]]\nname = \"a\"\nscript = \"s\"\naccelerator = \"H100\"\nmax = 1",
            "a is there twice",
        ),
        ("max = 1", "most = 1", "unknown field `most`"),
    ] {
        let said = Policy::read("p", &kind.replace(from, to), &Catalog::builtin()).unwrap_err().to_string();
        assert!(said.contains(what) && !said.contains('\n'), "{to}: {said}");
    }
    policy(
        &kind
            .replace("max = 1", "max = 1\noptions = [\"--wait-all-nodes=1\", \"-A\", \"-J1\"]")
            .replace(", \"-J1\"", ""),
    );
}

#[test]
fn scripts_may_not_make_several_jobs_of_one() {
    let policy = wants("[[models]]\nmodel = \"Qwen2.5-7B\"");
    let kind: &JobKind = &policy.slurm.jobs[0];
    assert_eq!(kind.job_name("lab"), "otela-lab-a100x4");
    assert_eq!(
        kind.check_script("#!/bin/sh\n#SBATCH --job-name=x -t 5\n\n# words\ntrue\n#SBATCH --array=1-3\n"),
        Ok(())
    );
    let said = kind.check_script("#!/bin/sh\n#SBATCH -t 5 --array=1-3\n").unwrap_err();
    assert!(said.starts_with("#SBATCH --array=1-3 is not allowed: each job is one node"), "{said}");
}

/// What happens to jobs.
#[derive(Debug, Clone, Copy)]
enum Event {
    Starts(usize),
    Joins(usize),
    LosesNode(usize),
    Ends(usize),
    QueueLost,
    QueueRead,
    Load(f64),
}

fn event() -> impl Strategy<Value = Event> {
    let which = 0..8_usize;
    prop_oneof![
        which.clone().prop_map(Event::Starts),
        which.clone().prop_map(Event::Joins),
        which.clone().prop_map(Event::LosesNode),
        which.prop_map(Event::Ends),
        Just(Event::QueueLost),
        Just(Event::QueueRead),
        (0.0..1e3_f64).prop_map(Event::Load),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Job {
    Coming,
    Joined,
    Alone,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn there_are_never_more_than_may_be_whatever_happens(events in prop::collection::vec(event(), 1..40)) {
        let (mut jobs, mut is_known, mut rate): (Vec<Job>, _, _) = (Vec::new(), true, 0.5);
        for event in events {
            let count = jobs.len();
            match event {
                Event::Starts(n) if n < count && jobs[n] == Job::Coming => {}
                Event::Joins(n) if n < count => jobs[n] = Job::Joined,
                Event::LosesNode(n) if n < count && jobs[n] == Job::Joined => jobs[n] = Job::Alone,
                Event::Ends(n) if n < count => _ = jobs.remove(n),
                Event::QueueLost => is_known = false,
                Event::QueueRead => is_known = true,
                Event::Load(load) => rate = load,
                _ => {}
            }
            let of = |job| jobs.iter().filter(|is| **is == job).count();
            let nodes = (0..of(Job::Joined)).map(|n| {
                let mut node = node(u8::try_from(n).unwrap() + 1, "A100-80GB", 4);
                node.doing = told(LLAMA, AssignedState::Serving);
                node
            });
            let queue = queue(u32::try_from(jobs.len()).unwrap(), u32::try_from(of(Job::Coming)).unwrap());
            let decision = decides(&one(LLAMA, rate), nodes.collect(), queue.filter(|_| is_known));
            let count: u32 = decision.submit.iter().map(|submit| submit.count).sum();
            prop_assert!(is_known || count == 0);
            jobs.extend((0..count).map(|_| Job::Coming));
            prop_assert!(jobs.len() <= 4, "{jobs:?}");
        }
    }
}
