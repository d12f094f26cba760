//! Installs each agent once per machine, even if several tests need it at the same time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::Missing;
use crate::program::wait;

/// The time limit for an installer. npm can wait for minutes for each package that it cannot fetch.
const INSTALLED_WITHIN: Duration = Duration::from_secs(300);

/// The reasons why agents could not be installed. This process does not try a failed installation again, because
/// several tests need the same agent.
static FAILED: Mutex<BTreeMap<PathBuf, Missing>> = Mutex::new(BTreeMap::new());

/// Returns the directory that contains all agents.
pub(super) fn directory() -> Result<PathBuf, Missing> {
    let directory = match std::env::var_os("BOTTLE_TEST_AGENTS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/agents"),
    };
    fs::create_dir_all(&directory)
        .map_err(|error| Missing(format!("{} cannot be made: {error}", directory.display())))?;
    Ok(fs::canonicalize(&directory)?)
}

/// Runs `install` for the directory `home`, unless it already contains a complete installation with this `mark`. An
/// incomplete installation is removed and repeated. Other processes wait until the installation is complete. This
/// process does not repeat a failed installation.
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
    let failed = || FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(missing) = failed().get(home) {
        return Err(missing.clone());
    }
    anew(home, install).inspect_err(|missing| drop(failed().insert(home.to_owned(), missing.clone())))?;
    fs::write(finished, mark)?;
    Ok(())
}

fn anew(home: &Path, install: impl FnOnce(&Path) -> Result<(), Missing>) -> Result<(), Missing> {
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::create_dir_all(home)?;
    install(home)
}

/// Runs an installer with the user's environment, because it configures registries and proxies.
pub(super) fn run(command: &mut Command) -> Result<(), Missing> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut stderr = tempfile::tempfile()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr.try_clone()?)
        .spawn()
        .map_err(|error| Missing(format!("{name} cannot be started: {error}")))?;
    let ended = wait(&mut child, Instant::now() + INSTALLED_WITHIN);
    let ended = ended.map_err(|error| Missing(format!("{name}: {error:#}")))?;
    if ended.is_some_and(|status| status.success()) {
        return Ok(());
    }
    if ended.is_none() {
        return Err(Missing(format!("{name} did not install it within {} s", INSTALLED_WITHIN.as_secs())));
    }
    let mut text = Vec::new();
    stderr.rewind()?;
    stderr.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    Err(Missing(format!("{name} could not install it: {last}")))
}
