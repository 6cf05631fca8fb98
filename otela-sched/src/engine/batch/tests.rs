use super::*;
use crate::engine::pace::Timing;

const MS: Duration = Duration::from_millis(1);
const TIMING: Timing = Timing { ttft: Duration::from_millis(30), itl: Duration::from_millis(8), prefill_rate: None };
const ROOM: Room = Room { slots: 2, blocks: 8, block_tokens: 4, queue: 3 };

fn tokens_of(events: &[Event], id: SeqId) -> Vec<(Duration, u32)> {
    events
        .iter()
        .filter(|event| event.id == id)
        .filter_map(|event| match event.what {
            What::Token(count) => Some((event.at, count)),
            _ => None,
        })
        .collect()
}

fn checked(batch: &Batch) {
    let held: u32 = batch.seqs.values().map(|seq| seq.blocks).sum();
    assert_eq!(batch.free + held, batch.room.blocks);
    assert!(batch.running.len() <= batch.room.slots);
    assert_eq!(batch.running.len() + batch.waiting.len(), batch.seqs.len());
    assert_eq!(batch.due.len(), batch.running.len());
    for (id, seq) in &batch.seqs {
        assert_eq!(batch.running.contains(id), seq.blocks > 0);
        assert_eq!(batch.waiting.contains(id), seq.blocks == 0);
    }
}

#[test]
fn the_first_token_comes_after_ttft_and_the_rest_every_itl() {
    let mut batch = Batch::new(ROOM, Pace::Told(TIMING));
    let id = batch.submit(MS * 5, 3, 3).unwrap();
    assert_eq!(batch.next_due(), Some(MS * 35));
    let events = batch.advance(MS * 100);
    assert_eq!(events.first(), Some(&Event { at: MS * 5, id, what: What::Admitted }));
    assert_eq!(tokens_of(&events, id), [(MS * 35, 1), (MS * 43, 2), (MS * 51, 3)]);
    assert_eq!(events.last(), Some(&Event { at: MS * 51, id, what: What::Finished }));
    assert_eq!(batch.load(), Load { blocks: 8, ..Load::default() });
}

#[test]
fn a_prefill_rate_makes_long_prompts_slow() {
    let mut batch = Batch::new(ROOM, Pace::Told(Timing { prefill_rate: Some(1000.0), ..TIMING }));
    batch.submit(Duration::ZERO, 20, 1).unwrap();
    assert_eq!(batch.next_due(), Some(MS * 50));
}

#[test]
fn sequences_wait_in_order_for_a_slot_and_a_full_queue_refuses() {
    let mut batch = Batch::new(ROOM, Pace::Told(TIMING));
    let ids: Vec<_> = (0..5).map(|_| batch.submit(Duration::ZERO, 1, 2).unwrap()).collect();
    assert_eq!(batch.load(), Load { running: 2, waiting: 3, blocks_used: 2, blocks: 8 });
    assert_eq!(batch.submit(Duration::ZERO, 1, 2), Err(Refused::QueueFull));
    let events = batch.advance(MS * 1000);
    let admitted: Vec<_> = events.iter().filter(|e| e.what == What::Admitted).map(|e| (e.at, e.id)).collect();
    let zero = Duration::ZERO;
    assert_eq!(admitted, [(zero, ids[0]), (zero, ids[1]), (MS * 38, ids[2]), (MS * 38, ids[3]), (MS * 76, ids[4])]);
}

#[test]
fn a_sequence_without_blocks_waits_although_a_slot_is_free() {
    let mut batch = Batch::new(ROOM, Pace::Told(TIMING));
    let large = batch.submit(Duration::ZERO, 28, 1).unwrap();
    let next = batch.submit(Duration::ZERO, 8, 1).unwrap();
    assert_eq!(batch.load(), Load { running: 1, waiting: 1, blocks_used: 7, blocks: 8 });
    assert!(batch.remove(MS, large));
    assert_eq!(batch.load(), Load { running: 1, waiting: 0, blocks_used: 2, blocks: 8 });
    assert_eq!(tokens_of(&batch.advance(MS * 31), next), [(MS * 31, 1)]);
}

#[test]
fn what_never_fits_is_refused_at_once() {
    let mut batch = Batch::new(ROOM, Pace::Told(TIMING));
    assert_eq!(batch.submit(Duration::ZERO, 30, 3), Err(Refused::TooLong));
    assert_eq!(batch.submit(Duration::ZERO, u32::MAX, 3), Err(Refused::TooLong));
    assert!(batch.submit(Duration::ZERO, 30, 2).is_ok());
}

#[test]
fn removal_frees_a_waiting_a_prefilled_and_a_decoding_sequence() {
    for wait in [Duration::ZERO, MS * 10, MS * 50] {
        let mut batch = Batch::new(Room { slots: 1, ..ROOM }, Pace::Told(TIMING));
        let first = batch.submit(Duration::ZERO, 4, 9).unwrap();
        let second = batch.submit(Duration::ZERO, 4, 9).unwrap();
        batch.advance(wait);
        assert!(batch.remove(wait, second), "it waits");
        assert!(batch.remove(wait, first), "it runs");
        assert!(!batch.remove(wait, first), "it is gone");
        checked(&batch);
        assert_eq!(batch.load(), Load { blocks: 8, ..Load::default() });
        assert_eq!(batch.next_due(), None);
    }
}

#[test]
fn without_a_free_block_the_last_one_in_is_preempted_and_computed_again() {
    let mut batch = Batch::new(Room { blocks: 4, ..ROOM }, Pace::Told(TIMING));
    let first = batch.submit(Duration::ZERO, 8, 8).unwrap();
    let last = batch.submit(Duration::ZERO, 7, 4).unwrap();
    // 2 + 2 blocks are held. The first token of `first` wants a third one: `last` has to go.
    let events = batch.advance(MS * 30);
    let preempted: Vec<_> = events.iter().filter(|e| e.what == What::Preempted).map(|e| e.id).collect();
    assert_eq!(preempted, [last]);
    checked(&batch);
    assert_eq!(batch.load(), Load { running: 1, waiting: 1, blocks_used: 3, blocks: 4 });
    let events = batch.advance(MS * 10_000);
    assert_eq!(tokens_of(&events, first).last(), Some(&(MS * (30 + 7 * 8), 8)));
    // `last` starts over when `first` is done, and loses no token.
    let again = tokens_of(&events, last);
    assert_eq!(again.first(), Some(&(MS * (30 + 7 * 8 + 30), 1)));
    assert_eq!(again.iter().map(|&(_, count)| count).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(batch.load(), Load { blocks: 4, ..Load::default() });
}

#[test]
fn whatever_comes_the_books_balance_and_everyone_finishes_once() {
    let mut draw = 1u64;
    let mut random = |below: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) % below
    };
    let mut batch = Batch::new(Room { slots: 5, blocks: 12, block_tokens: 4, queue: 1000 }, Pace::Told(TIMING));
    let (mut now, mut open, mut preempted) = (Duration::ZERO, BTreeMap::new(), 0);
    for step in 0..6000 {
        let last = step >= 5000;
        now += MS * u32::try_from(random(12)).unwrap();
        for event in batch.advance(now) {
            match event.what {
                What::Token(count) => {
                    let seen: &mut u32 = open.get_mut(&event.id).expect("only open ones get tokens");
                    assert_eq!(count, *seen + 1);
                    *seen = count;
                }
                What::Finished => assert!(open.remove(&event.id).is_some(), "finished once"),
                What::Preempted => preempted += 1,
                What::Admitted => {}
            }
        }
        if !last && random(3) == 0 {
            let (prompt, output) = (1 + random(24), 1 + random(24));
            open.insert(batch.submit(now, prompt as u32, output as u32).unwrap(), 0);
        }
        if random(9) == 0
            && let Some(&id) = open.keys().nth(random(open.len().max(1) as u64) as usize)
        {
            assert!(batch.remove(now, id));
            open.remove(&id);
        }
        checked(&batch);
    }
    for event in batch.advance(Duration::from_secs(1_000_000)) {
        if event.what == What::Finished {
            open.remove(&event.id);
        }
    }
    assert!(open.is_empty() && preempted > 10, "{preempted}");
    assert_eq!(batch.load(), Load { blocks: 12, ..Load::default() });
}

#[test]
fn with_a_profile_a_fuller_batch_is_slower_and_its_books_balance() {
    let pace = || Pace::Profile(Box::new(crate::engine::Profile::named("Llama-3.1-8B@H100").unwrap()));
    let room = Room { slots: 64, blocks: 100_000, block_tokens: 16, queue: 100 };
    let took = |sequences: u32| {
        let mut batch = Batch::new(room, pace());
        for _ in 0..sequences {
            batch.submit(Duration::ZERO, 500, 100).unwrap();
        }
        let mut last = Duration::ZERO;
        while let Some(due) = batch.next_due() {
            last = due;
            batch.advance(due);
        }
        assert_eq!(batch.busy, Busy::default());
        last.as_secs_f64()
    };
    let (one, many) = (took(1), took(64));
    assert!(many > 1.2 * one && many < 20.0 * one, "{one} {many}");
}
