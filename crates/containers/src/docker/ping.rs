//! Pings an engine for its API version and operating system.
//!
//! This module builds the HTTP request itself, because the answer is in the response headers. A single connection shows
//! whether the engine is missing or inaccessible, and takes one millisecond. A query for the engine's information takes
//! ten milliseconds.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The time limit of the ping. After this time, connecting to the engine fails.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The maximum number of bytes that are read from the answer. An engine's answer has a tenth of this size. The rest of
/// a longer answer is ignored.
const ANSWER_MAX: u64 = 8 << 10;

/// The ping request. Its path contains no API version, so every engine accepts it.
const QUESTION: &[u8] = b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n";

/// An engine's answer to the ping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pong {
    /// The newest API version of the engine, as the number after `1.`.
    pub(super) api: u32,
    /// The operating system of the engine's containers (`linux`).
    pub(super) os: String,
    /// The name and version of the engine (`Docker/20.10.24`).
    pub(super) server: String,
}

impl Pong {
    /// Returns the engine's product and version (`Docker 20.10.24`, `Podman 4.3.1`).
    pub(super) fn product(&self) -> String {
        let name = self.server.split(' ').next().unwrap_or_default();
        name.replacen("Libpod/", "Podman ", 1).replacen('/', " ", 1)
    }

    /// Returns the major and minor version, if the engine is Podman.
    pub(super) fn podman(&self) -> Option<(u32, u32)> {
        let version = self.server.strip_prefix("Libpod/")?;
        let mut numbers = version.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// Pings the engine behind this socket.
///
/// # Errors
/// The system's error when the connection fails. `InvalidData` when the peer is not an engine.
pub(super) async fn ping(socket: &Path) -> io::Result<Pong> {
    let asked = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(QUESTION).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
        read(&String::from_utf8_lossy(&answer))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the peer is not a container engine"))
    };
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    tokio::time::timeout(ANSWERS_WITHIN, asked).await.unwrap_or_else(|_| Err(late()))
}

fn read(answer: &str) -> Option<Pong> {
    let head = answer.split("\r\n\r\n").next()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let header = |name: &str| {
        let mut fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    };
    let api = header("Api-Version")?.strip_prefix("1.")?.parse().ok()?;
    (status == "200").then(|| Pong {
        api,
        os: header("Ostype").unwrap_or_default(),
        server: header("Server").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_only_the_answer_of_an_engine() {
        let answer = "HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\nOstype: linux\r\nServer: Docker/20.10.24 (linux)\r\n\
                      \r\nOK";
        let pong = Pong { api: 41, os: "linux".to_owned(), server: "Docker/20.10.24 (linux)".to_owned() };
        assert_eq!((pong.product().as_str(), pong.podman()), ("Docker 20.10.24", None));
        assert_eq!(read(answer), Some(pong));
        let podman = "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nServer: Libpod/4.3.1 (linux)\r\n\r\nOK";
        let podman = read(podman).expect("an engine");
        assert_eq!((podman.product().as_str(), podman.podman()), ("Podman 4.3.1", Some((4, 3))));
        assert_eq!(read("HTTP/1.1 200 OK\r\napi-version:1.53\r\n\r\n").map(|pong| pong.api), Some(53));
        for other in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\n\r\nApi-Version: 1.41",
            "HTTP/1.1 500 Internal Server Error\r\nApi-Version: 1.41\r\n\r\n",
            "HTTP/1.1 200 OK\r\nApi-Version: 2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nApi-Version: 1.x\r\n\r\n",
        ] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn an_endless_answer_and_a_missing_socket_are_errors() {
        let directory = tempfile::tempdir().expect("directory");
        let socket = directory.path().join("s");
        let listener = tokio::net::UnixListener::bind(&socket).expect("bound");
        let talker = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        });
        assert_eq!(ping(&socket).await.expect_err("no engine").kind(), io::ErrorKind::InvalidData);
        talker.await.expect("it noticed");
        assert_eq!(
            ping(&directory.path().join("t")).await.expect_err("nothing").kind(),
            io::ErrorKind::NotFound
        );
    }
}
