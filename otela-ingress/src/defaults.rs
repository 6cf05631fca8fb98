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
/// Nearly twice what a model is known to think before it speaks, and far less than a job's time. An engine that pauses for
/// longer within an answer has lost it.
pub(crate) const STALL_WITHIN: Duration = Duration::from_mins(30);
/// As many as a substream pool lets through; nodes may ask for less.
pub(crate) const IN_FLIGHT_MAX: u32 = 1_024;
/// Requests that wait for a place, for each model. With bodies of 100 KiB that is 100 MiB of [`BODIES_BYTES_MAX`].
pub(crate) const QUEUE_MAX: usize = 1_024;
/// Clients that are patient wait for a minute or more; those that are not have gone.
pub(crate) const QUEUE_WITHIN: Duration = Duration::from_mins(1);
/// A replica that says 429 or 503 with `Retry-After` is left alone for at most this long, whatever it says.
pub(crate) const PAUSE_MAX: Duration = Duration::from_mins(1);
/// A node that has as many requests as it takes, of whatever ingress, is asked again after this time.
pub(crate) const FULL_FOR: Duration = Duration::from_millis(100);
/// Events that only announce an answer are held for so long at the most, in case the next one says that it has failed.
pub(crate) const PRELUDE_WITHIN: Duration = Duration::from_millis(250);
/// The same as a bound on their size.
pub(crate) const PRELUDE_BYTES_MAX: usize = 64 * 1024;
/// How long it may take until a node has certainly heard of a cancelled attempt.
pub(crate) const CANCELLED_WITHIN: Duration = Duration::from_secs(1);
/// A request that reached no node waits for so long until the registry says of another way to one of them.
pub(crate) const WAY_WITHIN: Duration = Duration::from_secs(2);
/// How often one answer is continued without a single new character before it is given up.
pub(crate) const RESUMES_MAX: u32 = 4;
/// Text of one answer that is remembered so that it can be continued.
pub(crate) const TRANSCRIPT_BYTES_MAX: usize = 1024 * 1024;
/// A trial request of one token has this long.
pub(crate) const TRIAL_WITHIN: Duration = Duration::from_secs(30);
/// Middle boxes close what is silent for half a minute or more.
pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Answers up to this size are held until they are whole, so that a truncated one can be had again elsewhere.
pub(crate) const HELD_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// A client must have sent its request's head by then.
pub(crate) const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// A client that had just connected when the ingress began to stop is still answered if it asks by then.
pub(crate) const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(1);
/// Requests at once on one HTTP/2 connection.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Headers of one HTTP/2 request.
pub(crate) const HEADERS_BYTES_MAX: u32 = 64 * 1024;
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
