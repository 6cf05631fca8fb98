use super::*;
use crate::catalog::Catalog;
use otela_proto::{
    Keypair,
    assignment::{AssignedState, OfferedTemplate},
    id::{Epoch, Session},
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const POLICY: &str = r#"
    [[models]]
    model = "Qwen/Qwen2.5-7B-Instruct"
    rate = 4.0
    [[models]]
    model = "meta-llama/Llama-3.3-70B-Instruct"
    rate = 0.5
    [[models]]
    model = "small"
    like = "Qwen2.5-1.5B"
    rate = 1.0
"#;
pub(super) const QWEN: &str = "Qwen/Qwen2.5-7B-Instruct";
pub(super) const LLAMA: &str = "meta-llama/Llama-3.3-70B-Instruct";

/// 2026.
pub(super) const NOW: u64 = 1_790_000_000_000;

pub(super) fn policy(text: &str) -> Policy {
    Policy::read("p", text, &Catalog::builtin()).unwrap()
}

pub(super) fn session(n: u8) -> Session {
    let key = Keypair::ed25519_from_bytes([n; 32]).unwrap();
    Session { peer: key.public().to_peer_id(), epoch: Epoch(1) }
}

fn template(models: &[&str]) -> OfferedTemplate {
    OfferedTemplate { name: "vllm".into(), models: models.iter().map(|model| (*model).to_owned()).collect() }
}

pub(super) fn node(n: u8, kind: &str, count: u32) -> NodeSeen {
    NodeSeen {
        session: session(n),
        host: format!("node-{n}"),
        cards: Some(Card { kind: kind.into(), name: kind.into(), count }),
        templates: vec![template(&[])],
        doing: Doing::Nothing,
        told: None,
        ends_at_ms: None,
    }
}

pub(super) fn told(model: &str, state: AssignedState) -> Doing {
    Doing::Told { model: model.into(), state }
}

pub(super) fn seen(nodes: Vec<NodeSeen>) -> Observation {
    Observation { nodes, now_ms: NOW, ..Observation::default() }
}

fn decided(nodes: Vec<NodeSeen>) -> Decision {
    decide(&policy(POLICY), &Catalog::builtin(), &seen(nodes), &Avoided::new())
}

/// Who serves what, by the last byte of the node's number.
fn serves(decision: &Decision, nodes: &[NodeSeen]) -> Vec<Option<String>> {
    let of = |node: &NodeSeen| {
        let step = decision.steps.iter().find(|step| step.node == node.session.peer.to_string());
        step.and_then(|step| step.serve.as_ref()).map(|serve| serve.model.clone())
    };
    nodes.iter().map(of).collect()
}

#[test]
fn each_model_gets_a_node_that_it_fits_on_and_what_is_left_stays_a_spare() {
    let nodes = vec![
        node(1, "RTX4090", 1),
        node(2, "A100-80GB", 1),
        node(3, "A100-80GB", 4),
        node(4, "A100-80GB", 4),
        node(5, "RTX4090", 1),
    ];
    let decision = decided(nodes.clone());
    let serve = serves(&decision, &nodes);
    let with = |model: &str| serve.iter().position(|of| of.as_deref() == Some(model)).unwrap();
    assert!([2, 3].contains(&with(LLAMA)), "140 GB fit on four of 80 GB only: {serve:?}");
    assert!([0, 4].contains(&with("small")), "the cheapest node that is fast enough: {serve:?}");
    assert_eq!(decision.steps.len(), 3);
    assert_eq!(decision.idle.len(), 2);
    assert!(decision.idle.iter().all(|idle| idle.why == "a spare: all have enough"), "{decision:?}");
    assert!(decision.models.iter().all(|model| model.lacks.is_none() && model.bears >= 1.3 * model.rate));
    let step = decision.steps.iter().find(|step| step.serve.as_ref().is_some_and(|of| of.model == LLAMA)).unwrap();
    let serve = step.serve.as_ref().unwrap();
    assert_eq!(serve.tensor_parallel * serve.data_parallel, 4);
}

#[test]
fn running_models_are_never_moved_and_a_lost_one_goes_to_a_spare() {
    let mut nodes = vec![node(1, "A100-80GB", 1), node(2, "A100-80GB", 4), node(3, "H100", 8), node(4, "A100-80GB", 4)];
    nodes[0].doing = told("small", AssignedState::Serving);
    nodes[2].doing = told(QWEN, AssignedState::Starting);
    nodes[1].doing = told(LLAMA, AssignedState::Serving);
    assert_eq!(decided(nodes.clone()).steps, [], "all have what they need, though not in the best places");
    nodes.remove(1);
    let decision = decided(nodes.clone());
    assert_eq!(serves(&decision, &nodes), [None, None, Some(LLAMA.to_owned())]);
    assert_eq!(decision.steps.len(), 1);
}

#[test]
fn what_ingresses_measure_counts_and_more_load_gets_more_nodes() {
    let nodes: Vec<_> = (1..9).map(|n| node(n, "A100-80GB", 1)).collect();
    let policy = policy("[[models]]\nmodel = \"Qwen2.5-7B\"\nrate = 1");
    let with = |rate| {
        let measured = Measured { rate, tokens: Some((1000.0, 500.0)) };
        let loads = BTreeMap::from([("Qwen2.5-7B".to_owned(), measured)]);
        decide(&policy, &Catalog::builtin(), &Observation { loads, ..seen(nodes.clone()) }, &Avoided::new())
    };
    let counts: Vec<_> = [0.1, 5.0, 20.0, 1e6].map(|rate| with(rate).steps.len()).to_vec();
    assert!(counts[0] == 1 && counts[1] >= 1 && counts[2] > counts[1] && counts[3] == 8, "{counts:?}");
    assert_eq!((with(5.0).models[0].prompt, with(5.0).models[0].is_measured), (1000.0, true));
    assert!(!with(0.1).models[0].is_measured, "the operator expects more");
    let lacks = with(1e6).models[0].lacks.clone().unwrap();
    assert!(lacks.contains("of 1300000.000 requests a second: more idle nodes"), "{lacks}");
}

#[test]
fn where_not_all_can_be_served_the_first_are() {
    let nodes = vec![node(1, "A100-80GB", 1), node(2, "A100-80GB", 4)];
    let decision = decided(nodes.clone());
    assert_eq!(serves(&decision, &nodes), [Some(QWEN.to_owned()), Some(LLAMA.to_owned())]);
    let lacks: Vec<_> = decision.models.iter().map(|model| model.lacks.is_some()).collect();
    assert_eq!(lacks, [false, false, true]);
}

#[test]
fn nodes_are_used_only_as_their_providers_allow() {
    let mut nodes = vec![node(1, "A100-80GB", 1), node(2, "A100-80GB", 4), node(3, "H100", 8), node(4, "B9000", 1)];
    nodes[0].templates = Vec::new();
    nodes[1].templates = vec![template(&["other/*"])];
    nodes[2].doing = Doing::Leaving;
    let decision = decided(nodes);
    assert_eq!(decision.steps, []);
    let why: Vec<_> = decision.idle.iter().map(|idle| idle.why.as_str()).collect();
    assert!(why.contains(&"it takes no orders of this scheduler"), "{why:?}");
    assert!(why.iter().any(|why| why.contains("B9000")), "an accelerator that nobody knows is named: {why:?}");
}

#[test]
fn where_a_model_has_just_failed_it_is_not_tried_again_at_once() {
    let mut failed = node(1, "A100-80GB", 1);
    failed.doing = told("small", AssignedState::Failed);
    let policy = policy("[[models]]\nmodel = \"small\"\nlike = \"Qwen2.5-1.5B\"");
    let seen = seen(vec![failed, node(2, "A100-80GB", 4)]);
    let avoided = Avoided::from([(session(1), "small".to_owned())]);
    let decision = decide(&policy, &Catalog::builtin(), &seen, &avoided);
    assert_eq!(serves(&decision, &seen.nodes), [None, Some("small".to_owned())]);
    let again = decide(&policy, &Catalog::builtin(), &seen, &Avoided::new());
    assert_eq!(serves(&again, &seen.nodes), [Some("small".to_owned()), None]);
}

#[test]
fn models_that_nobody_wants_any_more_make_room() {
    let mut nodes = vec![node(1, "A100-80GB", 1), node(2, "A100-80GB", 1), node(3, "A100-80GB", 1)];
    nodes[0].doing = told("old", AssignedState::Serving);
    nodes[1].doing = Doing::Own(vec!["own".into()]);
    nodes[2].doing = told("small", AssignedState::Serving);
    let policy = policy("[[models]]\nmodel = \"small\"\nlike = \"Qwen2.5-1.5B\"");
    let seen = seen(nodes);
    let decision = decide(&policy, &Catalog::builtin(), &seen, &Avoided::new());
    assert_eq!(decision.steps.len(), 1);
    assert_eq!((&decision.steps[0].serve, decision.steps[0].host.as_str()), (&None, "node-1"));
}

#[test]
fn policies_that_cannot_be_used_are_told_on_one_line() {
    for (text, what) in [
        ("models = []", "p: no [[models]]"),
        ("[[models]]\nmodel = \"Qwen2.5-7C\"", "p: models, Qwen2.5-7C: give `like`"),
        ("headroom = 0.5\n[[models]]\nmodel = \"Qwen2.5-7B\"", "p: headroom = 0.5: from 1 on"),
        ("[[models]]\nmodel = \"Qwen2.5-7B\"\nrate = -1.0", "p: Qwen2.5-7B: rate"),
        ("[[models]]\nmodel = \"Qwen2.5-7B\"\nprompt = 0", "p: Qwen2.5-7B: prompt"),
        ("[[models]]\nmodel = \"Qwen2.5-7B\"\n[[models]]\nmodel = \"Qwen2.5-7B\"", "p: Qwen2.5-7B is there twice"),
        ("[[models]]\nmodle = \"Qwen2.5-7B\"", "p: line 2: unknown field `modle`"),
        ("[prices]\nH9 = 1.0\n[[models]]\nmodel = \"Qwen2.5-7B\"", "p: prices: "),
    ] {
        let said = Policy::read("p", text, &Catalog::builtin()).unwrap_err().to_string();
        assert!(said.starts_with(what) && !said.contains('\n'), "{text:?}: {said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_node_is_given_twice_and_only_idle_ones_are_given_anything(
        kinds in prop::collection::vec((0..4_usize, 0..4_u32, 0..5_u8), 0..12), rate in 0.0..400.0_f64,
    ) {
        let nodes: Vec<NodeSeen> = kinds.iter().zip(1..).map(|((kind, log, doing), n)| {
            let mut node = node(n, ["A100-40GB", "A100-80GB", "H100", "RTX4090"][*kind], 1 << log);
            node.doing = match doing {
                0 => told(QWEN, AssignedState::Serving),
                1 => Doing::Own(vec![LLAMA.into()]),
                2 => told("small", AssignedState::Failed),
                _ => Doing::Nothing,
            };
            node
        }).collect();
        let loads = BTreeMap::from([(QWEN.to_owned(), Measured { rate, tokens: None })]);
        let seen = Observation { loads, ..seen(nodes.clone()) };
        let decision = decide(&policy(POLICY), &Catalog::builtin(), &seen, &Avoided::new());
        let mut given: Vec<_> = decision.steps.iter().map(|step| step.node.clone()).collect();
        given.sort();
        given.dedup();
        prop_assert_eq!(given.len(), decision.steps.len());
        for (node, serve) in nodes.iter().zip(serves(&decision, &nodes)) {
            let is_free = matches!(&node.doing, Doing::Nothing | Doing::Told { state: AssignedState::Failed, .. });
            prop_assert!(serve.is_none() || is_free);
        }
        let again = decide(&policy(POLICY), &Catalog::builtin(), &seen, &Avoided::new());
        prop_assert_eq!(decision, again);
    }
}
