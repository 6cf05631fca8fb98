//! A single value: its text, and what its flag thinks of it.

use super::keys::{Key, Path};
use clap::{
    Arg, Command,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};
use otela_node::telemetry::chain;
use std::error::Error as _;
use toml::de::DeValue;

/// A value as its flag would be given it: numbers are decimal, and what is no single value has no text.
pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => {
            let whole = i128::from_str_radix(number.as_str(), number.radix());
            whole.map(|whole| whole.to_string()).map_err(|_| format!("cannot be {number}: it is too long"))
        }
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(is) => Ok(is.to_string()),
        DeValue::Datetime(time) => Ok(time.to_string()),
        DeValue::Array(_) => Err("has values, not lists, in its list".to_owned()),
        DeValue::Table(_) => Err("has a value, not a table".to_owned()),
    }
}

/// Asks the flag's own parser, and nobody else: neither the environment nor what else the command needs.
///
/// # Errors
/// What is wrong with the value.
pub(super) fn check(root: &Command, path: &Path, key: &Key, text: &str) -> Result<(), String> {
    let words = std::iter::once(root.get_name()).chain(path.iter().map(String::as_str)).map(str::to_owned);
    let line = words.chain([format!("--{}={text}", key.long)]);
    match deaf(root.clone()).try_get_matches_from(line) {
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            Err(format!("it is for the command line: --{} {text} explains what there is", key.long))
        }
        Err(error) => why(&error).map_or(Ok(()), Err),
        Ok(_) => Ok(()),
    }
}

/// The command without its variables.
fn deaf(command: Command) -> Command {
    command.mut_args(|flag: Arg| flag.env(Resettable::Reset)).mut_subcommands(deaf)
}

/// What is wrong with a value, if the error is of the value.
fn why(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidValue => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(values)) if !values.is_empty() => Some(format!("it is {}", values.join(" or "))),
            _ => Some("it is empty".to_owned()),
        },
        ErrorKind::ValueValidation => Some(error.source().map_or_else(|| "it is not allowed".to_owned(), chain)),
        // What needs the rest of the command line is judged with it.
        ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand | ErrorKind::ArgumentConflict => None,
        _ => {
            let rendered = error.render().to_string();
            let line = rendered.lines().next().unwrap_or_default();
            Some(line.trim_start_matches("error: ").to_owned())
        }
    }
}
