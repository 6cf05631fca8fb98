//! The way to a node that is to be operated: its control socket, or the mesh.

use super::OperateError;
use crate::{
    cli::WhichArgs,
    exit::{CommandError, say},
    run::ANY_PORT,
};
use bytes::Bytes;
use futures::future::{BoxFuture, Either, FutureExt, select};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use otela_node::{
    agent::control::sockets,
    peer::{Peer, PeerConfig, RequestBody},
    tasks::Tasks,
    telemetry::{Metrics, chain},
};
use otela_proto::{PeerId, payload::Role};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    time::{sleep, timeout},
};

/// From the start until the node is known.
const FIND_WITHIN: Duration = Duration::from_secs(15);
/// Whoever waits for longer is told for what.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// A node answers at once; the way to it may have to be found.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The way to a node.
pub(super) enum Way {
    Here(PathBuf),
    Mesh { peer: Peer, node: PeerId, tasks: Tasks },
}

impl Way {
    /// Finds it.
    pub(super) async fn to(which: WhichArgs) -> Result<Self, CommandError> {
        match which.node() {
            None => Ok(Self::Here(here(&which)?)),
            Some(node) => through_mesh(which, node).await,
        }
    }

    /// Asks the node.
    pub(super) async fn ask(&self, method: Method, path: &str) -> Result<Value, OperateError> {
        let asked = async {
            match self {
                Self::Here(socket) => ask_here(socket, method, path).await,
                Self::Mesh { peer, node, .. } => ask_peer(peer, node, method, path).await,
            }
        };
        let asked = timeout(ANSWER_WITHIN, asked).await;
        let no_answer = |_| OperateError::NotReached(format!("no answer within {ANSWER_WITHIN:?}"));
        let (status, body) = asked.map_err(no_answer)?.map_err(OperateError::NotReached)?;
        let body: Value = serde_json::from_slice(&body).map_err(|_| OperateError::NotUnderstood)?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let message = body["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
        Err(OperateError::Refused(message))
    }

    /// Resolves when the node has left, seen from now on.
    pub(super) fn left(&self) -> BoxFuture<'static, ()> {
        match self {
            Self::Here(socket) => {
                let socket = socket.clone();
                // A connection on which nothing is asked ends with the node.
                let connected = std::os::unix::net::UnixStream::connect(&socket).and_then(|stream| {
                    stream.set_nonblocking(true)?;
                    UnixStream::from_std(stream)
                });
                async move {
                    let Ok(mut stream) = connected else { return };
                    // An error is an end as well.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
                .boxed()
            }
            Self::Mesh { peer, node, .. } => {
                let (peer, node) = (peer.clone(), *node);
                let session = peer.view().node(&node).map(|node| node.entry.session());
                async move {
                    let mut changes = peer.view_changes();
                    let is_there = || {
                        let view = peer.view();
                        let now = view.node(&node).filter(|node| node.is_listed());
                        now.is_some_and(|node| Some(node.entry.session()) == session)
                    };
                    while is_there() && changes.changed().await.is_ok() {}
                }
                .boxed()
            }
        }
    }

    /// Leaves the mesh again.
    pub(super) async fn end(self) {
        if let Self::Mesh { tasks, .. } = self {
            tasks.shutdown(Duration::ZERO).await;
        }
    }
}

/// The socket of the node on this machine that is meant.
fn here(which: &WhichArgs) -> Result<PathBuf, OperateError> {
    let (mut found, folders) = (Vec::new(), which.folders());
    let names = || folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" and ");
    for folder in &folders {
        found.extend(sockets(folder).map_err(|error| OperateError::Folder(folder.display().to_string(), error))?);
    }
    let pids = |found: &[(u32, PathBuf)]| found.iter().map(|(pid, _)| pid.to_string()).collect::<Vec<_>>().join(", ");
    let all = pids(&found);
    found.retain(|(pid, _)| which.pid.is_none_or(|wanted| wanted == *pid));
    match found.as_slice() {
        [] if !all.is_empty() => Err(OperateError::NotThis(which.pid.unwrap_or_default(), all)),
        [] => Err(OperateError::NoneHere(names())),
        [(_, socket)] => Ok(socket.clone()),
        several => Err(OperateError::Several(pids(several))),
    }
}

async fn through_mesh(which: WhichArgs, node: PeerId) -> Result<Way, CommandError> {
    // Its key is who asks, and one that is made here would be nobody.
    match which.peer.key() {
        None => return Err(OperateError::NoKey.into()),
        Some(key) if !key.exists() => return Err(OperateError::KeyMissing(key.display().to_string()).into()),
        Some(_) => {}
    }
    let config = which.peer.config(Vec::new(), &ANY_PORT)?;
    let config = PeerConfig { observes: true, reserves: false, via: which.via.via, ..config };
    if config.bootstrap.is_empty() && config.via.is_empty() {
        return Err(OperateError::NoBootstrap(node).into());
    }
    let tasks = Tasks::new();
    let (peer, _) = Peer::start(config, &tasks, &Metrics::new()).await?;
    match find(&peer, &node).await {
        Ok(()) => Ok(Way::Mesh { peer, node, tasks }),
        Err(error) => {
            tasks.shutdown(Duration::ZERO).await;
            Err(error.into())
        }
    }
}

/// Waits until the mesh has told of the node.
async fn find(peer: &Peer, node: &PeerId) -> Result<(), OperateError> {
    let known = async {
        let mut changes = peer.view_changes();
        while peer.view().node(node).is_none() && changes.changed().await.is_ok() {}
    };
    let told = async {
        sleep(SILENT_MAX).await;
        say(&format!("otela: looking for {node} in the mesh, for up to {FIND_WITHIN:?}"));
        std::future::pending::<()>().await;
    };
    let found = async {
        tokio::select! {
            () = known => {}
            () = told => {}
        }
    };
    timeout(FIND_WITHIN, found).await.map_err(|_| OperateError::NotFound(*node))?;
    let view = peer.view();
    match view.node(node) {
        Some(found) if !found.is_listed() => Err(OperateError::HasLeft(*node)),
        Some(found) if found.entry.payload().has_role(Role::Node) => Ok(()),
        _ => Err(OperateError::NoNode(*node)),
    }
}

async fn ask_peer(peer: &Peer, node: &PeerId, method: Method, path: &str) -> Result<(StatusCode, Bytes), String> {
    let head = Request::builder().method(method).uri(path).body(()).map_err(|error| error.to_string())?.into_parts().0;
    let (answer, _) = peer.send(node, head, RequestBody::Whole(Bytes::new())).await.map_err(|error| chain(&error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    Ok((status, body.to_bytes()))
}

async fn ask_here(socket: &Path, method: Method, path: &str) -> Result<(StatusCode, Bytes), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = UnixStream::connect(socket).await.map_err(|error| text(&error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| text(&error))?;
    let request = Request::builder().method(method).uri(path).header(header::HOST, "node").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| text(&error))?;
    let exchange = pin!(async move {
        let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| text(&error))?.to_bytes()))
    });
    match select(exchange, pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The connection may close before its last answer is taken out of it.
        Either::Right((_closed, exchange)) => exchange.await,
    }
}
