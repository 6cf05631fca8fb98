//! A command line, and what the environment and the file add to it. Whatever the file says is put in as the flag that it
//! stands for, so that the flag's own checks, and what it needs and forbids, hold for it as well.

use super::{
    ParseError,
    file::{File, FileError, Offence, Setting},
    keys::{Key, Keys, Kind},
};
use clap::{
    Arg, ArgMatches, Command,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// What a key's value comes from, if not from the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// The flag is on the command line.
    Flag,
    /// The variable is set.
    Variable,
}

/// The words of a command line, and which command they call.
pub(super) struct Line<'a> {
    root: &'a Command,
    argv: &'a [OsString],
    /// As far as they can be understood without the file.
    matches: ArgMatches,
    /// The command that is called.
    pub(super) path: Vec<String>,
    /// Where its own words begin.
    at: usize,
}

impl<'a> Line<'a> {
    /// Looks which command is called and which flags it is given. What is wrong is left for [`Line::parse`] to tell.
    ///
    /// # Errors
    /// Clap's, where a text such as help is asked for.
    pub(super) fn read(root: &'a Command, argv: &'a [OsString]) -> Result<Self, clap::Error> {
        let matches = root.clone().ignore_errors(true).try_get_matches_from(argv)?;
        let path = called(&matches);
        let at = words_begin(root, argv, &path);
        Ok(Self { root, argv, matches, path, at })
    }

    /// The file that it names.
    pub(super) fn config(&self) -> Option<&Path> {
        self.matches.get_one::<PathBuf>("config").map(PathBuf::as_path)
    }

    /// Whether a key of this command has a value without the file.
    pub(super) fn given(&self, key: &Key) -> Option<Given> {
        match innermost(&self.matches).value_source(&key.id) {
            Some(ValueSource::CommandLine) => Some(Given::Flag),
            // A value that cannot be used does not make way for the file's: it is an error.
            _ => std::env::var_os(&key.variable).map(|_| Given::Variable),
        }
    }

    /// What the file has to say to this command.
    pub(super) fn added<'f>(&self, keys: &Keys, file: &'f File) -> Vec<&'f Setting> {
        let mine: Vec<_> = keys.of_command(&self.path).filter(|key| self.given(key).is_none()).collect();
        file.settings.iter().filter(|setting| mine.contains(&&setting.key)).collect()
    }

    /// The words with what the file adds.
    fn with(&self, added: &[&Setting]) -> Vec<OsString> {
        let at = self.at.min(self.argv.len());
        let flags = added.iter().flat_map(|setting| flags(setting));
        self.argv[..at].iter().cloned().chain(flags).chain(self.argv[at..].iter().cloned()).collect()
    }

    /// Parses everything.
    ///
    /// # Errors
    /// Clap's.
    pub(super) fn parse(&self, added: &[&Setting]) -> Result<ArgMatches, clap::Error> {
        self.root.clone().try_get_matches_from(self.with(added))
    }

    /// Parses everything, however little of what is needed is there.
    ///
    /// # Errors
    /// Clap's, of any other kind.
    pub(super) fn parse_incomplete(&self, added: &[&Setting]) -> Result<ArgMatches, clap::Error> {
        match self.parse(added) {
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                self.root.clone().ignore_errors(true).try_get_matches_from(self.with(added))
            }
            outcome => outcome,
        }
    }

    /// An error of [`Line::parse`], told as one of the file, if what the file says has a part in it: a key that needs another, or that
    /// cannot be together with another.
    fn blame(&self, error: &clap::Error, keys: &Keys, file: &File, added: &[&Setting]) -> Option<Offence> {
        let name = |flag: &String| self.key(keys, flag).map_or_else(|| flag.clone(), ToString::to_string);
        let (setting, what) = match error.kind() {
            ErrorKind::ArgumentConflict => {
                let of = |kind| flags_in(error, kind);
                let flags = [of(ContextKind::InvalidArg), of(ContextKind::PriorArg)].concat();
                let named = |setting: &Setting, flag: &String| long(flag) == setting.key.long;
                let setting = *added.iter().find(|setting| flags.iter().any(|flag| named(setting, flag)))?;
                let others: Vec<_> = flags.iter().filter(|flag| !named(setting, flag)).map(name).collect();
                (setting, format!("cannot be together with {}", others.join(" and ")))
            }
            ErrorKind::MissingRequiredArgument => {
                let missing = flags_in(error, ContextKind::InvalidArg);
                let setting = *added.iter().find(|setting| self.needs(setting, &missing))?;
                let missing: Vec<_> = missing.iter().map(name).collect();
                (setting, format!("needs {} too", missing.join(" and ")))
            }
            _ => return None,
        };
        Some(Offence { path: file.path.clone(), line: Some(setting.line), what: format!("{} {what}", setting.key) })
    }

    /// The same, told of whom it is.
    pub(super) fn told(&self, error: clap::Error, keys: &Keys, file: &File, added: &[&Setting]) -> ParseError {
        match self.blame(&error, keys, file, added) {
            Some(offence) => FileError::Wrong(vec![offence]).into(),
            None => error.into(),
        }
    }

    /// Whether some of what is missing is missing because of this.
    fn needs(&self, setting: &Setting, missing: &[String]) -> bool {
        let lacks = |added: &[&Setting]| match self.parse(added) {
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                flags_in(&error, ContextKind::InvalidArg)
            }
            _ => Vec::new(),
        };
        let anyway = lacks(&[]);
        lacks(&[setting]).iter().any(|flag| missing.contains(flag) && !anyway.contains(flag))
    }

    fn key<'k>(&self, keys: &'k Keys, flag: &str) -> Option<&'k Key> {
        keys.of_command(&self.path).find(|key| key.long == long(flag)).map(|key| &**key)
    }
}

/// The command that is called.
pub(super) fn called(matches: &ArgMatches) -> Vec<String> {
    let inner = std::iter::successors(matches.subcommand(), |(_, matches)| matches.subcommand());
    inner.map(|(name, _)| name.to_owned()).collect()
}

/// The matches of the command that is called.
pub(super) fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

/// A setting as flags.
fn flags(setting: &Setting) -> Vec<OsString> {
    let long = &setting.key.long;
    match setting.key.kind {
        Kind::Switch if setting.items.iter().all(|item| item.text == "false") => Vec::new(),
        Kind::Switch => vec![format!("--{long}").into()],
        Kind::One | Kind::Many(_) => {
            setting.items.iter().map(|item| format!("--{long}={}", item.text).into()).collect()
        }
    }
}

/// The flags that an error names, such as `--key <FILE>`.
fn flags_in(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(flag)) => vec![flag.clone()],
        Some(ContextValue::Strings(flags)) => flags.clone(),
        _ => Vec::new(),
    }
}

/// `key` of `--key <FILE>`.
fn long(flag: &str) -> &str {
    flag.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default()
}

/// The place after the name of the command that is called. Flags for all commands may come before it.
fn words_begin(root: &Command, argv: &[OsString], path: &[String]) -> usize {
    let mut command = root;
    let mut global: Vec<&Arg> = Vec::new();
    let mut at = 1;
    for name in path {
        global.extend(command.get_arguments());
        while let Some(word) = argv.get(at).map(|word| word.to_string_lossy()).filter(|word| word.starts_with('-')) {
            let flag = global.iter().find(|flag| flag.get_long().is_some_and(|long| *word == format!("--{long}")));
            let value_follows = flag.is_some_and(|flag| flag.get_action().takes_values());
            at += if value_follows { 2 } else { 1 };
        }
        at += 1;
        let Some(inner) = command.find_subcommand(name) else { break };
        command = inner;
    }
    at
}
