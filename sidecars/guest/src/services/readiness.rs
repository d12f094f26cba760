//! Checks whether a service is ready.
//!
//! The checks run inside the bottle. HTTP and TCP checks connect from the guest's network, and a command check runs
//! like any other program of the bottle.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bottle_protocol::session::guest::{Exit, Process};
use bottle_protocol::session::service::{HttpCheck, Readiness, Service};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::facts::relative_to_root;
use crate::guest::Guest;
use crate::process::READ;
use crate::{rooted, session_processes};

/// The maximum length of a status line. A longer line does not count as a response.
const STATUS_LINE_MAX: usize = 1024;

/// Waits until the service is ready.
///
/// # Errors
/// Fails if the service is not ready within its start period. The error is the result of the last check, as a part of a
/// sentence.
pub(super) async fn wait(guest: &Arc<Guest>, service: &Service) -> Result<(), String> {
    let [interval, limit, period] =
        [service.interval_ms, service.timeout_ms, service.start_period_ms].map(Duration::from_millis);
    let end = Instant::now() + period;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let problem = match timeout(limit.min(left), check(guest, service)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(problem)) => problem,
            Err(_) => format!("a check takes longer than {limit:?}"),
        };
        if Instant::now() + interval >= end {
            return Err(problem);
        }
        tokio::time::sleep(interval).await;
    }
}

async fn check(guest: &Arc<Guest>, service: &Service) -> Result<(), String> {
    match &service.readiness {
        Readiness::Started => Ok(()),
        Readiness::Tcp(addresses) => connect(addresses).await.map(drop),
        Readiness::Http(request) => http(request).await,
        Readiness::File(path) => file(guest, path).await,
        Readiness::Command(argv) => command(guest, &service.process, argv).await,
    }
}

/// Connects to the first address that accepts a connection.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let mut problem = "it has no address".to_owned();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => problem = format!("{address} does not accept a connection: {error}"),
        }
    }
    Err(problem)
}

async fn http(request: &HttpCheck) -> Result<(), String> {
    let mut stream = connect(&request.addresses).await?;
    let HttpCheck { host, path, .. } = request;
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bottle\r\nConnection: close\r\n\r\n");
    let mut line = [0; STATUS_LINE_MAX];
    let read = async {
        stream.write_all(head.as_bytes()).await?;
        let mut read = 0;
        while let Some(room) = line.get_mut(read..).filter(|room| !room.is_empty()) {
            let more = stream.read(room).await?;
            read += more;
            if more == 0 || line.get(..read).is_some_and(|line| line.contains(&b'\n')) {
                break;
            }
        }
        Ok::<_, io::Error>(read)
    };
    let read = read.await.map_err(|error| format!("no response of {host}: {error}"))?;
    match status(line.get(..read).unwrap_or_default()) {
        Some(200..=399) => Ok(()),
        Some(status) => Err(format!("{host} answers with status {status}")),
        None => Err(format!("{host} does not answer with HTTP")),
    }
}

/// Returns the status code in the first line of a response (RFC 9112, section 4).
fn status(response: &[u8]) -> Option<u16> {
    let line = response.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let version = words.next()?;
    let status = words.next()?.trim_end();
    (version.starts_with("HTTP/1.") && status.len() == 3).then(|| status.parse().ok()).flatten()
}

async fn file(guest: &Guest, path: &str) -> Result<(), String> {
    let (root, relative) = (guest.facts.root.clone(), relative_to_root(path));
    let opened = tokio::task::spawn_blocking(move || rooted::open_in_root(&root, &relative, OFlags::PATH));
    match opened.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("{path}: {error}")),
        Err(error) => Err(error.to_string()),
    }
}

/// A guard that kills the processes of a check when it is dropped, for example after a timeout.
struct EndOnDrop(Pid);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        session_processes::signal(self.0, Signal::KILL);
    }
}

/// Runs the program of a check with the directory, the variables and the user of the service.
async fn command(guest: &Guest, service: &Process, argv: &[String]) -> Result<(), String> {
    let process = Process { argv: argv.to_vec(), terminal: None, stdin: false, ..service.clone() };
    let mut running = guest.start(&process).map_err(|failure| failure.message)?;
    let _end = EndOnDrop(running.pid);
    for mut output in running.outputs {
        // The output is read and dropped, because a program could block if nobody reads its output.
        tokio::spawn(async move {
            let mut buffer = vec![0; READ];
            while output.read(&mut buffer).await > 0 {}
        });
    }
    match running.exit.ended().await {
        Exit::Code(0) => Ok(()),
        Exit::Code(code) => Err(format!("{:?} exits with code {code}", argv.first())),
        Exit::Signal(signal) => Err(format!("{:?} is killed by signal {signal}", argv.first())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_status_of_a_response() {
        for (response, expected) in [
            (&b"HTTP/1.1 200 OK\r\nServer: x\r\n"[..], Some(200)),
            (b"HTTP/1.0 404 Not Found\r\n", Some(404)),
            (b"HTTP/1.1 204\r\n", Some(204)),
            (b"HTTP/2 200\r\n", None),
            (b"HTTP/1.1 20\r\n", None),
            (b"HTTP/1.1 abc\r\n", None),
            (b"HTTP/1.1", None),
            (b"\xff\xfe 200 OK\r\n", None),
            (b"SSH-2.0-OpenSSH_9.2\r\n", None),
            (b"", None),
        ] {
            assert_eq!(status(response), expected, "{}", String::from_utf8_lossy(response));
        }
    }
}
