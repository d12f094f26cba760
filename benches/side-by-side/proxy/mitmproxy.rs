//! Starts mitmproxy from PyPI. An addon gives it the tasks of the egress proxy.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::HOST;
use crate::other_proxy::{Connects, OtherProxy, free_address, programs, run};
use crate::site::Site;

/// Installs mitmproxy if necessary, and starts it.
pub(crate) async fn start(site: &Site) -> Result<OtherProxy> {
    let program = installed()?;
    let version = Command::new(&program).arg("--version").output()?.stdout;
    println!("peer: {}", String::from_utf8_lossy(&version).lines().next().unwrap_or_default());
    let directory = tempfile::tempdir()?;
    let roots = directory.path().join("roots.pem");
    site.authority.write_pem(&roots)?;
    let addon = directory.path().join("addon.py");
    std::fs::write(&addon, include_str!("addon.py"))?;
    let address = free_address()?;
    let set = |key: &str, value: String| ["--set".to_owned(), format!("{key}={value}")];
    let mut command = Command::new(program);
    command
        .args(["--quiet", "--listen-host", "127.0.0.1", "--listen-port", &address.port().to_string()])
        .arg("--scripts")
        .arg(&addon)
        .args(set("confdir", directory.path().display().to_string()))
        .args(set("ssl_verify_upstream_trusted_ca", roots.display().to_string()))
        .args(set("flow_detail", "0".into()))
        .env("BENCH_HOST", HOST)
        .env("BENCH_SITE", site.server.address().port().to_string());
    OtherProxy::start(&mut command, Connects::ByConnect, address, directory, "mitmproxy-ca-cert.pem").await
}

fn installed() -> Result<PathBuf> {
    let peers = programs().join("mitmproxy");
    let program = peers.join("bin/mitmdump");
    if !program.exists() {
        println!("installing mitmproxy from PyPI into {}", peers.display());
        run(Command::new("python3").args(["-m", "venv"]).arg(&peers))?;
        run(Command::new(peers.join("bin/pip")).args(["install", "--quiet", "mitmproxy"]))?;
    }
    Ok(program)
}
