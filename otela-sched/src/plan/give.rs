//! As much of what is needed as can be given: all, or the same share of everybody's load, or what the first models need.

use super::wanted::Wanted;
use crate::place::{Gives, Kind, TooManyTypes, least_enough};

/// What the models get.
pub(super) struct Given {
    /// Things by model and kind.
    pub(super) of: Vec<Vec<u32>>,
    pub(super) trouble: Option<TooManyTypes>,
}

/// How often the share of the load that can be borne is halved in on, where that is not all of it: to one in a billion.
const HALVINGS: u32 = 30;

/// Of `kinds`, as many to each model as it needs, so that what is given costs least; `gives` are by model what it can use.
/// Models that can use nothing keep nobody from anything.
pub(super) fn give(wanted: &[Wanted<'_>], kinds: &[Kind], gives: &[Vec<Gives>]) -> Given {
    let nothing = || vec![vec![0; kinds.len()]; wanted.len()];
    let try_at = |served: &[usize], share: f64| {
        let needs = wanted.iter().enumerate();
        let needs = needs.map(|(nth, of)| if served.contains(&nth) { of.needs(share) } else { vec![0.0, 0.0] });
        least_enough(kinds, &needs.collect::<Vec<_>>(), gives)
    };
    let mut served: Vec<usize> = (0..wanted.len()).filter(|nth| !gives[*nth].is_empty()).collect();
    match try_at(&served, 1.0) {
        Ok(Some(of)) => return Given { of, trouble: None },
        Err(trouble) => return Given { of: nothing(), trouble: Some(trouble) },
        Ok(None) => {}
    }
    let mut given = try_at(&served, 0.0).ok().flatten();
    if given.is_none() {
        // Not even a node for each: those that the operator names first.
        for nth in std::mem::take(&mut served) {
            served.push(nth);
            match try_at(&served, 0.0) {
                Ok(Some(of)) => given = Some(of),
                _ => _ = served.pop(),
            }
        }
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        match try_at(&served, middle) {
            Ok(Some(of)) => (low, given) = (middle, Some(of)),
            _ => high = middle,
        }
    }
    Given { of: given.unwrap_or_else(nothing), trouble: None }
}
