//! The commands that look at a mesh: they ask one otela over HTTP and print what it answers. They join nothing.

mod ask;
pub(crate) mod plain;
pub(crate) mod tables;

pub(crate) use ask::{AskError, text};
pub(crate) use tables::{columns, pairs};

use crate::{
    cli::{ModelsArgs, NodesArgs, StatusArgs},
    exit::CommandError,
};
use ask::{all_pages, question};
use serde_json::{Value, json};
use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// Prints the nodes.
pub(crate) async fn nodes(args: NodesArgs) -> Result<ExitCode, CommandError> {
    let nodes = all_pages(args.look.target(), "nodes", &args.parameters()).await?;
    print(args.look.json, &listing("nodes", &nodes), |answer| tables::nodes(&answer["nodes"]))
}

/// Prints the models.
pub(crate) async fn models(args: ModelsArgs) -> Result<ExitCode, CommandError> {
    let models = all_pages(args.look.target(), "models", &args.parameters()).await?;
    print(args.look.json, &listing("models", &models), |answer| tables::models(&answer["models"]))
}

/// Prints what the asked peer is and how it stands.
pub(crate) async fn status(args: StatusArgs) -> Result<ExitCode, CommandError> {
    let answer = question(args.look.target(), "status", &Vec::new(), "session").await?;
    print(args.look.json, &answer, tables::status)
}

/// As if all had come on one page.
fn listing(of: &str, elements: &[Value]) -> Value {
    let total = elements.len();
    json!({of: elements, "total": total, "next": null})
}

/// Prints an answer as JSON, or as a table.
pub(crate) fn print(
    json: bool,
    answer: &Value,
    table: impl FnOnce(&Value) -> String,
) -> Result<ExitCode, CommandError> {
    put(&if json { plain::json(answer) } else { table(answer) })
}

/// Prints a command's answer.
pub(crate) fn put(text: &str) -> Result<ExitCode, CommandError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(CommandError::Output(error)),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}
