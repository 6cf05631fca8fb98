//! Entries of a catalog file, read key by key so that whatever is wrong is told with its file and key.

use super::{CatalogError, names};
use toml::{Table, Value};

/// One `[NAME]`, of which keys are taken until [`Entry::end`] finds none that is left.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    file: String,
    path: String,
    table: Table,
    asked: Vec<&'static str>,
}

/// The TOML of a file.
pub(super) fn table(file: &str, text: &str) -> Result<Table, CatalogError> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        CatalogError {
            file: file.to_owned(),
            place: format!("line {line}: "),
            what: error.message().lines().collect::<Vec<_>>().join(" "),
        }
    })
}

/// The entries of a table; those that are `like` others of the same table come after them.
pub(super) fn in_order(file: &str, prefix: &str, table: Table) -> Result<Vec<Entry>, CatalogError> {
    let mut left: Vec<Entry> = Vec::new();
    for (name, value) in table {
        let path = format!("{prefix}{name}");
        let Value::Table(table) = value else {
            let what = format!("not a table: write [{path}] above its keys");
            return Err(CatalogError { file: file.to_owned(), place: format!("{path}: "), what });
        };
        left.push(Entry { name, file: file.to_owned(), path, table, asked: Vec::new() });
    }
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let waits = |entry: &Entry, others: &[Entry]| {
            let like = entry.table.get("like").and_then(Value::as_str);
            others.iter().any(|other| like == Some(other.name.as_str()) && other.name != entry.name)
        };
        let Some(free) = left.iter().position(|entry| !waits(entry, &left)) else {
            return Err(left[0].wrong("like", "in a circle: one of them must give its own keys"));
        };
        ordered.push(left.remove(free));
    }
    Ok(ordered)
}

impl Entry {
    /// An error at one of its keys.
    pub(super) fn wrong(&self, key: &str, what: &str) -> CatalogError {
        CatalogError { file: self.file.clone(), place: format!("{}.{key}: ", self.path), what: what.to_owned() }
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.asked.push(key);
        self.table.remove(key)
    }

    /// A text, if the key is there.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<String>, CatalogError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, &format!("{other} is not a text in quotes"))),
        }
    }

    /// A list of texts, empty if the key is not there.
    pub(super) fn texts(&mut self, key: &'static str) -> Result<Vec<String>, CatalogError> {
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let texts = value
            .as_array()
            .and_then(|list| list.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
        texts.ok_or_else(|| self.wrong(key, "not a list of texts, such as [\"a\", \"b\"]"))
    }

    /// Yes or no, if the key is there.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<bool>, CatalogError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Boolean(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(key, &format!("{other} is neither true nor false"))),
        }
    }

    /// A number above zero, if the key is there.
    pub(super) fn number(&mut self, key: &'static str) -> Result<Option<f64>, CatalogError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = match &value {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        match number {
            Some(number) if number > 0.0 && number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong(key, &format!("{value} is not a number above 0"))),
        }
    }

    /// A whole number from 1 on, if the key is there.
    pub(super) fn count(&mut self, key: &'static str) -> Result<Option<u32>, CatalogError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let count = value.as_integer().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        count.map(Some).ok_or_else(|| self.wrong(key, &format!("{value} is not a whole number from 1 to {}", u32::MAX)))
    }

    /// A table within the entry, as an entry of its own; `end` is for the caller to call.
    pub(super) fn inner(&mut self, key: &'static str) -> Result<Option<Self>, CatalogError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(Self {
                name: key.to_owned(),
                file: self.file.clone(),
                path: format!("{}.{key}", self.path),
                table,
                asked: Vec::new(),
            })),
            Some(other) => Err(self.wrong(key, &format!("{other} is not a table, such as {{ a = 1 }}"))),
        }
    }

    /// The value, that of the base, or the error that the key is missing.
    pub(super) fn needed<T>(&self, key: &str, given: Option<T>, base: Option<T>) -> Result<T, CatalogError> {
        given.or(base).ok_or_else(|| self.wrong(key, "missing; give it, or like = \"NAME\" of an entry to start from"))
    }

    /// Whether all keys were known.
    pub(super) fn end(&self) -> Result<(), CatalogError> {
        let Some(key) = self.table.keys().next() else { return Ok(()) };
        let near = names::nearest(key, self.asked.iter().copied());
        Err(self.wrong(key, &format!("unknown key; {}", names::or_list(&near))))
    }
}
