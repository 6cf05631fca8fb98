//! The replicas of one model, and the requests that come to them.
//!
//! Each replica has a clock of its own and is brought forward only when somebody needs to know: it is given a request, a
//! dispatcher asks for its load, or it is lost. What the others do meanwhile changes nothing for it.

use super::{Arrival, Dispatch, Limits, Load, Open, Replica, Served, outcome::Outcome, queue::Waiting};
use crate::sim::StepCosts;
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap, VecDeque},
};

/// What of a request a replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// All of it.
    Whole,
    /// Its prompt; the rest is for those that decode.
    Prefill,
    /// All but its prompt.
    Decode,
}

/// A replica: what it is, and when it is there. Times are in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Times of its steps.
    pub costs: StepCosts,
    /// How it batches.
    pub limits: Limits,
    /// What of a request it does.
    pub role: Role,
    /// From when on it serves: after its start, or after a change of the placement.
    pub from: f64,
    /// From when on it is given nothing new; it finishes what it has.
    pub drains: f64,
    /// When it is lost, with all that it works on.
    pub lost: f64,
}

impl Member {
    /// One that is there from the beginning and for ever, and does all of a request.
    pub fn new(costs: StepCosts, limits: Limits) -> Self {
        Self { costs, limits, role: Role::Whole, from: 0.0, drains: f64::INFINITY, lost: f64::INFINITY }
    }
}

/// What holds for all replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Whether requests of a lost replica go on with another, as an ingress continues streams. If not, they have failed.
    pub continues: bool,
    /// Seconds for the keys and values of one token on their way from a replica that did the prompt to one that decodes.
    pub transfer_token_seconds: f64,
    /// Seconds for beginning that.
    pub transfer_seconds: f64,
    /// How long the parts of time are in which the outcome tells of work, in seconds; infinite for one part.
    pub part_seconds: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { continues: true, transfer_token_seconds: 0.0, transfer_seconds: 0.0, part_seconds: f64::INFINITY }
    }
}

/// Something that happens to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Lost,
    Drains,
    From,
}

/// A request on its way from one replica to another.
#[derive(Debug, Clone, Copy)]
struct Handover {
    at: f64,
    waiting: Waiting,
}

/// Earliest first; of two at one time, the earlier request.
impl Ord for Handover {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.waiting.request.cmp(&self.waiting.request))
    }
}

impl PartialOrd for Handover {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Handover {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Handover {}

/// Serves `arrivals`, which come in the order of their times, with `members`.
///
/// The same input has the same outcome: nothing here is drawn, only what the dispatcher draws.
pub fn serve(
    members: &[Member],
    arrivals: impl IntoIterator<Item = Arrival>,
    dispatch: &mut dyn Dispatch,
    rules: Rules,
) -> Outcome {
    let mut fleet = Fleet::new(members, dispatch, rules);
    let mut arrivals = arrivals.into_iter().enumerate().peekable();
    loop {
        let change = fleet.changes.front().map_or(f64::INFINITY, |(at, _, _)| *at);
        let arrival = arrivals.peek().map_or(f64::INFINITY, |(_, arrival)| arrival.at);
        fleet.hand_over(change.min(arrival));
        if change <= arrival && change < f64::INFINITY {
            fleet.change();
        } else if let Some((request, arrival)) = arrivals.next() {
            fleet.arrive(request, arrival);
        } else {
            break;
        }
    }
    fleet.end()
}

struct Fleet<'a> {
    members: &'a [Member],
    replicas: Vec<Replica>,
    /// Those that may be given whole requests or prompts, and those that may be given what is to be decoded.
    open: Vec<usize>,
    open_decode: Vec<usize>,
    /// In the order of time.
    changes: VecDeque<(f64, Change, usize)>,
    /// For whom nobody is there.
    pending: VecDeque<Waiting>,
    handovers: BinaryHeap<Handover>,
    /// Of whom the prompt is being done: what is to follow.
    prompts: HashMap<usize, Arrival>,
    dispatch: &'a mut dyn Dispatch,
    rules: Rules,
    served: Vec<Served>,
    outcome: Outcome,
}

impl<'a> Fleet<'a> {
    fn new(members: &'a [Member], dispatch: &'a mut dyn Dispatch, rules: Rules) -> Self {
        let mut changes: Vec<_> = members
            .iter()
            .enumerate()
            .flat_map(|(id, member)| {
                [(member.from, Change::From, id), (member.drains, Change::Drains, id), (member.lost, Change::Lost, id)]
            })
            .filter(|(at, _, _)| *at < f64::INFINITY)
            .collect();
        changes.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)).then(one.2.cmp(&other.2)));
        let replicas = members.iter().map(|member| {
            let limits = member.limits;
            Replica::new(member.costs, limits, member.from).in_parts(rules.part_seconds)
        });
        Self {
            members,
            replicas: replicas.collect(),
            open: Vec::new(),
            open_decode: Vec::new(),
            changes: changes.into(),
            pending: VecDeque::new(),
            handovers: BinaryHeap::new(),
            prompts: HashMap::new(),
            dispatch,
            rules,
            served: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn opened(&mut self, id: usize) -> &mut Vec<usize> {
        if self.members[id].role == Role::Decode { &mut self.open_decode } else { &mut self.open }
    }

    /// The next thing that happens to a replica.
    fn change(&mut self) {
        let Some((at, change, id)) = self.changes.pop_front() else { return };
        let Member { drains, lost, .. } = self.members[id];
        match change {
            Change::From if at < drains && at < lost => {
                let open = self.opened(id);
                open.push(id);
                open.sort_unstable();
                for waiting in std::mem::take(&mut self.pending) {
                    self.give(at, waiting);
                }
            }
            Change::From => {}
            Change::Drains => self.opened(id).retain(|open| *open != id),
            Change::Lost => {
                self.opened(id).retain(|open| *open != id);
                self.bring(id, at);
                for mut waiting in self.replicas[id].lose() {
                    if let Some(whole) = self.prompts.remove(&waiting.request) {
                        waiting.missing = whole.answer;
                    }
                    if self.rules.continues { self.give(at, waiting) } else { self.outcome.failed += 1 }
                }
            }
        }
    }

    fn arrive(&mut self, request: usize, arrival: Arrival) {
        self.outcome.arrived += 1;
        self.give(arrival.at, Waiting::new(request, &arrival));
    }

    /// Gives a request to a replica, if there is one.
    fn give(&mut self, at: f64, waiting: Waiting) {
        let list = if waiting.is_computed { &mut self.open_decode } else { &mut self.open };
        if list.is_empty() {
            self.pending.push_back(waiting);
            return;
        }
        let candidates = std::mem::take(list);
        let id = self.choose(at, &waiting, &candidates);
        *(if waiting.is_computed { &mut self.open_decode } else { &mut self.open }) = candidates;
        self.bring(id, at);
        let mut given = waiting;
        if self.members[id].role == Role::Prefill && waiting.missing > 1 {
            let whole = Arrival { at, prompt: waiting.tokens, answer: waiting.missing, prefix: waiting.prefix };
            self.prompts.insert(waiting.request, whole);
            given.missing = 1;
        }
        if self.replicas[id].put(at, given).is_err() {
            self.prompts.remove(&waiting.request);
            self.outcome.too_long += 1;
        }
    }

    fn choose(&mut self, at: f64, waiting: &Waiting, candidates: &[usize]) -> usize {
        let arrival = Arrival { at, prompt: waiting.tokens, answer: waiting.missing, prefix: waiting.prefix };
        let mut open = OpenNow { at, candidates, replicas: &mut self.replicas, served: &mut self.served };
        let chosen = self.dispatch.choose(&arrival, &mut open);
        candidates[chosen.min(candidates.len() - 1)]
    }

    /// Brings a replica to a moment.
    fn bring(&mut self, id: usize, at: f64) {
        self.replicas[id].advance(at, &mut self.served);
        self.book();
    }

    /// Books those who have their answers, and sends on those whose prompt is done.
    fn book(&mut self) {
        if self.prompts.is_empty() {
            self.outcome.served.append(&mut self.served);
            return;
        }
        for served in self.served.drain(..) {
            let Some(arrival) = self.prompts.remove(&served.request) else {
                self.outcome.served.push(served);
                continue;
            };
            let tokens = f64::from(arrival.prompt);
            let at = served.last + self.rules.transfer_seconds + tokens * self.rules.transfer_token_seconds;
            let waiting = Waiting {
                request: served.request,
                arrived: served.arrived,
                tokens: arrival.prompt,
                missing: arrival.answer - 1,
                answer: served.answer,
                first: Some(served.first),
                prefix: None,
                is_computed: true,
                restarts: served.restarts,
            };
            self.handovers.push(Handover { at, waiting });
        }
    }

    /// Hands over all whose prompts are done and on their way by `until`.
    fn hand_over(&mut self, until: f64) {
        if !self.prompts.is_empty() {
            for id in 0..self.members.len() {
                if self.members[id].role == Role::Prefill {
                    self.bring(id, until);
                }
            }
        }
        while let Some(handover) = self.handovers.peek().copied().filter(|handover| handover.at <= until) {
            self.handovers.pop();
            self.give(handover.at, handover.waiting);
        }
    }

    /// Nothing comes any more: everybody finishes.
    fn end(mut self) -> Outcome {
        for id in 0..self.members.len() {
            self.bring(id, f64::INFINITY);
        }
        self.outcome.unserved = self.pending.len();
        self.outcome.busy_seconds = self.replicas.iter().map(Replica::busy_seconds).collect();
        self.outcome.work_parts = self.replicas.iter().map(Replica::work_parts).collect();
        self.outcome
    }
}

/// Those that are open at a moment.
struct OpenNow<'a> {
    at: f64,
    candidates: &'a [usize],
    replicas: &'a mut [Replica],
    served: &'a mut Vec<Served>,
}

impl Open for OpenNow<'_> {
    fn count(&self) -> usize {
        self.candidates.len()
    }

    fn id(&self, nth: usize) -> usize {
        self.candidates[nth]
    }

    fn load(&mut self, nth: usize) -> Load {
        let replica = &mut self.replicas[self.candidates[nth]];
        replica.advance(self.at, self.served);
        replica.load()
    }
}
