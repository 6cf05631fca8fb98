//! From measurements to entries of a table.

use super::{Case, Errors, Fitted, Quality, Recording, Timeline, fit, fit::Evidence};
use crate::sim::{Factors, Variant};
use std::collections::BTreeMap;

/// Fits factors for each accelerator, engine and version that is measured, on the models that `is_fitted` accepts by
/// their names in the catalog; the others test them. What has none to be fitted on is left out.
pub fn learn(cases: &[Case<'_>], is_fitted: impl Fn(&str) -> bool) -> Vec<Fitted> {
    let mut groups: BTreeMap<_, (Vec<Case<'_>>, Vec<Case<'_>>)> = BTreeMap::new();
    for case in cases {
        let measured = case.measured;
        let key = (case.variant.accelerator.name.as_str(), measured.engine.as_str(), measured.version.as_str());
        let (fitted, held_out) = groups.entry(key).or_default();
        if is_fitted(&case.variant.model.name) { fitted } else { held_out }.push(case.clone());
    }
    let entries = groups.into_iter().filter(|(_, (fitted, _))| !fitted.is_empty());
    entries
        .filter_map(|((accelerator, engine, version), (fitted, held_out))| {
            let factors = fit(&fitted[..]);
            let first_tokens: Vec<_> = held_out.iter().filter(|case| case.is_first_token()).cloned().collect();
            let mut models: Vec<String> = fitted.iter().map(|case| case.variant.model.name.clone()).collect();
            models.sort();
            models.dedup();
            Some(Fitted {
                accelerator: accelerator.to_owned(),
                engine: engine.to_owned(),
                version: version.to_owned(),
                models,
                fit: quality(&fitted[..], &factors)?,
                held_out: quality(&held_out[..], &factors),
                held_out_first_tokens: quality(&first_tokens[..], &factors),
                factors,
            })
        })
        .collect()
}

/// Fits factors on every second request of a recorded run, in the order of their first tokens; the others test them.
/// None if the run is too short to tell.
pub fn learn_run(recording: &Recording, variant: Variant<'_>) -> Option<Fitted> {
    let half = |odd: usize| Timeline::new(variant, recording, move |i| i % 2 == odd);
    let (fitted, held_out) = (half(0), half(1));
    if fitted.count() == 0 {
        return None;
    }
    let factors = fit(&fitted);
    Some(Fitted {
        accelerator: variant.accelerator.name.clone(),
        engine: recording.engine.clone(),
        version: recording.version.clone(),
        models: vec![variant.model.name.clone()],
        fit: quality(&fitted, &factors)?,
        held_out: quality(&held_out, &factors),
        held_out_first_tokens: None,
        factors,
    })
}

fn quality<E: Evidence + ?Sized>(evidence: &E, factors: &Factors) -> Option<Quality> {
    let errors = Errors::of(evidence.log_errors(factors).into_iter().map(|error| (error.exp(), 1.0)));
    errors.map(Quality::from)
}
