use super::*;

fn fed(chunks: &[&[u8]]) -> Output {
    let output = Output::default();
    for chunk in chunks {
        output.feed(Stream::Stdout, chunk);
    }
    output
}

#[test]
fn lines_end_where_the_engine_ends_them_and_not_where_reads_do() {
    let output = fed(&[b"on", b"e\ntw", b"o\r", b"\nthree"]);
    assert_eq!(output.last_lines(10), ["one", "two", "three"]);
    assert_eq!(output.last_lines(2), ["two", "three"]);
    assert_eq!(output.last_lines(0), [""; 0]);
}

#[test]
fn a_progress_bar_shows_its_newest_state() {
    let output = fed(&[b"loading\n\r 10%", b"\r 20%\r", b" 30%"]);
    assert_eq!(output.last_line().as_deref(), Some(" 30%"));
    assert_eq!(output.last_lines(10), ["loading", " 30%"]);
}

#[test]
fn the_streams_do_not_cut_into_each_others_lines() {
    let output = Output::default();
    output.feed(Stream::Stdout, b"out ");
    output.feed(Stream::Stderr, b"err\n");
    output.feed(Stream::Stdout, b"put\n");
    assert_eq!(output.last_lines(10), ["err", "out put"]);
}

#[test]
fn a_line_without_end_and_bytes_without_meaning_stay_small() {
    let output = Output::default();
    let chunk = vec![0xff; CHUNK_BYTES];
    for _ in 0..80 {
        output.feed(Stream::Stdout, &chunk);
    }
    let [line] = output.last_lines(10).try_into().expect("one unfinished line");
    assert!(line.starts_with('\u{fffd}') && line.len() < LINE_BYTES_MAX + 64, "{} bytes", line.len());
    assert!(line.ends_with(&format!("[... {} bytes cut]", 80 * CHUNK_BYTES - LINE_BYTES_MAX)), "{line}");
    output.feed(Stream::Stdout, b"\nnext");
    assert_eq!(output.last_line().as_deref(), Some("next"));
}

#[test]
fn the_oldest_lines_go_first() {
    let output = Output::default();
    for i in 0..LINES_MAX + 3 {
        output.feed(Stream::Stderr, format!("{i}\n").as_bytes());
    }
    let lines = output.last_lines(usize::MAX);
    assert_eq!((lines.len(), lines[0].as_str()), (LINES_MAX, "3"));
}

/// Takes nothing until the sender is dropped.
struct Stuck(mpsc::Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _dropped = self.0.recv();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_stuck_or_full_output_of_ours_loses_bytes_and_counts_them() {
    let (release, stuck) = mpsc::sync_channel(0);
    let echo = Echo::to(Stuck(stuck), Full).expect("threads");
    let chunks = ECHO_CHUNKS * 2;
    for _ in 0..chunks {
        echo.send(Stream::Stdout, &[0; 100]);
    }
    // One is in the writer's hands or still queued, the queue is full, all others are lost.
    let lost = echo.dropped_bytes();
    assert!((100 * (chunks - ECHO_CHUNKS - 1) as u64..=100 * (chunks - ECHO_CHUNKS) as u64).contains(&lost), "{lost}");
    echo.send(Stream::Stderr, b"full");
    drop(release);
    echo.flush(Duration::from_secs(10)).await;
    assert_eq!(echo.dropped_bytes(), lost + 4);
}

#[test]
fn lines_are_numbered_and_pages_begin_where_the_last_ended() {
    let output = Output::default();
    let write = |from: usize, to: usize| {
        for i in from..to {
            output.feed(Stream::Stdout, format!("{i}\n").as_bytes());
        }
    };
    write(0, 5);
    let last = output.page(None, 2);
    assert_eq!((last.first, last.next, last.lines.concat()), (3, 5, "34".to_owned()));
    assert_eq!(output.page(Some(last.next), 10), Page { first: 5, lines: vec![], next: 5 });
    write(5, 5 + LINES_MAX);
    let page = output.page(Some(0), 3);
    assert_eq!((page.first, page.lines[0].as_str(), page.next), (5, "5", 8), "what is not kept is left out");
    assert_eq!(output.page(Some(u64::MAX), 3).lines, Vec::<String>::new());
}

#[tokio::test]
async fn the_first_fatal_line_is_told_until_the_engine_has_survived_it() {
    let output = Output::watched_for(Arc::new(FatalPatterns::new(&["^lost$"]).unwrap()));
    output.feed(Stream::Stderr, b"RuntimeError: CUDA err");
    output.feed(Stream::Stdout, b"fine\n");
    output.feed(Stream::Stderr, b"or: an illegal memory access\nRuntimeError: CUDA error: again\n");
    let fatal = output.fatal().await;
    assert_eq!(fatal.belief, Belief::AfterAsking);
    assert!(fatal.text.ends_with("illegal memory access"), "{fatal:?}");
    output.feed(Stream::Stderr, b"lost\n");
    assert_eq!(output.fatal().await.belief, Belief::AtOnce, "what is certain counts more");
    output.survived();
    let later = output.clone();
    let (fatal, ()) = tokio::join!(output.fatal(), async move { later.feed(Stream::Stdout, b"NCCL error in: x\n") });
    assert_eq!(fatal.text, "NCCL error in: x");
}
