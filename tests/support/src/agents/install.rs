//! Installs each agent once per machine, even if several tests need it at the same time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use super::Missing;

/// Returns the folder that contains all agents.
pub(super) fn folder() -> Result<PathBuf, Missing> {
    let folder = match std::env::var_os("BOTTLE_TEST_AGENTS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/agents"),
    };
    fs::create_dir_all(&folder)
        .map_err(|error| Missing(format!("{} cannot be made: {error}", folder.display())))?;
    Ok(fs::canonicalize(&folder)?)
}

/// Runs `install` for the folder `home`, unless it already contains a complete installation with this `mark`.
/// An incomplete installation is removed and repeated. Other processes wait until the installation is
/// complete.
pub(super) fn once(
    home: &Path,
    mark: &str,
    install: impl FnOnce(&Path) -> Result<(), Missing>,
) -> Result<(), Missing> {
    let finished = home.join("finished");
    let complete = || fs::read_to_string(&finished).is_ok_and(|found| found == mark);
    if complete() {
        return Ok(());
    }
    let lock = File::create(home.with_extension("lock"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(std::io::Error::from)?;
    if complete() {
        return Ok(());
    }
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::create_dir_all(home)?;
    install(home)?;
    fs::write(finished, mark)?;
    Ok(())
}

/// Runs an installer with the user's environment, because it configures registries and proxies.
pub(super) fn run(command: &mut Command) -> Result<(), Missing> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Missing(format!("{name} cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr_text = String::from_utf8_lossy(&output.stderr);
    let last = stderr_text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    Err(Missing(format!("{name} could not install it: {last}")))
}
