//! The `otela` command: parses, dispatches, and turns outcomes into exit codes. Nothing else happens here.

mod cli;
mod config;
mod demo;
mod doctor;
mod exit;
mod files;
mod look;
mod operate;
mod probe;
mod reload;
mod run;
mod sched;
mod sign;
mod signals;

use config::ParseError;
use otela_node::engine::guard;
use std::{ffi::OsString, process::ExitCode};

/// Requests are many small allocations on many threads: a fifth more of them than with the C library's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    // The two hidden stages between agent and engine come before anything that starts threads.
    match argv.get(1).and_then(|stage| stage.to_str()) {
        Some("guard") => return guard::main(&argv[2..]),
        Some("guard-exec") => return guard::exec(&argv[2..]),
        _ => {}
    }
    let outcome = match config::parse(&argv) {
        Ok(told) => run::command(told, argv),
        Err(ParseError::CommandLine(error)) => return exit::usage(&error),
        Err(ParseError::File(error)) => Err(error.into()),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            exit::say(&format!("otela: {}", error.line()));
            error.code()
        }
    }
}
