//! Renews the provider certificate while the peer runs: one that is made here before it ends, one from a file when
//! there is another in the file.

use super::{ProviderError, ProviderSettings, Shown, Source};
use crate::{
    peer::{
        PeerConfig,
        admission::Admission,
        defaults::{CERTIFICATE_RENEWED_AT, MESH_FILE_EVERY, MESH_FILE_WITHIN},
        gossip::{Event, unix_ms},
    },
    tasks::Tasks,
    telemetry::chain,
};
use otela_proto::{
    admission::Validity,
    clock::millis,
    provider::{ProviderRules, Unproven},
};
use tokio::sync::mpsc;

/// Renews what a peer with this configuration shows, if it shows anything.
pub(in crate::peer) fn start(config: &PeerConfig, door: &Admission, events: &mpsc::Sender<Event>, tasks: &Tasks) {
    if let Some(settings) = config.provider.clone() {
        tasks.spawn(follow(settings, door.clone(), events.clone()));
    }
}

/// Tells the gossip task of each new certificate. What cannot be used changes nothing, and is complained of once.
async fn follow(settings: ProviderSettings, door: Admission, events: mpsc::Sender<Event>) {
    let mut follower = Follower::new(settings.clone());
    loop {
        tokio::time::sleep(MESH_FILE_EVERY).await;
        let rules = door.rules();
        let mut look = tokio::task::spawn_blocking(move || {
            let new = follower.look(&ProviderRules::from(&*rules), unix_ms());
            (follower, new)
        });
        // A network's file system may hang. There is no use in a second look beside one that hangs.
        let looked = match tokio::time::timeout(MESH_FILE_WITHIN, &mut look).await {
            Ok(looked) => looked,
            Err(_) => {
                tracing::warn!("the provider certificate cannot be read, for its file system does not answer");
                look.await
            }
        };
        let new;
        // It can only fail by a panic; then the next look begins anew.
        (follower, new) = looked.unwrap_or_else(|_| (Follower::new(settings.clone()), None));
        if let Some(certificate) = new
            && events.send(Event::Certificate(certificate)).await.is_err()
        {
            return;
        }
    }
}

/// What is shown, and what was said of it.
#[derive(Debug)]
pub(super) struct Follower {
    settings: ProviderSettings,
    /// Why the file cannot be used.
    complained: Option<String>,
    /// Why what is shown does not count.
    doubted: Option<Unproven>,
}

impl Follower {
    pub(super) fn new(settings: ProviderSettings) -> Self {
        Self { settings, complained: None, doubted: None }
    }

    /// The certificate to be shown from now on, if it is another one.
    pub(super) fn look(&mut self, rules: &ProviderRules, now_ms: u64) -> Option<Vec<u8>> {
        let new = match self.next(rules, now_ms) {
            Ok(new) => {
                self.complained = None;
                new
            }
            Err(error) => {
                let error = chain(&error);
                if self.complained.as_ref() != Some(&error) {
                    tracing::warn!(error, "a new provider certificate cannot be used: going on with the one before");
                    self.complained = Some(error);
                }
                None
            }
        };
        if let Some(new) = &new {
            let provider = new.certificate.provider();
            tracing::info!(%provider, "the provider certificate was renewed: that is shown from now on");
            self.settings.shown = new.clone();
        }
        self.doubt(rules, now_ms);
        new.map(|new| new.bytes)
    }

    fn next(&self, rules: &ProviderRules, now_ms: u64) -> Result<Option<Shown>, ProviderError> {
        let ProviderSettings { subject, source, shown } = &self.settings;
        match source {
            Source::Key(key) if is_due(shown.certificate.terms().validity, now_ms) => {
                // It worked at the start, with the same key and names.
                Ok(Shown::made(key, subject, &rules.mesh, now_ms).ok())
            }
            Source::Key(_) => Ok(None),
            Source::File(path) => {
                // That it is gone changes nothing: it was there.
                let Some(found) = Shown::load(path)?.filter(|found| found.bytes != shown.bytes) else {
                    return Ok(None);
                };
                found.check(path, subject, rules, now_ms)?;
                Ok(Some(found))
            }
        }
    }

    /// Says once that others do not take what is shown.
    fn doubt(&mut self, rules: &ProviderRules, now_ms: u64) {
        let ProviderSettings { subject, shown, .. } = &self.settings;
        let doubt = shown.certificate.verify(&subject.peer, &subject.labels, rules, now_ms).err();
        if let Some(why) = doubt.filter(|_| doubt != self.doubted) {
            tracing::warn!(reason = why.reason(), "the provider of this node is not verified any more: {why}");
        }
        self.doubted = doubt;
    }
}

/// Whether the certificate that was made here ends soon, or the clock was set back before its beginning.
fn is_due(validity: Validity, now_ms: u64) -> bool {
    validity.begins_after(now_ms) || validity.until_ms.saturating_sub(now_ms) < millis(CERTIFICATE_RENEWED_AT)
}
