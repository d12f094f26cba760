//! Starts other proxies written in Rust, which the package in `benches/peers` contains. These proxies scan nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::HOST;
use crate::other_proxy::{Connects, OtherProxy, free_address, programs, run};
use crate::site::Site;

/// The names of the proxies. hudsucker intercepts TLS connections, and pingora is a reverse proxy.
pub(crate) const NAMES: [(&str, Connects); 2] =
    [("hudsucker", Connects::ByConnect), ("pingora", Connects::Directly)];

/// Builds all proxies. Building pingora needs `cmake`.
pub(crate) fn build() -> Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/Cargo.toml");
    let target = programs().join("rust");
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--quiet", "--manifest-path"]).arg(package);
    run(command.arg("--target-dir").arg(&target))?;
    Ok(target.join("release/peers"))
}

/// Starts the proxy `name` of the built program.
pub(crate) async fn start(site: &Site, program: &Path, name: &str, connects: Connects) -> Result<OtherProxy> {
    let directory = tempfile::tempdir()?;
    let roots = directory.path().join("roots.pem");
    site.authority.write_pem(&roots)?;
    let address = free_address()?;
    let mut command = Command::new(program);
    command.args([name, HOST, &site.server.address().to_string()]).arg(roots);
    command.arg(address.port().to_string()).arg(directory.path());
    OtherProxy::start(&mut command, connects, address, directory, "ca.pem").await
}
