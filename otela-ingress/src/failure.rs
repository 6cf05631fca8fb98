//! Why an attempt gave nothing to pass on, and what may be done about it.

use crate::standing::Strike;
use bytes::Bytes;
use http::{StatusCode, response};
use otela_node::peer::{Path, SendError};
use std::time::Duration;

/// A failed attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request could not be sent, or the connection broke before an answer.
    Send(SendError),
    /// No head of an answer in time.
    Timeout(Duration),
    /// A head, and then nothing in time.
    Stalled(Duration),
    /// The node has as many requests as it takes: it is to be waited for, as for one that is full from here.
    Full,
    /// The node or its engine answers that it cannot serve: passed on if nobody else can.
    Refused(Box<Whole>),
    /// The answer broke off before anything of it was passed on.
    Truncated,
    /// The answer says that all is well and holds nothing.
    Empty,
    /// The answer says that all is well, and its first event that it has failed. These are its bytes.
    ErrorEvent(Bytes),
    /// The same, with its head.
    FailedStream(Box<Whole>),
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) head: response::Parts,
    pub(crate) body: Bytes,
    pub(crate) delivered: bool,
    /// The way that it came.
    pub(crate) path: Option<Path>,
}

impl Failure {
    /// Gives the answer's head and its way to those failures that may be passed on.
    pub(crate) fn with_answer(self, head: response::Parts, path: Path) -> Self {
        let path = Some(path);
        match self {
            Self::ErrorEvent(body) => Self::FailedStream(Box::new(Whole { head, body, delivered: true, path })),
            Self::Refused(whole) => Self::Refused(Box::new(Whole { path, ..*whole })),
            other => other,
        }
    }

    /// Whether an engine may have worked on the request.
    pub(crate) fn delivered(&self) -> bool {
        match self {
            Self::Send(error) => error.delivered(),
            Self::Refused(whole) => whole.delivered,
            Self::Full => false,
            Self::Timeout(_)
            | Self::Stalled(_)
            | Self::Truncated
            | Self::Empty
            | Self::ErrorEvent(_)
            | Self::FailedStream(_) => true,
        }
    }

    /// Whether the way to the node is gone, and perhaps not the node.
    pub(crate) fn is_of_the_path(&self) -> bool {
        matches!(self, Self::Send(SendError::PathLost { .. }))
    }

    /// Whether the node was not reached: it may be well, and have said by now where it is reached.
    pub(crate) fn is_unreached(&self) -> bool {
        matches!(self, Self::Send(error) if error.is_unreached())
    }

    /// Whether an engine may still be at work on the request: another one gets it only once the first has certainly
    /// heard that it is not wanted any more. Sending a long prompt from engine to engine is how overload spreads.
    pub(crate) fn may_still_run(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Stalled(_))
    }

    /// What it says of the session.
    pub(crate) fn strike(&self) -> Option<Strike> {
        let failed = match self {
            // Of these the peer takes note; a node that is too busy is well.
            Self::Send(error) => matches!(error, SendError::Broken { delivered: true, .. }),
            Self::Full => false,
            Self::Refused(whole) => whole.delivered && whole.head.status != StatusCode::TOO_MANY_REQUESTS,
            _ => true,
        };
        failed.then_some(Strike::Failed)
    }

    /// What the network said, for whoever reads the log.
    pub(crate) fn cause(&self) -> Option<String> {
        match self {
            Self::Send(error) => Some(otela_node::telemetry::chain(error)),
            _ => None,
        }
    }

    /// The failure as a metric label.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Send(SendError::Busy) => "busy",
            Self::Send(SendError::Connect(_) | SendError::ConnectTimeout(_)) => "unreachable",
            Self::Send(SendError::Broken { .. }) => "broken",
            Self::Send(SendError::PathLost { .. }) => "path_lost",
            Self::Full => "full",
            Self::Timeout(_) => "timeout",
            Self::Stalled(_) => "stalled",
            Self::Refused(_) => "refused",
            Self::Truncated => "truncated",
            Self::Empty => "empty",
            Self::ErrorEvent(_) | Self::FailedStream(_) => "error_event",
        }
    }
}
