//! Flags of `otela config`.

use std::{ffi::OsString, path::PathBuf};

/// Flags of `otela config`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// What to do with a configuration.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file: one line if it is good, else a line for everything that is wrong.
    Check(CheckArgs),
    /// Show the values that a command would run with, and where each comes from.
    Show(ShowArgs),
}

/// Flags of `otela config check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The file; the one that --config or OTELA_CONFIG names, if not given.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Flags of `otela config show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The command, and after it any flags that it would be given; start, ingress and relay, if not given.
    #[arg(value_name = "COMMAND", num_args = 0.., trailing_var_arg = true)]
    pub(crate) line: Vec<OsString>,
}
