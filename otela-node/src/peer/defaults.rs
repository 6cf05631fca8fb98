//! Every number of a peer, with its reason.

use std::time::Duration;

/// Pings measure, and close what the failure detector does not watch: it probes links, evicts the dead, and closes a
/// connection whose peer answers others but not us. Pings would be a good part of what an idle peer sends, so they
/// are rare.
pub(super) const PING_EVERY: Duration = Duration::from_secs(120);
/// The same through a proxy and over WebSocket, where somebody between cuts what is silent: the usual limits begin at
/// thirty seconds.
pub(super) const WEB_PING_EVERY: Duration = Duration::from_secs(20);
/// Longer than any round trip worth serving over.
pub(super) const PING_WITHIN: Duration = Duration::from_secs(5);
/// Failed pings in a row that are reported before the connection is closed. libp2p keeps the first one to itself, so
/// this is the second.
pub(super) const PING_MISSES_MAX: u32 = 1;
/// From a stream of bytes to a connection that is encrypted and proven.
pub(super) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Circuits whose limits were told before their connections were there.
pub(super) const CIRCUITS_TOLD_MAX: usize = 4_096;
/// Releases that need no second look at their signature.
pub(super) const RELEASES_KNOWN_MAX: usize = 32;
/// From an encrypted connection to one that is admitted. Each side says two short things.
pub(super) const ADMISSION_WITHIN: Duration = Duration::from_secs(5);
/// Whoever is refused has this long to read why.
pub(super) const REFUSAL_READ_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked whether those who are connected may still be: what they have shown ends with time.
pub(super) const JUDGE_EVERY: Duration = Duration::from_secs(60);
/// How often it is looked whether the mesh file has changed.
pub(super) const MESH_FILE_EVERY: Duration = Duration::from_secs(5);
/// A provider certificate that is made by the node itself lasts so long: short, for where nobody revokes anything the end
/// is all that stops a node which the provider has given away...
pub(super) const CERTIFICATE_FOR: Duration = Duration::from_hours(24 * 3);
/// ...and is made anew when no more than this is left, which is longer than entries are kept.
pub(super) const CERTIFICATE_RENEWED_AT: Duration = Duration::from_hours(24 * 2);
/// What a peer shows at the door is warned of this long before it ends.
pub(super) const EXPIRES_SOON: Duration = Duration::from_hours(24 * 7);
/// A look at it takes longer only where a file system hangs.
pub(super) const MESH_FILE_WITHIN: Duration = Duration::from_secs(20);
/// So many refusals are remembered for the dialler.
pub(super) const REFUSED_KEPT: usize = 64;
/// A peer that was refused, or refuses us, is not dialled again for this long: rules change seldom.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// Who was refused so lately, and is in no mesh, is not there because of that.
pub(super) const REFUSED_LATELY: Duration = Duration::from_mins(1);
/// A QUIC connection that is silent for this long is dead.
pub(super) const QUIC_SILENCE_MAX: Duration = Duration::from_secs(6);
/// The largest frame of a WebSocket: what is written at once inside is less than a quarter of that.
pub(super) const WSS_FRAME_MAX: usize = 1024 * 1024;
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
/// The same of bootstraps and relays, which others are reached through: with jitter twice that, and a minute after one
/// is back everybody is back.
pub(super) const REDIAL_MEETING_MAX: Duration = Duration::from_secs(20);
/// A peer's own addresses have this long before the others are tried as well: relayed ones, and QUIC where it has TCP.
/// Less than a person notices, more than a connection across the world takes.
pub(super) const DIRECT_FIRST_FOR: Duration = Duration::from_millis(300);
/// Where somebody answers, the handshake has this long from the dial on: across the world it takes six round trips. It
/// is looked at...
pub(super) const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(1_200);
/// ...this often.
pub(super) const HANDSHAKE_LOOK_EVERY: Duration = Duration::from_millis(100);
/// A circuit through a relay that is just being dialled is looked at again after this.
pub(super) const RELAY_LOOK_EVERY: Duration = Duration::from_millis(20);
/// And these before what goes out like the web: WebSocket, and the site's proxy. As long as a circuit through a relay
/// may take across the world, and together soon enough for a request that waits.
pub(super) const LAST_RESORT_AFTER: Duration = Duration::from_millis(600);
/// Addresses of a peer that the site's proxy is asked for.
pub(super) const PROXIED_ADDRESSES_MAX: usize = 4;
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
/// Peers on lists of bootstraps are dialled this many at once...
pub(super) const LISTED_DIALS_MAX: usize = 8;
/// ...until this many bootstraps are connected: a list may name everybody, and one of them knows the mesh.
pub(super) const LISTED_UNTIL: usize = 3;
/// A list of bootstraps is read again this often, give or take a fifth.
pub(super) const LIST_EVERY: Duration = Duration::from_hours(1);
/// First pause before a list is read again that could not be read, or of whose addresses none answers.
pub(super) const LIST_AGAIN_MIN: Duration = Duration::from_secs(1);
/// Longest pause.
pub(super) const LIST_AGAIN_MAX: Duration = Duration::from_mins(5);
/// Others are looked for with Kademlia when no bootstrap has been connected for this long...
pub(super) const LOOKUP_AFTER: Duration = Duration::from_secs(10);
/// ...again after pauses that grow to this.
pub(super) const LOOKUP_EVERY_MAX: Duration = Duration::from_mins(10);
/// How long one such search may take.
pub(super) const LOOKUP_WITHIN: Duration = Duration::from_secs(20);
/// Public peers of the registry that are told to others who ask.
pub(super) const PUBLIC_MAX: usize = 256;
/// Peers that were found and are tried; others are passed over...
pub(super) const FOUND_MAX: usize = 64;
/// ...this many at once...
pub(super) const FOUND_DIALS_MAX: usize = 4;
/// ...and each so many times: the next search finds it again.
pub(super) const FOUND_TRIES_MAX: u32 = 3;
/// Addresses of its own that are announced of a peer, and tried of another's record...
pub(super) const DIRECT_ADDRESSES_MAX: usize = 8;
/// ...and addresses at relays.
pub(super) const RELAYED_ADDRESSES_MAX: usize = 6;
/// Relays that a peer wants to relay for it.
pub(super) const RESERVATIONS: usize = 3;
/// Relays that are considered for that.
pub(super) const RELAYS_OFFERED_MAX: usize = 16;
/// How long a relay has to answer.
pub(super) const RESERVE_WITHIN: Duration = Duration::from_secs(10);
/// First pause before a relay is asked again.
pub(super) const RESERVE_AGAIN_MIN: Duration = Duration::from_millis(250);
/// Longest pause.
pub(super) const RESERVE_AGAIN_MAX: Duration = Duration::from_secs(20);
/// How long a relay's word lasts. libp2p renews at three quarters of it by the wall clock, so that it must be longer
/// than clocks may be apart; whoever disconnects has lost it at once.
pub(super) const RESERVATION_FOR: Duration = Duration::from_hours(8);
/// A connection beside a better one is closed when nothing has run on it for this long: the other side may be about to
/// use it.
pub(super) const RETIRED_FOR: Duration = Duration::from_secs(2);
/// Of several direct connections one is enough, but not at once: over the second one two processes with one key learn
/// of each other.
pub(super) const DUPLICATE_FOR: Duration = Duration::from_secs(30);
/// An older connection on which nothing comes for this long after a newer one was set up is dead. Both sides say
/// something on each.
pub(super) const SILENT_FOR: Duration = Duration::from_secs(5);
/// How often peers with several connections are looked at.
pub(super) const TIDY_EVERY: Duration = Duration::from_secs(1);
/// And this soon after a connection was added: many come at one moment when a mesh starts.
pub(super) const TIDY_AFTER: Duration = Duration::from_millis(20);
/// First pause before a direct way to a peer that is reached through a relay is looked for again: longer than libp2p's
/// own tries, which are three of ten seconds.
pub(super) const LOOK_AGAIN_MIN: Duration = Duration::from_secs(40);
/// Longest pause.
pub(super) const LOOK_AGAIN_MAX: Duration = Duration::from_mins(20);
/// How often a relay is asked how we look over QUIC, where the connection to it is TCP.
pub(super) const LOOK_OVER_QUIC_EVERY: Duration = Duration::from_mins(30);
/// A relayed connection that breaks is known to have ended within this, where its end and not the peer is the reason.
pub(super) const PATH_LOST_WITHIN: Duration = Duration::from_millis(250);
/// A peer tells others again how it sees them; observed addresses change with a NAT's mappings.
pub(super) const IDENTIFY_EVERY: Duration = Duration::from_mins(30);
/// Connections that a peer may hold in all, and to one other: two peers may dial each other at once, over two
/// transports and a relay.
pub(super) const CONNECTIONS_MAX: u32 = 4_096;
/// See [`CONNECTIONS_MAX`].
pub(super) const CONNECTIONS_PER_PEER_MAX: u32 = 8;
/// Handshakes under way at once: outgoing ones, and incoming ones where few files may be open...
pub(super) const CONNECTIONS_PENDING_MAX: u32 = 512;
/// ...and incoming ones where many may, so that it takes many hosts to keep others from getting in...
pub(super) const CONNECTIONS_PENDING_WIDE: u32 = 4_096;
/// ...and of one host, which may be the address of a whole cluster.
pub(super) const CONNECTIONS_PENDING_PER_HOST_MAX: usize = 128;
/// Peers whose word on how we look from outside is kept.
pub(super) const OBSERVED_MAX: usize = 16;
/// Peers that are measured from here at once: each may fill the line.
pub(super) const PROBES_MAX: usize = 4;
/// What may be sent and read for measurements in a minute. A line of 1 Gbit/s carries fourteen times as much.
pub(super) const PROBE_BYTES_PER_MINUTE: u64 = 512 * 1024 * 1024;
/// Addresses that are dialled back in a minute, for whoever asks.
pub(super) const PROBE_DIALS_PER_MINUTE: usize = 64;
/// Orders on one stream...
pub(super) const PROBE_ORDERS_MAX: usize = 32;
/// ...which lasts no longer than this...
pub(super) const PROBE_STREAM_FOR_MAX: Duration = Duration::from_secs(60);
/// ...and may be silent for this long.
pub(super) const PROBE_IDLE_MAX: Duration = Duration::from_secs(10);
/// A dial back of whoever is measured is given up after this.
pub(super) const PROBE_DIAL_WITHIN: Duration = Duration::from_secs(7);
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
/// Lists of bootstraps that wait for the driver.
pub(super) const LISTS_QUEUE: usize = 8;
/// Requests from the mesh that wait for the agent.
pub(super) const HTTP_QUEUE: usize = 1_024;
/// Verified entries whose hashes are remembered, so that copies are not verified again.
pub(super) const SEEN_MAX: usize = 16_384;
