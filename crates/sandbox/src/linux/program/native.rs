//! Finds the package directory of a native program.

use std::path::{Path, PathBuf};

/// Files that identify a package directory whose `bin` contains several programs.
const MARKERS: [&str; 1] = ["codex-package.json"];

/// Returns the package directory that contains this program in its `bin` directory. Returns `None` if no package
/// contains the program.
pub(super) fn package(program: &Path) -> Option<PathBuf> {
    let directory = program.parent().filter(|bin| bin.ends_with("bin"))?.parent()?;
    MARKERS.iter().any(|marker| directory.join(marker).is_file()).then(|| directory.to_owned())
}
