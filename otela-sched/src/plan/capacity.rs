//! What a whole node can do for a model.

use super::observation::Card;
use crate::{
    catalog::{Accelerator, Catalog, Model, Unknown},
    place::{Demand, Form, Load, Options, Pool, Problem},
};

/// The best way for a node to serve a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Capacity {
    /// Accelerators that one copy is spread over.
    pub(super) tensor_parallel: u32,
    /// Copies.
    pub(super) data_parallel: u32,
    /// Requests a second, at most.
    pub(super) rate: f64,
}

/// The accelerator that a node means.
pub(super) fn accelerator<'c>(catalog: &'c Catalog, card: &Card) -> Result<&'c Accelerator, Unknown> {
    catalog.announced(&card.kind, &card.name)
}

/// With copies over as many accelerators as does most; none if the model does not fit.
pub(super) fn capacity(
    model: &Model,
    accelerator: &Accelerator,
    count: u32,
    (prompt, answer): (f64, f64),
) -> Option<Capacity> {
    let load = Load { requests: 1, prompt, answer };
    let problem = Problem {
        demands: vec![Demand { model, load }],
        pools: vec![Pool { accelerator, count, block: Some(count) }],
        options: Options::default(),
    };
    let of = Form::all(&problem, 0).into_iter().map(|form| {
        let data_parallel = count / form.tp();
        Capacity { tensor_parallel: form.tp(), data_parallel, rate: f64::from(data_parallel) * form.rate_max() }
    });
    of.max_by(|one, other| one.rate.total_cmp(&other.rate))
}
