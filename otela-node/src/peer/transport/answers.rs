//! Where somebody answers: TCP stands, and the handshake is under way.
//!
//! A handshake takes several round trips, and as long as it likes where a machine has much to do. Whoever dials should
//! not take that for silence, and look for further ways to a peer that is about to be there.

use crate::peer::transport::socket_of;
use futures::{FutureExt, future::BoxFuture};
use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
};
use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

/// The addresses that are being dialled, and whether they have answered. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub(in crate::peer) struct Answers(Arc<Mutex<HashMap<SocketAddr, Dials>>>);

/// All dials of one address.
#[derive(Debug, Default)]
struct Dials {
    under_way: usize,
    answered: bool,
}

impl Answers {
    /// Whether a handshake with somebody at this address is under way.
    pub(in crate::peer) fn is_there(&self, address: &Multiaddr) -> bool {
        tcp(address).is_some_and(|socket| self.dials().get(&socket).is_some_and(|dials| dials.answered))
    }

    /// TCP stands.
    pub(in crate::peer) fn answered(&self, address: &Multiaddr) {
        if let Some(socket) = tcp(address)
            && let Some(dials) = self.dials().get_mut(&socket)
        {
            dials.answered = true;
        }
    }

    /// A dial of this address has begun, and lasts until what is returned is dropped.
    pub(in crate::peer) fn begun(&self, address: &Multiaddr) -> Option<Dial> {
        let socket = tcp(address)?;
        self.dials().entry(socket).or_default().under_way += 1;
        Some(Dial { answers: self.clone(), socket })
    }

    fn dials(&self) -> MutexGuard<'_, HashMap<SocketAddr, Dials>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dial, until this is dropped.
#[derive(Debug)]
pub(in crate::peer) struct Dial {
    answers: Answers,
    socket: SocketAddr,
}

impl Drop for Dial {
    fn drop(&mut self) {
        let mut dials = self.answers.dials();
        if let Some(of_socket) = dials.get_mut(&self.socket) {
            of_socket.under_way -= 1;
            if of_socket.under_way == 0 {
                dials.remove(&self.socket);
            }
        }
    }
}

/// The socket of a TCP address, if it leads nowhere further: at that of a relay only the relay answers.
fn tcp(address: &Multiaddr) -> Option<SocketAddr> {
    let is_own = !crate::peer::swarm::is_relayed(address) && !super::is_proxied(address);
    socket_of(address).filter(|(_, is_tcp)| *is_tcp && is_own).map(|(socket, _)| socket)
}

/// Follows the dials of a transport from their beginning to their end.
#[derive(Debug)]
pub(super) struct Followed<T> {
    pub(super) inner: T,
    pub(super) answers: Answers,
}

impl<T> Transport for Followed<T>
where
    T: Transport + Unpin,
    T::Dial: Send + 'static,
    T::Output: 'static,
    T::Error: 'static,
{
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = BoxFuture<'static, Result<T::Output, T::Error>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<T::Error>> {
        let dial = self.answers.begun(&address);
        let dialled = self.inner.dial(address, opts)?;
        Ok(async move {
            let _dial = dial;
            dialled.await
        }
        .boxed())
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Egress, build};
    use super::*;
    use crate::peer::admission::Admission;
    use futures::StreamExt;
    use libp2p::{
        core::{Endpoint, transport::PortUse},
        identity::Keypair,
    };
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn whoever_accepts_is_there_until_the_handshake_ends() {
        let key = Keypair::generate_ed25519();
        let answers = Answers::default();
        let door = Admission::for_tests(key.clone());
        let (mut transport, _behaviour) = build(&key, &Egress::default(), &door, None, &answers).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Multiaddr =
            format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let mut dial = transport.dial(address.clone(), opts).unwrap();
        assert!(!answers.is_there(&address), "nothing is known yet");
        let accepted = tokio::select! {
            _ = &mut dial => panic!("nobody has said anything"),
            _ = transport.next() => panic!("nothing is listened on"),
            accepted = listener.accept() => accepted.unwrap().0,
        };
        let mut first = [0];
        // The first thing that is said tells that TCP stands there as well.
        tokio::select! {
            _ = &mut dial => panic!("nobody has said anything"),
            peeked = accepted.peek(&mut first) => assert_eq!(peeked.unwrap(), 1),
        }
        assert!(answers.is_there(&address));
        drop(accepted);
        assert!(dial.await.is_err());
        assert!(!answers.is_there(&address) && answers.dials().is_empty());
    }
}
