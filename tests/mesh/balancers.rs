//! The ingress' own balancers inside the scheduler's simulator, by its `Dispatch` hook: what is simulated of a policy is
//! what an ingress does.
//!
//! [`Ingress`] puts `otela_ingress::Picker`, with which an ingress picks without a mesh, in the place of the simulator's
//! own balancers. An ingress counts its requests in flight by holding them; here each one is held until the simulator says
//! that its replica has fewer. What a policy draws is not from a seed, so it is compared with the simulator's own
//! counterpart in distribution, and exactly where nothing is drawn.

use libp2p::{PeerId, identity::Keypair};
use otela_ingress::{Ask, Picked, Picker, Policy};
use otela_proto::{
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::{Accelerator, Hardware, ModelCard, Payload, Service},
    provider::ProviderRules,
    registry::{Registry, View},
};
use otela_sched::{
    calibrate::Table,
    catalog::Catalog,
    sim::{
        StepCosts, Variant,
        serving::{
            Arrival, Dispatch, LeastLoaded, Limits, Member, Open, Outcome, Prefix, Random, RoundRobin, Rules, Served,
            Spread, TwoChoices, Weighted, serve,
        },
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::HashMap, sync::Arc, time::Duration};

const MODEL: &str = "Llama-3.1-8B";

/// An ingress in front of simulated replicas, each of which is a node of its own.
struct Ingress {
    picker: Picker,
    policy: Policy,
    /// One for each replica, in their order, which is that of their sessions too.
    entries: Vec<Entry>,
    replicas: HashMap<PeerId, usize>,
    /// The registry as it is while these replicas are open.
    open: Vec<usize>,
    view: Arc<View>,
    /// Requests in flight, by replica.
    held: Vec<Vec<Picked>>,
}

impl Ingress {
    /// With a node for each of these accelerators.
    fn new(policy: Policy, accelerators: &[&str]) -> Self {
        let mut keys: Vec<Keypair> =
            (0..accelerators.len() as u8).map(|nth| Keypair::ed25519_from_bytes([nth + 1; 32]).unwrap()).collect();
        keys.sort_by_key(|key| key.public().to_peer_id());
        let replicas = keys.iter().enumerate().map(|(nth, key)| (key.public().to_peer_id(), nth)).collect();
        let entries = keys.iter().zip(accelerators).map(|(key, kind)| entry(key, kind)).collect();
        let (open, view) = (Vec::new(), view(&[], 0));
        let held = accelerators.iter().map(|_| Vec::new()).collect();
        Self { picker: Picker::default(), policy, entries, replicas, open, view, held }
    }
}

impl Dispatch for Ingress {
    fn choose(&mut self, arrival: &Arrival, open: &mut dyn Open) -> usize {
        let ids: Vec<usize> = (0..open.count()).map(|nth| open.id(nth)).collect();
        if ids != self.open {
            let entries: Vec<&Entry> = ids.iter().map(|id| &self.entries[*id]).collect();
            self.view = view(&entries, self.view.generation + 1);
            self.open = ids;
        }
        for (nth, id) in self.open.iter().enumerate() {
            let load = open.load(nth);
            // Which of them have ended makes no difference to any policy.
            self.held[*id].truncate((load.running + load.waiting) as usize);
        }
        let ask = Ask::new(MODEL, self.policy).in_flight_max(u32::MAX);
        let ask = match arrival.prefix {
            Some(prefix) => ask.affinity(prefix.id),
            None => ask,
        };
        let picked = self.picker.pick(&self.view, &ask, 0).expect("somebody is open, and nobody is ever full");
        let id = self.replicas[&picked.node()];
        self.held[id].push(picked);
        self.open.iter().position(|open| *open == id).expect("the view has those that are open")
    }
}

/// A node with a replica of the model.
fn entry(key: &Keypair, kind: &str) -> Entry {
    let card = ModelCard { id: MODEL.into(), ..ModelCard::default() };
    let service = Service { name: "llm".into(), models: vec![card], ..Service::default() };
    let accelerator = Accelerator { kind: kind.into(), name: kind.into(), count: 1, memory_bytes: 80 << 30 };
    let hardware = Hardware { accelerators: vec![accelerator], ..Hardware::default() };
    let payload = Payload { services: vec![service], hardware: Some(hardware), ..Payload::default() };
    let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version: 0 };
    Entry::sign(key, &mesh(), Draft { rank, issued_at_ms: 1_000, payload }).unwrap()
}

fn mesh() -> MeshName {
    "simulated".parse().unwrap()
}

fn view(entries: &[&Entry], generation: u64) -> Arc<View> {
    let mut registry = Registry::default();
    for entry in entries {
        registry.learn((*entry).clone(), Duration::ZERO);
    }
    let clock = Now { mono: Duration::ZERO, wall_ms: 1_000 };
    let rules = ProviderRules::new(mesh());
    Arc::new(View::build(&registry, &HashMap::new(), &rules, clock, Duration::from_hours(1), generation))
}

/// Replicas of the model on these accelerators.
fn members(accelerators: &[&str]) -> Vec<Member> {
    let (catalog, table) = (Catalog::builtin(), Table::builtin());
    let member = |name: &&str| {
        let accelerator = catalog.accelerator(name).unwrap();
        let variant = Variant::new(catalog.model(MODEL).unwrap(), accelerator, 1).unwrap();
        let (factors, _) = table.factors(accelerator, "vLLM", "");
        Member::new(StepCosts::new(&variant, factors), Limits::of(&variant).unwrap())
    };
    accelerators.iter().map(member).collect()
}

/// So many requests, so many a second on average, of prompts and answers of different lengths.
fn arrivals(count: usize, per_second: f64, seed: u64) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut at = 0.0;
    let mut next = || {
        at += -(1.0 - random.random::<f64>()).ln() / per_second;
        Arrival::new(at, random.random_range(100..1_300), random.random_range(20..380))
    };
    (0..count).map(|_| next()).collect()
}

fn run(members: &[Member], arrivals: &[Arrival], dispatch: &mut dyn Dispatch) -> Outcome {
    serve(members, arrivals.iter().copied(), dispatch, Rules::default())
}

fn latency(outcome: &Outcome) -> Spread {
    outcome.summary(None).latency
}

/// Means of the P95 over seeds, with the ingress' policy and with the simulator's.
fn compared(
    accelerators: &[&str],
    per_second: f64,
    policy: Policy,
    own: impl Fn(u64) -> Box<dyn Dispatch>,
) -> (f64, f64) {
    const SEEDS: u64 = 24;
    let members = members(accelerators);
    let (mut ingress, mut simulator) = (0.0, 0.0);
    for seed in 0..SEEDS {
        let arrivals = arrivals(1_500, per_second, seed);
        ingress += latency(&run(&members, &arrivals, &mut Ingress::new(policy, accelerators))).p95;
        simulator += latency(&run(&members, &arrivals, own(seed).as_mut())).p95;
    }
    (ingress / SEEDS as f64, simulator / SEEDS as f64)
}

const ALIKE: [&str; 6] = ["A100-80GB"; 6];
const MIXED: [&str; 6] = ["H100", "H100", "A100-80GB", "A100-80GB", "L4", "L4"];

#[test]
fn turns_are_the_same() {
    let mut members = members(&MIXED);
    // One comes later, one is given nothing new, one is lost with all that it works on.
    members[1].from = 20.0;
    members[2].drains = 40.0;
    members[3].lost = 50.0;
    let arrivals = arrivals(2_000, 20.0, 1);
    let ingress = run(&members, &arrivals, &mut Ingress::new(Policy::RoundRobin, &MIXED));
    let simulator = run(&members, &arrivals, &mut RoundRobin::default());
    assert!(ingress.served.len() == 2_000 && ingress.served.iter().any(|served| served.restarts > 0));
    // Up to rounding: whoever asks for loads cuts steps that were taken together into several pieces.
    for (one, other) in in_order(ingress).iter().zip(in_order(simulator)) {
        assert!(one.request == other.request && (one.last - other.last).abs() < 1e-6, "{one:?} {other:?}");
    }
}

fn in_order(mut outcome: Outcome) -> Vec<Served> {
    outcome.served.sort_by_key(|served| served.request);
    outcome.served
}

/// Asserts of each choice that nobody has less to do.
struct Least(Ingress);

impl Dispatch for Least {
    fn choose(&mut self, arrival: &Arrival, open: &mut dyn Open) -> usize {
        let chosen = self.0.choose(arrival, open);
        let mut requests = |nth| {
            let load = open.load(nth);
            load.running + load.waiting
        };
        let least = (0..self.0.open.len()).map(&mut requests).min();
        assert_eq!(Some(requests(chosen)), least);
        chosen
    }
}

#[test]
fn whoever_is_least_loaded_is_so_by_the_simulators_count_too() {
    let mut members = members(&MIXED);
    members[0].lost = 30.0;
    let arrivals = arrivals(3_000, 25.0, 2);
    let outcome = run(&members, &arrivals, &mut Least(Ingress::new(Policy::LeastLoaded, &MIXED)));
    assert_eq!(outcome.served.len(), 3_000);
    // Of several that have equally little to do the ingress takes any, the simulator the first.
    let own = |_| -> Box<dyn Dispatch> { Box::new(LeastLoaded) };
    let (ingress, simulator) = compared(&ALIKE, 15.0, Policy::LeastLoaded, own);
    assert!((ingress / simulator - 1.0).abs() < 0.01, "{ingress} {simulator}");
}

#[test]
fn what_is_drawn_is_the_same_in_distribution() {
    for (policy, per_second, within) in [(Policy::Random, 15.0, 0.02), (Policy::P2c, 15.0, 0.01)] {
        let own = |seed| -> Box<dyn Dispatch> {
            if policy == Policy::P2c { Box::new(TwoChoices::new(seed)) } else { Box::new(Random::new(seed)) }
        };
        let (ingress, simulator) = compared(&ALIKE, per_second, policy, own);
        assert!((ingress / simulator - 1.0).abs() < within, "{policy}: {ingress} {simulator}");
    }
}

/// Counts what is chosen.
struct Counting<D>(D, [u32; 6]);

impl<D: Dispatch> Dispatch for Counting<D> {
    fn choose(&mut self, arrival: &Arrival, open: &mut dyn Open) -> usize {
        let chosen = self.0.choose(arrival, open);
        self.1[open.id(chosen)] += 1;
        chosen
    }
}

#[test]
fn weights_are_the_machines_bandwidths_until_answers_are_measured() {
    // In TB/s: of an H100, an A100 and an L4.
    let shares = [3.35, 3.35, 2.04, 2.04, 0.3, 0.3];
    let (members, arrivals) = (members(&MIXED), arrivals(20_000, 15.0, 5));
    let mut ingress = Counting(Ingress::new(Policy::Weighted, &MIXED), [0; 6]);
    let mut simulator = Counting(Weighted::new(shares.to_vec(), 6), [0; 6]);
    run(&members, &arrivals, &mut ingress);
    run(&members, &arrivals, &mut simulator);
    for (nth, share) in shares.iter().enumerate() {
        let ratio = share / shares.iter().sum::<f64>();
        let (expected, deviation) = (20_000.0 * ratio, (20_000.0 * ratio * (1.0 - ratio)).sqrt());
        for counts in [ingress.1, simulator.1] {
            assert!((f64::from(counts[nth]) - expected).abs() < 5.0 * deviation, "{counts:?} {expected}");
        }
    }
}

#[test]
fn unequal_machines_want_a_policy_that_looks() {
    let members = members(&MIXED);
    let arrivals = arrivals(4_000, 12.0, 3);
    let p95 = |policy| latency(&run(&members, &arrivals, &mut Ingress::new(policy, &MIXED))).p95;
    let [random, weighted, p2c, least] = [Policy::Random, Policy::Weighted, Policy::P2c, Policy::LeastLoaded].map(p95);
    assert!(least < 0.8 * random && p2c < random && weighted < 0.8 * random, "{random} {weighted} {p2c} {least}");
}

#[test]
fn conversations_that_stay_find_their_prefix() {
    let accelerators = ["A100-40GB"; 4];
    let members = members(&accelerators);
    let mut random = StdRng::seed_from_u64(4);
    // More conversations than one replica remembers, fewer than four do.
    let arrivals: Vec<Arrival> = arrivals(3_000, 4.0, 4)
        .into_iter()
        .map(|arrival| {
            let prefix = Prefix { id: random.random_range(0..60), tokens: 6_000 };
            Arrival { prompt: prefix.tokens + 200, answer: 60, prefix: Some(prefix), ..arrival }
        })
        .collect();
    let ttft = |policy| {
        let outcome = run(&members, &arrivals, &mut Ingress::new(policy, &accelerators));
        assert_eq!(outcome.served.len(), arrivals.len());
        outcome.summary(None).ttft.mean
    };
    let (affinity, least) = (ttft(Policy::Affinity), ttft(Policy::LeastLoaded));
    assert!(affinity < 0.7 * least, "{affinity} {least}");
}
