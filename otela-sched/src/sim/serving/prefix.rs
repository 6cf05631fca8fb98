//! Keys and values that nobody works on, kept where nobody else needs the room: heads that prompts share, and what those
//! have computed who were put back.
//!
//! A sequence that finds some copies them: it takes blocks of its own for its whole prompt, where engines let sequences
//! share. So there is a little less room here than there.

use std::collections::{BTreeMap, HashMap};

/// Whose they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Text {
    /// A head that prompts share.
    Shared(u64),
    /// Everything of one request.
    Own(usize),
}

#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// By text: its blocks, and when it was used last.
    kept: HashMap<Text, (u64, u64)>,
    /// By when they were used last.
    used: BTreeMap<u64, Text>,
    blocks: u64,
    uses: u64,
}

impl Prefixes {
    /// Blocks of this text that are there, from its beginning on.
    pub(super) fn find(&self, text: Text) -> u64 {
        self.kept.get(&text).map_or(0, |(blocks, _)| *blocks)
    }

    /// Keeps `blocks` of a text.
    pub(super) fn keep(&mut self, text: Text, blocks: u64) {
        let had = self.forget(text);
        let blocks = blocks.max(had);
        if blocks > 0 {
            self.uses += 1;
            self.kept.insert(text, (blocks, self.uses));
            self.used.insert(self.uses, text);
            self.blocks += blocks;
        }
    }

    /// Lets go of a text; how many blocks of it there were.
    pub(super) fn forget(&mut self, text: Text) -> u64 {
        let Some((blocks, used)) = self.kept.remove(&text) else { return 0 };
        self.used.remove(&used);
        self.blocks -= blocks;
        blocks
    }

    /// Lets go of what has not been used for longest, each text from its end on, until all takes no more than `room`
    /// blocks.
    pub(super) fn shrink(&mut self, room: u64) {
        while self.blocks > room
            && let Some((_, text)) = self.used.first_key_value()
            && let Some((blocks, _)) = self.kept.get_mut(text)
        {
            let gone = (self.blocks - room).min(*blocks);
            *blocks -= gone;
            self.blocks -= gone;
            if *blocks == 0 {
                let text = *text;
                self.forget(text);
            }
        }
    }
}
