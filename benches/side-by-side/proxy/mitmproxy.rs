//! Starts mitmproxy from PyPI, with an addon that performs the tasks of the egress proxy.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::HOST;
use crate::peer::{Address, Peer};
use crate::site::Site;

/// The time limit for mitmproxy to start.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// A mitmproxy process.
pub(crate) struct Running {
    pub(crate) peer: Peer,
    process: Child,
    _directory: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts mitmproxy, after installing it if necessary.
pub(crate) async fn start(site: &Site) -> Result<Running> {
    let program = installed()?;
    let version = Command::new(&program).arg("--version").output()?.stdout;
    println!("peer: {}", String::from_utf8_lossy(&version).lines().next().unwrap_or_default());
    let directory = tempfile::tempdir()?;
    let roots = directory.path().join("roots.pem");
    site.authority.write_pem(&roots)?;
    let addon = directory.path().join("addon.py");
    std::fs::write(&addon, include_str!("addon.py"))?;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let set = |key: &str, value: String| ["--set".to_owned(), format!("{key}={value}")];
    let process = Command::new(program)
        .args(["--quiet", "--listen-host", "127.0.0.1", "--listen-port", &port.to_string()])
        .arg("--scripts")
        .arg(&addon)
        .args(set("confdir", directory.path().display().to_string()))
        .args(set("ssl_verify_upstream_trusted_ca", roots.display().to_string()))
        .args(set("flow_detail", "0".into()))
        .env("BENCH_HOST", HOST)
        .env("BENCH_SITE", site.server.address().port().to_string())
        .stdin(Stdio::null())
        .spawn()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let ca = directory.path().join("mitmproxy-ca-cert.pem");
    wait(address, &ca).await?;
    let peer = Peer::proxy(Address::Tcp(address), &std::fs::read_to_string(ca)?)?;
    Ok(Running { peer, process, _directory: directory })
}

async fn wait(address: SocketAddr, ca: &Path) -> Result<()> {
    let until = std::time::Instant::now() + STARTS_WITHIN;
    while !ca.exists() || tokio::net::TcpStream::connect(address).await.is_err() {
        ensure!(std::time::Instant::now() < until, "mitmproxy did not start");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn installed() -> Result<PathBuf> {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/mitmproxy");
    let program = peers.join("bin/mitmdump");
    if !program.exists() {
        println!("installing mitmproxy from PyPI into {}", peers.display());
        run(Command::new("python3").args(["-m", "venv"]).arg(&peers))?;
        run(Command::new(peers.join("bin/pip")).args(["install", "--quiet", "mitmproxy"]))?;
    }
    Ok(program)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
