//! What happens on a connection: parcels move, arrive or wait; ends close.

use super::{
    driver::Target,
    host::State,
    link::{Parcel, WINDOW_BYTES},
    traffic::{MEASURE_EVERY, Traffic},
    world::{Event, World},
};
use otela_proto::{
    member::Input,
    wire::{FRAME_BYTES_MAX, Frame, Say},
};
use prost::Message;

impl World {
    /// Which end of a link a host holds.
    pub(crate) fn side_of(&self, link: u64, host: usize) -> usize {
        usize::from(self.links.get(&link).is_some_and(|connection| connection.ends[0].host != host))
    }

    /// Puts a parcel on its way from `side`.
    pub(crate) fn put(&mut self, link: u64, side: usize, parcel: Parcel) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let [from, to] = [side, 1 - side].map(|side| self.hosts[connection.ends[side].host].site);
        let delay = self.network.one_way(from, to, &mut self.rng) + self.network.repeated(&mut self.rng);
        if let Some(at) = connection.ways[side].push(parcel, self.now, delay) {
            self.plan(at, Event::Arrive { link, side });
        }
    }

    /// Writes what waits at one end, as far as its socket takes it.
    pub(crate) fn flush(&mut self, link: u64, side: usize) {
        while let Some(connection) = self.links.get_mut(&link)
            && let (end, way) = (&mut connection.ends[side], &connection.ways[side])
            && end.is_open
            && way.waiting_bytes < WINDOW_BYTES
            && self.hosts[end.host].is_running()
            && let Some(frame) = end.outbox.pop()
        {
            self.send(link, side, frame);
        }
    }

    /// Puts a frame on its way from one end.
    pub(crate) fn send(&mut self, link: u64, side: usize, frame: Frame) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        let traffic = &mut self.hosts[connection.ends[side].host].traffic;
        let wire = traffic.frame(&frame);
        traffic.acknowledgements(connection.ways[1 - side].owed.said(self.now));
        self.measure(link, side);
        self.put(link, side, Parcel::Frame(frame, wire));
    }

    /// The muxer of one end pings the other's where there is traffic, but not too often.
    fn measure(&mut self, link: u64, side: usize) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        if connection.ends[side].measures_at <= self.now {
            connection.ends[side].measures_at = self.now + MEASURE_EVERY;
            for (end, is_answer) in [(side, false), (1 - side, true)] {
                self.hosts[connection.ends[end].host].traffic.muxer_ping(is_answer);
            }
        }
    }

    /// The head of the queue from `side` reaches the other machine, if it can.
    pub(crate) fn arrive(&mut self, link: u64, side: usize) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        connection.ways[side].is_moving = false;
        let [from, to] = [connection.ends[side].host, connection.ends[1 - side].host];
        let state = self.hosts[to].state;
        if self.network.is_cut(from, to) || state == State::Powerless {
            if let Some(at) = connection.ways[side].stall(self.now, &mut self.rng) {
                self.plan(at, Event::Arrive { link, side });
            }
            return;
        }
        let is_known = connection.ends[1 - side].is_open && connection.ends[1 - side].run == self.hosts[to].run;
        if !is_known {
            connection.ways[side].clear();
            let back = self.network.one_way(self.hosts[to].site, self.hosts[from].site, &mut self.rng);
            return self.plan(self.now + back, Event::Reset { link, side });
        }
        if state == State::Paused {
            return;
        }
        let parcel = connection.ways[side].pop(self.now);
        if let Some(at) = connection.ways[side].start() {
            self.plan(at, Event::Arrive { link, side });
        }
        self.flush(link, side);
        match parcel {
            Some(Parcel::Frame(frame, wire)) => {
                let owed = self.links.get_mut(&link).map(|connection| &mut connection.ways[side].owed);
                let acknowledgements = owed.map_or(0, |owed| owed.received(wire, self.now));
                self.hosts[to].traffic.acknowledgements(acknowledgements);
                self.measure(link, 1 - side);
                self.hear(link, side, frame);
            }
            Some(Parcel::Fin) => self.close_end(link, 1 - side, true),
            None => {}
        }
    }

    /// Gives a frame to the core at the other end of `side`, as its reader would.
    fn hear(&mut self, link: u64, side: usize, frame: Frame) {
        let Some(connection) = self.links.get(&link) else { return };
        let (from, to) = (connection.ends[side].peer, connection.ends[1 - side].host);
        if frame.encoded_len() > FRAME_BYTES_MAX {
            // A real reader would give up the stream, too.
            *self.hosts[to].notes.refused.entry("frame_too_large").or_default() += 1;
            return;
        }
        let input = match frame.say {
            Some(Say::Entries(page)) => {
                let opened = self.verifier.open(&page, self.hosts[to].wall_ms(self.now));
                for (reason, count) in opened.refused {
                    *self.hosts[to].notes.refused.entry(reason).or_default() += count;
                }
                Input::Entries { from, entries: opened.entries, accusations: opened.accusations }
            }
            Some(say) => Input::Say { from, say },
            // A newer peer may say something that we do not know.
            None => return,
        };
        self.input(to, input);
    }

    /// Closes one end and tells its core; the other end hears of it behind what is on its way, if it can.
    pub(crate) fn close_end(&mut self, link: u64, side: usize, tells_core: bool) {
        let Some(connection) = self.links.get(&link) else { return };
        let end = &connection.ends[side];
        if !end.is_open {
            return;
        }
        let (host, run) = (end.host, end.run);
        let (far, peer) = (connection.ends[1 - side].host, connection.ends[1 - side].peer);
        self.close_quietly(link, side);
        let machine = &mut self.hosts[host];
        if machine.run != run || machine.links.get(&peer) != Some(&link) {
            return;
        }
        machine.links.remove(&peer);
        for target in [Target::Peer(peer), Target::Bootstrap(far)] {
            machine.driver.lost(target, self.now);
        }
        if tells_core {
            self.input(host, Input::LinkDown(peer));
            let run = self.hosts[host].run;
            self.plan(self.now, Event::Dial { host, run });
        }
    }

    /// Closes one end without a word to its core.
    pub(crate) fn close_quietly(&mut self, link: u64, side: usize) {
        let Some(connection) = self.links.get_mut(&link) else { return };
        if !std::mem::replace(&mut connection.ends[side].is_open, false) {
            return;
        }
        if connection.ends[1 - side].is_open {
            self.put(link, side, Parcel::Fin);
        }
        self.forget_if_closed(link);
    }

    pub(crate) fn forget_if_closed(&mut self, link: u64) {
        if self.links.get(&link).is_some_and(|connection| connection.ends.iter().all(|end| !end.is_open)) {
            self.links.remove(&link);
        }
    }

    /// What the hosts have sent since the last time, all together.
    pub(crate) fn take_traffic_sum(&mut self) -> Traffic {
        self.take_traffic().iter().fold(Traffic::default(), super::traffic::Traffic::plus)
    }
}
