//! The `otela` command: parses, dispatches, and turns outcomes into exit codes. Nothing else happens here.

mod cli;
mod demo;
mod doctor;
mod exit;
mod files;
mod look;
mod probe;
mod run;
mod sign;

use clap::Parser;
use otela_node::engine::guard;
use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    // The two hidden stages between agent and engine come before anything that starts threads.
    match argv.get(1).and_then(|stage| stage.to_str()) {
        Some("guard") => return guard::main(&argv[2..]),
        Some("guard-exec") => return guard::exec(&argv[2..]),
        _ => {}
    }
    let cli = cli::Cli::parse_from(argv);
    match run::command(cli) {
        Ok(code) => code,
        Err(error) => {
            exit::say(&format!("otela: {}", error.line()));
            error.code()
        }
    }
}
