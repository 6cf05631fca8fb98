//! A client that hides nothing: it tells a clean end from a closed and from a reset connection.

use otela_testing::{eventually, finishes};
use serde_json::Value;
use std::{collections::BTreeMap, io, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Where requests go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    address: SocketAddr,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Clean,
    Closed,
    Reset,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// The data of its events, parsed; `[DONE]` as a string.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        assert!(text.is_empty() || text.ends_with("\n\n"), "{text}");
        text.split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("a data line");
                if data == "[DONE]" { Value::from(data) } else { serde_json::from_str(data).expect("JSON") }
            })
            .collect()
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    pub(crate) async fn connect(self) -> Wire {
        let stream = finishes("the engine", TcpStream::connect(self.address)).await.expect("it listens");
        Wire { stream, buffer: Vec::new() }
    }

    pub(crate) async fn get(self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: engine\r\n\r\n")).await
    }

    pub(crate) async fn post(self, path: &str, body: &Value) -> Reply {
        self.send(&post(path, &body.to_string())).await
    }

    pub(crate) async fn send(self, request: &str) -> Reply {
        let mut wire = self.connect().await;
        wire.write(request).await;
        finishes("the engine", wire.reply()).await
    }

    /// The value of one metric, with labels spelled as they are on the page.
    pub(crate) async fn metric(self, sample: &str) -> f64 {
        let page = self.get("/metrics").await;
        let value = page.text().lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {sample} in {}", page.text()))
    }

    /// Waits until a metric has a value.
    pub(crate) async fn reaches(self, sample: &str, value: f64) {
        eventually(format_args!("{sample} {value}"), async || (self.metric(sample).await == value).then_some(())).await;
    }
}

/// A POST as it goes over the wire.
pub(crate) fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) async fn write(&mut self, bytes: &str) {
        finishes("the engine", self.stream.write_all(bytes.as_bytes())).await.expect("it reads");
    }

    /// Closes the sending side only.
    pub(crate) async fn finish(&mut self) {
        finishes("the engine", self.stream.shutdown()).await.expect("open");
    }

    /// Reads more; 0 at the end.
    async fn more(&mut self) -> io::Result<usize> {
        self.stream.read_buf(&mut self.buffer).await
    }

    /// Waits for the other side to close, and says how it did.
    pub(crate) async fn closed(&mut self) -> End {
        loop {
            match finishes("the engine", self.more()).await {
                Ok(0) => return End::Closed,
                Ok(_) => {}
                Err(_) => return End::Reset,
            }
        }
    }

    /// Reads until the text has come.
    pub(crate) async fn until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.buffer).contains(text) {
            let read = finishes("the engine", self.more()).await.expect("open");
            assert!(read > 0, "closed before {text:?}: {}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// Status and headers.
    pub(crate) async fn head(&mut self) -> (u16, BTreeMap<String, String>) {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at;
            }
            assert!(self.more().await.expect("open") > 0, "closed before the headers");
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8(head).expect("text");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        (status, headers)
    }

    /// One answer, however it ends.
    pub(crate) async fn reply(&mut self) -> Reply {
        let (status, headers) = self.head().await;
        let mut body = Vec::new();
        let end = match headers.get("content-length") {
            Some(length) => self.take(length.parse().expect("a number"), &mut body).await,
            None => self.chunks(&mut body).await,
        };
        Reply { status, headers, body, end }
    }

    /// Moves so many bytes into `body`, or those that come.
    async fn take(&mut self, length: usize, body: &mut Vec<u8>) -> End {
        loop {
            let have = self.buffer.len().min(length);
            let end = match have == length {
                true => End::Clean,
                false => match self.more().await {
                    Ok(0) => End::Closed,
                    Ok(_) => continue,
                    Err(_) => End::Reset,
                },
            };
            body.extend(self.buffer.drain(..have));
            return end;
        }
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) -> End {
        loop {
            let Some(at) = self.buffer.windows(2).position(|bytes| bytes == b"\r\n") else {
                match self.more().await {
                    Ok(0) => return End::Closed,
                    Ok(_) => continue,
                    Err(_) => return End::Reset,
                }
            };
            let size = std::str::from_utf8(&self.buffer[..at]).expect("a size");
            let size = usize::from_str_radix(size, 16).expect("a size");
            self.buffer.drain(..at + 2);
            let mut chunk = Vec::new();
            let end = self.take(size + 2, &mut chunk).await;
            if end != End::Clean {
                return end;
            }
            if size == 0 {
                return End::Clean;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
}
