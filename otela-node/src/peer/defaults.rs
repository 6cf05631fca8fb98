//! Every number of a peer, with its reason.

use std::time::Duration;

/// Pings measure, and close what the failure detector does not watch: it probes links, evicts the dead, and closes a
/// connection whose peer answers others but not us. Pings would be a good part of what an idle peer sends, so they
/// are rare.
pub(super) const PING_EVERY: Duration = Duration::from_secs(120);
/// Longer than any round trip worth serving over.
pub(super) const PING_WITHIN: Duration = Duration::from_secs(5);
/// Failed pings in a row that are reported before the connection is closed. libp2p keeps the first one to itself, so
/// this is the second.
pub(super) const PING_MISSES_MAX: u32 = 1;
/// A QUIC connection that is silent for this long is dead.
pub(super) const QUIC_SILENCE_MAX: Duration = Duration::from_secs(6);
/// Substreams on one connection; at the muxer's own default the 513th closes the connection. 4,096 windows of
/// 256 KiB are the most that the muxer's limit of 1 GiB per connection allows.
pub(super) const MUXER_STREAMS_MAX: usize = 4_096;
/// Requests at once to one peer, well below what the muxer takes.
pub(super) const TUNNEL_IN_USE_MAX: usize = 1_024;
/// Idle substreams kept per connection.
pub(super) const TUNNEL_IDLE_MAX: usize = 32;
/// An idle substream costs a few KiB on both sides; a minute bridges the pauses of a conversation.
pub(super) const TUNNEL_IDLE_FOR: Duration = Duration::from_mins(1);
/// Idle substreams kept ready for the next requests.
pub(super) const TUNNEL_SPARE: usize = 2;
/// Opening a substream is one round trip; beyond this the peer counts as unreachable for this attempt.
pub(super) const OPEN_WITHIN: Duration = Duration::from_secs(2);
/// How long a request waits for a place when a peer has [`TUNNEL_IN_USE_MAX`] running.
pub(super) const TUNNEL_QUEUE_WITHIN: Duration = Duration::from_secs(10);
/// How long a request waits for a first connection to a peer.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// First pause between dials of one peer.
pub(super) const REDIAL_MIN: Duration = Duration::from_millis(200);
/// Longest pause between dials of one peer.
pub(super) const REDIAL_MAX: Duration = Duration::from_secs(60);
/// Of two peers that want each other the one with the lower id dials at once, the other after this time.
pub(super) const COURTESY: Duration = Duration::from_millis(300);
/// A connection that lasted this long was a good one.
pub(super) const STEADY_AFTER: Duration = Duration::from_secs(10);
/// Dials under way at once: a mesh of dead addresses must not starve the living ones...
pub(super) const DIALS_MAX: usize = 32;
/// ...nor keep a request waiting: so many of them begin only if somebody waits.
pub(super) const DIALS_RESERVED: usize = 8;
/// Peers of an earlier run are dialled this long after the configured bootstraps, which are usually enough...
pub(super) const REMEMBERED_AFTER: Duration = Duration::from_secs(2);
/// ...this many at once...
pub(super) const REMEMBERED_DIALS_MAX: usize = 4;
/// ...until this many peers are connected, as many as gossip wants...
pub(super) const REMEMBERED_UNTIL: usize = 8;
/// ...and each at most this often, about a minute, once anybody is connected.
pub(super) const REMEMBERED_TRIES_MAX: u32 = 8;
/// Addresses tried of one record.
pub(super) const ADDRESSES_MAX: usize = 8;
/// Connections that a peer may hold in all, and to one other: two peers may dial each other at once, over two
/// transports and a relay.
pub(super) const CONNECTIONS_MAX: u32 = 4_096;
/// See [`CONNECTIONS_MAX`].
pub(super) const CONNECTIONS_PER_PEER_MAX: u32 = 8;
/// Handshakes under way at once, in each direction.
pub(super) const CONNECTIONS_PENDING_MAX: u32 = 256;
/// From a first link until what the mesh says counts as known here.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// A bootstrap that does not answer is complained about this often.
pub(super) const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// Frames that one neighbour may send in a second before it is read more slowly; a mesh of a thousand that starts all
/// at once stays below.
pub(super) const READ_FRAMES_MAX: usize = 2_000;
/// Bytes of the same.
pub(super) const READ_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A wall clock that is off by more is warned about; beyond [`CLOCK_SLACK`](otela_proto::entry::CLOCK_SLACK) entries
/// are refused.
pub(super) const SKEW_WARN: Duration = Duration::from_secs(60);
/// And this often.
pub(super) const SKEW_WARN_EVERY: Duration = Duration::from_mins(10);
/// A reason for refusals is logged this often; it is counted always.
pub(super) const REFUSED_LOG_EVERY: Duration = Duration::from_secs(60);
/// A peer that answers requests is known to live; once in this time is enough.
pub(super) const SERVED_EVERY: Duration = Duration::from_millis(500);
/// Commands and events that wait for the gossip task.
pub(super) const GOSSIP_QUEUE: usize = 1_024;
/// Commands that wait for the driver.
pub(super) const DRIVER_QUEUE: usize = 256;
/// Requests from the mesh that wait for the agent.
pub(super) const HTTP_QUEUE: usize = 1_024;
/// Verified entries whose hashes are remembered, so that copies are not verified again.
pub(super) const SEEN_MAX: usize = 16_384;
