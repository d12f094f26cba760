//! Python environments with third-party packages, for real clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of a virtual environment in `folder` with these packages; creates it if it is missing.
///
/// # Errors
/// The reason, for a skip message.
pub fn with_packages(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = folder.join("bin/python3");
    if python.exists() {
        return Ok(python);
    }
    let made = made(folder, packages);
    if made.is_err() {
        // An incomplete one would be used later.
        let _ = fs::remove_dir_all(folder);
    }
    made.map(|()| python)
}

fn made(folder: &Path, packages: &[&str]) -> Result<(), String> {
    run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder))?;
    let mut install = Command::new(folder.join("bin/pip"));
    run(install.args(["install", "-q", "--disable-pip-version-check"]).args(packages))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
