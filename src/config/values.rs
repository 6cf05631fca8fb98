//! What a command runs with, key by key: what `otela config show` prints, and what changes when the file is read again.

use super::{
    file::Setting,
    keys::{Key, Keys, Kind, Path},
    model::Model,
};
use clap::ArgMatches;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt::{self, Write as _},
    sync::Arc,
};
use toml::Value;

/// A value longer than this is cut where changes are told.
const TOLD_CHARS: usize = 80;
/// More changes than this are only counted.
const TOLD_CHANGES: usize = 20;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Held {
    Nothing,
    Value(Value),
    /// It is not UTF-8, and a file is.
    NotText,
}

impl Held {
    /// What a command has for a key of its own.
    pub(super) fn of(key: &Key, matches: &ArgMatches) -> Self {
        let raw = matches.get_raw(&key.id).into_iter().flatten();
        let texts: Option<Vec<&str>> = raw.map(OsStr::to_str).collect();
        match (key.kind, texts.as_deref()) {
            (Kind::Switch, _) => Self::Value(Value::Boolean(matches.get_flag(&key.id))),
            (Kind::One, Some([])) => Self::Nothing,
            (Kind::One, Some([text, ..])) => Self::Value(value(key, text)),
            (Kind::Many(_), Some(texts)) => {
                Self::Value(Value::Array(texts.iter().map(|text| value(key, text)).collect()))
            }
            (_, None) => Self::NotText,
        }
    }

    /// What the file says.
    pub(super) fn said(setting: &Setting) -> Self {
        let mut values = setting.items.iter().map(|item| value(&setting.key, &item.text));
        match setting.key.kind {
            Kind::Switch => Self::Value(Value::Boolean(setting.items.iter().any(|item| item.text == "true"))),
            Kind::One => values.next().map_or(Self::Nothing, Self::Value),
            Kind::Many(_) => Self::Value(Value::Array(values.collect())),
        }
    }
}

/// A number stays one, if it is written as TOML would.
fn value(key: &Key, text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) if key.is_number => Value::Integer(number),
        _ => Value::String(text.to_owned()),
    }
}

/// On one line of a log, and not the whole of a long one.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Nothing => return f.write_str("not set"),
            Self::NotText => return f.write_str("not UTF-8"),
            Self::Value(value) => value.to_string(),
        };
        let mut chars = text.chars();
        for char in chars.by_ref().take(TOLD_CHARS) {
            f.write_char(if char.is_control() { '?' } else { char })?;
        }
        if chars.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

/// The values of a command's keys, and what the file says of models.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values {
    keys: Vec<(Arc<Key>, Held)>,
    models: Vec<Model>,
}

impl Values {
    /// What the command at `path` runs with.
    pub(super) fn of(keys: &Keys, path: &Path, matches: &ArgMatches, models: Vec<Model>) -> Self {
        let keys = keys.of_command(path).map(|key| (Arc::clone(key), Held::of(key, matches))).collect();
        Self { keys, models }
    }

    /// Takes `new` over, as far as a running process can: `live` are the flags whose values it takes, by clap's names, and
    /// models have no others.
    pub(crate) fn take_over(&mut self, new: Self, live: &[String]) -> Changes {
        let mut changes = Changes::default();
        for (key, held) in new.keys {
            let Some((_, old)) = self.keys.iter_mut().find(|(known, _)| *known == key) else { continue };
            if *old == held {
                continue;
            }
            let change = format!("{key}: {old} -> {held}");
            if live.contains(&key.id) {
                changes.taken.0.push(change);
                *old = held;
            } else {
                changes.left.0.push(change);
            }
        }
        changes.taken.0.extend(of_models(&self.models, &new.models));
        self.models = new.models;
        changes
    }
}

/// What has changed in what is said of models.
fn of_models(old: &[Model], new: &[Model]) -> Vec<String> {
    let (old, new) = (said(old), said(new));
    let as_usual = || "as usual".to_owned();
    let change = |key: &Arc<Key>| {
        let (old, new) = (old.get(&place(key)), new.get(&place(key)));
        let held = |setting: Option<&&Setting>| setting.map(|setting| Held::said(setting));
        let (old, new) = (held(old), held(new));
        let told = |held: Option<Held>| held.map_or_else(as_usual, |held| held.to_string());
        (old != new).then(|| format!("{key}: {} -> {}", told(old), told(new)))
    };
    let dropped = old.iter().filter(|(place, _)| !new.contains_key(*place));
    new.iter().chain(dropped).filter_map(|(_, setting)| change(&setting.key)).collect()
}

/// Where a key is.
type Place<'a> = (Option<&'a str>, &'a str);

fn place(key: &Key) -> Place<'_> {
    (key.section.as_deref(), &key.name)
}

/// What is said of models, by its place.
fn said(models: &[Model]) -> BTreeMap<Place<'_>, &Setting> {
    models.iter().flat_map(|model| &model.settings).map(|setting| (place(&setting.key), setting)).collect()
}

/// What is not as it was.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// What was taken over.
    pub(crate) taken: Named,
    /// What a running process cannot take over.
    pub(crate) left: Named,
}

/// Changes, each with its key and the value before and after.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named(Vec<String>);

impl Named {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = &self.0[..self.0.len().min(TOLD_CHANGES)];
        f.write_str(&told.join("; "))?;
        match self.0.len() - told.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
