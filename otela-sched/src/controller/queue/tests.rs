use super::*;

const RETRY_AFTER: Duration = Duration::from_secs(100);

fn kinds() -> Vec<JobKind> {
    let of = |name: &str| JobKind {
        name: name.into(),
        script: "s".into(),
        options: Vec::new(),
        accelerator: "H100".into(),
        count: 1,
        models: Vec::new(),
        max: 5,
    };
    vec![of("a"), of("b")]
}

fn queue() -> Queue {
    Queue::new(&kinds(), "lab", RETRY_AFTER, &BTreeSet::new())
}

fn job(id: u64, state: &str) -> Job {
    Job { id, state: state.into(), name: "otela-lab-a".into() }
}

fn nodes(of: &[(u64, bool)]) -> BTreeMap<u64, JobNode> {
    of.iter().map(|(id, is_present)| (*id, JobNode { is_present: *is_present, has_cards: *is_present })).collect()
}

/// In the queue, coming, and whether the kind is paused.
fn of_a(queue: &mut Queue, nodes: &BTreeMap<u64, JobNode>) -> (u32, u32, bool) {
    let of = &queue.seen(nodes).unwrap()["a"];
    (of.queued, of.coming, of.paused.is_some())
}

#[tokio::test(start_paused = true)]
async fn nothing_is_known_before_the_queue_was_read_or_when_it_cannot_be() {
    let (mut queue, none) = (queue(), nodes(&[]));
    assert_eq!(queue.names(), ["otela-lab-a", "otela-lab-b"]);
    assert_eq!(queue.seen(&none), None);
    queue.take(&[job(1, "PENDING"), Job { name: "other".into(), ..job(2, "PENDING") }], Instant::now(), &none);
    assert_eq!(of_a(&mut queue, &none), (1, 1, false));
    queue.put("a", 3);
    assert_eq!(of_a(&mut queue, &none), (2, 2, false), "it is in the queue though nobody has looked since");
    queue.lose();
    assert_eq!(queue.seen(&none), None);
    queue.take(&[job(1, "PENDING"), job(3, "PENDING")], Instant::now(), &none);
    assert_eq!(of_a(&mut queue, &none), (2, 2, false));
}

#[tokio::test(start_paused = true)]
async fn a_job_counts_until_its_node_has_joined_and_in_the_queue_until_it_is_gone() {
    let mut queue = queue();
    for (state, node, says) in [
        ("PENDING", None, (1, 1)),
        ("CONFIGURING", None, (1, 1)),
        ("RUNNING", None, (1, 1)),
        ("RUNNING", Some(true), (1, 0)),
        ("RUNNING", Some(false), (1, 0)),
        ("COMPLETING", Some(false), (1, 0)),
        // It was put back.
        ("PENDING", Some(false), (1, 1)),
        ("OUT_OF_MEMORY", None, (1, 0)),
    ] {
        let nodes = nodes(&node.map(|is_present| (7, is_present)).into_iter().collect::<Vec<_>>());
        queue.take(&[job(7, state)], Instant::now(), &nodes);
        assert_eq!(of_a(&mut queue, &nodes), (says.0, says.1, false), "{state} {node:?}");
    }
    let counts: Vec<_> = queue.counts().map(|(kind, counts)| (kind.as_str(), counts)).collect();
    assert_eq!(counts, [("a", [0, 1, 0]), ("b", [0, 0, 0])]);
    queue.take(&[], Instant::now(), &nodes(&[]));
    assert_eq!(of_a(&mut queue, &nodes(&[])), (0, 0, false), "its node had joined: it has not failed");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_know_its_cards_yet_is_still_coming() {
    let mut queue = queue();
    let joins = BTreeMap::from([(7, JobNode { is_present: true, has_cards: false })]);
    queue.take(&[job(7, "RUNNING")], Instant::now(), &joins);
    assert_eq!(of_a(&mut queue, &joins), (1, 1, false));
    assert_eq!(of_a(&mut queue, &nodes(&[(7, true)])), (1, 0, false));
    tokio::time::advance(CARDS_WITHIN).await;
    assert_eq!(of_a(&mut queue, &joins), (1, 0, false), "it has none");
}

#[tokio::test(start_paused = true)]
async fn jobs_that_end_without_a_node_pause_their_kind_for_longer_each_time() {
    let (mut queue, none) = (queue(), nodes(&[]));
    for (n, seconds) in [(1, 30), (2, 60), (3, 100), (4, 100)] {
        queue.put("a", n);
        queue.take(&[], Instant::now(), &none);
        let why = queue.seen(&none).unwrap()["a"].paused.clone().unwrap();
        assert!(why.starts_with(&format!("of job {n} no node has joined, and it has ended; tried again in ")), "{why}");
        assert_eq!(queue.seen(&none).unwrap()["b"].paused, None);
        tokio::time::advance(Duration::from_secs(seconds - 1)).await;
        assert!(of_a(&mut queue, &none).2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!of_a(&mut queue, &none).2);
    }
    // One joins: all is forgotten.
    queue.put("a", 5);
    queue.take(&[job(5, "RUNNING")], Instant::now(), &nodes(&[(5, true)]));
    queue.put("a", 6);
    queue.take(&[], Instant::now(), &none);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(!of_a(&mut queue, &none).2);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_submitted_holds_back_until_the_queue_was_read_later() {
    let none = nodes(&[]);
    let mut queue = Queue::new(&kinds(), "lab", RETRY_AFTER, &BTreeSet::from(["a".to_owned()]));
    queue.take(&[], Instant::now(), &none);
    assert!(of_a(&mut queue, &none).2, "an earlier process has submitted some");
    let begun = Instant::now();
    tokio::time::advance(UNSETTLED_FOR).await;
    queue.take(&[], begun, &none);
    assert!(of_a(&mut queue, &none).2, "that look was begun too early");
    queue.take(&[job(9, "PENDING")], Instant::now(), &none);
    assert_eq!((of_a(&mut queue, &none), queue.unsettled()), ((1, 1, false), BTreeSet::new()));
    queue.unsettle("a");
    assert!(of_a(&mut queue, &none).2);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_array_count_each_and_late_jobs_are_waited_for() {
    let (mut queue, none) = (queue(), nodes(&[]));
    queue.take(&[job(1, "PENDING"), job(1, "PENDING"), job(2, "RUNNING")], Instant::now(), &none);
    assert_eq!(of_a(&mut queue, &none), (3, 2, false));
    tokio::time::advance(JOINS_WITHIN + Duration::from_secs(1)).await;
    queue.take(&[job(2, "RUNNING")], Instant::now(), &none);
    assert!(queue.jobs[&2].is_said);
    assert_eq!(of_a(&mut queue, &none).1, 1);
}
