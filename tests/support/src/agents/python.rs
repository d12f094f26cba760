//! Installs Python packages with pip for the system's Python, which bottles see.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Missing;
use super::install::run;

/// The system's Python, and none from a version manager in a home: programs in a bottle must be available to every
/// user.
pub(super) fn system() -> Result<PathBuf, Missing> {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .find(|python| python.is_file())
        .ok_or_else(|| Missing("there is no python3 in /usr/bin or /usr/local/bin".to_owned()))
}

/// Makes a virtual environment. Without pip in it: Debian keeps that in a package of its own, and one
/// pip serves every environment.
pub(super) fn environment(python: &Path, home: &Path) -> Result<(), Missing> {
    run(Command::new(python).args(["-m", "venv", "--without-pip"]).arg(home))
}

/// Installs into the environment `home`, `last` being the last argument.
pub(super) fn install(python: &Path, home: &Path, arguments: &[&str], last: &Path) -> Result<(), Missing> {
    run(pip(python).arg("--python").arg(home.join("bin/python")).arg("install").args(arguments).arg(last))
}

/// Unpacks one package and nothing else into `folder`.
pub(super) fn unpack(python: &Path, folder: &Path, package: &str) -> Result<(), Missing> {
    run(pip(python).args(["install", "--no-deps", "--target"]).arg(folder).arg(package))
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]);
    command
}
