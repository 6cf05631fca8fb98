//! Last words: what is written lies in the muxer and is lost when its connection or the process ends at once, so
//! neighbours are asked whether they have read it.

use libp2p::PeerId;
use otela_proto::wire::{Probe, Say};
use std::collections::BTreeSet;
use tokio::sync::oneshot;

/// The number of the probe that follows our last words; the core counts upwards from one and never gets there.
const LAST_PROBE: u32 = u32::MAX;

/// The question that follows last words. A neighbour reads in order, so its answer says that it has read them.
pub(super) fn question() -> Say {
    Say::Probe(Probe { number: LAST_PROBE })
}

/// Whether a neighbour says that it has read our last words.
pub(super) fn is_answer(say: &Say) -> bool {
    matches!(say, Say::Answer(answer) if answer.number == LAST_PROBE)
}

/// Who has not read our last words yet, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct Farewells(Vec<(BTreeSet<PeerId>, oneshot::Sender<()>)>);

impl Farewells {
    /// `done` is told when all of `neighbours` have read what was last said to them, or are gone.
    pub(super) fn wait_for(&mut self, neighbours: BTreeSet<PeerId>, done: oneshot::Sender<()>) {
        self.0.retain(|(_, done)| !done.is_closed());
        self.0.push((neighbours, done));
        self.tell();
    }

    /// This neighbour has read everything, or its connection is gone.
    pub(super) fn has_read(&mut self, neighbour: &PeerId) {
        for (neighbours, _) in &mut self.0 {
            neighbours.remove(neighbour);
        }
        self.tell();
    }

    fn tell(&mut self) {
        for (_, done) in self.0.extract_if(.., |(neighbours, _)| neighbours.is_empty()) {
            // One that has given up does not mind.
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_proto::wire::Answer;

    #[test]
    fn who_waits_is_told_when_the_last_neighbour_has_read() {
        let (near, far) = (PeerId::random(), PeerId::random());
        let (mut farewells, channel) = (Farewells::default(), oneshot::channel);
        let ((both, mut both_read), (one, mut one_read), (none, mut none_read)) = (channel(), channel(), channel());
        farewells.wait_for([near, far].into(), both);
        farewells.wait_for([far].into(), one);
        farewells.wait_for(BTreeSet::new(), none);
        assert!(none_read.try_recv().is_ok(), "there is nobody to wait for");
        farewells.has_read(&far);
        assert!(one_read.try_recv().is_ok() && both_read.try_recv().is_err());
        farewells.has_read(&near);
        assert!(both_read.try_recv().is_ok());
    }

    #[test]
    fn who_has_given_up_is_forgotten() {
        let mut farewells = Farewells::default();
        for _ in 0..100 {
            farewells.wait_for([PeerId::random()].into(), oneshot::channel().0);
        }
        assert_eq!(farewells.0.len(), 1);
    }

    #[test]
    fn only_the_answer_to_the_last_question_counts() {
        assert_eq!(question(), Say::Probe(Probe { number: LAST_PROBE }));
        assert!(is_answer(&Say::Answer(Answer { number: LAST_PROBE, wall_ms: 1 })));
        assert!(!is_answer(&Say::Answer(Answer { number: 1, wall_ms: 1 })) && !is_answer(&question()));
    }
}
