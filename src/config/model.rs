//! What the file says of models, one by one: the tables `[ingress.models."ID"]`. Their keys are called as those of
//! `[ingress]`, and are the same flags; what is not in a table is as for every model.

use super::{
    file::Setting,
    keys::{Key, Kind},
    value,
};
use crate::cli;
use clap::Command;
use std::sync::Arc;

/// The section that has these tables.
pub(super) const IN: &str = "ingress";
/// What they are called there.
pub(super) const NAME: &str = "models";
/// A switch of this kind turns something off for every model. A model's own key turns it on and off.
const OFF: &str = "no_";

/// What is said of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model {
    /// Its id.
    pub(super) id: String,
    /// The line of its table.
    pub(super) line: usize,
    /// What its table says. The keys' sections are the table.
    pub(super) settings: Vec<Setting>,
}

impl Model {
    /// The same as flags, as [`cli::IngressArgs::add_model`] takes them.
    pub(super) fn flags(&self) -> Vec<String> {
        let flag = |setting: &Setting, text: &str| format!("--{}={text}", setting.key.long);
        let values = |setting: &Setting| match setting.items.first().map(|item| item.text.as_str()) {
            Some("true") if is_opposite(&setting.key) => Some(flag(setting, "false")),
            Some("false") if is_opposite(&setting.key) => Some(flag(setting, "true")),
            Some(text) => Some(flag(setting, text)),
            None => None,
        };
        self.settings.iter().filter_map(values).collect()
    }
}

/// The key says yes where its flag says no: `resume` is `--no-resume`.
fn is_opposite(key: &Key) -> bool {
    key.kind == Kind::Switch && key.long.strip_prefix("no-") == Some(&key.name)
}

/// The keys that a model's table may have.
#[derive(Debug)]
pub(super) struct ModelKeys(Command);

impl ModelKeys {
    pub(super) fn new() -> Self {
        Self(cli::model_flags())
    }

    /// The table of a model as TOML has it, without its brackets.
    pub(super) fn table(id: &str) -> String {
        let line = toml::Table::from_iter([(id.to_owned(), true.into())]).to_string();
        let key = line.trim_end().trim_end_matches(" = true");
        let quotes = if key.starts_with(['"', '\'']) { "" } else { "\"" };
        format!("{IN}.{NAME}.{quotes}{key}{quotes}")
    }

    /// The keys of the table of `id`.
    pub(super) fn of(&self, id: &str) -> Vec<Arc<Key>> {
        let own = |mut key: Key| {
            key.section = Some(Self::table(id));
            if key.kind == Kind::Switch
                && let Some(on) = key.name.strip_prefix(OFF)
            {
                key.name = on.to_owned();
            }
            Arc::new(key)
        };
        self.0.get_arguments().filter_map(Key::of).map(own).collect()
    }

    /// Asks the flag's own parser what it thinks of a value.
    pub(super) fn check(&self, key: &Key, text: &str) -> Result<(), String> {
        value::check(&self.0, &[], key, text)
    }
}
