//! What the engine prints: always read, echoed if anybody takes it, the last lines kept.
//!
//! The engine never waits for a reader of ours. Memory is bounded whatever it prints: so many lines of so many
//! bytes, and so many chunks on their way to our own output; what does not fit is dropped and counted.

use super::fatal::{Belief, FatalLine, FatalPatterns};
use memchr::memchr2;
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    mem,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{oneshot, watch},
};

/// Lines kept.
const LINES_MAX: usize = 2000;
/// Bytes kept of one line.
const LINE_BYTES_MAX: usize = 4096;
/// Bytes read at once: what a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks waiting for each of our own outputs; 2 MiB together.
const ECHO_CHUNKS: usize = 32;

/// The last lines of an engine's standard output and standard error, in the order they were read. Clones share.
#[derive(Debug, Clone, Default)]
pub struct Output {
    ring: Arc<Mutex<Ring>>,
    fatal: watch::Sender<Option<FatalLine>>,
    patterns: Arc<FatalPatterns>,
}

/// Some of the lines, and where those after them begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The number of the first of them; lines are counted from 0.
    pub first: u64,
    /// Oldest first.
    pub lines: Vec<String>,
    /// The number of the line that comes next.
    pub next: u64,
}

impl Output {
    /// Of an engine whose lines are looked at for these patterns.
    #[must_use]
    pub fn watched_for(patterns: Arc<FatalPatterns>) -> Self {
        Self { patterns, ..Self::default() }
    }

    /// Resolves with a line that tells of a fatal fault. One that [`Self::survived`] says is no news is not told again.
    pub async fn fatal(&self) -> FatalLine {
        let mut fatal = self.fatal.subscribe();
        // The sender lives as long as `self`.
        match fatal.wait_for(Option::is_some).await.map(|line| line.clone()) {
            Ok(Some(line)) => line,
            _ => std::future::pending().await,
        }
    }

    /// The engine was asked after a fatal line, and is well.
    pub fn survived(&self) {
        self.fatal.send_replace(None);
    }

    /// At most `most` whole lines from number `after` on, or the last ones. What is not kept any more is left out.
    #[must_use]
    pub fn page(&self, after: Option<u64>, most: usize) -> Page {
        let ring = self.ring();
        let kept = ring.lines.len();
        let end = ring.forgotten + kept as u64;
        let first = after.unwrap_or(end.saturating_sub(most as u64)).clamp(ring.forgotten, end);
        let skip = usize::try_from(first - ring.forgotten).unwrap_or(kept);
        let lines: Vec<String> = ring.lines.iter().skip(skip).take(most).map(Line::text).collect();
        Page { first, next: first + lines.len() as u64, lines }
    }

    /// At most `n` lines, oldest first, unfinished ones at the end. Longer lines than 4 KiB are cut and say so;
    /// bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn last_lines(&self, n: usize) -> Vec<String> {
        let ring = self.ring();
        let unfinished = ring.partial.iter().map(|partial| &partial.line).filter(|line| !line.bytes.is_empty());
        let finished = ring.lines.iter().rev().take(n).rev();
        let mut lines: Vec<String> = finished.chain(unfinished).map(Line::text).collect();
        lines.drain(..lines.len().saturating_sub(n));
        lines
    }

    /// The newest line that is not blank, finished or not: what a progress bar says now.
    #[must_use]
    pub fn last_line(&self) -> Option<String> {
        self.last_lines(16).into_iter().rev().find(|line| !line.trim().is_empty())
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feed(&self, stream: Stream, bytes: &[u8]) {
        let mut fatal = None;
        let may_be_fatal = self.patterns.may_be_in(bytes);
        self.ring().feed(stream, bytes, |line, began_before| {
            if fatal.is_none() && (may_be_fatal || began_before) {
                fatal = self.patterns.belief(line).map(|belief| (belief, String::from_utf8_lossy(line).into_owned()));
            }
        });
        let Some((belief, text)) = fatal else { return };
        self.fatal.send_if_modified(|known| {
            // The first one is the cause; but one that is certain counts more.
            let is_news = known.as_ref().is_none_or(|known| known.belief != Belief::AtOnce && belief == Belief::AtOnce);
            if is_news {
                *known = Some(FatalLine { text, belief });
            }
            is_news
        });
    }

    /// Reads `pipe` to its end.
    pub(super) async fn drain(self, mut pipe: impl AsyncRead + Unpin, stream: Stream, echo: Option<Echo>) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match pipe.read(&mut chunk).await {
                Ok(0) => return,
                Ok(n) => {
                    if let Some(echo) = &echo {
                        echo.send(stream, &chunk[..n]);
                    }
                    self.feed(stream, &chunk[..n]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, ?stream, "cannot read the engine's output any more");
                    return;
                }
            }
        }
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Line>,
    /// How many lines were dropped at the front.
    forgotten: u64,
    partial: [Partial; 2],
}

impl Ring {
    /// Takes what was read; `ended` sees each line that ends in it, as far as it is kept, and whether it began before.
    fn feed(&mut self, stream: Stream, mut rest: &[u8], mut ended: impl FnMut(&[u8], bool)) {
        let partial = &mut self.partial[stream as usize];
        let mut began_before = !partial.line.bytes.is_empty();
        while !rest.is_empty() {
            let (run, next) = rest.split_at(memchr2(b'\n', b'\r', rest).unwrap_or(rest.len()));
            partial.extend(run);
            match next.first() {
                Some(b'\n') => {
                    ended(&partial.line.bytes, mem::take(&mut began_before));
                    // Whoever prints much makes room for a line by losing one, whose memory serves again.
                    let oldest = if self.lines.len() == LINES_MAX { self.lines.pop_front() } else { None };
                    self.forgotten += u64::from(oldest.is_some());
                    let mut empty = oldest.unwrap_or_default();
                    empty.clear();
                    self.lines.push_back(mem::replace(&mut partial.line, empty));
                    partial.returned = false;
                }
                Some(_) => partial.returned = true,
                None => {}
            }
            rest = next.get(1..).unwrap_or_default();
        }
    }
}

/// A line that has not ended yet.
#[derive(Debug, Default)]
struct Partial {
    line: Line,
    /// A carriage return was read: more text overwrites, as on a terminal. Progress bars would else be one line
    /// of megabytes.
    returned: bool,
}

impl Partial {
    fn extend(&mut self, run: &[u8]) {
        if run.is_empty() {
            return;
        }
        if mem::take(&mut self.returned) {
            self.line.clear();
        }
        self.line.extend(run);
    }
}

/// What is kept of a line. Most lines are never looked at, so they are made text by whoever does.
#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    lost: u64,
}

impl Line {
    fn extend(&mut self, run: &[u8]) {
        let kept = run.len().min(LINE_BYTES_MAX - self.bytes.len());
        self.bytes.extend_from_slice(&run[..kept]);
        self.lost += (run.len() - kept) as u64;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.lost = 0;
    }

    fn text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.bytes).into_owned();
        // A replacement character is longer than the byte it stands for.
        text.truncate(text.floor_char_boundary(LINE_BYTES_MAX));
        if self.lost > 0 {
            text.push_str(&format!(" [... {} bytes cut]", self.lost));
        }
        text
    }
}

enum Parcel {
    Bytes(Vec<u8>),
    Flush(oneshot::Sender<()>),
}

/// Copies engines' output to our own, unchanged. Two threads do the writing, because a terminal or pipe that
/// nobody reads would block a task; what they cannot take in time is dropped and counted. Make one per agent;
/// clones share it, and the threads end with the last.
#[derive(Debug, Clone)]
pub struct Echo {
    stdout: mpsc::SyncSender<Parcel>,
    stderr: mpsc::SyncSender<Parcel>,
    dropped: Arc<AtomicU64>,
}

impl Echo {
    /// To this process's standard output and standard error.
    ///
    /// # Errors
    /// One of them is closed, or no thread can be made.
    pub fn to_own_output() -> io::Result<Self> {
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        Self::to(stdout, stderr)
    }

    /// To these two writers.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn to(stdout: impl Write + Send + 'static, stderr: impl Write + Send + 'static) -> io::Result<Self> {
        let dropped = Arc::new(AtomicU64::new(0));
        let stdout = writer("engine-stdout", stdout, Arc::clone(&dropped))?;
        let stderr = writer("engine-stderr", stderr, Arc::clone(&dropped))?;
        Ok(Self { stdout, stderr, dropped })
    }

    /// Bytes that were not echoed since the start, because our own output was full, slow or closed.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn send(&self, stream: Stream, bytes: &[u8]) {
        let target = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        if target.try_send(Parcel::Bytes(bytes.to_vec())).is_err() {
            count(&self.dropped, bytes.len());
        }
    }

    /// Waits, at most `limit`, until what was sent so far is written.
    pub(super) async fn flush(&self, limit: Duration) {
        let waits = [&self.stdout, &self.stderr].map(|target| {
            let (written, wait) = oneshot::channel();
            target.try_send(Parcel::Flush(written)).ok().map(|()| wait)
        });
        let all = futures::future::join_all(waits.into_iter().flatten());
        let _too_slow = tokio::time::timeout(limit, all).await;
    }
}

fn count(dropped: &AtomicU64, bytes: usize) {
    if dropped.fetch_add(bytes as u64, Ordering::Relaxed) == 0 {
        tracing::warn!("our own output does not take the engine's: dropping some of it");
    }
}

fn writer(
    name: &str,
    mut target: impl Write + Send + 'static,
    dropped: Arc<AtomicU64>,
) -> io::Result<mpsc::SyncSender<Parcel>> {
    let (sender, parcels) = mpsc::sync_channel(ECHO_CHUNKS);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        for parcel in parcels {
            match parcel {
                Parcel::Bytes(bytes) => {
                    if target.write_all(&bytes).and_then(|()| target.flush()).is_err() {
                        count(&dropped, bytes.len());
                    }
                }
                Parcel::Flush(written) => {
                    let _gave_up_waiting = written.send(());
                }
            }
        }
    })?;
    Ok(sender)
}

#[cfg(test)]
mod tests;
