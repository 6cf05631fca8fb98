//! `otela drain` and `otela logs`: what operators ask of a node, over the mesh or on its own machine.

mod way;

use crate::{
    cli::{DrainArgs, LogsArgs},
    exit::{CommandError, say},
    look::plain,
};
use http::Method;
use otela_node::agent::{DRAIN_PATH, LOGS_PATH};
use otela_proto::PeerId;
use serde_json::Value;
use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};
use tokio::time::sleep;
use way::Way;

/// A log that is followed is asked for this often.
const FOLLOWED_EVERY: Duration = Duration::from_millis(500);

/// Why a node does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperateError {
    /// There is none here.
    #[error("no node of this user runs here, by the sockets in {0}: name one of the mesh by its id, or give --control")]
    NoneHere(String),
    /// There are others.
    #[error("no node with process id {0} runs here; there are {1}")]
    NotThis(u32, String),
    /// Nobody would know who asks.
    #[error(
        "no --key was given: a node obeys the peer that its provider has named with --operator, which the key proves"
    )]
    NoKey,
    /// A new key would be nobody's.
    #[error("there is no key file {0}: give the key of an operator of that node")]
    KeyMissing(String),
    /// There is more than one.
    #[error("several nodes run here: choose one by --pid, of {0}")]
    Several(String),
    /// The control sockets cannot be looked for.
    #[error("cannot look for nodes in {0}")]
    Folder(String, #[source] io::Error),
    /// An id alone leads nowhere.
    #[error("an id alone does not tell where {0} is: name its mesh with --bootstrap")]
    NoBootstrap(PeerId),
    /// The mesh or the node in it is not found.
    #[error("the mesh does not know {0}, or nobody of it was reached: see `otela doctor` with the same flags")]
    NotFound(PeerId),
    /// It is not there any more.
    #[error("{0} has left the mesh")]
    HasLeft(PeerId),
    /// It runs no engine.
    #[error("{0} is no node but another peer: only what `otela start` has started is drained and has logs")]
    NoNode(PeerId),
    /// It is not reached.
    #[error("the node was not reached: {0}")]
    NotReached(String),
    /// It says no.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// What it says is not understood.
    #[error("the node's answer is not understood: it is of another version")]
    NotUnderstood,
}

/// Drains a node, and waits until it has left.
pub(crate) async fn drain(args: DrainArgs) -> Result<ExitCode, CommandError> {
    let way = match Way::to(args.which).await {
        Err(CommandError::Operate(OperateError::HasLeft(node))) => {
            write(&format!("{node} has left already\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        way => way?,
    };
    let within =
        args.timeout.map(|time| format!("?within={}", humantime::format_duration(time).to_string().replace(' ', "")));
    let path = format!("{DRAIN_PATH}{}", within.unwrap_or_default());
    let left = way.left();
    let said = way.ask(Method::POST, &path).await?;
    let running = said["in_flight"].as_u64().ok_or(OperateError::NotUnderstood)?;
    if args.no_wait {
        write(&format!("draining: {running} requests run\n"))?;
    } else {
        write(&format!("draining: {running} requests run, waiting until the node has left\n"))?;
        left.await;
        write("the node has left\n")?;
    }
    way.end().await;
    Ok(ExitCode::SUCCESS)
}

/// Prints what a node's engine prints.
pub(crate) async fn logs(args: LogsArgs) -> Result<ExitCode, CommandError> {
    let way = Way::to(args.which).await?;
    let mut path = format!("{LOGS_PATH}?lines={}", args.lines);
    let mut said_some = false;
    loop {
        let said = match way.ask(Method::GET, &path).await {
            // Whoever follows a node does so until it is not there any more.
            Err(OperateError::NotReached(_)) if said_some => {
                say("otela: the node has left, or is not reached any more");
                break;
            }
            said => said?,
        };
        said_some = true;
        let lines = said["lines"].as_array().ok_or(OperateError::NotUnderstood)?;
        let next = said["next"].as_u64().ok_or(OperateError::NotUnderstood)?;
        let lines = lines.iter().filter_map(Value::as_str).map(|line| format!("{}\n", plain::text(line)));
        write(&lines.collect::<String>())?;
        if !args.follow {
            break;
        }
        path = format!("{LOGS_PATH}?after={next}");
        sleep(FOLLOWED_EVERY).await;
    }
    way.end().await;
    Ok(ExitCode::SUCCESS)
}

fn write(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CommandError::Output)
}
