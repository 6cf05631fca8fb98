//! Measurements from files and folders.

use super::{SchedError, catalog};
use crate::cli::MeasuredArgs;
use otela_sched::{
    calibrate::{LeftOut, Measurement, Recording, Sorted},
    catalog::Catalog,
    sim::Variant,
};
use std::{collections::BTreeMap, fs, path::Path};

/// What the arguments name.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) catalog: Catalog,
    pub(super) batches: Vec<Measurement>,
    pub(super) runs: Vec<(String, Recording, String)>,
}

/// Reads everything.
pub(super) fn read(args: &MeasuredArgs) -> Result<Measured, SchedError> {
    let catalog = catalog(&args.known)?;
    let (mut batches, mut runs) = (Vec::new(), Vec::new());
    for path in &args.measured {
        if path.is_dir() {
            let (meta, requests) = (path.join("meta.json"), path.join("requests.jsonl"));
            let (meta_text, requests_text) = (text(&meta)?, text(&requests)?);
            let names = (meta.display().to_string(), requests.display().to_string());
            let recording = Recording::read((&names.0, &meta_text), (&names.1, &requests_text))?;
            let accelerator = recording.accelerator.clone().or_else(|| args.accelerator.clone());
            let accelerator = accelerator.ok_or_else(|| SchedError::NoAccelerator { path: path.clone() })?;
            runs.push((path.display().to_string(), recording, accelerator));
        } else {
            batches.extend(Measurement::read(&path.display().to_string(), &text(path)?)?);
        }
    }
    Ok(Measured { catalog, batches, runs })
}

pub(super) fn text(path: &Path) -> Result<String, SchedError> {
    fs::read_to_string(path).map_err(|source| SchedError::Read { path: path.to_owned(), source })
}

impl Measured {
    /// Each run with the variant that it was on.
    pub(super) fn runs(&self) -> Result<Vec<(&str, &Recording, Variant<'_>)>, SchedError> {
        let of_run = |(path, recording, accelerator): &'_ (String, Recording, String)| {
            let model = self.catalog.model(&recording.model)?;
            let accelerator = self.catalog.accelerator(accelerator)?;
            Variant::new(model, accelerator, recording.tp)
                .map_err(|source| SchedError::Variant { path: path.into(), source })
        };
        self.runs.iter().map(|run| Ok((run.0.as_str(), &run.1, of_run(run)?))).collect()
    }
}

/// How many rows were left out, and why, a line for each reason.
pub(super) fn left_out(sorted: &Sorted<'_>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, reason) in &sorted.left_out {
        let reason = match reason {
            LeftOut::Unknown(unknown) => unknown.to_string(),
            LeftOut::Context(_) => "longer than the model's context".to_owned(),
            LeftOut::Memory => "does not fit into memory at once".to_owned(),
            LeftOut::Impossible(_) => "faster than possible".to_owned(),
        };
        *counts.entry(reason).or_default() += 1;
    }
    counts.into_iter().collect()
}
