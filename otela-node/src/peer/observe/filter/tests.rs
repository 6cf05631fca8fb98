use super::{
    super::tests::{entry, id, key, mesh, view},
    *,
};
use crate::peer::gossip::unix_ms;
use otela_proto::{
    admission::Validity,
    payload::{Accelerator, Hardware, ModelCard, Payload, Service},
    provider::{ProviderCertificate, Terms},
};
use prost::Message;
use std::collections::BTreeMap;

fn payload(model: &str, labels: &[(&str, &str)], gpu: &str) -> Payload {
    let models = vec![ModelCard { id: model.into(), ..ModelCard::default() }];
    let accelerators = vec![Accelerator { kind: gpu.into(), count: 1, ..Accelerator::default() }];
    let labels: BTreeMap<_, _> = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Payload {
        services: vec![Service { models, ..Service::default() }],
        hardware: Some(Hardware { accelerators, ..Hardware::default() }),
        labels,
        ..Payload::default()
    }
}

/// A provider with a key.
fn provider() -> ProviderId {
    ProviderId::of(&key(100)).unwrap()
}

/// The certificate of node 1.
fn certificate() -> Vec<u8> {
    let validity = Validity { from_ms: 0, until_ms: unix_ms() + 86_400_000 };
    let terms = Terms { subject: id(1), mesh: Some(mesh()), constraints: BTreeMap::new(), validity };
    ProviderCertificate::sign(&key(100), &terms).unwrap().encode_to_vec()
}

/// Seven nodes: 0 joins, 1 to 4 serve with one belief each, 5 is down, 6 has left and is believed evicted too. One has a
/// certificate of its provider, one shows a copy of that, and one has the provider's id in its label.
fn scene() -> View {
    let since = Duration::from_secs(1);
    let id = provider().to_string();
    let certified = |payload| Payload { provider_certificate: certificate(), ..payload };
    let entries = [
        entry(0, Lifecycle::Join, 1, payload("a", &[("team", "x")], "A100-80GB")),
        entry(1, Lifecycle::Serving, 1, certified(payload("a", &[("team", "y")], "A100-80GB"))),
        entry(2, Lifecycle::Serving, 1, payload("b", &[("team", "x"), ("provider", "eth")], "H100")),
        entry(3, Lifecycle::Serving, 1, payload("b", &[("provider", &id)], "")),
        entry(4, Lifecycle::Serving, 1, payload("c", &[("team", "x")], "H100")),
        entry(5, Lifecycle::Down, 1, certified(payload("c", &[("provider", "psi")], "H100"))),
        entry(6, Lifecycle::Left, 1, payload("a", &[("team", "x")], "H100")),
    ];
    let beliefs = [
        (2, Belief::Unreachable(since)),
        (3, Belief::Suspect(since)),
        (4, Belief::Evicted(since)),
        (6, Belief::Evicted(since)),
    ];
    view(1, &entries, &beliefs)
}

fn parameters(query: &str) -> Parameters {
    let known = [&NodeFilter::PARAMETERS[..], &ModelFilter::PARAMETERS].concat();
    Parameters::parse(&format!("/?{query}").parse().unwrap(), &known).unwrap()
}

fn nodes(query: &str) -> Vec<u32> {
    let (view, filter) = (scene(), NodeFilter::parse(&parameters(query)).unwrap());
    (0..7).filter(|number| filter.matches(view.node(&id(*number)).unwrap())).collect()
}

fn models(query: &str) -> String {
    let view = scene();
    let selected = ModelFilter::parse(&parameters(query)).unwrap().select(&view);
    selected.into_iter().map(|(id, _)| id).collect::<Vec<_>>().concat()
}

#[test]
fn states_are_what_is_said_and_what_is_believed() {
    for (query, expected) in [
        ("", &[0, 1, 2, 3, 5][..]),
        ("state=join", &[0]),
        ("state=serving", &[1, 2, 3]),
        ("state=alive", &[0, 1, 5]),
        ("state=unreachable", &[2]),
        ("state=suspect,down", &[3, 5]),
        ("state=suspect&state=down", &[3, 5]),
        ("state=left", &[6]),
        ("state=evicted", &[4]),
        ("state=serving,evicted", &[1, 2, 3, 4]),
        ("state=serving&belief=alive", &[1]),
        ("state=serving&belief=evicted", &[4]),
        ("state=left&belief=evicted", &[]),
        ("state=alive,unreachable,suspect,evicted,left", &[0, 1, 2, 3, 4, 5, 6]),
    ] {
        assert_eq!(nodes(query), expected, "{query}");
    }
}

#[test]
fn different_parameters_must_all_hold() {
    for (query, expected) in [
        ("model=a", &[0, 1][..]),
        ("model=A", &[]),
        ("model=a,b", &[0, 1, 2, 3]),
        ("label=team", &[0, 1, 2]),
        ("label=team%3Dx", &[0, 2]),
        ("label=team=x&label=provider", &[0, 2, 3, 5]),
        ("label=team=x&model=a", &[0]),
        ("gpu=h100", &[2, 5]),
        ("gpu=a100-80gb,H100", &[0, 1, 2, 5]),
        ("gpu=a100", &[]),
        ("provider=eth", &[2]),
        ("provider=eth,psi", &[2, 5]),
        ("provider=eth&gpu=a100-80gb", &[]),
        ("label=team=x&state=left", &[6]),
    ] {
        assert_eq!(nodes(query), expected, "{query}");
    }
}

#[test]
fn what_reads_like_a_provider_s_id_must_be_proven() {
    let id = provider();
    assert_eq!(nodes(&format!("provider={id}")), [1], "neither a copy nor a label will do");
    assert_eq!(nodes(&format!("provider={id},eth")), [1, 2]);
    assert_eq!(nodes(&format!("label=provider={id}")), [3], "that is a label like others");
    assert_eq!(models(&format!("provider={id}")), "a");
}

#[test]
fn models_by_replicas_and_by_the_nodes_that_announce_them() {
    for (query, expected) in [
        ("", "abc"),
        ("state=ready", "a"),
        ("state=unready", "bc"),
        ("state=ready,unready", "abc"),
        ("model=b", "b"),
        ("gpu=h100", "bc"),
        ("label=team=x", "ab"),
        ("label=team=x&state=ready", "a"),
        ("provider=psi", "c"),
        ("provider=nobody", ""),
    ] {
        assert_eq!(models(query), expected, "{query}");
    }
}

#[test]
fn wrong_values_are_named_with_what_is_allowed() {
    let error = NodeFilter::parse(&parameters("state=join,dead")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "state=dead is not understood: allowed are join, serving, down, left, alive, unreachable, suspect, evicted."
    );
    let error = NodeFilter::parse(&parameters("belief=join")).unwrap_err();
    assert!(error.to_string().ends_with("allowed are alive, unreachable, suspect, evicted."), "{error}");
    assert_eq!(NodeFilter::parse(&parameters("label==x")).unwrap_err().name, "label");
    assert_eq!(NodeFilter::parse(&parameters("gpu=")).unwrap_err().name, "gpu");
    assert_eq!(ModelFilter::parse(&parameters("state=join")).unwrap_err().name, "state");
}
