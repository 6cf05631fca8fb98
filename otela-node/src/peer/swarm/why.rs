//! Why a dial has led nowhere, in words that say what may be in the way.

use crate::{peer::defaults::HANDSHAKE_WITHIN, telemetry::chain};
use libp2p::{TransportError, swarm::DialError};
use std::{error::Error, io};

/// The reason on one line.
pub(super) fn words(error: &DialError) -> String {
    match error {
        DialError::WrongPeerId { obtained, .. } => format!("another peer is there: {obtained}"),
        DialError::LocalPeerId { .. } => "this peer itself is there".to_owned(),
        DialError::Transport(failures) => failures.first().map_or_else(String::new, |(_, error)| of_transport(error)),
        other => chain(other).replace('\n', " "),
    }
}

fn of_transport(error: &TransportError<io::Error>) -> String {
    let error = match error {
        TransportError::MultiaddrNotSupported(address) => return format!("no transport leads to {address}"),
        TransportError::Other(error) => error,
    };
    let said = chain(error).replace('\n', " ");
    match of_system(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "refused: nobody listens there, or a firewall rejects it".to_owned(),
        Some(io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable) => {
            "no route leads there from this machine".to_owned()
        }
        Some(io::ErrorKind::TimedOut) => silent(),
        // The transports' own limits are no errors of the system.
        _ if said.contains("Timeout has been reached") || said.contains("timed out") => silent(),
        // Neither did Noise agree, nor the negotiation before it.
        _ if said.contains("Handshake failed") || said.contains("negotiat") => {
            format!("whoever answers there does not speak as peers do, or has too many connections to answer: {said}")
        }
        _ => said,
    }
}

fn silent() -> String {
    format!("no answer within {HANDSHAKE_WITHIN:?}: nobody is there, or a firewall drops it")
}

/// What the operating system said, wherever it is in the chain.
pub(super) fn of_system(error: &io::Error) -> Option<&io::Error> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if let Some(of_system) = io.filter(|io| io.raw_os_error().is_some()) {
            return Some(of_system);
        }
        // What an error of this type wraps is not among its sources.
        let wrapped = io.and_then(io::Error::get_ref).map(|inner| inner as &(dyn Error + 'static));
        next = wrapped.or_else(|| error.source());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;

    #[test]
    fn reasons_say_what_may_be_in_the_way() {
        let of = |error: io::Error| {
            let wrapped = io::Error::other(io::Error::other(error));
            words(&DialError::Transport(vec![("/ip4/10.0.0.1/tcp/1".parse().unwrap(), TransportError::Other(wrapped))]))
        };
        assert!(of(io::Error::from_raw_os_error(111)).contains("refused"));
        let wrapped = io::Error::other(io::Error::from_raw_os_error(24));
        assert_eq!(of_system(&wrapped).and_then(io::Error::raw_os_error), Some(24));
        assert!(of_system(&io::Error::other("of a stranger's packet")).is_none());
        assert!(of(io::Error::from_raw_os_error(110)).contains("firewall drops it"));
        assert!(of(io::Error::from_raw_os_error(113)).contains("no route"));
        assert!(of(io::Error::other("Timeout has been reached")).contains("no answer within 5s"));
        assert!(of(io::Error::other("Handshake failed: invalid data")).contains("does not speak as peers do"));
        assert!(of(io::Error::other("another peer is there: x")).contains("another peer"));
        let address = "/ip4/10.0.0.1/tcp/1".parse().unwrap();
        let other = PeerId::random();
        assert!(words(&DialError::WrongPeerId { obtained: other, address }).contains(&other.to_string()));
        let unknown = TransportError::MultiaddrNotSupported("/memory/1".parse().unwrap());
        assert!(words(&DialError::Transport(vec![("/memory/1".parse().unwrap(), unknown)])).contains("/memory/1"));
    }
}
