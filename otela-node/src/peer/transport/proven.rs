//! Whoever answers at an address must be the peer that the address names.
//!
//! The swarm checks that too, but only of the first of several addresses that answers, and then gives up the others. A
//! machine that happens to have the same private address as a peer elsewhere often answers first; here its address is
//! one that fails, and the others are waited for.

use libp2p::{
    Multiaddr, PeerId,
    core::{ConnectedPoint, muxing::StreamMuxerBox},
    multiaddr::Protocol,
};
use std::future::{Ready, ready};

/// Somebody else is at an address.
#[derive(Debug, thiserror::Error)]
#[error("another peer is there: {obtained}")]
pub(in crate::peer) struct AnotherPeer {
    pub(in crate::peer) obtained: PeerId,
}

type Connected = (PeerId, StreamMuxerBox);

/// Passes a connection on if the address that was dialled names nobody, or its peer.
pub(super) fn by_address((peer, muxer): Connected, endpoint: &ConnectedPoint) -> Ready<Result<Connected, AnotherPeer>> {
    let expected = match endpoint {
        ConnectedPoint::Dialer { address, .. } => named_last(address),
        ConnectedPoint::Listener { .. } => None,
    };
    ready(if expected.is_some_and(|expected| expected != peer) {
        Err(AnotherPeer { obtained: peer })
    } else {
        Ok((peer, muxer))
    })
}

/// Who is at the end of an address; a relay on the way is not.
fn named_last(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Answers, Egress, build};
    use crate::peer::admission::Admission;
    use futures::{StreamExt, future::Either};
    use libp2p::{
        Multiaddr, PeerId, Transport,
        core::{
            muxing::StreamMuxerExt,
            transport::{DialOpts, ListenerId, PortUse, TransportEvent},
        },
        identity::Keypair,
    };

    #[tokio::test]
    async fn p53_an_address_at_which_another_peer_answers_is_one_that_fails() {
        let (key, other) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let there = key.public().to_peer_id();
        let door = |key: &Keypair| Admission::for_tests(key.clone());
        let (mut listening, _behaviour) =
            build(&key, &Egress::default(), &door(&key), None, &Answers::default()).unwrap();
        let (mut dialling, _behaviour) =
            build(&other, &Egress::default(), &door(&other), None, &Answers::default()).unwrap();
        for listen in ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"] {
            listening.listen_on(ListenerId::next(), listen.parse().unwrap()).unwrap();
            let address = loop {
                if let Some(TransportEvent::NewAddress { listen_addr, .. }) = listening.next().await {
                    break listen_addr;
                }
            };
            for (named, wanted) in [(None, true), (Some(there), true), (Some(PeerId::random()), false)] {
                let to: Multiaddr = named.map_or(address.clone(), |peer| address.clone().with_p2p(peer).unwrap());
                let opts = DialOpts { role: libp2p::core::Endpoint::Dialer, port_use: PortUse::New };
                let mut dial = dialling.dial(to, opts).unwrap();
                let outcome = loop {
                    match futures::future::select(dial, listening.next()).await {
                        Either::Left((outcome, _)) => break outcome,
                        Either::Right((event, pending)) => {
                            if let Some(TransportEvent::Incoming { upgrade, .. }) = event {
                                // What the other half says last has to leave too.
                                let accepting = async {
                                    let (_, mut muxer) = upgrade.await.ok()?;
                                    std::future::poll_fn(|cx| muxer.poll_unpin(cx)).await.ok()
                                };
                                break match futures::future::select(pending, Box::pin(accepting)).await {
                                    Either::Left((outcome, _)) => outcome,
                                    Either::Right((_, pending)) => pending.await,
                                };
                            }
                            dial = pending;
                        }
                    }
                };
                match outcome {
                    Ok((peer, _)) => assert!(wanted && peer == there, "{listen} {named:?}"),
                    Err(error) => {
                        let said = crate::telemetry::chain(&error);
                        assert!(!wanted && said.contains(&there.to_string()), "{listen} {named:?}: {said}");
                    }
                }
            }
        }
    }
}
