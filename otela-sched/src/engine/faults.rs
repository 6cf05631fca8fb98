//! What an engine can be told to do wrong, and how a response does it.
//!
//! *Events* are counted as a client sees them: one server-sent event each, or, in an answer that is not streamed,
//! one half of its body each. A response that breaks off says so to its connection (`Connection::break_off`), which
//! alone can close or reset the socket; by then everything before has been flushed.

use super::connection::Connection;
use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _};
use serde::Deserialize;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// What goes wrong with a request. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Answer with this error.
    pub fail: Option<Failure>,
    /// Take the request and never send a byte, while `/health` says that all is well.
    pub hang: bool,
    /// Answer 200, and send an error as the first event. An answer that is not streamed becomes a 500.
    pub error_event: bool,
    /// Wait this long before the first event. In an answer that is not streamed, before the headers.
    pub silence: Duration,
    /// Break the answer off.
    pub break_off: Option<BreakOff>,
}

/// An error answer done on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// Sent as `Retry-After`, in whole seconds.
    pub retry_after: Option<Duration>,
}

/// Where and how an answer breaks off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakOff {
    /// After this many events.
    pub events: u64,
    /// What happens then.
    pub how: How,
}

/// How an answer breaks off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The connection stays open and nothing more comes.
    Stall,
    /// The connection is closed without the end of the answer.
    Cut,
    /// The connection is reset.
    Reset,
    /// The whole engine goes down, with all its connections.
    Crash,
}

impl How {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Cut => "cut",
            Self::Reset => "reset",
            Self::Crash => "crash",
        }
    }
}

/// The field `otela_sim` of a request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RequestedFaults {
    fail: Option<u16>,
    retry_after_secs: Option<u64>,
    hang: bool,
    error_event: bool,
    silence_ms: u64,
    stall_after: Option<u64>,
    cut_after: Option<u64>,
    reset_after: Option<u64>,
    crash_after: Option<u64>,
}

impl RequestedFaults {
    /// What was asked for, or what is wrong with it.
    pub(crate) fn faults(&self) -> Result<Faults, String> {
        let mut breaks = [
            (self.stall_after, How::Stall),
            (self.cut_after, How::Cut),
            (self.reset_after, How::Reset),
            (self.crash_after, How::Crash),
        ]
        .into_iter()
        .filter_map(|(events, how)| events.map(|events| BreakOff { events, how }));
        let break_off = breaks.next();
        if breaks.next().is_some() {
            return Err("give one of stall_after, cut_after, reset_after and crash_after".to_owned());
        }
        let retry_after = self.retry_after_secs.map(Duration::from_secs);
        let fail = self.fail.map(|status| Failure { status, retry_after });
        match fail {
            Some(Failure { status, .. }) if !(400..600).contains(&status) => {
                return Err(format!("fail must be an HTTP error status from 400 to 599, got {status}"));
            }
            None if retry_after.is_some() => return Err("retry_after_secs needs fail".to_owned()),
            _ => {}
        }
        let silence = Duration::from_millis(self.silence_ms);
        Ok(Faults { fail, hang: self.hang, error_event: self.error_event, silence, break_off })
    }
}

impl Faults {
    /// The events of an answer with silence before them and a break in them. `broken` is told of the break.
    pub(crate) fn inflict<S, B>(
        &self,
        events: S,
        connection: Arc<Connection>,
        broken: B,
    ) -> impl Stream<Item = Bytes> + Send + use<S, B>
    where
        S: Stream<Item = Bytes> + Send + 'static,
        B: FnOnce(How) + Send + 'static,
    {
        let silence = self.silence;
        let broken =
            Breaking { events: Box::pin(events), at: self.break_off, connection, broken: Some(Box::new(broken)) };
        let wait = async move {
            if !silence.is_zero() {
                tokio::time::sleep(silence).await;
            }
            broken
        };
        wait.into_stream().flatten()
    }
}

struct Breaking {
    events: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    at: Option<BreakOff>,
    connection: Arc<Connection>,
    broken: Option<Box<dyn FnOnce(How) + Send>>,
}

impl Stream for Breaking {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match &mut self.at {
            // Nobody wakes this task again but the connection, which keeps watching its socket.
            Some(BreakOff { events: 0, how }) => {
                let how = *how;
                if let Some(broken) = self.broken.take() {
                    broken(how);
                    self.connection.break_off(how);
                }
                Poll::Pending
            }
            at => {
                let mut left = *at;
                let next = self.events.as_mut().poll_next(cx);
                if let (Poll::Ready(Some(_)), Some(left)) = (&next, &mut left) {
                    left.events -= 1;
                }
                self.at = left;
                next
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<Faults, String> {
        serde_json::from_str::<RequestedFaults>(json).map_err(|error| error.to_string())?.faults()
    }

    #[test]
    fn a_request_may_ask_for_faults_and_mistakes_are_named() {
        assert_eq!(parsed("{}"), Ok(Faults::default()));
        let cut = parsed(r#"{"cut_after":3,"silence_ms":20}"#).unwrap();
        assert_eq!(cut.break_off, Some(BreakOff { events: 3, how: How::Cut }));
        assert_eq!(cut.silence, Duration::from_millis(20));
        let fail = parsed(r#"{"fail":503,"retry_after_secs":2}"#).unwrap().fail.unwrap();
        assert_eq!((fail.status, fail.retry_after), (503, Some(Duration::from_secs(2))));
        assert!(parsed(r#"{"cut_after":3,"stall_after":1}"#).unwrap_err().contains("one of"));
        assert!(parsed(r#"{"fail":200}"#).unwrap_err().contains("400 to 599"));
        assert!(parsed(r#"{"retry_after_secs":1}"#).unwrap_err().contains("needs fail"));
        assert!(parsed(r#"{"cut_befor":3}"#).unwrap_err().contains("cut_befor"));
    }

    #[tokio::test]
    async fn a_break_comes_after_exactly_so_many_events() {
        for events in 0..3 {
            let faults = Faults { break_off: Some(BreakOff { events, how: How::Cut }), ..Faults::default() };
            let connection = Arc::new(Connection::default());
            let whole = futures::stream::iter((0..9).map(|_| Bytes::from_static(b"x")));
            let mut broken = Box::pin(faults.inflict(whole, Arc::clone(&connection), |_| {}));
            for _ in 0..events {
                assert!(broken.next().await.is_some());
                assert_eq!(connection.fate(), None);
            }
            assert!(broken.next().now_or_never().is_none());
            assert_eq!(connection.fate(), Some(How::Cut));
        }
    }
}
