//! The configuration: the command line, completed from the environment and from one file. Here the file's text is read,
//! and nowhere else; what comes out are the flags' validated values.
//!
//! A flag wins over its variable, the variable over the file, the file over the default. The first two and the last are
//! clap's; the file's values are put into the command line as the flags that they stand for (`line`), where neither flag
//! nor variable is given. So nothing is declared twice: a new flag with a variable is a new key.

mod check;
mod file;
mod keys;
mod line;
mod model;
mod show;
mod value;
mod values;

#[cfg(test)]
mod tests;

pub(crate) use file::FileError;
pub(crate) use values::{Changes, Values};

use crate::{
    cli::{self, Cli, ConfigArgs, ConfigCommand},
    exit::CommandError,
};
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use file::File;
use keys::Keys;
use line::{Line, called, innermost};
use otela_node::telemetry::chain;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The command that looks at files itself.
const LOOKS_ITSELF: &str = "config";

/// What a process was told.
#[derive(Debug)]
pub(crate) struct Told {
    /// The command and its flags, complete.
    pub(crate) cli: Cli,
    /// The file that was read, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The same key by key, to be compared with what it says later. None without a file.
    pub(crate) values: Values,
}

/// Why a command is not run, or a file not taken over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseError {
    /// The command line is wrong, or asks for a text such as help.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ParseError {
    /// What is wrong, on one line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::File(error) => chain(error).replace('\n', " "),
            Self::CommandLine(error) => {
                let text = error.render().to_string();
                // What follows tells how to use the command.
                let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
                first.split_whitespace().collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// Reads a command line, given from the name of the program on, and the file that it or the environment names. Nothing is
/// kept: called once more with the same words, as after a SIGHUP, it reads the file anew.
///
/// # Errors
/// [`ParseError`].
pub(crate) fn parse(argv: &[OsString]) -> Result<Told, ParseError> {
    let root = Cli::command();
    let (matches, file) = complete(&root, argv)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut root.clone()))?;
    let Some(file) = file else { return Ok(Told { cli, file: None, values: Values::default() }) };
    if let cli::Command::Ingress(ingress) = &mut cli.command {
        for model in &file.models {
            ingress.add_model(&model.id, model.flags())?;
        }
    }
    let values = Values::of(&Keys::of(&root), &called(&matches), innermost(&matches), file.models);
    Ok(Told { cli, file: Some(file.path), values })
}

/// Completes a command line of any command from the file that it names.
fn complete(root: &Command, argv: &[OsString]) -> Result<(ArgMatches, Option<File>), ParseError> {
    let line = Line::read(root, argv)?;
    let Some(path) = line.config().filter(|_| line.path.first().is_some_and(|first| first != LOOKS_ITSELF)) else {
        return Ok((line.parse(&[])?, None));
    };
    let keys = Keys::of(root);
    let file = File::load(path, root, &keys)?;
    let added = line.added(&keys, &file);
    match line.parse(&added) {
        Ok(matches) => Ok((matches, Some(file))),
        Err(error) => Err(line.told(error, &keys, &file, &added)),
    }
}

/// Runs `otela config`.
///
/// # Errors
/// The file cannot be read; for `show` also if it is not right.
pub(crate) fn run(args: &ConfigArgs, named: Option<&Path>) -> Result<ExitCode, CommandError> {
    match &args.command {
        ConfigCommand::Check(check) => check::check(check.file.as_deref().or(named)),
        ConfigCommand::Show(show) => show::show(&show.line, named),
    }
}
