//! Counts what a relay carries. libp2p does not tell it of circuits, so all substreams of all connections count; of a
//! relay's own gossip there is little.

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::{
    StreamMuxer,
    muxing::{StreamMuxerBox, StreamMuxerEvent, SubstreamBox},
};
use prometheus_client::metrics::counter::Counter;
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

/// Bytes that came and went.
#[derive(Debug, Clone, Default)]
pub(in crate::peer) struct Carried {
    pub(in crate::peer) received: Counter,
    pub(in crate::peer) sent: Counter,
}

/// A connection whose substreams are counted.
pub(super) struct Counted {
    muxer: StreamMuxerBox,
    carried: Carried,
}

/// One of its substreams.
pub(super) struct CountedStream {
    stream: SubstreamBox,
    carried: Carried,
}

impl Carried {
    /// Counts what `muxer` carries.
    pub(super) fn count(&self, muxer: StreamMuxerBox) -> StreamMuxerBox {
        StreamMuxerBox::new(Counted { muxer, carried: self.clone() })
    }
}

impl Counted {
    fn counted(&self, stream: Poll<io::Result<SubstreamBox>>) -> Poll<io::Result<CountedStream>> {
        stream.map_ok(|stream| CountedStream { stream, carried: self.carried.clone() })
    }
}

impl StreamMuxer for Counted {
    type Substream = CountedStream;
    type Error = io::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<CountedStream>> {
        let stream = Pin::new(&mut self.muxer).poll_inbound(cx);
        self.counted(stream)
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<CountedStream>> {
        let stream = Pin::new(&mut self.muxer).poll_outbound(cx);
        self.counted(stream)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.muxer).poll_close(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        Pin::new(&mut self.muxer).poll(cx)
    }
}

impl CountedStream {
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        written.map_ok(|bytes| {
            self.carried.sent.inc_by(bytes as u64);
            bytes
        })
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        read.map_ok(|bytes| {
            self.carried.received.inc_by(bytes as u64);
            bytes
        })
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
