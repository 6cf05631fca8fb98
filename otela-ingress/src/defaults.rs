//! Every number of an ingress, with its reason.

use std::time::Duration;

/// A handful of screenshots as base64 is normal use; this is four times that.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bodies are held until their request has been answered, since it may have to be sent again. This bounds them
/// all together.
pub(crate) const BODIES_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// About 60 KiB of memory each when busy.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Each attempt needs another node.
pub(crate) const RETRIES_MAX: u32 = 3;
/// Engines that had the request in hand when they failed: after the second the request itself is suspect, and no
/// third engine is given it.
pub(crate) const DELIVERED_MAX: u32 = 2;
/// Middle boxes close what is silent for half a minute or more.
pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Answers up to this size are held until they are whole, so that a truncated one can be had again elsewhere.
pub(crate) const HELD_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// A client must have sent its request's head by then.
pub(crate) const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// A body must make some progress in this time.
pub(crate) const BODY_STALL_MAX: Duration = Duration::from_secs(30);
/// How long a request waits for room among [`BODIES_BYTES_MAX`].
pub(crate) const BODY_ROOM_WITHIN: Duration = Duration::from_secs(10);
/// What clients are told to wait when no replica is ready and nothing better is known.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(2);
/// An error event, and what is still on its way before it, has this long to leave before the connection is aborted.
pub(crate) const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);
/// A client that has closed its sending side, and to whom nothing was or could be written for this long, has gone.
pub(crate) const HALF_CLOSED_SILENCE_MAX: Duration = Duration::from_secs(30);
/// When the time to finish requests is over, what is said of that has this long to leave.
pub(crate) const CLOSING_WITHIN: Duration = Duration::from_millis(500);
/// TCP keep-alive on client connections: first probe after this much silence.
pub(crate) const TCP_KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
