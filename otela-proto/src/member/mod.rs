//! One peer's membership in a mesh: its replica, its gossip, its failure detector and its own entry.
//!
//! The core of a peer, without I/O: [`Member::handle`] takes one input with the time, and appends what has to
//! happen to a list. Production and simulation run this very code. `learn` takes what others say, `defend` keeps
//! this peer's own session alive, `meet` decides whom to be connected to.

mod defend;
mod learn;
mod meet;

pub use crate::step::{Input, NewSession, Output, Parcel, Settings};

use crate::{
    accusation::Charge,
    admission::Rules,
    clock::{Now, millis},
    entry::{Entry, RENEW_EVERY},
    gossip::{self, Gossip, Links},
    id::{Epoch, Session},
    lifecycle::Lifecycle,
    liveness::{Ctx, Liveness},
    own::Own,
    provider::ProviderRules,
    registry::{Belief, Registry, View},
    wire::Say,
};
use defend::Defence;
use libp2p_identity::{Keypair, PeerId};
use meet::Meetings;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{collections::HashMap, time::Duration};

/// Entries past their time are looked for this often.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// Our own entry may not be from the future by more than this.
const CLOCK_SET: Duration = Duration::from_secs(60);

/// The core of one peer.
#[derive(Debug)]
pub struct Member {
    me: PeerId,
    settings: Settings,
    own: Own,
    registry: Registry,
    links: Links,
    gossip: Gossip,
    liveness: Liveness,
    defence: Defence,
    meetings: Meetings,
    /// By what memberships and providers' certificates are judged.
    rules: Rules,
    rng: SmallRng,
    renew_at: Duration,
    expire_at: Duration,
    /// Links that the other side is about to close, though it lives.
    farewells: HashMap<PeerId, Duration>,
    /// Whom we have told lately that a session has ended which they still hold.
    testified: HashMap<(PeerId, PeerId), Duration>,
    stopped: bool,
}

impl Member {
    /// A member with an empty replica. `highest_epoch` is the last one of this key that is known, if any.
    #[must_use]
    pub fn new(key: Keypair, settings: Settings, highest_epoch: Option<Epoch>, seed: u64, now: Now) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let own = Own::new(
            key,
            settings.mesh.clone(),
            &settings.roles,
            settings.software.clone(),
            highest_epoch,
            now.wall_ms,
        )
        .at_site(settings.site.clone())
        .certified(settings.certificate.clone());
        let me = own.id();
        // Members that start together do not probe together.
        let first_round = now.mono + Duration::from_millis(rng.random_range(0..1_000));
        Self {
            me,
            own,
            registry: Registry::default(),
            links: Links::default(),
            gossip: Gossip::new(&me),
            liveness: Liveness::new(first_round),
            defence: Defence::default(),
            meetings: Meetings::new(now.mono),
            rules: Rules::open(settings.mesh.clone()),
            rng,
            renew_at: now.mono + RENEW_EVERY,
            expire_at: now.mono + EXPIRE_EVERY,
            farewells: HashMap::new(),
            testified: HashMap::new(),
            stopped: false,
            settings,
        }
    }

    /// Takes one input at `now` and appends what has to be done to `out`.
    pub fn handle(&mut self, now: Now, input: Input, out: &mut Vec<Output>) {
        let due = self.wake_at();
        if self.liveness.woke(due, now.mono) {
            if now.mono >= due + self.settings.grace_near {
                self.defence.woke(now.mono);
            }
            // What was missed meanwhile is asked for at once, from everybody.
            for peer in self.links.peers() {
                gossip::compare_with(*peer, &self.registry, out);
            }
        }
        let mut charges = Vec::new();
        match input {
            Input::LinkUp { peer, rtt } => self.link_up(peer, rtt, now, out, &mut charges),
            Input::LinkDown(peer) => self.link_down(peer, false, now, out, &mut charges),
            Input::RelayedLinkDown(peer) => self.link_down(peer, true, now, out, &mut charges),
            Input::Unreachable(peer) => self.detect(now, out, &mut charges, |l, ctx| l.not_reached(peer, ctx)),
            Input::Failed(peer) => self.detect(now, out, &mut charges, |l, ctx| l.failed(peer, ctx)),
            Input::Served(peer) => self.detect(now, out, &mut charges, |l, ctx| l.heard(peer, ctx)),
            Input::Traffic(peers) => self.detect(now, out, &mut charges, |l, ctx| {
                peers.into_iter().for_each(|peer| l.heard(peer, ctx));
            }),
            Input::Say { from, say } => self.on_say(from, &say, now, out, &mut charges),
            Input::Entries { from, entries, accusations } => {
                self.detect(now, out, &mut charges, |l, ctx| l.heard(from, ctx));
                for entry in entries {
                    self.learn_entry(&entry, Some(from), now, out);
                }
                for accusation in accusations {
                    self.learn_accusation(&accusation, Some(from), now, out, &mut charges);
                }
            }
            Input::Addresses(addresses) => {
                self.own.set_addresses(addresses);
                self.publish_in_time(now, out);
            }
            Input::Certificate(certificate) => match self.own.set_certificate(certificate) {
                Ok(()) => self.publish_in_time(now, out),
                Err(refusal) => out.push(Output::Refused { from: None, reason: refusal.reason() }),
            },
            Input::Admission(rules, membership) => self.take_rules(*rules, membership, now, out),
            Input::Announce(announcement) if self.own.has_said(&announcement) => {}
            Input::Announce(announcement) => match self.own.announce(*announcement) {
                Ok(()) => self.publish_in_time(now, out),
                Err(refusal) => out.push(Output::Refused { from: None, reason: refusal.reason() }),
            },
            Input::BeginAgain(announcement) => match self.own.begin_again(*announcement, now.wall_ms) {
                Ok(()) => self.publish(now, out),
                Err(refusal) => out.push(Output::Refused { from: None, reason: refusal.reason() }),
            },
            Input::Leave => {
                self.own.leave();
                self.publish(now, out);
            }
            Input::Tick => {}
        }
        self.run_timers(now, out, &mut charges);
        self.settle(now, out, charges);
    }

    fn run_timers(&mut self, now: Now, out: &mut Vec<Output>, charges: &mut Vec<Charge>) {
        self.gossip.tick(now.mono, &self.registry, &self.links, &mut self.rng, out);
        self.detect(now, out, charges, Liveness::tick);
        self.meet(now, out);
        if self.renew_at <= now.mono {
            self.publish(now, out);
        }
        if self.expire_at <= now.mono {
            self.expire_at = now.mono + EXPIRE_EVERY;
            if self.clock_was_set(now) {
                self.publish(now, out);
            }
            // Our own entry must never be among them: it is renewed long before, unless the clock was set.
            self.expel(now, out);
            for owner in self.registry.expire(now.wall_ms) {
                self.liveness.unsettle(owner);
                if owner == self.me {
                    self.publish(now, out);
                } else {
                    out.push(Output::Changed(owner));
                }
            }
        }
    }

    /// Publishes what this peer accuses others of, draws conclusions, and answers what others accuse it of.
    fn settle(&mut self, now: Now, out: &mut Vec<Output>, charges: Vec<Charge>) {
        let observes = self.settings.observes;
        for charge in charges.into_iter().filter(|_| !observes) {
            // Only keys that cannot sign fail, and such a peer has no session.
            if let Ok(accusation) = self.own.accuse(charge, now.wall_ms) {
                self.learn_accusation(&accusation, None, now, out, &mut Vec::new());
            }
        }
        for peer in self.detect(now, out, &mut Vec::new(), |l, ctx| l.conclude(ctx)) {
            out.push(Output::Changed(peer));
            if matches!(self.liveness.belief(&peer), Belief::Evicted(_)) {
                for buried in self.registry.depart(&peer) {
                    self.liveness.unsettle(buried);
                }
                if self.links.contains(&peer) {
                    out.push(Output::Close(peer));
                }
            }
        }
        self.liveness.concluded();
        self.defend(now, out);
    }

    fn on_say(&mut self, from: PeerId, say: &Say, now: Now, out: &mut Vec<Output>, charges: &mut Vec<Charge>) {
        if let Say::Answer(answer) = say {
            self.detect(now, out, charges, |l, ctx| l.on_answer(from, *answer, ctx));
        }
        if matches!(say, Say::Bye(_)) {
            self.farewells.insert(from, now.mono);
        }
        self.detect(now, out, charges, |l, ctx| l.heard(from, ctx));
        let understood = self.detect(now, out, charges, |l, ctx| l.on_say(from, say, ctx)).is_some()
            && gossip::answer(from, say, &self.registry, out).is_some();
        if !understood {
            out.push(Output::Malformed(from));
        }
    }

    /// Runs a step of the failure detector.
    fn detect<T>(
        &mut self,
        now: Now,
        out: &mut Vec<Output>,
        charges: &mut Vec<Charge>,
        step: impl FnOnce(&mut Liveness, &mut Ctx<'_>) -> T,
    ) -> T {
        let mut ctx = Ctx {
            now,
            me: self.me,
            registry: &self.registry,
            links: &mut self.links,
            settings: &self.settings,
            rng: &mut self.rng,
            out,
            charges,
        };
        step(&mut self.liveness, &mut ctx)
    }

    /// Whether our entry's time no longer fits our wall clock: the machine was suspended, or the clock was set. Others
    /// may have refused it.
    fn clock_was_set(&self, now: Now) -> bool {
        self.registry.get(&self.me).is_some_and(|own| {
            let issued_at_ms = own.issued_at_ms();
            issued_at_ms.saturating_add(millis(RENEW_EVERY)) < now.wall_ms
                || issued_at_ms > now.wall_ms.saturating_add(millis(CLOCK_SET))
        })
    }

    /// Publishes what is new of ourselves, unless it has to wait.
    fn publish_in_time(&mut self, now: Now, out: &mut Vec<Output>) {
        match self.defence.is_silent_until(now.mono) {
            Some(until) if self.own.announced().lifecycle < Lifecycle::Down => self.renew_at = self.renew_at.min(until),
            _ => self.publish(now, out),
        }
    }

    /// Publishes this peer's own entry under a new version.
    fn publish(&mut self, now: Now, out: &mut Vec<Output>) {
        self.renew_at = now.mono + RENEW_EVERY;
        if self.stopped || self.settings.observes {
            return;
        }
        match self.own.publish(now.wall_ms) {
            Ok(entry) => {
                let last_words = entry.rank().lifecycle >= Lifecycle::Down;
                self.take_own(entry, now, out);
                if last_words {
                    self.gossip.hurry(now.mono);
                }
            }
            Err(refusal) => out.push(Output::Refused { from: None, reason: refusal.reason() }),
        }
    }

    fn take_own(&mut self, entry: Entry, now: Now, out: &mut Vec<Output>) {
        self.gossip.learned_entry(&entry, None, now.mono);
        self.registry.learn(entry, now.mono);
        out.push(Output::Changed(self.me));
    }

    /// The monotonic time at which [`Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let timers = [self.liveness.wake_at(), self.meetings.wake_at(), self.renew_at, self.expire_at];
        let timers = timers.into_iter().chain(self.defence.wake_at());
        timers.fold(self.gossip.wake_at(), Duration::min)
    }

    /// The replica.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// This run of the peer.
    #[must_use]
    pub fn session(&self) -> Session {
        self.own.session()
    }

    /// What this peer says of itself.
    #[must_use]
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// The links to neighbours.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// What this peer believes of `peer`.
    #[must_use]
    pub fn belief(&self, peer: &PeerId) -> Belief {
        self.liveness.belief(peer)
    }

    /// A snapshot for readers.
    #[must_use]
    pub fn view(&self, now: Now, generation: u64) -> View {
        let beliefs = self.liveness.beliefs();
        let providers = ProviderRules::from(&self.rules);
        View::build(&self.registry, beliefs, &providers, now, self.settings.retention, generation)
    }
}

#[cfg(test)]
mod tests;
