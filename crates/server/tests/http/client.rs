//! A client that shows an answer as it came over the wire.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer with its transfer coding undone.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }

    /// The data of each frame of an event stream, in order, comments left out.
    pub(crate) fn frames(&self) -> Vec<&str> {
        frames(&self.body)
    }
}

/// The data of each frame in a piece of an event stream.
pub(crate) fn frames(stream: &str) -> Vec<&str> {
    let blocks = stream.split_terminator("\n\n").filter(|block| !block.starts_with(':'));
    blocks.map(|block| block.strip_prefix("data: ").expect("a frame has data only")).collect()
}

/// One connection that is closed after its answer.
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), received: Vec::new() }
    }

    /// Sends a request with a JSON body.
    pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Self {
        let body = body.to_string();
        let mut connection = Self::open(address).await;
        connection
            .send(request("POST", path, &["content-type: application/json"], body.as_bytes()))
            .await;
        connection
    }

    pub(crate) async fn send(&mut self, bytes: Vec<u8>) {
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Reads until the text has arrived.
    pub(crate) async fn read_until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.received).contains(text) {
            let count = self.stream.read_buf(&mut self.received).await.unwrap();
            assert_ne!(
                count,
                0,
                "closed before {text:?}: {}",
                String::from_utf8_lossy(&self.received)
            );
        }
    }

    /// Reads to the end and takes the answer apart.
    pub(crate) async fn answer(mut self) -> Answer {
        self.stream.read_to_end(&mut self.received).await.unwrap();
        let text = String::from_utf8(self.received).unwrap();
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<_> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let is_chunked =
            headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if is_chunked { unchunk(body) } else { body.to_owned() };
        Answer { status, headers, body }
    }
}

/// Undoes the chunked transfer coding, which must be complete.
fn unchunk(mut coded: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = coded.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            assert_eq!(rest, "\r\n");
            return body;
        }
        body.push_str(&rest[..size]);
        coded = rest[size..].strip_prefix("\r\n").unwrap();
    }
}

/// Writes a request that asks for its connection to be closed.
pub(crate) fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let length = format!("content-length: {}", body.len());
    let mut lines = vec!["connection: close", &length];
    if !headers.iter().any(|header| header.starts_with("host:")) {
        lines.push("host: localhost");
    }
    lines.extend(headers);
    let head = format!("{method} {path} HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n"));
    [head.as_bytes(), body].concat()
}

/// Sends one request and returns its answer.
pub(crate) async fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Answer {
    let mut connection = Connection::open(address).await;
    connection.send(request(method, path, headers, body)).await;
    connection.answer().await
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    exchange(address, "GET", path, &[], b"").await
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    Connection::post(address, path, body).await.answer().await
}

/// Asks for a chat answer.
pub(crate) async fn chat(address: SocketAddr, body: &Value) -> Answer {
    post(address, "/v1/chat/completions", body).await
}
