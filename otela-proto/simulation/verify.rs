//! Opens signed bytes as the readers of a real peer do, with one shortcut: a signature that has been found good once
//! is not computed again for the next host.
//!
//! Nothing else is shared. The age of what is signed is judged by the wall clock of each receiver: wherever that clock
//! is not plainly within the statement's life, the real check runs again.

use otela_proto::{
    accusation::Accusation,
    entry::{CLOCK_SLACK, Entry, Fingerprint, Refusal},
    id::MeshName,
    wire::Entries,
};
use std::collections::{BTreeMap, HashMap};

/// Statements younger than this are within their life, whatever their time to live says: the shortest one that is
/// signed here is longer.
const PLAINLY_YOUNG_MS: u64 = 60 * 60 * 1_000;
/// Statements remembered of each kind before the memory starts anew.
const REMEMBERED_MAX: usize = 200_000;

/// What was opened before.
#[derive(Debug)]
pub(crate) struct Verifier {
    mesh: MeshName,
    entries: HashMap<Fingerprint, Entry>,
    accusations: HashMap<Fingerprint, Accusation>,
}

/// A frame of entries after every check.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) entries: Vec<Entry>,
    pub(crate) accusations: Vec<Accusation>,
    pub(crate) refused: BTreeMap<&'static str, u64>,
}

impl Verifier {
    pub(crate) fn new(mesh: MeshName) -> Self {
        Self { mesh, entries: HashMap::new(), accusations: HashMap::new() }
    }

    /// Remembers nothing.
    pub(crate) fn forget(&mut self) {
        self.entries = HashMap::new();
        self.accusations = HashMap::new();
    }

    /// Opens a page at the receiver's wall time.
    pub(crate) fn open(&mut self, page: &Entries, now_ms: u64) -> Opened {
        let mut opened = Opened::default();
        for signed in &page.signed {
            match self.entry(signed, now_ms) {
                Ok(entry) => opened.entries.push(entry),
                Err(refusal) => *opened.refused.entry(refusal.reason()).or_default() += 1,
            }
        }
        for signed in &page.accusations {
            match self.accusation(signed, now_ms) {
                Ok(accusation) => opened.accusations.push(accusation),
                Err(refusal) => *opened.refused.entry(refusal.reason()).or_default() += 1,
            }
        }
        opened
    }

    fn entry(&mut self, signed: &[u8], now_ms: u64) -> Result<Entry, Refusal> {
        let hash = Fingerprint::of(signed);
        if let Some(known) = self.entries.get(&hash)
            && is_plainly_alive(known.issued_at_ms(), now_ms)
        {
            return Ok(known.clone());
        }
        let entry = Entry::open(signed, &self.mesh, now_ms)?;
        if self.entries.len() >= REMEMBERED_MAX {
            self.entries.clear();
        }
        self.entries.insert(hash, entry.clone());
        Ok(entry)
    }

    fn accusation(&mut self, signed: &[u8], now_ms: u64) -> Result<Accusation, Refusal> {
        let hash = Fingerprint::of(signed);
        if let Some(known) = self.accusations.get(&hash)
            && is_plainly_alive(known.issued_at_ms(), now_ms)
        {
            return Ok(known.clone());
        }
        let accusation = Accusation::open(signed, &self.mesh, now_ms)?;
        if self.accusations.len() >= REMEMBERED_MAX {
            self.accusations.clear();
        }
        self.accusations.insert(hash, accusation.clone());
        Ok(accusation)
    }
}

fn is_plainly_alive(issued_at_ms: u64, now_ms: u64) -> bool {
    let slack_ms = CLOCK_SLACK.as_millis() as u64;
    issued_at_ms <= now_ms + slack_ms && now_ms < issued_at_ms + PLAINLY_YOUNG_MS
}
