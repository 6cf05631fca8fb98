//! The probe protocol: what one peer asks of another to measure the way between them.
//!
//! One substream carries frames of at most [`FRAME_BYTES_MAX`]. A frame is an [`Order`], a [`Reply`], an echo, or a
//! chunk of bulk; which of these, both sides know from what came before:
//!
//! ```text
//!   order    asked one                          then
//!   Echo     Go, then each frame back as it is  as many frames as were ordered
//!   Send     Go, then chunks, an empty one last
//!   Take     Go                                 chunks, an empty one last; Taken when that has come
//!   Dial     Dialled, when all is tried
//! ```
//!
//! Whatever is not granted is answered by [`Reply::Refused`] and the end of the stream. Every order is bounded, so that
//! nobody can be made to work much for little.

use bytes::Bytes;
use multiaddr::Multiaddr;
use prost::Message;
use std::time::Duration;

/// Longest frame in bytes, a chunk of bulk.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Longest order or reply in bytes.
pub const ORDER_BYTES_MAX: usize = 4 * 1024;
/// Longest echo in bytes.
pub const ECHO_BYTES_MAX: usize = 64;
/// Echoes of one order.
pub const ECHOES_MAX: u32 = 1_000;
/// Bytes of one order.
pub const BULK_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How long the bytes of one order may take.
pub const BULK_WITHIN_MAX: Duration = Duration::from_secs(10);
/// Addresses that are dialled for one order.
pub const DIAL_MAX: usize = 8;
/// Characters of a reason in words that are passed on.
const WORDS_CHARS_MAX: usize = 100;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// To send back so many frames as they are.
    Echo {
        /// How many.
        count: u32,
    },
    /// To send bulk.
    Send(Bulk),
    /// To read bulk.
    Take(Bulk),
    /// To dial these addresses, which must be of the host that asks.
    Dial(Vec<Multiaddr>),
}

/// How much bulk, and for how long at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Bytes in all.
    pub bytes: u64,
    /// After this no further chunk begins.
    pub within: Duration,
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is granted.
    Go,
    /// It is not.
    Refused(Refusal),
    /// So many bytes of bulk have come.
    Taken(u64),
    /// What became of each address, in the order's order.
    Dialled(Vec<Outcome>),
}

/// What became of one dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The address.
    pub address: Multiaddr,
    /// Why nobody was reached, in words; `None` if the asking peer was.
    pub failed: Option<String>,
}

/// Why an order is not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read, or this version does not know it.
    #[error("the order is not understood: compare the versions of both sides")]
    Malformed,
    /// It is beyond a bound.
    #[error("the order is larger than allowed")]
    TooMuch,
    /// The same peer is being measured already.
    #[error("another measurement of this peer is under way")]
    OneAtATime,
    /// As many others are as may be.
    #[error("too many measurements are under way there: try again later")]
    Busy,
    /// What may be sent and dialled for measurements in a minute is spent.
    #[error("enough was measured there lately: try again in a minute")]
    Spent,
    /// An address that is to be dialled is not of the host that asks.
    #[error("only addresses under which this peer is seen there are dialled")]
    NotYours,
}

impl Refusal {
    /// All of them. Their numbers on the wire are their places, from one.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::TooMuch, Self::OneAtATime, Self::Busy, Self::Spent, Self::NotYours];

    /// The refusal as a metric label.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooMuch => "too_much",
            Self::OneAtATime => "one_at_a_time",
            Self::Busy => "busy",
            Self::Spent => "spent",
            Self::NotYours => "not_yours",
        }
    }

    fn number(self) -> u32 {
        Self::ALL.iter().zip(1..).find(|(refusal, _)| **refusal == self).map_or(0, |(_, number)| number)
    }

    /// One that a newer version may have added reads as [`Self::Malformed`].
    fn of_number(number: u32) -> Self {
        Self::ALL.into_iter().zip(1..).find(|(_, n)| *n == number).map_or(Self::Malformed, |(refusal, _)| refusal)
    }
}

impl Order {
    /// Reads an order as it came from another peer.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], or [`Refusal::TooMuch`] beyond the bounds of this module.
    pub fn read(frame: &[u8]) -> Result<Self, Refusal> {
        if frame.len() > ORDER_BYTES_MAX {
            return Err(Refusal::TooMuch);
        }
        let order = wire::Order::decode(frame).map_err(|_| Refusal::Malformed)?;
        let bounded = |bulk: wire::Bulk| {
            let bulk = Bulk { bytes: bulk.bytes, within: Duration::from_millis(bulk.within_ms.into()) };
            let fits = bulk.bytes <= BULK_BYTES_MAX && bulk.within <= BULK_WITHIN_MAX;
            if fits { Ok(bulk) } else { Err(Refusal::TooMuch) }
        };
        match order.what.ok_or(Refusal::Malformed)? {
            wire::What::Echo(wire::Echo { count }) if count > ECHOES_MAX => Err(Refusal::TooMuch),
            wire::What::Echo(wire::Echo { count }) => Ok(Self::Echo { count }),
            wire::What::Send(bulk) => bounded(bulk).map(Self::Send),
            wire::What::Take(bulk) => bounded(bulk).map(Self::Take),
            wire::What::Dial(dial) if dial.addresses.len() > DIAL_MAX => Err(Refusal::TooMuch),
            wire::What::Dial(dial) => {
                let addresses = dial.addresses.into_iter().map(Multiaddr::try_from).collect::<Result<_, _>>();
                addresses.map(Self::Dial).map_err(|_| Refusal::Malformed)
            }
        }
    }

    /// The order as a frame.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let bulk = |bulk: &Bulk| wire::Bulk {
            bytes: bulk.bytes,
            within_ms: u32::try_from(bulk.within.as_millis()).unwrap_or(u32::MAX),
        };
        let what = match self {
            Self::Echo { count } => wire::What::Echo(wire::Echo { count: *count }),
            Self::Send(of) => wire::What::Send(bulk(of)),
            Self::Take(of) => wire::What::Take(bulk(of)),
            Self::Dial(addresses) => {
                wire::What::Dial(wire::Dial { addresses: addresses.iter().map(Multiaddr::to_vec).collect() })
            }
        };
        wire::Order { what: Some(what) }.encode_to_vec().into()
    }
}

impl Reply {
    /// Reads a reply as it came from another peer.
    ///
    /// # Errors
    /// [`Refusal::Malformed`].
    pub fn read(frame: &[u8]) -> Result<Self, Refusal> {
        if frame.len() > ORDER_BYTES_MAX {
            return Err(Refusal::Malformed);
        }
        let reply = wire::Reply::decode(frame).map_err(|_| Refusal::Malformed)?;
        Ok(match reply.said.ok_or(Refusal::Malformed)? {
            wire::Said::Go(_) => Self::Go,
            wire::Said::Refused(wire::Refused { reason }) => Self::Refused(Refusal::of_number(reason)),
            wire::Said::Taken(wire::Taken { bytes }) => Self::Taken(bytes),
            wire::Said::Dialled(wire::Dialled { outcomes }) => {
                let outcome = |outcome: wire::Outcome| {
                    let address = Multiaddr::try_from(outcome.address).map_err(|_| Refusal::Malformed)?;
                    Ok(Outcome { address, failed: outcome.failed.map(|words| shortened(&words)) })
                };
                Self::Dialled(outcomes.into_iter().take(DIAL_MAX).map(outcome).collect::<Result<_, _>>()?)
            }
        })
    }

    /// The reply as a frame.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let said = match self {
            Self::Go => wire::Said::Go(wire::Go {}),
            Self::Refused(refusal) => wire::Said::Refused(wire::Refused { reason: refusal.number() }),
            Self::Taken(bytes) => wire::Said::Taken(wire::Taken { bytes: *bytes }),
            Self::Dialled(outcomes) => {
                let outcome = |outcome: &Outcome| wire::Outcome {
                    address: outcome.address.to_vec(),
                    failed: outcome.failed.as_deref().map(shortened),
                };
                wire::Said::Dialled(wire::Dialled { outcomes: outcomes.iter().map(outcome).collect() })
            }
        };
        wire::Reply { said: Some(said) }.encode_to_vec().into()
    }
}

fn shortened(words: &str) -> String {
    words.chars().take(WORDS_CHARS_MAX).collect()
}

/// The messages as they travel.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Order {
        #[prost(oneof = "What", tags = "1, 2, 3, 4")]
        pub(super) what: Option<What>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum What {
        #[prost(message, tag = "1")]
        Echo(Echo),
        #[prost(message, tag = "2")]
        Send(Bulk),
        #[prost(message, tag = "3")]
        Take(Bulk),
        #[prost(message, tag = "4")]
        Dial(Dial),
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Echo {
        #[prost(uint32, tag = "1")]
        pub(super) count: u32,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Bulk {
        #[prost(uint64, tag = "1")]
        pub(super) bytes: u64,
        #[prost(uint32, tag = "2")]
        pub(super) within_ms: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Dial {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub(super) addresses: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Reply {
        #[prost(oneof = "Said", tags = "1, 2, 3, 4")]
        pub(super) said: Option<Said>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Said {
        #[prost(message, tag = "1")]
        Go(Go),
        #[prost(message, tag = "2")]
        Refused(Refused),
        #[prost(message, tag = "3")]
        Taken(Taken),
        #[prost(message, tag = "4")]
        Dialled(Dialled),
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Go {}

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Refused {
        #[prost(uint32, tag = "1")]
        pub(super) reason: u32,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Taken {
        #[prost(uint64, tag = "1")]
        pub(super) bytes: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Dialled {
        #[prost(message, repeated, tag = "1")]
        pub(super) outcomes: Vec<Outcome>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Outcome {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) address: Vec<u8>,
        #[prost(string, optional, tag = "2")]
        pub(super) failed: Option<String>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn address() -> impl Strategy<Value = Multiaddr> {
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| {
            format!("/ip4/{}/tcp/{port}", std::net::Ipv4Addr::from(ip)).parse().expect("a legal address")
        })
    }

    fn order() -> impl Strategy<Value = Order> {
        let bulk = (0..=BULK_BYTES_MAX, 0..=BULK_WITHIN_MAX.as_millis() as u64)
            .prop_map(|(bytes, ms)| Bulk { bytes, within: Duration::from_millis(ms) });
        prop_oneof![
            (0..=ECHOES_MAX).prop_map(|count| Order::Echo { count }),
            bulk.clone().prop_map(Order::Send),
            bulk.prop_map(Order::Take),
            vec(address(), 0..=DIAL_MAX).prop_map(Order::Dial),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let outcome =
            (address(), proptest::option::of("[a-z ]{0,80}")).prop_map(|(address, failed)| Outcome { address, failed });
        prop_oneof![
            Just(Reply::Go),
            proptest::sample::select(&Refusal::ALL[..]).prop_map(Reply::Refused),
            any::<u64>().prop_map(Reply::Taken),
            vec(outcome, 0..=DIAL_MAX).prop_map(Reply::Dialled),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(order in order(), reply in reply()) {
            prop_assert_eq!(Order::read(&order.write()), Ok(order));
            prop_assert_eq!(Reply::read(&reply.write()), Ok(reply));
        }

        #[test]
        fn whatever_is_read_is_within_bounds(bytes in vec(any::<u8>(), 0..200), cut in 0..200_usize, order in order()) {
            // Neither noise nor an order that was cut or overwritten makes it panic or go beyond.
            let mut spoilt = order.write().to_vec();
            spoilt.truncate(cut.max(1));
            let end = bytes.len().min(spoilt.len());
            spoilt[..end / 4].copy_from_slice(&bytes[..end / 4]);
            for bytes in [bytes, spoilt] {
                let _ = Reply::read(&bytes);
                match Order::read(&bytes) {
                    Ok(Order::Echo { count }) => prop_assert!(count <= ECHOES_MAX),
                    Ok(Order::Send(bulk) | Order::Take(bulk)) => {
                        prop_assert!(bulk.bytes <= BULK_BYTES_MAX && bulk.within <= BULK_WITHIN_MAX);
                    }
                    Ok(Order::Dial(addresses)) => prop_assert!(addresses.len() <= DIAL_MAX),
                    Err(_) => {}
                }
            }
        }
    }

    #[test]
    fn orders_beyond_the_bounds_are_refused_by_name() {
        let bulk = Bulk { bytes: 1, within: Duration::from_secs(1) };
        for (order, refusal) in [
            (Order::Echo { count: ECHOES_MAX + 1 }, Refusal::TooMuch),
            (Order::Send(Bulk { bytes: BULK_BYTES_MAX + 1, ..bulk }), Refusal::TooMuch),
            (Order::Take(Bulk { within: BULK_WITHIN_MAX + Duration::from_millis(1), ..bulk }), Refusal::TooMuch),
            (Order::Dial(vec![Multiaddr::empty(); DIAL_MAX + 1]), Refusal::TooMuch),
        ] {
            assert_eq!(Order::read(&order.write()), Err(refusal), "{order:?}");
        }
        assert_eq!(Order::read(&vec![0; ORDER_BYTES_MAX + 1]), Err(Refusal::TooMuch));
        assert_eq!(Order::read(&[]), Err(Refusal::Malformed), "it says nothing that is known");
        assert_eq!(Reply::read(&[0x12, 0x02, 0x08, 0x63]), Ok(Reply::Refused(Refusal::Malformed)), "a newer reason");
        assert_eq!(Refusal::ALL.map(|refusal| Refusal::of_number(refusal.number())), Refusal::ALL);
    }

    #[test]
    fn the_words_of_another_are_short() {
        let outcome = Outcome { address: Multiaddr::empty(), failed: Some("ä".repeat(10_000)) };
        let Ok(Reply::Dialled(outcomes)) = Reply::read(&Reply::Dialled(vec![outcome]).write()) else { panic!("read") };
        assert_eq!(outcomes[0].failed.as_ref().map(|words| words.chars().count()), Some(WORDS_CHARS_MAX));
    }
}
