//! One option for each model, so that all of them fit and the sum of what they cost is least.
//!
//! States are what the models so far take together. Of two that take the same, the one of the smaller value stays, and
//! those from which no good end can be reached, by a linear bound, go. Nothing else is lost unless there are more states
//! than may be kept; then the ones with the best bounds stay, and the answer says that it is not complete.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Up to here states are looked up in a table rather than in a map.
const DENSE_MAX: u64 = 1 << 21;

/// A choice for one model.
#[derive(Debug, Clone, Copy)]
pub(in crate::place) struct Choice {
    used: Packed,
    /// What is to be small in sum.
    value: f64,
    /// What is bounded in sum.
    score: f64,
}

/// What is taken of each dimension, in one number: fields with a bit between them that shows what exceeds its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed {
    fields: u128,
    /// The place in a table over all dimensions; meaningless if that is too large.
    place: u64,
}

/// The dimensions, with how much there is of each.
#[derive(Debug)]
pub(in crate::place) struct Room {
    limits: Vec<u32>,
    guards: u128,
    full: u128,
    cells: Option<u64>,
}

/// What is kept, and how much work may be done.
#[derive(Debug, Clone, Copy)]
pub(in crate::place) struct Breadth {
    pub(in crate::place) states_max: usize,
    /// Of this many sums of a state and a choice, less what is done.
    pub(in crate::place) work: u64,
}

/// The best of all combinations that were looked at.
#[derive(Debug)]
pub(in crate::place) struct Combined {
    /// For each model the choice; none if there is no combination.
    pub(in crate::place) best: Option<(f64, Vec<usize>)>,
    /// Whether nothing was left out.
    pub(in crate::place) complete: bool,
    /// Sums that were looked at.
    pub(in crate::place) work: u64,
}

#[derive(Debug, Clone, Copy)]
struct State {
    used: Packed,
    value: f64,
    score: f64,
    from: u32,
    choice: u32,
}

/// What is taken does not fit into one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many types of accelerators and shapes of nodes for one problem: place on some of them at a time")]
pub struct TooManyTypes;

impl Room {
    pub(in crate::place) fn new(limits: &[u32]) -> Result<Self, TooManyTypes> {
        let mut room = Self { limits: limits.to_vec(), guards: 0, full: 0, cells: Some(1) };
        let mut shift = 0;
        for limit in limits {
            let bits = u32::BITS - limit.leading_zeros();
            if shift + bits + 1 > u128::BITS {
                return Err(TooManyTypes);
            }
            room.full |= u128::from(*limit) << shift;
            room.guards |= 1 << (shift + bits);
            shift += bits + 1;
            let cells = room.cells.and_then(|cells| cells.checked_mul(u64::from(*limit) + 1));
            room.cells = cells.filter(|cells| *cells <= DENSE_MAX);
        }
        Ok(room)
    }

    /// A choice that takes so much; none if there is less.
    pub(in crate::place) fn choice(
        &self,
        used: impl IntoIterator<Item = u32>,
        value: f64,
        score: f64,
    ) -> Option<Choice> {
        let (mut packed, mut shift, mut stride) = (Packed { fields: 0, place: 0 }, 0, 1_u64);
        for (limit, used) in self.limits.iter().zip(used) {
            if used > *limit {
                return None;
            }
            packed.fields |= u128::from(used) << shift;
            packed.place = packed.place.wrapping_add(stride.wrapping_mul(u64::from(used)));
            stride = stride.wrapping_mul(u64::from(*limit) + 1);
            shift += u32::BITS - limit.leading_zeros() + 1;
        }
        Some(Choice { used: packed, value, score })
    }

    fn sum(&self, one: Packed, other: Packed) -> Option<Packed> {
        let fields = one.fields + other.fields;
        let fits = ((self.guards | self.full) - fields) & self.guards == self.guards;
        fits.then(|| Packed { fields, place: one.place.wrapping_add(other.place) })
    }

    /// The combination of the least value whose score is at most `score_max`.
    pub(in crate::place) fn combine(&self, choices: &[Vec<Choice>], score_max: f64, breadth: Breadth) -> Combined {
        let least = |choices: &Vec<Choice>| choices.iter().map(|choice| choice.score).fold(f64::INFINITY, f64::min);
        let mut rest: Vec<f64> = choices.iter().map(least).collect();
        for nth in (0..rest.len()).rev() {
            rest[nth] += rest.get(nth + 1).copied().unwrap_or_default();
        }
        let mut levels =
            vec![vec![State { used: Packed { fields: 0, place: 0 }, value: 0.0, score: 0.0, from: 0, choice: 0 }]];
        let (mut complete, mut work) = (true, 0);
        for (nth, choices) in choices.iter().enumerate() {
            let states = levels.last().expect("there is the first");
            let limit = score_max - rest.get(nth + 1).copied().unwrap_or_default();
            let mut next = self.level(states, choices, limit);
            work += states.len() as u64 * choices.len() as u64;
            let ahead = choices.len().max(1) as u64;
            let room = (breadth.work.saturating_sub(work) / ahead).max(1);
            let states_max = breadth.states_max.min(usize::try_from(room).unwrap_or(usize::MAX));
            if next.len() > states_max && nth + 1 < rest.len() {
                complete = false;
                next.select_nth_unstable_by(states_max, |one, other| one.score.total_cmp(&other.score));
                next.truncate(states_max);
            }
            levels.push(next);
        }
        Combined { best: best(&levels), complete, work }
    }

    fn level(&self, states: &[State], choices: &[Choice], score_max: f64) -> Vec<State> {
        let mut next: Vec<State> = Vec::new();
        let mut places = Places::new(self.cells);
        for (from, state) in states.iter().enumerate() {
            for (nth, choice) in choices.iter().enumerate() {
                let score = state.score + choice.score;
                if score > score_max {
                    continue;
                }
                let Some(used) = self.sum(state.used, choice.used) else { continue };
                let value = state.value + choice.value;
                #[expect(clippy::cast_possible_truncation, reason = "far fewer than that")]
                let new = State { used, value, score, from: from as u32, choice: nth as u32 };
                let at = places.at(used, next.len());
                match next.get_mut(at) {
                    None => next.push(new),
                    Some(old) if value < old.value => *old = new,
                    Some(_) => {}
                }
            }
        }
        next
    }
}

fn best(levels: &[Vec<State>]) -> Option<(f64, Vec<usize>)> {
    let last = levels.last()?;
    let mut at = (0..last.len()).min_by(|one, other| last[*one].value.total_cmp(&last[*other].value))?;
    let value = last[at].value;
    let mut chosen: Vec<usize> = Vec::new();
    for level in levels[1..].iter().rev() {
        chosen.push(level[at].choice as usize);
        at = level[at].from as usize;
    }
    chosen.reverse();
    Some((value, chosen))
}

/// Where a state is, by what it takes.
enum Places {
    Table(Vec<u32>),
    Map(HashMap<u128, u32, BuildHasherDefault<Mix>>),
}

impl Places {
    fn new(cells: Option<u64>) -> Self {
        match cells.and_then(|cells| usize::try_from(cells).ok()) {
            Some(cells) => Self::Table(vec![u32::MAX; cells]),
            None => Self::Map(HashMap::default()),
        }
    }

    /// Where it is; `new` if it was not there.
    fn at(&mut self, used: Packed, new: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "far fewer than that; a table is as large as its cells")]
        let (new, place) = (new as u32, used.place as usize);
        let at = match self {
            Self::Table(table) => {
                let at = &mut table[place];
                if *at == u32::MAX {
                    *at = new;
                }
                *at
            }
            Self::Map(map) => *map.entry(used.fields).or_insert(new),
        };
        at as usize
    }
}

/// A quick hash: keys are our own and mean no harm.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
    }

    fn write_u128(&mut self, key: u128) {
        #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
        let (low, high) = (key as u64, (key >> 64) as u64);
        let mixed = (low ^ high.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (mixed >> 32);
    }
}
