//! `otela config show`: the values that a command would run with, and where each comes from, as a configuration file.

use super::{
    ParseError,
    check::PEERS,
    file::File,
    keys::{Key, Keys},
    line::{Given, Line, innermost},
    model::{self, Model, ModelKeys},
    values::Held,
};
use crate::{cli::Cli, exit::CommandError, look::put};
use clap::{Command, CommandFactory};
use std::{
    ffi::OsString,
    fmt::{self, Write as _},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Flag(String),
    Variable(String),
    File { path: String, line: usize },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(long) => write!(f, "--{long}"),
            Self::Variable(name) => f.write_str(name),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    key: Arc<Key>,
    held: Held,
    origin: Origin,
}

/// Prints what a command would run with: `line` is its name and its flags. Of none the peers are shown.
///
/// # Errors
/// The command line or the file is wrong.
pub(super) fn show(line: &[OsString], config: Option<&Path>) -> Result<ExitCode, CommandError> {
    let root = Cli::command();
    match text(&root, line, config) {
        Ok(text) => put(&text),
        Err(ParseError::CommandLine(error)) => Ok(crate::exit::usage(&error)),
        Err(ParseError::File(error)) => Err(error.into()),
    }
}

/// The same as text.
pub(super) fn text(root: &Command, line: &[OsString], config: Option<&Path>) -> Result<String, ParseError> {
    let keys = Keys::of(root);
    let mut all: Vec<Shown> = Vec::new();
    let mut file = None;
    let lines = if line.is_empty() { PEERS.map(|name| vec![name.into()]).to_vec() } else { vec![line.to_vec()] };
    for words in &lines {
        let (shown, of) = of_command(root, &keys, words, config)?;
        let is_new = |shown: &Shown| !all.iter().any(|known| known.key == shown.key);
        let new: Vec<_> = shown.into_iter().filter(is_new).collect();
        all.extend(new);
        file = of;
    }
    let of = if line.is_empty() { PEERS.join(", ") } else { line[0].to_string_lossy().into_owned() };
    Ok(rendered(&of, &all, file.as_ref()))
}

fn of_command(
    root: &Command,
    keys: &Keys,
    words: &[OsString],
    config: Option<&Path>,
) -> Result<(Vec<Shown>, Option<File>), ParseError> {
    let mut argv: Vec<OsString> = vec![root.get_name().into()];
    if let Some(path) = config {
        argv.extend(["--config".into(), path.into()]);
    }
    argv.extend_from_slice(words);
    let line = Line::read(root, &argv)?;
    let file = line.config().map(|path| File::load(path, root, keys)).transpose()?;
    let added = file.as_ref().map_or_else(Vec::new, |file| line.added(keys, file));
    let matches = line.parse_incomplete(&added).map_err(|error| match &file {
        Some(file) => line.told(error, keys, file, &added),
        None => error.into(),
    })?;
    let matches = innermost(&matches);
    let shown = keys.of_command(&line.path).map(|key| {
        let setting = added.iter().find(|setting| setting.key == *key);
        let origin = match (line.given(key), setting, &file) {
            (Some(Given::Flag), ..) => Origin::Flag(key.long.clone()),
            (Some(Given::Variable), ..) => Origin::Variable(key.variable.clone()),
            (None, Some(setting), Some(file)) => Origin::File { path: comment(&file.path), line: setting.line },
            (None, ..) => Origin::Default,
        };
        Shown { key: Arc::clone(key), held: Held::of(key, matches), origin }
    });
    Ok((shown.collect(), file))
}

/// A path that does not end its comment.
fn comment(path: &Path) -> String {
    path.to_string_lossy().replace(char::is_control, "?")
}

fn rendered(of: &str, all: &[Shown], file: Option<&File>) -> String {
    let mut out = format!("# The values of {of}, and where each comes from.\n");
    let mut sections: Vec<Option<&str>> = vec![None];
    for shown in all {
        let section = shown.key.section.as_deref();
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for section in sections {
        if let Some(section) = section {
            let _ = writeln!(out, "\n[{section}]");
        }
        for Shown { key, held, origin } in all.iter().filter(|shown| shown.key.section.as_deref() == section) {
            let _ = match held {
                Held::Value(value) => writeln!(out, "{} = {value} # {origin}", key.name),
                Held::Nothing => writeln!(out, "# {} is not set", key.name),
                Held::NotText => writeln!(out, "# {} is not UTF-8 and cannot be in a file # {origin}", key.name),
            };
        }
        if let (Some(model::IN), Some(file)) = (section, file) {
            file.models.iter().for_each(|model| put_model(&mut out, model, &comment(&file.path)));
        }
    }
    out
}

/// What is not said of a model is as for every model, and is not repeated.
fn put_model(out: &mut String, model: &Model, path: &str) {
    let _ = writeln!(out, "\n[{}]", ModelKeys::table(&model.id));
    for setting in &model.settings {
        if let Held::Value(value) = Held::said(setting) {
            let _ = writeln!(out, "{} = {value} # {path}:{}", setting.key.name, setting.line);
        }
    }
}
