//! The values of keys: what `otela config show` prints.

use super::{
    file::Setting,
    keys::{Key, Kind},
};
use clap::ArgMatches;
use std::ffi::OsStr;
use toml::Value;

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
