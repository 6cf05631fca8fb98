//! Errors by accelerator, engine and model.

use super::{Basis, Case, Errors, Table, relative_speed};
use serde::Serialize;

/// A case and what was foretold.
#[derive(Debug, Clone)]
pub struct Predicted<'a> {
    /// The case.
    pub case: Case<'a>,
    /// Foretold, in seconds.
    pub seconds: f64,
    /// What the factors stand on.
    pub basis: Basis,
    /// Whether the factors were not fitted on this model.
    pub held_out: bool,
}

/// What errors are of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Subject {
    /// The accelerator.
    pub accelerator: String,
    /// The engine.
    pub engine: String,
    /// The model.
    pub model: String,
    /// Whether times are those to first token, rather than of whole batches.
    pub first_token: bool,
    /// Whether the factors were not fitted on this model.
    pub held_out: bool,
}

/// Errors of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Of what.
    #[serde(flatten)]
    pub subject: Subject,
    /// How large.
    #[serde(flatten)]
    pub errors: Errors,
}

/// Foretells each case with a table's factors.
pub fn predict<'a>(cases: &[Case<'a>], table: &Table) -> Vec<Predicted<'a>> {
    let of_case = |case: &Case<'a>| {
        let (accelerator, measured) = (case.variant.accelerator, case.measured);
        let (factors, basis) = table.factors(accelerator, &measured.engine, &measured.version);
        let fitted_on = table.get(&accelerator.name, &measured.engine, &measured.version).map(|fitted| &fitted.models);
        let held_out = fitted_on.is_none_or(|models| !models.contains(&case.variant.model.name));
        Predicted { case: case.clone(), seconds: case.seconds(&factors), basis, held_out }
    };
    cases.iter().map(of_case).collect()
}

/// Errors by subject, in order.
pub fn by_subject(predicted: &[Predicted<'_>]) -> Vec<Row> {
    let subject = |p: &Predicted<'_>| Subject {
        accelerator: p.case.variant.accelerator.name.clone(),
        engine: p.case.measured.engine.clone(),
        model: p.case.variant.model.name.clone(),
        first_token: p.case.is_first_token(),
        held_out: p.held_out,
    };
    let mut subjects: Vec<Subject> = predicted.iter().map(subject).collect();
    subjects.sort();
    subjects.dedup();
    let errors = |of: &Subject| errors(predicted, |p| subject(p) == *of);
    subjects.into_iter().filter_map(|subject| Some(Row { errors: errors(&subject)?, subject })).collect()
}

/// Errors of those that `pick` picks; none if there are none.
pub fn errors(predicted: &[Predicted<'_>], pick: impl Fn(&Predicted<'_>) -> bool) -> Option<Errors> {
    Errors::of(predicted.iter().filter(|p| pick(p)).map(|p| (p.seconds, p.case.measured.seconds)))
}

/// Errors of how much faster one accelerator is than another, over whole batches that `pick` picks.
pub fn speeds(predicted: &[Predicted<'_>], pick: impl Fn(&Predicted<'_>) -> bool) -> Option<Errors> {
    let whole = predicted.iter().filter(|p| !p.case.is_first_token() && pick(p));
    let items: Vec<_> = whole
        .map(|p| {
            let m = p.case.measured;
            let key = (&m.engine, &m.version, &p.case.variant.model.name, m.tp, m.batch, m.prompt, m.answer);
            (key, p.case.variant.accelerator.name.as_str(), p.seconds, m.seconds)
        })
        .collect();
    relative_speed(&items)
}
