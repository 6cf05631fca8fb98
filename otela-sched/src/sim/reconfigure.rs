//! What a change of placement costs: Autopoiesis, Eq. 8 to 11.

use crate::catalog::{Accelerator, Model};

const GIGA: f64 = 1e9;

/// Equal replicas of a model: `count` of them, each over `tp` accelerators of one type.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// The model.
    pub model: &'a Model,
    /// The accelerator.
    pub accelerator: &'a Accelerator,
    /// Accelerators of each replica.
    pub tp: u32,
    /// Replicas.
    pub count: u32,
}

/// Over which models loading is taken (Eq. 11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadScope {
    /// Those that changed. The paper's own totals are made so.
    Changed,
    /// All of the new placement, as Eq. 11 is printed, unless nothing changed.
    All,
}

/// What a change costs, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reconfiguration {
    /// Until the old replicas are gone (Eq. 10).
    pub terminate_seconds: f64,
    /// Until the new ones have their weights (Eq. 11).
    pub load_seconds: f64,
}

impl Reconfiguration {
    /// Both, one after the other (Eq. 8).
    pub fn total_seconds(&self) -> f64 {
        self.terminate_seconds + self.load_seconds
    }
}

/// How often longer than its bytes over the link a model's transfer takes (`c` in Eq. 9). The paper gives the range, and
/// its tables two points of it (models of 72 and 7 billion parameters); this is the power law through both, which gives
/// the range's upper end for 1.5 billion.
pub fn transfer_coefficient(weight_bytes: f64) -> f64 {
    (14.262 * (weight_bytes / GIGA).powf(-0.1743)).clamp(5.3, 11.5)
}

/// Eq. 9: the transfer of a model's weights between host and accelerators, in seconds. The whole model is transferred,
/// however it is split.
pub fn transfer_seconds(model: &Model, accelerator: &Accelerator) -> f64 {
    let bytes = model.weight_bytes_eq2();
    bytes / accelerator.host_bytes_per_s * transfer_coefficient(bytes)
}

/// Eq. 8: from one placement to another. A model has changed if its (accelerator, tp, count) have.
pub fn reconfiguration(old: &[Group<'_>], new: &[Group<'_>], scope: LoadScope) -> Reconfiguration {
    let changed = |group: &&Group<'_>| group.count > 0 && placed(old, group.model) != placed(new, group.model);
    let slowest = |groups: &mut dyn Iterator<Item = &Group<'_>>| {
        groups.map(|group| transfer_seconds(group.model, group.accelerator)).fold(0.0, f64::max)
    };
    let terminate_seconds = slowest(&mut old.iter().filter(changed));
    let nothing = old.iter().chain(new).all(|group| !changed(&group));
    let load_seconds = match scope {
        _ if nothing => 0.0,
        LoadScope::Changed => slowest(&mut new.iter().filter(changed)),
        LoadScope::All => slowest(&mut new.iter().filter(|group| group.count > 0)),
    };
    Reconfiguration { terminate_seconds, load_seconds }
}

/// How a model is placed: replicas by accelerator and tp, in an order of their own.
fn placed<'a>(groups: &[Group<'a>], model: &Model) -> Vec<(&'a str, u32, u32)> {
    let mut placed: Vec<(&str, u32, u32)> = Vec::new();
    for group in groups.iter().filter(|group| group.model.name == model.name && group.count > 0) {
        let (accelerator, tp) = (group.accelerator.name.as_str(), group.tp);
        match placed.iter_mut().find(|(a, t, _)| (*a, *t) == (accelerator, tp)) {
            Some((_, _, count)) => *count += group.count,
            None => placed.push((accelerator, tp, group.count)),
        }
    }
    placed.sort_unstable();
    placed
}
