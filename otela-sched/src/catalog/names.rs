//! Names, what else they are called, and which one was probably meant.

use std::collections::BTreeMap;
use std::fmt;

/// Endings that say how a model was tuned, which changes nothing of what it costs.
const TUNED: [&str; 8] = ["instruct", "chat", "hf", "it", "base", "pt", "thinking", "preview"];
const NEAREST_MAX: usize = 3;
/// Below this a name is not like another one.
const LIKE_MIN: f64 = 0.6;

/// What a name is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model.
    Model,
    /// An accelerator.
    Accelerator,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Accelerator => "accelerator",
        })
    }
}

/// A name that the catalog does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the catalog has no {kind} {name:?}; {}, or describe it in a file of your own", or_list(nearest))]
pub struct Unknown {
    /// Of what.
    pub kind: Kind,
    /// The name that was asked for.
    pub name: String,
    /// The nearest known ones, best first; at most three.
    pub nearest: Vec<String>,
}

/// Where names lead, by their letters and digits alone.
#[derive(Debug, Clone)]
pub(super) struct Names {
    kind: Kind,
    /// From the plain form of a name or alias to the name.
    plain: BTreeMap<String, String>,
    shown: Vec<String>,
}

impl Names {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, plain: BTreeMap::new(), shown: Vec::new() }
    }

    /// Adds a name with its aliases; an alias may not lead to two names.
    pub(super) fn add(&mut self, name: &str, aliases: &[String]) -> Result<(), String> {
        for alias in aliases.iter().map(String::as_str).chain([name]) {
            match self.plain.get(&plain(alias)) {
                Some(other) if other != name => return Err(format!("{alias:?} stands for {other} already")),
                _ => {}
            }
        }
        for alias in aliases.iter().map(String::as_str).chain([name]) {
            self.plain.insert(plain(alias), name.to_owned());
        }
        if !self.shown.iter().any(|shown| shown == name) {
            self.shown.push(name.to_owned());
        }
        Ok(())
    }

    /// The name that is meant.
    pub(super) fn find(&self, asked: &str) -> Result<&str, Unknown> {
        let known = |name: &str| self.plain.get(&plain(name)).map(String::as_str);
        let bare = asked.rsplit('/').next().unwrap_or(asked);
        let found = known(asked).or_else(|| known(bare)).or_else(|| match self.kind {
            Kind::Model => known(untuned(asked)).or_else(|| known(untuned(bare))),
            Kind::Accelerator => None,
        });
        found.ok_or_else(|| Unknown {
            kind: self.kind,
            name: asked.to_owned(),
            nearest: nearest(bare, self.shown.iter().map(String::as_str)),
        })
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric() || *c == '/').flat_map(char::to_lowercase).collect()
}

/// `Llama-3.1-8B-Instruct` is `Llama-3.1-8B`.
fn untuned(name: &str) -> &str {
    let mut name = name;
    while let Some((head, last)) = name.rsplit_once(['-', '_'])
        && TUNED.contains(&last.to_lowercase().as_str())
    {
        name = head;
    }
    name
}

/// The known names that are most like `name`, best first.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let asked = plain(name);
    let mut scored: Vec<(f64, &str)> =
        known.map(|known| (strsim::jaro_winkler(&asked, &plain(known)), known)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let near = scored.iter().filter(|(score, _)| *score >= LIKE_MIN);
    near.take(NEAREST_MAX).map(|(_, name)| (*name).to_owned()).collect()
}

/// `nearest are a, b and c`.
pub(super) fn or_list(names: &[String]) -> String {
    match names {
        [] => "no known name is like it".to_owned(),
        [one] => format!("the nearest is {one}"),
        [head @ .., last] => format!("the nearest are {} and {last}", head.join(", ")),
    }
}
