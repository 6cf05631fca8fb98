//! What this peer shows at doors, and how it is renewed: statements end, and files with new ones take their place while
//! the peer runs.

use super::{
    Admission,
    settings::{AdmissionSettings, OwnBinary, digest, load_statement},
};
use crate::{peer::admission::Kind, telemetry::chain};
use arc_swap::ArcSwap;
use libp2p::PeerId;
use otela_proto::{
    admission::{Credentials, Membership, Release},
    id::MeshName,
    wire::Signed,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown {
    pub(super) release: Option<Signed>,
    pub(super) membership: Option<Signed>,
    /// Both, read.
    pub(super) credentials: Credentials,
}

/// Where it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownFiles {
    /// The binary, and what is said of it.
    pub binary: Option<OwnBinary>,
    /// The membership.
    pub membership: Option<PathBuf>,
}

impl Shown {
    pub(super) fn of(settings: &AdmissionSettings) -> ArcSwap<Self> {
        let (release, membership) = (settings.release.clone(), settings.membership.clone());
        ArcSwap::from_pointee(Self { release, membership, credentials: settings.credentials() })
    }
}

/// Follows the files. What cannot be used is complained of once, and what was shown before is shown on.
#[derive(Debug)]
pub(super) struct Renewal {
    files: ShownFiles,
    /// What was in the files when they were last looked at.
    release: Option<Signed>,
    membership: Option<Signed>,
    complained: BTreeMap<Kind, String>,
}

impl Renewal {
    pub(super) fn new(files: ShownFiles) -> Self {
        Self { files, release: None, membership: None, complained: BTreeMap::new() }
    }

    /// Takes over what is new.
    pub(super) fn look(&mut self, door: &Admission) {
        let shown = door.inner.shown.load_full();
        let release = self.files.binary.as_ref().map(|binary| new_release(binary, &mut self.release, &shown));
        let (me, mesh) = (&door.inner.me, &door.rules().mesh);
        let membership = self.files.membership.as_ref();
        let membership = membership.map(|path| new_membership(path, &mut self.membership, &shown, (me, mesh)));
        if let Some((signed, release)) = self.good(Kind::Release, release) {
            let key = release.key;
            tracing::info!(%key, "this binary was signed again: that is shown from now on");
            let credentials = Credentials { release: Some(release), ..shown.credentials.clone() };
            door.show(Shown { release: Some(signed), credentials, ..Shown::clone(&shown) });
        }
        let shown = door.inner.shown.load_full();
        if let Some((signed, membership)) = self.good(Kind::Membership, membership) {
            let key = membership.authority;
            tracing::info!(%key, "the membership of this peer was renewed: that is shown from now on");
            let credentials = Credentials { membership: Some(membership), ..shown.credentials.clone() };
            door.show(Shown { membership: Some(signed), credentials, ..Shown::clone(&shown) });
        }
    }

    /// What is new and good; what is wrong is said once.
    fn good<T>(&mut self, kind: Kind, found: Option<Result<Option<T>, String>>) -> Option<T> {
        match found? {
            Ok(new) => {
                self.complained.remove(&kind);
                new
            }
            Err(error) => {
                if self.complained.get(&kind) != Some(&error) {
                    tracing::warn!(error, "a new statement cannot be used: going on with the one before");
                    self.complained.insert(kind, error);
                }
                None
            }
        }
    }
}

/// What is in a file and was not there before. That it is gone changes nothing: it was there.
fn unseen(found: Option<Signed>, seen: &mut Option<Signed>, shown: Option<&Signed>) -> Option<Signed> {
    if found == *seen {
        return None;
    }
    seen.clone_from(&found);
    found.filter(|found| Some(found) != shown)
}

fn new_release(
    binary: &OwnBinary,
    seen: &mut Option<Signed>,
    shown: &Shown,
) -> Result<Option<(Signed, Release)>, String> {
    let found = load_statement(&binary.statement, Kind::Release).map_err(|error| chain(&error))?;
    let Some(signed) = unseen(found, seen, shown.release.as_ref()) else { return Ok(None) };
    let release = Release::open(&signed).map_err(|error| format!("{}: {error}", binary.statement.display()))?;
    // The binary that runs does not change; what it is was found out if there was a statement.
    let actual = match &shown.credentials.release {
        Some(release) => release.digest,
        None => digest(&binary.image).map_err(|error| format!("cannot read this binary: {error}"))?,
    };
    // Another binary was installed, which the next start will run.
    Ok((release.digest == actual).then_some((signed, release)))
}

fn new_membership(
    path: &Path,
    seen: &mut Option<Signed>,
    shown: &Shown,
    (me, mesh): (&PeerId, &MeshName),
) -> Result<Option<(Signed, Membership)>, String> {
    let found = load_statement(path, Kind::Membership).map_err(|error| chain(&error))?;
    let Some(signed) = unseen(found, seen, shown.membership.as_ref()) else { return Ok(None) };
    let membership = Membership::open(&signed, mesh).map_err(|error| format!("{}: {error}", path.display()))?;
    if membership.member != *me {
        let of = membership.member;
        return Err(format!("{}: it is for peer {of}, and this peer is {me}", path.display()));
    }
    Ok(Some((signed, membership)))
}

impl Admission {
    /// This is shown from now on. Whoever refused what was shown before may not refuse this.
    fn show(&self, shown: Shown) {
        self.inner.shown.store(Arc::new(shown));
        self.inner.changed.send_modify(|changes| *changes += 1);
    }
}
