//! Installs Python packages with pip for the system's Python, which bottles can use.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Missing;
use super::install::run;

/// Returns the system's Python. A Python from a version manager in a home directory is not used, because
/// programs in a bottle must be accessible to every user.
pub(super) fn system() -> Result<PathBuf, Missing> {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .find(|python| python.is_file())
        .ok_or_else(|| Missing("there is no python3 in /usr/bin or /usr/local/bin".to_owned()))
}

/// Creates a virtual environment without pip. Debian has pip in a separate package, and one pip can install
/// into every environment.
pub(super) fn environment(python: &Path, home: &Path) -> Result<(), Missing> {
    run(Command::new(python).args(["-m", "venv", "--without-pip"]).arg(home))
}

/// Installs packages into the environment `home`. `last` is the last argument of pip.
pub(super) fn install(python: &Path, home: &Path, arguments: &[&str], last: &Path) -> Result<(), Missing> {
    run(pip(python).arg("--python").arg(home.join("bin/python")).arg("install").args(arguments).arg(last))
}

/// Installs one package, without its dependencies, into `directory`.
pub(super) fn unpack(python: &Path, directory: &Path, package: &str) -> Result<(), Missing> {
    run(pip(python).args(["install", "--no-deps", "--target"]).arg(directory).arg(package))
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]);
    command
}
