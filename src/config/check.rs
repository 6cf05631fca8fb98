//! `otela config check`: everything that is wrong with a file.

use super::{
    ParseError,
    file::{File, FileError, Offence, Setting},
    keys::Keys,
    line::Line,
};
use crate::{
    cli::{self, Cli},
    exit::{CommandError, USAGE, say},
    look::put,
};
use clap::{Command, CommandFactory, FromArgMatches};
use otela_node::telemetry::chain;
use std::{ffi::OsString, path::Path, process::ExitCode};

/// The commands whose files these are.
pub(super) const PEERS: [&str; 3] = ["start", "ingress", "relay"];

/// Tells whether a file is good, or each offence on a line of its own.
///
/// # Errors
/// The file cannot be read, or none is named.
pub(super) fn check(path: Option<&Path>) -> Result<ExitCode, CommandError> {
    let path = path.ok_or(CommandError::NoConfig)?;
    let offences = match offences(&Cli::command(), path) {
        Ok(()) => return put(&format!("{} is good\n", path.display())),
        Err(FileError::Wrong(offences)) => offences,
        Err(error) => return Err(error.into()),
    };
    for offence in offences {
        say(&format!("otela: {offence}"));
    }
    Ok(USAGE.into())
}

/// Reads a file, and tries it with each command in this environment.
pub(super) fn offences(root: &Command, path: &Path) -> Result<(), FileError> {
    let keys = Keys::of(root);
    let file = File::load(path, root, &keys)?;
    let mut offences: Vec<_> = PEERS.iter().flat_map(|name| together(root, &keys, &file, name)).collect();
    offences.dedup();
    if offences.is_empty() { Ok(()) } else { Err(FileError::Wrong(offences)) }
}

/// What does not go together in a command without flags. What else is wrong then is not the file's fault.
fn together(root: &Command, keys: &Keys, file: &File, command: &str) -> Vec<Offence> {
    let argv = [root.get_name(), command].map(OsString::from);
    let Ok(line) = Line::read(root, &argv) else { return Vec::new() };
    let added = line.added(keys, file);
    match line.parse(&added).map_err(|error| line.told(error, keys, file, &added)) {
        Err(ParseError::File(FileError::Wrong(offences))) => offences,
        Err(_) => Vec::new(),
        Ok(matches) => {
            Cli::from_arg_matches(&matches).ok().and_then(|cli| closed(&cli, file, &added)).into_iter().collect()
        }
    }
}

/// That an ingress would not listen where the file says.
fn closed(cli: &Cli, file: &File, added: &[&Setting]) -> Option<Offence> {
    let cli::Command::Ingress(ingress) = &cli.command else { return None };
    let error = ingress.config().err()?;
    let listen = added.iter().find(|setting| setting.key.long == "listen")?;
    Some(Offence {
        path: file.path.clone(),
        line: Some(listen.line),
        what: format!("{}: {}", listen.key, chain(&error)),
    })
}
