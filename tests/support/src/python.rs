//! Creates Python environments with third-party packages, for tests with real clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the interpreter of a virtual environment in `directory` that contains these packages. Creates the
/// environment if it is missing.
///
/// # Errors
/// Returns the reason as text, for the message about a skipped test.
pub fn with_packages(directory: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = directory.join("bin/python3");
    if python.exists() {
        return Ok(python);
    }
    let made = made(directory, packages);
    if made.is_err() {
        // Otherwise, a later test would use the incomplete environment.
        let _ = fs::remove_dir_all(directory);
    }
    made.map(|()| python)
}

/// Like [`with_packages`], in a directory `name` next to the test program, for tests that have no other directory.
///
/// # Errors
/// Returns the reason as text, for the message about a skipped test.
pub fn beside_the_tests(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    with_packages(&program.with_file_name(name), packages)
}

fn made(directory: &Path, packages: &[&str]) -> Result<(), String> {
    run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(directory))?;
    let mut install = Command::new(directory.join("bin/pip"));
    run(install.args(["install", "-q", "--disable-pip-version-check"]).args(packages))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
