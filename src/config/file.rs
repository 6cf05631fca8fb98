//! The configuration file: what is written in it, checked as a whole and by the checks of the flags.

use super::{
    keys::{Key, Keys, Kind, nearest},
    model::{self, Model, ModelKeys},
    value,
};
use clap::Command;
use otela_node::peer::small;
use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

/// No configuration file is longer.
const BYTES_MAX: u64 = 1024 * 1024;

/// A value as its flag would be given it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Its text.
    pub(super) text: String,
    /// Where it is.
    pub(super) at: usize,
}

/// A key and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// The key.
    pub(super) key: Arc<Key>,
    /// Its values; for a switch `true` or `false`.
    pub(super) items: Vec<Item>,
    /// The key's line.
    pub(super) line: usize,
}

/// A file that is good, as far as it can be told without the rest of the command line.
#[derive(Debug)]
pub(super) struct File {
    /// Where it is.
    pub(super) path: PathBuf,
    /// What it says.
    pub(super) settings: Vec<Setting>,
    /// What it says of models, one by one.
    pub(super) models: Vec<Model>,
}

/// Something in a file that is not right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offence {
    /// Which file.
    pub(super) path: PathBuf,
    /// Which line, where it is of one.
    pub(super) line: Option<usize>,
    /// What is wrong, and what to do.
    pub(super) what: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path.display(), self.what),
            None => write!(f, "{}: {}", self.path.display(), self.what),
        }
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It cannot be read.
    #[error("cannot read the configuration file {path}: name another with --config, or leave it out")]
    Io { path: PathBuf, source: io::Error },
    /// It is not as it should be. There is at least one offence.
    #[error("{}", summary(.0))]
    Wrong(Vec<Offence>),
}

/// The first offence, and how to see the others.
fn summary(offences: &[Offence]) -> String {
    match offences {
        [] => "the configuration file is not right".to_owned(),
        [only] => only.to_string(),
        [first, others @ ..] => {
            let path = first.path.display();
            format!("{first} (and {} more: otela config check {path})", others.len())
        }
    }
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// [`FileError`].
    pub(super) fn load(path: &Path, root: &Command, keys: &Keys) -> Result<Self, FileError> {
        let text = small::read(path, BYTES_MAX).map_err(|source| FileError::Io { path: path.to_owned(), source })?;
        Self::of_text(&text, path, root, keys).map_err(FileError::Wrong)
    }

    /// Reads the text of the file at `path`.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the text.
    pub(super) fn of_text(text: &str, path: &Path, root: &Command, keys: &Keys) -> Result<Self, Vec<Offence>> {
        let ends = text.match_indices('\n').map(|(at, _)| at).collect();
        let mut reader =
            Reader { ends, path, root, keys, settings: Vec::new(), models: Vec::new(), offences: Vec::new() };
        let (table, errors) = DeTable::parse_recoverable(text);
        // What cannot be read as TOML says nothing certain about keys.
        if errors.is_empty() {
            reader.top(table.get_ref());
        } else {
            reader.broken(&errors);
        }
        let Reader { mut settings, mut models, mut offences, .. } = reader;
        if offences.is_empty() {
            settings.sort_by_key(|setting| setting.line);
            models.sort_by_key(|model| model.line);
            return Ok(Self { path: path.to_owned(), settings, models });
        }
        offences.sort_by_key(|offence| offence.line);
        offences.dedup();
        Err(offences)
    }
}

/// Goes through a file and notes what it says and what is wrong.
struct Reader<'a> {
    /// Where its lines end.
    ends: Vec<usize>,
    path: &'a Path,
    root: &'a Command,
    keys: &'a Keys,
    settings: Vec<Setting>,
    models: Vec<Model>,
    offences: Vec<Offence>,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end < at) + 1
    }

    fn offend(&mut self, span: Option<Range<usize>>, what: &str) {
        let line = span.map(|span| self.line(span.start));
        self.offences.push(Offence { path: self.path.to_owned(), line, what: what.replace('\n', " ") });
    }

    /// Notes where the text is no TOML. Further errors of a line mostly follow from its first.
    fn broken(&mut self, errors: &[toml::de::Error]) {
        for error in errors {
            self.offend(error.span(), &format!("not TOML: {}", error.message()));
        }
        self.offences.sort_by_key(|offence| offence.line);
        self.offences.dedup_by_key(|offence| offence.line);
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            match (self.keys.has_section(name.get_ref()), value.get_ref()) {
                (true, DeValue::Table(section)) => self.section(name.get_ref(), section),
                (true, _) => {
                    let what = format!("{0} is a section: write [{0}] and its keys below", name.get_ref());
                    self.offend(Some(name.span()), &what);
                }
                (false, DeValue::Table(_)) if self.keys.find(None, name.get_ref()).is_none() => {
                    let near = self.keys.nearest_section(name.get_ref()).unwrap_or_default();
                    let what = format!("section [{}] is not known; the nearest that is: [{near}]", name.get_ref());
                    self.offend(Some(name.span()), &what);
                }
                (false, _) => self.key(None, name, value),
            }
        }
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            if section == model::IN && name.get_ref() == model::NAME {
                self.models(name.span(), value);
            } else {
                self.key(Some(section), name, value);
            }
        }
    }

    fn models(&mut self, at: Range<usize>, models: &Spanned<DeValue<'_>>) {
        let DeValue::Table(models) = models.get_ref() else {
            let what = format!("[{0}] {1} has a table for each model: [{0}.{1}.\"ID\"]", model::IN, model::NAME);
            return self.offend(Some(at), &what);
        };
        let keys = ModelKeys::new();
        for (id, model) in models {
            match model.get_ref() {
                _ if id.get_ref().is_empty() => {
                    let what = format!("[{}.{}] no model has an empty id", model::IN, model::NAME);
                    self.offend(Some(id.span()), &what);
                }
                DeValue::Table(said) => self.model(&keys, id, said),
                _ => {
                    let what = format!("{:?} needs a table: [{}]", id.get_ref(), ModelKeys::table(id.get_ref()));
                    self.offend(Some(id.span()), &what);
                }
            }
        }
    }

    fn model(&mut self, keys: &ModelKeys, id: &Spanned<DeString<'_>>, said: &DeTable<'_>) {
        let known = keys.of(id.get_ref());
        let table = ModelKeys::table(id.get_ref());
        let mut settings = Vec::new();
        for (name, value) in said {
            match known.iter().find(|key| key.name == **name.get_ref()) {
                Some(key) => settings.extend(self.setting(key, name, value, |text| keys.check(key, text))),
                None if value.get_ref().is_table() => {
                    let what = format!("[{table}] {} is a table: quote a model's id that has a dot", name.get_ref());
                    self.offend(Some(name.span()), &what);
                }
                None => {
                    let near = nearest(known.iter().chain(self.keys.iter()), Some(&table), name.get_ref()).cloned();
                    self.unknown(Some(&table), name, near.as_deref());
                }
            }
        }
        settings.sort_by_key(|setting| setting.line);
        self.models.push(Model { id: id.get_ref().clone().into_owned(), line: self.line(id.span().start), settings });
    }

    fn key(&mut self, section: Option<&str>, name: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) {
        let Some(key) = self.keys.find(section, name.get_ref()).cloned() else {
            let near = nearest(self.keys.iter(), section, name.get_ref()).cloned();
            return self.unknown(section, name, near.as_deref());
        };
        let (root, path) = (self.root, self.keys.command_with(&key));
        let setting = self.setting(&key, name, value, |text| value::check(root, path, &key, text));
        self.settings.extend(setting);
    }

    fn unknown(&mut self, section: Option<&str>, name: &Spanned<DeString<'_>>, near: Option<&Key>) {
        let place = section.map_or_else(String::new, |section| format!("[{section}] "));
        let near = near.map_or_else(String::new, ToString::to_string);
        let what = format!("{place}{} is not known; the nearest that is: {near}", name.get_ref());
        self.offend(Some(name.span()), &what);
    }

    /// What is said of a key, if that has the right form; `check` judges its values.
    fn setting(
        &mut self,
        key: &Arc<Key>,
        name: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Option<Setting> {
        let items = match items(key, value) {
            Ok(items) => items,
            Err(what) => {
                self.offend(Some(value.span()), &format!("{key} {what}"));
                return None;
            }
        };
        for item in items.iter().filter(|_| key.kind != Kind::Switch) {
            if let Err(why) = check(&item.text) {
                self.offend(Some(item.at..item.at), &format!("{key} cannot be {:?}: {why}", item.text));
            }
        }
        Some(Setting { key: Arc::clone(key), items, line: self.line(name.span().start) })
    }
}

/// The values of a key, or what is wrong with their form.
fn items(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Vec<Item>, String> {
    let item =
        |value: &Spanned<DeValue<'_>>| value::text(value.get_ref()).map(|text| Item { text, at: value.span().start });
    match (key.kind, value.get_ref()) {
        (Kind::Switch, DeValue::Boolean(_)) => Ok(vec![item(value)?]),
        (Kind::Switch, _) => Err("is true or false, without quotation marks".to_owned()),
        (Kind::One, DeValue::Array(_)) => Err("has one value, not a list".to_owned()),
        (Kind::Many(separator), DeValue::Array(values)) => {
            let items = values.iter().map(item).collect::<Result<Vec<_>, _>>()?;
            let separated = |item: &&Item| separator.is_some_and(|separator| item.text.contains(separator));
            match items.iter().find(separated) {
                Some(item) => {
                    Err(format!("cannot have {:?} in its list: write what a comma parts as two values", item.text))
                }
                None => Ok(items),
            }
        }
        (Kind::One | Kind::Many(_), _) => Ok(vec![item(value)?]),
    }
}
