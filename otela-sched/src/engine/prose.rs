//! What the simulated model says: readable words, as a pure function of a seed and of all the text so far.
//!
//! As with a real model at temperature zero, the next word depends on nothing but the text before it. So the same
//! prompt gives the same answer on every replica with the same seed, and a partial answer that is handed in again,
//! cut at any character, goes on exactly where the whole one would have gone.

use super::tokens;

/// Plain words that are enough for sentences which read as prose and mean nothing.
const WORDS: &[&str] = &[
    "a", "about", "above", "after", "again", "all", "along", "always", "and", "another", "answer", "any", "around",
    "as", "at", "autumn", "away", "before", "behind", "below", "between", "bird", "both", "bread", "bridge", "bright",
    "bring", "but", "by", "calm", "candle", "carry", "city", "clear", "cloud", "coast", "cold", "colour", "come",
    "corner", "could", "count", "day", "deep", "door", "down", "early", "east", "enough", "even", "every", "far",
    "field", "find", "first", "follow", "for", "forest", "from", "garden", "gate", "give", "glass", "go", "good",
    "grain", "grass", "green", "grow", "half", "hand", "harbour", "have", "hear", "hill", "home", "hour", "house",
    "in", "into", "island", "it", "keep", "kind", "know", "lake", "lamp", "large", "last", "later", "leaf", "learn",
    "letter", "light", "line", "listen", "little", "long", "make", "many", "map", "market", "may", "meadow", "measure",
    "more", "morning", "mountain", "move", "near", "never", "new", "night", "north", "not", "now", "of", "often",
    "old", "on", "one", "open", "or", "other", "our", "over", "page", "paper", "part", "path", "people", "place",
    "quiet", "rain", "read", "reason", "rest", "river", "road", "roof", "room", "round", "sail", "same", "say", "sea",
    "season", "second", "see", "shade", "ship", "shore", "short", "side", "simple", "slow", "small", "snow", "so",
    "some", "song", "south", "speak", "spring", "stand", "star", "stay", "still", "stone", "story", "street", "summer",
    "sun", "table", "take", "tell", "that", "the", "their", "then", "there", "they", "thing", "this", "time", "to",
    "today", "together", "town", "tree", "true", "turn", "two", "under", "until", "up", "valley", "very", "village",
    "wait", "walk", "wall", "warm", "watch", "water", "way", "we", "west", "what", "when", "where", "while", "white",
    "wide", "wind", "window", "winter", "with", "wood", "word", "work", "world", "write", "year", "yellow", "young",
];

const SENTENCE_WORDS_MIN: u32 = 4;
const SENTENCE_WORDS_MAX: u32 = 16;
/// An answer does not end of itself before this many sentences.
const SENTENCES_MIN: u32 = 3;

/// FNV-1a over all text so far, stirred when it is read. Written out because it must stay the same for ever: two
/// engines of different builds have to continue each other's answers.
#[derive(Debug, Clone, Copy)]
struct Hash(u64);

impl Hash {
    fn absorb(&mut self, text: &str) {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn draw(self) -> u64 {
        stir(self.0)
    }
}

/// The finalizer of SplitMix64: spreads every input bit over all output bits.
pub(crate) fn stir(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number that stands for a text under a seed.
pub(crate) fn fingerprint(seed: u64, text: &str) -> u64 {
    let mut hash = Hash(stir(seed));
    hash.absorb(text);
    hash.draw()
}

/// Says one word after the other.
#[derive(Debug)]
struct Speaker {
    hash: Hash,
    /// Nothing stands before the next word, so it has no space before it.
    first: bool,
    sentence_words: u32,
    sentences: u32,
    /// The last word was this speaker's own: only then may the answer end, so that no prompt ends one at once.
    own: bool,
    /// The rest of a word that the text so far breaks off.
    rest: Option<String>,
}

impl Speaker {
    /// A speaker that has said `open` after `context`.
    fn after(seed: u64, context: &str, open: &str) -> Self {
        let mut hash = Hash(stir(seed));
        hash.absorb(context);
        let mut speaker = Self { hash, first: true, sentence_words: 0, sentences: 0, own: false, rest: None };
        let last = open.rfind(char::is_whitespace).unwrap_or(0);
        let mut begin = 0;
        for (at, _) in open.char_indices().filter(|&(at, c)| at > 0 && c.is_whitespace() && at <= last) {
            speaker.absorb(&open[begin..at], false);
            begin = at;
        }
        let tail = &open[begin..];
        let word = speaker.word();
        match word.strip_prefix(tail) {
            Some("") => speaker.absorb(tail, true),
            Some(rest) => {
                speaker.rest = Some(rest.to_owned());
                speaker.absorb(&word, true);
            }
            None => speaker.absorb(tail, false),
        }
        speaker
    }

    fn absorb(&mut self, word: &str, own: bool) {
        self.hash.absorb(word);
        self.first = false;
        self.own = own;
        if word.ends_with('.') {
            self.sentences += 1;
            self.sentence_words = 0;
        } else {
            self.sentence_words += 1;
        }
    }

    /// The word that comes next, with the space before it and the punctuation after it.
    fn word(&self) -> String {
        let draw = self.hash.draw();
        // The list is far shorter than any usize.
        let plain = WORDS[(draw % WORDS.len() as u64) as usize];
        let mut word = String::with_capacity(plain.len() + 2);
        if !self.first {
            word.push(' ');
        }
        if self.sentence_words == 0 {
            word.extend(plain.chars().take(1).map(|c| c.to_ascii_uppercase()));
            word.push_str(&plain[1..]);
        } else {
            word.push_str(plain);
        }
        let words = self.sentence_words + 1;
        match (draw >> 32) % 9 {
            0 if words >= SENTENCE_WORDS_MIN => word.push('.'),
            _ if words >= SENTENCE_WORDS_MAX => word.push('.'),
            1 if words > 1 => word.push(','),
            _ => {}
        }
        word
    }

    /// Whether the answer is over here.
    fn over(&self) -> bool {
        self.own
            && self.rest.is_none()
            && self.sentence_words == 0
            && self.sentences >= SENTENCES_MIN
            && (self.hash.draw() >> 20).is_multiple_of(3)
    }

    fn next(&mut self) -> String {
        if let Some(rest) = self.rest.take() {
            return rest;
        }
        let word = self.word();
        self.absorb(&word, true);
        word
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model was done, or a stop string came.
    Stop,
    /// The limit on tokens was reached.
    Length,
}

impl Finish {
    /// As in `finish_reason`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What bounds an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    /// The most tokens, at least 1.
    pub(crate) max_tokens: u32,
    /// The answer does not end of itself, or by a stop string, before this many.
    pub(crate) min_tokens: u32,
    /// The answer ends by `max_tokens` or a stop string only.
    pub(crate) ignore_eos: bool,
    /// Strings that end the answer when they appear in it.
    pub(crate) stop: Vec<String>,
    /// Whether the stop string stays in the text.
    pub(crate) keep_stop: bool,
}

/// A whole answer, cut into tokens.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    text: String,
    /// Where each token ends in `text`. The end-of-answer token, which a model has to say too, has no text.
    ends: Vec<usize>,
    pub(crate) finish: Finish,
    /// The stop string that ended it.
    pub(crate) stop_reason: Option<String>,
}

impl Answer {
    /// What the model says after `context` and `open`, the latter being the part of the answer already said.
    pub(crate) fn new(seed: u64, context: &str, open: &str, bounds: &Bounds) -> Self {
        let mut speaker = Speaker::after(seed, context, open);
        let mut answer = Self { text: String::new(), ends: Vec::new(), finish: Finish::Length, stop_reason: None };
        loop {
            if !bounds.ignore_eos && answer.tokens() >= bounds.min_tokens && speaker.over() {
                answer.ends.push(answer.text.len());
                answer.finish = Finish::Stop;
                return answer;
            }
            for piece in tokens::pieces(&speaker.next()) {
                answer.text.push_str(piece);
                answer.ends.push(answer.text.len());
                if answer.stopped_by(piece.len(), bounds) || answer.tokens() >= bounds.max_tokens {
                    return answer;
                }
            }
        }
    }

    /// Looks for stop strings that end in the last `new` bytes, and cuts there.
    fn stopped_by(&mut self, new: usize, bounds: &Bounds) -> bool {
        if self.tokens() < bounds.min_tokens {
            return false;
        }
        let found = bounds
            .stop
            .iter()
            .filter_map(|stop| {
                let from = self.text.len().saturating_sub(new + stop.len().saturating_sub(1));
                let from = self.text.floor_char_boundary(from);
                self.text[from..].find(stop.as_str()).map(|at| (from + at, stop))
            })
            .min_by_key(|&(at, _)| at);
        let Some((at, stop)) = found else { return false };
        self.text.truncate(if bounds.keep_stop { at + stop.len() } else { at });
        let length = self.text.len();
        for end in self.ends.iter_mut().rev().take_while(|end| **end > length) {
            *end = length;
        }
        self.finish = Finish::Stop;
        self.stop_reason = Some(stop.clone());
        true
    }

    /// The whole text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// How many tokens it has.
    pub(crate) fn tokens(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// The text of a token.
    pub(crate) fn piece(&self, token: u32) -> &str {
        let token = token as usize;
        let begin = token.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin..self.ends[token]]
    }
}

#[cfg(test)]
mod tests;
