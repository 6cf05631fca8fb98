//! Whether a node with an engine is ready, for whoever watches its process: exactly what the mesh is told, in a word.

use crate::peer::Peer;
use otela_proto::lifecycle::Lifecycle;

/// Whether ingresses may send requests to this node, by its own entry.
///
/// # Errors
/// Why not.
pub fn readiness(peer: &Peer) -> Result<(), String> {
    let view = peer.view();
    let Some(node) = view.node(&peer.id()) else { return Err("joining the mesh".to_owned()) };
    let said = node.entry.payload();
    let not_ready = said.services.iter().find(|service| !service.loading.is_empty());
    match (node.entry.rank().lifecycle, not_ready) {
        _ if said.draining => Err("stopping".to_owned()),
        (_, Some(service)) => Err(format!("the engine: {}", service.loading)),
        (Lifecycle::Serving, None) => Ok(()),
        (Lifecycle::Join, None) => Err("the engine has not been started yet".to_owned()),
        (Lifecycle::Down, None) => Err("the engine has ended".to_owned()),
        (Lifecycle::Left, None) => Err("the node has left the mesh".to_owned()),
    }
}
