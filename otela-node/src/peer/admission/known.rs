//! Releases whose signature was found good: all peers of a mesh run few binaries, and show them on every connection.

use crate::peer::defaults::RELEASES_KNOWN_MAX;
use otela_proto::{
    admission::{Release, StatementError},
    wire::Signed,
};
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// The latest ones. Somebody who shows many loses the others no more than the time to check them again.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<VecDeque<(Signed, Release)>>);

impl Known {
    /// As [`Release::open`].
    pub(super) fn open(&self, signed: &Signed) -> Result<Release, StatementError> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, release)) = known().iter().find(|(known, _)| known == signed) {
            return Ok(release.clone());
        }
        let release = Release::open(signed)?;
        let mut known = known();
        known.truncate(RELEASES_KNOWN_MAX - 1);
        known.push_front((signed.clone(), release.clone()));
        Ok(release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::identity::Keypair;
    use otela_proto::admission::{BinaryDigest, Validity};

    #[test]
    fn what_was_good_once_is_known_by_every_byte_and_few_are_kept() {
        let (key, known) = (Keypair::generate_ed25519(), Known::default());
        let release = |binary: u8| {
            let validity = Validity { from_ms: 0, until_ms: 1 };
            Release::sign(&key, BinaryDigest::of(&[binary]), &"1.0.0".parse().unwrap(), validity).unwrap()
        };
        let good = release(0);
        for _ in 0..2 {
            assert_eq!(known.open(&good), Release::open(&good));
        }
        for at in 0..good.signature.len() {
            let mut bad = good.clone();
            bad.signature[at] ^= 1;
            assert!(known.open(&bad).is_err(), "{at}");
        }
        let other = Signed { body: release(1).body, signature: good.signature.clone() };
        assert!(known.open(&other).is_err(), "the signature of another binary");
        assert_eq!(known.0.lock().unwrap().len(), 1, "what is not good is not kept");
        for binary in 0..=u8::MAX {
            known.open(&release(binary)).unwrap();
        }
        assert_eq!(known.0.lock().unwrap().len(), RELEASES_KNOWN_MAX);
    }
}
