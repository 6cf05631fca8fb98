use super::*;
use crate::{
    catalog::Catalog,
    sim::{Factors, Step, StepCosts, Variant},
};
use proptest::prelude::*;

fn costs() -> StepCosts {
    let catalog = Catalog::builtin();
    let (model, accelerator) = (catalog.model("Llama-3.1-8B").unwrap(), catalog.accelerator("H100").unwrap());
    StepCosts::new(&Variant::new(model, accelerator, 1).unwrap(), Factors::IDEAL)
}

fn limits(batching: Batching, blocks: u64) -> Limits {
    Limits { batching, blocks, ..Limits::unbounded() }
}

/// A replica that is given everything, and then left to itself.
fn alone(mut replica: Replica, arrivals: &[Arrival]) -> (Replica, Vec<Served>) {
    let mut served = Vec::new();
    for (request, arrival) in arrivals.iter().enumerate() {
        replica.advance(arrival.at, &mut served);
        replica.take(request, arrival).unwrap();
    }
    replica.advance(f64::INFINITY, &mut served);
    served.sort_by_key(|served| served.request);
    (replica, served)
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(1.0)
}

prop_compose! {
    fn some_arrivals()(gaps in prop::collection::vec((0.0..0.2f64, 1u32..900, 1u32..300, 0u64..6), 1..60)) -> Vec<Arrival> {
        let mut at = 0.0;
        gaps.into_iter().map(|(gap, prompt, answer, id)| {
            at += gap;
            let prefix = (id < 3).then_some(Prefix { id, tokens: 100 });
            Arrival { prefix, ..Arrival::new(at, prompt, answer) }
        }).collect()
    }
}

fn batchings() -> impl Strategy<Value = Batching> {
    prop_oneof![Just(Batching::WholePrompts), Just(Batching::Chunked)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn steps_taken_together_are_steps_taken_one_by_one(
        arrivals in some_arrivals(), batching in batchings(), blocks in 75u64..400, seats in 1u32..40, budget in 64u32..2048,
    ) {
        let limits = Limits { sequences_max: seats, step_tokens_max: budget, ..limits(batching, blocks) };
        let (together, served) = alone(Replica::new(costs(), limits, 0.0), &arrivals);
        let mut replica = Replica::new(costs(), limits, 0.0);
        replica.one_by_one = true;
        let (one_by_one, expected) = alone(replica, &arrivals);
        prop_assert_eq!(served.len(), arrivals.len());
        for (served, expected) in served.iter().zip(&expected) {
            prop_assert!(near(served.first, expected.first) && near(served.last, expected.last), "{:?} {:?}", served, expected);
            prop_assert_eq!((served.request, served.restarts), (expected.request, expected.restarts));
        }
        prop_assert!(near(together.busy_seconds(), one_by_one.busy_seconds()));
        prop_assert_eq!(together.load(), Load::default(), "everything is given back");
    }

    #[test]
    fn whatever_happens_to_replicas_everybody_is_accounted_for(
        arrivals in some_arrivals(), batching in batchings(), blocks in 75u64..400, continues: bool,
        times in prop::collection::vec((0.0..8.0f64, 0.0..8.0f64, 0.0..8.0f64, 0usize..3), 1..5), seed: u64,
    ) {
        let member = |(from, drains, lost, role): (f64, f64, f64, usize)| Member {
            role: [Role::Whole, Role::Prefill, Role::Decode][role], from, drains: from + drains, lost: from + drains + lost,
            ..Member::new(costs(), limits(batching, blocks))
        };
        let members: Vec<_> = times.into_iter().map(member).collect();
        let rules =
            Rules { continues, transfer_token_seconds: 1e-6, transfer_seconds: 1e-3, ..Rules::default() };
        let outcome = serve(&members, arrivals.iter().copied(), &mut TwoChoices::new(seed), rules);
        let mut seen: Vec<_> = outcome.served.iter().map(|served| served.request).collect();
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), outcome.served.len(), "nobody is served twice");
        let others = outcome.too_long + outcome.failed + outcome.unserved;
        prop_assert_eq!(outcome.served.len() + others, arrivals.len());
        for served in &outcome.served {
            let arrival = arrivals[served.request];
            prop_assert_eq!((served.arrived, served.answer), (arrival.at, arrival.answer));
            prop_assert!(served.arrived < served.first && served.first <= served.last);
        }
        prop_assert_eq!(serve(&members, arrivals, &mut TwoChoices::new(seed), rules), outcome);
    }

    #[test]
    fn more_room_never_costs_a_restart(arrivals in some_arrivals(), batching in batchings()) {
        let (_, served) = alone(Replica::new(costs(), limits(batching, 60 * 80), 0.0), &arrivals);
        prop_assert!(served.iter().all(|served| served.restarts == 0));
    }
}

#[test]
fn a_request_alone_takes_what_its_steps_take() {
    for batching in [Batching::WholePrompts, Batching::Chunked] {
        let (_, served) = alone(
            Replica::new(costs(), Limits { batching, ..Limits::unbounded() }, 0.0),
            &[Arrival::new(1.0, 700, 50)],
        );
        let prompt = costs().step_seconds(&Step::default().prefill(700.0, 0.0));
        assert!(near(served[0].ttft_seconds(), prompt));
        assert!(near(served[0].latency_seconds(), prompt + costs().decode_seconds(1.0, 701.0, 49.0)));
    }
}

#[test]
fn one_at_a_time_with_equal_work_is_an_m_d_1_queue() {
    // Pollaczek and Khinchine: waiting takes rho / (2 (1 - rho)) of the service time on average.
    let limits = Limits { sequences_max: 1, ..Limits::unbounded() };
    let (_, alone) = alone(Replica::new(costs(), limits, 0.0), &[Arrival::new(0.0, 300, 40)]);
    let service = alone[0].latency_seconds();
    let rho = 0.7;
    let workload = Workload {
        arrivals: Arrivals { rates: vec![(0.0, rho / service)], burstiness: 1.0 },
        prompt: Length::Fixed(300),
        answer: Length::Fixed(40),
        shared: None,
    };
    let requests = workload.requests(200_000.0 * service, 7).unwrap();
    let outcome = serve(&[Member::new(costs(), limits)], requests, &mut RoundRobin::default(), Rules::default());
    let expected = service * (1.0 + rho / (2.0 * (1.0 - rho)));
    let mean = outcome.summary(None).latency.mean;
    assert!((mean / expected - 1.0).abs() < 0.02, "{mean} {expected}");
    let busy = outcome.busy_seconds[0] / outcome.summary(None).span_seconds;
    assert!((busy - rho).abs() < 0.01, "{busy}");
}

#[test]
fn heads_that_prompts_share_are_computed_once() {
    let shared = |at| Arrival { prefix: Some(Prefix { id: 1, tokens: 4000 }), ..Arrival::new(at, 4100, 2) };
    let arrivals = [shared(0.0), shared(10.0), Arrival::new(20.0, 4100, 2)];
    let (_, served) = alone(Replica::new(costs(), Limits::unbounded(), 0.0), &arrivals);
    assert!(near(served[1].ttft_seconds(), costs().step_seconds(&Step::default().prefill(100.0, 4000.0))));
    assert!(near(served[0].ttft_seconds(), served[2].ttft_seconds()));
    // Where others need the room, they are forgotten from their end on: 257 of 300 blocks are needed, and 43 are left.
    let tight = Limits { blocks: 300, ..Limits::unbounded() };
    let arrivals = [shared(0.0), Arrival::new(10.0, 4100, 2), shared(20.0)];
    let (_, served) = alone(Replica::new(costs(), tight, 0.0), &arrivals);
    let rest = Step::default().prefill(4100.0 - 43.0 * 16.0, 43.0 * 16.0);
    assert!(near(served[2].ttft_seconds(), costs().step_seconds(&rest)));
}

#[test]
fn answers_on_other_replicas_do_not_wait_for_prompts() {
    let arrivals: Vec<_> = (0..50).map(|n| Arrival::new(f64::from(n) * 0.05, 1800, 100)).collect();
    let member = |role| Member { role, ..Member::new(costs(), limits(Batching::WholePrompts, 100_000)) };
    let rules = Rules { transfer_seconds: 0.002, ..Rules::default() };
    let run = |roles: &[Role]| {
        let members: Vec<_> = roles.iter().copied().map(member).collect();
        serve(&members, arrivals.iter().copied(), &mut LeastLoaded, rules).summary(None)
    };
    let (split, whole) = (run(&[Role::Prefill, Role::Decode]), run(&[Role::Whole, Role::Whole]));
    assert!(split.itl.p95 < whole.itl.p95 * 0.8, "{split:?}\n{whole:?}");
    let (served, costs) = (run(&[Role::Prefill, Role::Decode]), costs());
    assert!(served.latency.mean > costs.decode_seconds(1.0, 1801.0, 99.0) + 0.002);
}

#[test]
fn what_a_lost_replica_had_goes_on_elsewhere_or_has_failed() {
    let arrivals = [Arrival::new(0.0, 500, 400), Arrival::new(0.0, 500, 400)];
    let lost = Member { lost: 0.5, ..Member::new(costs(), Limits::unbounded()) };
    let members = [lost, Member::new(costs(), Limits::unbounded())];
    let run =
        |continues| serve(&members, arrivals, &mut RoundRobin::default(), Rules { continues, ..Rules::default() });
    let failed = run(false);
    assert_eq!((failed.served.len(), failed.failed), (1, 1));
    let continued = run(true);
    let hit = continued.served.iter().find(|served| served.request == 0).unwrap();
    assert_eq!((continued.served.len(), hit.restarts), (2, 1));
    // Its first token is the one that its client had, and what it had is not decoded twice.
    assert!(hit.first < 0.5 && hit.last - 0.5 < failed.served[0].latency_seconds(), "{hit:?}");
    // With nobody else they wait for who comes.
    let later = Member { from: 3.0, ..Member::new(costs(), Limits::unbounded()) };
    let outcome = serve(&[lost, later], arrivals, &mut RoundRobin::default(), Rules::default());
    assert!(outcome.served.len() == 2 && outcome.served.iter().all(|served| served.last > 3.0));
    let nobody = serve(&[lost], arrivals, &mut RoundRobin::default(), Rules::default());
    assert_eq!((nobody.served.len(), nobody.unserved), (0, 2));
}

#[test]
fn one_that_drains_finishes_and_is_given_nothing() {
    let arrivals = [Arrival::new(0.0, 500, 400), Arrival::new(1.0, 500, 10)];
    let drains = Member { drains: 0.5, ..Member::new(costs(), Limits::unbounded()) };
    let later = Member { from: 0.4, ..Member::new(costs(), Limits::unbounded()) };
    let outcome = serve(&[drains, later], arrivals, &mut LeastLoaded, Rules::default());
    assert!(outcome.served.len() == 2 && outcome.busy_seconds.iter().all(|busy| *busy > 0.0));
    assert_eq!(outcome.summary(None).restarts, 0);
}

#[test]
fn a_request_longer_than_all_room_is_refused() {
    let mut replica = Replica::new(costs(), limits(Batching::Chunked, 10), 0.0);
    assert_eq!(replica.take(0, &Arrival::new(0.0, 150, 11)), Err(TooLong { tokens: 161, room: 160 }));
    let outcome = serve(
        &[Member::new(costs(), limits(Batching::Chunked, 10))],
        [Arrival::new(0.0, 150, 11)],
        &mut LeastLoaded,
        Rules::default(),
    );
    assert_eq!((outcome.served.len(), outcome.too_long), (0, 1));
}

#[test]
fn dispatchers_choose_as_they_say() {
    let members = [Member::new(costs(), Limits::unbounded()); 4];
    let arrivals: Vec<_> = (0..4000).map(|n| Arrival::new(f64::from(n) * 0.01, 100, 20)).collect();
    let busy = |dispatch: &mut dyn Dispatch| {
        serve(&members, arrivals.iter().copied(), dispatch, Rules::default()).busy_seconds
    };
    let shares = busy(&mut Weighted::new(vec![0.0, 1.0, 0.0, 0.0], 3));
    assert!(shares[1] > 0.0 && shares[0] + shares[2] + shares[3] == 0.0);
    let even = busy(&mut RoundRobin::default());
    assert!(even.iter().all(|busy| (busy / even[0] - 1.0).abs() < 0.01), "{even:?}");
    assert_eq!(busy(&mut Random::new(1)), busy(&mut Random::new(1)));
    assert!(busy(&mut Random::new(1)) != busy(&mut Random::new(2)));
    // Where one is slow, whoever looks at loads gives it less.
    let slow = StepCosts::new(
        &Variant::new(
            Catalog::builtin().model("Llama-3.1-8B").unwrap(),
            Catalog::builtin().accelerator("A100-80GB").unwrap(),
            1,
        )
        .unwrap(),
        Factors { bandwidth_ratio: 0.2, ..Factors::IDEAL },
    );
    let members = [Member::new(slow, Limits::unbounded()), Member::new(costs(), Limits::unbounded())];
    let mean = |dispatch: &mut dyn Dispatch| {
        serve(&members, arrivals.iter().copied(), dispatch, Rules::default()).summary(None).latency.mean
    };
    let (least, two, blind) = (mean(&mut LeastLoaded), mean(&mut TwoChoices::new(5)), mean(&mut Random::new(5)));
    assert!(least < blind && two < blind, "{least} {two} {blind}");
}

#[test]
fn workloads_have_the_rates_and_lengths_that_they_say() {
    let workload = |burstiness| Workload {
        arrivals: Arrivals { rates: vec![(0.0, 5.0), (1000.0, 0.0), (2000.0, 20.0)], burstiness },
        prompt: Length::LogNormal { mean: 600.0, deviation: 800.0 },
        answer: Length::Normal { mean: 200.0, deviation: 20.0 },
        shared: Some(Shared { tokens: 10, count: 3, ratio: 0.5 }),
    };
    for burstiness in [0.0, 1.0, 3.0] {
        let all: Vec<_> = workload(burstiness).requests(3000.0, 11).unwrap().collect();
        let between = |from: f64, to: f64| all.iter().filter(|arrival| arrival.at >= from && arrival.at < to).count();
        let (first, none, last) = (between(0.0, 1000.0), between(1000.0, 2000.0), between(2000.0, 3000.0));
        assert!(
            (4300..5700).contains(&first) && none == 0 && (18_500..21_500).contains(&last),
            "{first} {none} {last}"
        );
        assert!(all.is_sorted_by(|one, other| one.at <= other.at));
        let mean =
            |of: fn(&Arrival) -> u32| all.iter().map(|arrival| f64::from(of(arrival))).sum::<f64>() / all.len() as f64;
        assert!((mean(|arrival| arrival.prompt) / 600.0 - 1.0).abs() < 0.05, "{}", mean(|arrival| arrival.prompt));
        assert!((mean(|arrival| arrival.answer) / 200.0 - 1.0).abs() < 0.01);
        let shared = all.iter().filter(|arrival| arrival.prefix.is_some()).count() as f64 / all.len() as f64;
        assert!((shared - 0.5).abs() < 0.02);
        let gaps: Vec<_> =
            all.windows(2).map(|pair| pair[1].at - pair[0].at).filter(|gap| *gap < 5.0).take(4000).collect();
        let gap = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|one| (one - gap).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (variance.sqrt() / gap - burstiness).abs() < 0.25 * burstiness.max(0.1),
            "{burstiness}: {}",
            variance.sqrt() / gap
        );
    }
    let requests = |seed| workload(1.0).requests(100.0, seed).unwrap().collect::<Vec<_>>();
    assert!(requests(1) == requests(1) && requests(1) != requests(2));
}

#[test]
fn a_workload_that_cannot_be_is_told() {
    let good = Workload {
        arrivals: Arrivals { rates: vec![(0.0, 1.0)], burstiness: 1.0 },
        prompt: Length::Fixed(1),
        answer: Length::Fixed(1),
        shared: None,
    };
    let told = |workload: Workload| workload.requests(1.0, 1).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(told(good.clone()), "");
    let rates = |rates: &[(f64, f64)]| {
        told(Workload { arrivals: Arrivals { rates: rates.to_vec(), burstiness: 1.0 }, ..good.clone() })
    };
    assert!(rates(&[(1.0, 1.0)]).contains("the 1. is not"));
    assert!(rates(&[(0.0, 1.0), (0.0, 2.0)]).contains("the 2. is not"));
    assert!(rates(&[(0.0, -1.0)]).contains("the 1. is not"));
    let bursty = told(Workload { arrivals: Arrivals { rates: vec![], burstiness: -1.0 }, ..good.clone() });
    assert!(bursty.contains("burstiness"), "{bursty}");
    let lengths = told(Workload { prompt: Length::Normal { mean: 0.0, deviation: 1.0 }, ..good.clone() });
    assert!(lengths.starts_with("prompt: a mean above 0"), "{lengths}");
    assert!(told(Workload { answer: Length::Uniform(3, 2), ..good }).contains("answer"));
}
