//! What is known of models and accelerators: the facts that the cost model computes from.
//!
//! Both come with the program (`models.toml` from public `config.json`s, `accelerators.toml` from data sheets), and a file
//! of the user's extends or overrides them ([`Catalog::extend`]). Nothing here is measured; what measurements say is in
//! [`crate::calibrate`].

mod accelerator;
mod entry;
mod model;
mod names;

pub use accelerator::{Accelerator, Peaks};
pub use model::{Attention, Bits, Experts, Mlp, Model, Precision};
pub use names::{Kind, Unknown};

use entry::Entry;
use names::Names;
use std::collections::BTreeMap;

const MODELS: &str = include_str!("models.toml");
const ACCELERATORS: &str = include_str!("accelerators.toml");

/// What is wrong with a catalog file, on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {place}{what}")]
pub struct CatalogError {
    /// The file.
    pub file: String,
    /// Where in it, such as `models.my-model.layers: `; empty if it is not TOML at all.
    pub place: String,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// Models and accelerators by name.
#[derive(Debug, Clone)]
pub struct Catalog {
    models: BTreeMap<String, Model>,
    accelerators: BTreeMap<String, Accelerator>,
    model_names: Names,
    accelerator_names: Names,
}

impl Catalog {
    /// What comes with the program.
    pub fn builtin() -> Self {
        let mut catalog = Self {
            models: BTreeMap::new(),
            accelerators: BTreeMap::new(),
            model_names: Names::new(Kind::Model),
            accelerator_names: Names::new(Kind::Accelerator),
        };
        let read = entry::table("models.toml", MODELS)
            .and_then(|table| catalog.add_models("models.toml", "", table))
            .and_then(|()| entry::table("accelerators.toml", ACCELERATORS))
            .and_then(|table| catalog.add_accelerators("accelerators.toml", "", table));
        read.expect("what is compiled in is read by a test");
        catalog
    }

    /// Adds what a user's file says, `text` of the file called `file`: tables `[models.NAME]` and `[accelerators.NAME]`
    /// with the keys of the files that come with the program. A name that is known is overridden key by key; a new one
    /// needs all keys, or `like = "NAME"` and those that differ. After an error the catalog is as it was.
    pub fn extend(&mut self, file: &str, text: &str) -> Result<(), CatalogError> {
        let mut extended = self.clone();
        for (key, value) in entry::table(file, text)? {
            let wrong =
                |what: &str| CatalogError { file: file.to_owned(), place: format!("{key}: "), what: what.into() };
            let toml::Value::Table(table) = value else { return Err(wrong("not a table: [models.NAME] is one")) };
            match key.as_str() {
                "models" => extended.add_models(file, "models.", table)?,
                "accelerators" => extended.add_accelerators(file, "accelerators.", table)?,
                _ => return Err(wrong("unknown: there are models and accelerators")),
            }
        }
        *self = extended;
        Ok(())
    }

    /// The model of this name, alias or Hugging Face id; endings such as `-Instruct` may be there or not.
    pub fn model(&self, name: &str) -> Result<&Model, Unknown> {
        Ok(&self.models[self.model_names.find(name)?])
    }

    /// The accelerator of this name, alias, or name as `nvidia-smi` prints it.
    pub fn accelerator(&self, name: &str) -> Result<&Accelerator, Unknown> {
        Ok(&self.accelerators[self.accelerator_names.find(name)?])
    }

    /// The accelerator that a node announces as `kind` and that its tool calls `name`. The name tells cards apart that
    /// are of one kind, such as the PCIe and SXM forms of the H100.
    pub fn announced(&self, kind: &str, name: &str) -> Result<&Accelerator, Unknown> {
        self.accelerator(name).or_else(|_| self.accelerator(kind))
    }

    /// All models, by name.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.values()
    }

    /// All accelerators, by name.
    pub fn accelerators(&self) -> impl Iterator<Item = &Accelerator> {
        self.accelerators.values()
    }

    fn add_models(&mut self, file: &str, prefix: &str, table: toml::Table) -> Result<(), CatalogError> {
        for mut entry in entry::in_order(file, prefix, table)? {
            let base = base(&mut entry, &self.models, |name| self.model(name))?;
            let aliases = entry.texts("aliases")?;
            let model = Model::read(&mut entry, base.as_ref())?;
            entry.end()?;
            self.model_names.add(&model.name, &aliases).map_err(|what| entry.wrong("aliases", &what))?;
            self.models.insert(model.name.clone(), model);
        }
        Ok(())
    }

    fn add_accelerators(&mut self, file: &str, prefix: &str, table: toml::Table) -> Result<(), CatalogError> {
        for mut entry in entry::in_order(file, prefix, table)? {
            let base = base(&mut entry, &self.accelerators, |name| self.accelerator(name))?;
            let aliases = entry.texts("aliases")?;
            let accelerator = Accelerator::read(&mut entry, base.as_ref())?;
            entry.end()?;
            self.accelerator_names.add(&accelerator.name, &aliases).map_err(|what| entry.wrong("aliases", &what))?;
            self.accelerators.insert(accelerator.name.clone(), accelerator);
        }
        Ok(())
    }
}

/// What an entry leaves open: that of `like`, or what is known under its own name.
fn base<'a, T: Clone + 'a>(
    entry: &mut Entry,
    known: &'a BTreeMap<String, T>,
    find: impl Fn(&str) -> Result<&'a T, Unknown>,
) -> Result<Option<T>, CatalogError> {
    match entry.text("like")? {
        Some(like) => find(&like).cloned().map(Some).map_err(|unknown| entry.wrong("like", &unknown.to_string())),
        None => Ok(known.get(&entry.name).cloned()),
    }
}

#[cfg(test)]
mod tests;
