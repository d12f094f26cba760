//! Runs another proxy in a process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::killed_on_drop::KilledOnDrop;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::peer::{Address, Peer};

/// The time limit for a proxy to start.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// How clients connect to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connects {
    /// Clients send `CONNECT` first, because the proxy intercepts TLS connections.
    ByConnect,
    /// Clients start TLS with the first byte, because the proxy is a reverse proxy.
    Directly,
}

/// A running proxy.
pub(crate) struct OtherProxy {
    pub(crate) peer: Peer,
    _process: KilledOnDrop,
    _directory: TempDir,
}

impl OtherProxy {
    /// Starts `command`. The proxy must listen at `address` and write the certificate of its certificate authority to
    /// the file `ca` in `directory`.
    pub(crate) async fn start(
        command: &mut Command,
        connects: Connects,
        address: SocketAddr,
        directory: TempDir,
        ca: &str,
    ) -> Result<Self> {
        let process = command.stdin(Stdio::null()).spawn().with_context(|| format!("run {command:?}"))?;
        let process = KilledOnDrop(process);
        let ca = directory.path().join(ca);
        let until = Instant::now() + STARTS_WITHIN;
        while !ca.exists() || TcpStream::connect(address).await.is_err() {
            ensure!(Instant::now() < until, "{command:?} did not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let ca = std::fs::read_to_string(ca)?;
        let peer = match connects {
            Connects::ByConnect => Peer::proxy(Address::Tcp(address), &ca)?,
            Connects::Directly => Peer::server(address, &ca)?,
        };
        Ok(Self { peer, _process: process, _directory: directory })
    }
}

/// Returns a free address of the loopback interface.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

/// Returns the directory of the programs that only this benchmark uses.
pub(crate) fn programs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers")
}
