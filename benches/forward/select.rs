//! What it takes to choose a replica, with filters, among a thousand nodes: the registry's view, the filters, and the
//! policies of an ingress, without a mesh.

use crate::report::Row;
use hdrhistogram::Histogram;
use libp2p::identity::Keypair;
use otela_ingress::{Ask, Picker, Policy};
use otela_proto::{
    admission::Validity,
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::{Accelerator, Hardware, ModelCard, Payload, Service},
    provider::{ProviderCertificate, ProviderId, ProviderRules, Terms},
    registry::{Registry, View},
};
use prost::Message;
use std::{
    collections::{BTreeMap, HashMap},
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

/// Reach of one choice, in microseconds.
const CHOICE_US: f64 = 5.0;
const NODES: u16 = 1_000;
const MODELS: usize = 5;
const PROVIDERS: u8 = 10;
const NOW_MS: u64 = 1_800_000_000_000;

fn provider_key(n: u8) -> Keypair {
    Keypair::ed25519_from_bytes([n + 1; 32]).unwrap()
}

/// A node of one of ten providers, in one of four regions, with all five models.
fn entry(n: u16, mesh: &MeshName) -> Entry {
    let mut seed = [7; 32];
    seed[..2].copy_from_slice(&n.to_be_bytes());
    let key = Keypair::ed25519_from_bytes(seed).unwrap();
    let terms = Terms {
        subject: key.public().to_peer_id(),
        mesh: Some(mesh.clone()),
        constraints: BTreeMap::new(),
        validity: Validity { from_ms: 0, until_ms: 2 * NOW_MS },
    };
    let certificate = ProviderCertificate::sign(&provider_key((n % u16::from(PROVIDERS)) as u8), &terms).unwrap();
    let models = (0..MODELS).map(|model| ModelCard {
        id: format!("org/model-{model}"),
        context_length: 32_768,
        ..ModelCard::default()
    });
    let service = Service { name: "llm".into(), models: models.collect(), ..Service::default() };
    let kind = if n.is_multiple_of(2) { "H100-80GB" } else { "A100-40GB" };
    let accelerator = Accelerator { kind: kind.into(), count: 4, memory_bytes: 80 << 30, ..Accelerator::default() };
    let payload = Payload {
        services: vec![service],
        hardware: Some(Hardware { accelerators: vec![accelerator], ..Hardware::default() }),
        labels: [("region".to_owned(), ["ch", "de", "fr", "it"][usize::from(n / 2) % 4].to_owned())].into(),
        provider_certificate: certificate.encode_to_vec(),
        ..Payload::default()
    };
    let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version: 0 };
    Entry::sign(&key, mesh, Draft { rank, issued_at_ms: NOW_MS, payload }).unwrap()
}

/// Requests as clients might send them: each names a model, three providers, and what it requires.
fn asks(policy: Policy) -> Vec<Ask> {
    let id = |n: usize| ProviderId::of(&provider_key((n % usize::from(PROVIDERS)) as u8)).unwrap().to_string();
    let of = |n: usize| {
        let trusted = [id(n), id(n + 1), id(n + 2)].join(",");
        let region = ["ch", "de", "fr", "it"][n % 4];
        let required = format!("context>=8192, gpu=H100, region={region}");
        let ask = Ask::new(&format!("org/model-{}", n % MODELS), policy).affinity(n as u64);
        ask.trusting(&trusted).unwrap().requiring(&required).unwrap()
    };
    (0..40).map(of).collect()
}

pub(crate) fn rows(quick: bool) -> Vec<Row> {
    let mesh: MeshName = "bench".parse().unwrap();
    let mut registry = Registry::default();
    for n in 0..NODES {
        registry.learn(entry(n, &mesh), Duration::ZERO);
    }
    let view = |generation| {
        let clock = Now { mono: Duration::ZERO, wall_ms: NOW_MS };
        let rules = ProviderRules::new(mesh.clone());
        Arc::new(View::build(&registry, &HashMap::new(), &rules, clock, Duration::from_hours(1), generation))
    };
    let rounds = if quick { 500 } else { 5_000 };
    let mut rows = Vec::new();
    for policy in Policy::ALL {
        let (picker, asks, view) = (Picker::default(), asks(policy), view(1));
        let mut seen = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for _ in 0..rounds {
            for ask in &asks {
                let began = Instant::now();
                let picked = picker.pick(black_box(&view), black_box(ask), NOW_MS).unwrap();
                seen.saturating_record(began.elapsed().as_nanos() as u64);
                drop(black_box(picked));
            }
        }
        let what = format!("choice among 1,000 nodes x 5 models, {}", policy.name());
        let us = |quantile| seen.value_at_quantile(quantile) as f64 / 1e3;
        rows.push(Row::number(&what, "p50", us(0.5), "us").at_most(CHOICE_US));
        rows.push(Row::number(&what, "p99", us(0.99), "us"));
    }
    rows.push(Row::number(
        "the same, first after a change of the registry",
        "p50",
        first(&view, &asks(Policy::Random)),
        "us",
    ));
    rows
}

/// How long the first choice for each request takes after the registry has changed; the middle, in microseconds.
fn first(view: &impl Fn(u64) -> Arc<View>, asks: &[Ask]) -> f64 {
    let picker = Picker::default();
    let mut seen = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
    for generation in 1..20 {
        let view = view(generation);
        for ask in asks {
            let began = Instant::now();
            drop(black_box(picker.pick(&view, ask, NOW_MS).unwrap()));
            seen.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
    seen.value_at_quantile(0.5) as f64 / 1e3
}
