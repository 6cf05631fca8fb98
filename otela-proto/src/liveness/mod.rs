//! Failure detector (OpenTela section 3.4): who lives, as far as this peer can tell.
//!
//! One probe a second goes to the ring successor, so that everybody is watched by somebody every second, and now
//! and then one to the neighbour that was silent longest. No answer: three helpers on three different paths are asked. All
//! silent: the subject is accused as suspect; others near it on the ring look for themselves. Silent for the grace
//! period as well: the vote is to evict. Any traffic from the subject is an answer. Liveness is judged on our own
//! monotonic clock by what we received ourselves; hearsay never extends a life.
//!
//! `watch` asks, `verdict` accuses, `beliefs` draws the conclusions; `doubt` and `credit` say how far to trust
//! ourselves and others.

mod beliefs;
mod credit;
mod doubt;
mod probes;
mod site;
mod verdict;
mod watch;

use crate::{
    accusation::Charge,
    clock::Now,
    gossip::{Links, say},
    id::Epoch,
    lifecycle::Lifecycle,
    registry::{Belief, Registry},
    step::{Output, Parcel, Settings},
    wire::{Answer, Report, Say},
};
pub(crate) use beliefs::Case;
use credit::Credit;
use doubt::Doubt;
use libp2p_identity::PeerId;
use probes::{Probes, Purpose, Stage};
use rand::rngs::SmallRng;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// After a failed attempt a node stays out of rotation this long, even if it answers probes.
const FAILED_FOR: Duration = Duration::from_secs(2);
/// A timer that is missed by more than this means that this peer itself was stopped.
const SLEPT: Duration = Duration::from_secs(1);
/// A subject is told of the accusations against it at most this often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What the detector works with in one step.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Now,
    pub(crate) me: PeerId,
    pub(crate) registry: &'a Registry,
    pub(crate) links: &'a mut Links,
    pub(crate) settings: &'a Settings,
    pub(crate) rng: &'a mut SmallRng,
    pub(crate) out: &'a mut Vec<Output>,
    /// What this peer now accuses others of; to be signed and published.
    pub(crate) charges: &'a mut Vec<Charge>,
}

/// This peer could not reach another one.
#[derive(Debug, Clone, Copy)]
struct Unreachable {
    since: Duration,
    /// A sign of life counts from then on only.
    until: Duration,
}

/// An accusation of our own that stands.
#[derive(Debug, Clone, Copy)]
struct Suspicion {
    charge: Charge,
    since: Duration,
    vote_at: Duration,
    voted: bool,
}

/// The failure detector of one peer.
#[derive(Debug)]
pub(crate) struct Liveness {
    heard: HashMap<PeerId, Duration>,
    unreachable: BTreeMap<PeerId, Unreachable>,
    probes: Probes,
    doubt: Doubt,
    credit: Credit,
    suspicions: BTreeMap<PeerId, Suspicion>,
    /// When to look for ourselves whether somebody who is accused by others lives.
    checks: BTreeMap<PeerId, Duration>,
    /// Since when each publication stands accused here.
    accused_at: HashMap<PeerId, (Epoch, u64, Duration)>,
    told: HashMap<PeerId, Duration>,
    /// Probes in a row that did not come back though helpers reached the peer.
    detours: HashMap<PeerId, u32>,
    beliefs: HashMap<PeerId, Belief>,
    /// How many are suspects.
    suspects: usize,
    /// How many were evicted by the last conclusions, and may not be counted among the departed yet.
    leaving: usize,
    /// Which publication of each evicted peer the votes were about.
    evicted: HashMap<PeerId, (Epoch, u64)>,
    /// Of whom something was learned that conclusions rest on.
    unsettled: BTreeSet<PeerId>,
    round: u64,
    next_round: Duration,
}

impl Liveness {
    pub(crate) fn new(first_round: Duration) -> Self {
        Self {
            heard: HashMap::new(),
            unreachable: BTreeMap::new(),
            probes: Probes::default(),
            doubt: Doubt::default(),
            credit: Credit::default(),
            suspicions: BTreeMap::new(),
            checks: BTreeMap::new(),
            accused_at: HashMap::new(),
            told: HashMap::new(),
            detours: HashMap::new(),
            beliefs: HashMap::new(),
            suspects: 0,
            leaving: 0,
            evicted: HashMap::new(),
            unsettled: BTreeSet::new(),
            round: 0,
            next_round: first_round,
        }
    }

    /// When [`Self::tick`] is due.
    pub(crate) fn wake_at(&self) -> Duration {
        let votes = self.suspicions.values().filter(|s| !s.voted).map(|s| s.vote_at).min();
        let checks = self.checks.values().min().copied();
        let failed = self.unreachable.values().filter(|u| u.until > u.since).map(|u| u.until).min();
        [self.probes.next_due(), votes, checks, failed].into_iter().flatten().fold(self.next_round, Duration::min)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        for number in self.probes.due(now) {
            self.expired(number, ctx);
        }
        self.check_due(ctx);
        self.vote_due(ctx);
        for unreachable in self.unreachable.values_mut().filter(|u| u.until <= now) {
            // Once over, it is over: what counts now is whether a sign of life came since.
            unreachable.until = unreachable.since;
        }
        let back: Vec<_> = self
            .unreachable
            .extract_if(.., |peer, u| u.until <= now && self.heard.get(peer).is_some_and(|at| *at > u.since))
            .collect();
        self.unsettled.extend(back.into_iter().map(|(peer, _)| peer));
        if self.next_round <= now {
            // How far accusers are believed changes with time alone.
            let accused = ctx.registry.accused().map(|(peer, _)| *peer);
            let open: Vec<_> = accused.filter(|peer| !self.is_decided(peer, ctx.registry)).collect();
            self.unsettled.extend(self.beliefs.keys().filter(|peer| ctx.registry.get(peer).is_none()));
            self.look_again(&open, ctx);
            self.unsettled.extend(open);
            self.ask_after_strays(ctx);
            self.next_round = now + watch::ROUND;
            self.round += 1;
            self.watch(ctx);
            self.credit.forget(now);
            self.told.retain(|_, at| *at + TELL_EVERY * 16 > now);
            self.heard.retain(|peer, _| ctx.links.contains(peer) || ctx.registry.get(peer).is_some());
            self.unreachable.retain(|peer, _| ctx.registry.get(peer).is_some());
            self.detours.retain(|peer, _| ctx.links.contains(peer));
            self.evicted.retain(|peer, _| ctx.registry.get(peer).is_some());
            self.accused_at.retain(|peer, _| !ctx.registry.accusations(peer).is_empty());
        }
    }

    /// Whether this peer has slept through its own timers; what it waited for says nothing then.
    pub(crate) fn woke(&mut self, wake_at: Duration, now: Duration) -> bool {
        if now <= wake_at + SLEPT {
            return false;
        }
        self.doubt.slept(now);
        self.probes.clear();
        self.checks.clear();
        // Whoever was suspected gets the whole grace again.
        for suspicion in self.suspicions.values_mut() {
            suspicion.vote_at += now.saturating_sub(suspicion.since);
            suspicion.since = now;
        }
        self.next_round = now + watch::ROUND;
        true
    }

    /// A link stands: the peer has proved that it lives and is who it is.
    pub(crate) fn link_up(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        self.unreachable.remove(&peer);
        self.unsettled.insert(peer);
        self.heard(peer, ctx);
    }

    /// A link broke. If the peer lives it can be reached again at once; whom nobody expects to live is left alone.
    pub(crate) fn link_down(&mut self, peer: PeerId, relayed: bool, ctx: &mut Ctx<'_>) {
        let was_given_up = matches!(self.belief(&peer), Belief::Suspect(_) | Belief::Evicted(_));
        if !relayed {
            self.cannot_reach(peer, Duration::ZERO, ctx);
        }
        let present = ctx.registry.rank(&peer).is_some_and(|rank| rank.lifecycle != Lifecycle::Left);
        if present && !was_given_up && !self.probes.is_probing(&peer) {
            self.begin_watch(peer, ctx);
        }
    }

    /// A dial reached nobody.
    pub(crate) fn not_reached(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        if !ctx.links.contains(&peer) {
            self.cannot_reach(peer, Duration::ZERO, ctx);
            self.probes.unreachable(&peer, ctx.now.mono);
        }
    }

    /// A request to `peer` failed: it is out of rotation for a while, and asked at once whether it lives.
    pub(crate) fn failed(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        self.cannot_reach(peer, FAILED_FOR, ctx);
        if !self.probes.is_probing(&peer) && !self.suspicions.contains_key(&peer) {
            self.begin_watch(peer, ctx);
        }
    }

    fn cannot_reach(&mut self, peer: PeerId, penalty: Duration, ctx: &Ctx<'_>) {
        let now = ctx.now.mono;
        let unreachable = self.unreachable.entry(peer).or_insert(Unreachable { since: now, until: now });
        unreachable.until = unreachable.until.max(now + penalty);
        self.unsettled.insert(peer);
    }

    /// The registry has something new about `peer`.
    pub(crate) fn unsettle(&mut self, peer: PeerId) {
        self.unsettled.insert(peer);
    }

    /// Something came from `peer` itself: it lives.
    pub(crate) fn heard(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        self.heard.insert(peer, now);
        if self.beliefs.contains_key(&peer) {
            self.unsettled.insert(peer);
        }
        self.suspicions.remove(&peer);
        self.checks.remove(&peer);
        if self.unreachable.get(&peer).is_some_and(|u| u.until <= now) {
            self.unreachable.remove(&peer);
        }
        for answered in self.probes.answered(&peer) {
            match answered.purpose {
                Purpose::Watch => {
                    self.doubt.note(answered.stage == Stage::Direct);
                    self.detours.remove(&peer);
                }
                Purpose::Recheck => {}
                Purpose::Asked { by, number } => {
                    ctx.out.push(say(by, Say::Report(Report { number, alive: true })));
                }
            }
        }
        self.tell(peer, ctx);
    }

    /// Tells a living peer what it is accused of, so that it can refute it though gossip has not reached it.
    fn tell(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        let accusations = ctx.registry.accusations(&peer);
        let now = ctx.now.mono;
        let lately = self.told.get(&peer).is_some_and(|at| *at + TELL_EVERY > now);
        if accusations.is_empty() || lately || !ctx.links.contains(&peer) {
            return;
        }
        self.told.insert(peer, now);
        let tell = |accusation: &_| Output::Send { to: peer, parcel: Parcel::Accusation(Clone::clone(accusation)) };
        ctx.out.extend(accusations.iter().map(tell));
    }

    /// A message about liveness. `None` if it is malformed.
    pub(crate) fn on_say(&mut self, from: PeerId, message: &Say, ctx: &mut Ctx<'_>) -> Option<()> {
        match message {
            Say::Probe(probe) => {
                let answer = Answer { number: probe.number, wall_ms: ctx.now.wall_ms };
                ctx.out.push(say(from, Say::Answer(answer)));
            }
            Say::Ask(ask) => {
                let subject = PeerId::from_bytes(&ask.subject).ok()?;
                self.on_ask(from, ask.number, subject, ctx);
            }
            Say::Report(report) => self.on_report(from, *report, ctx),
            _ => {}
        }
        Some(())
    }

    /// The answer to a probe; it measures the round trip as well. To be called before [`Self::heard`].
    pub(crate) fn on_answer(&mut self, from: PeerId, answer: Answer, ctx: &mut Ctx<'_>) {
        if let Some(began) = self.probes.began(answer.number, &from) {
            let rtt = ctx.now.mono.saturating_sub(began);
            ctx.links.measured(&from, rtt, answer.wall_ms, ctx.now.wall_ms);
        }
    }
}
