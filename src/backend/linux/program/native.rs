//! Finds the package folder of a native program.

use std::path::{Path, PathBuf};

/// Files that identify a package folder whose `bin` contains several programs.
const MARKERS: [&str; 1] = ["codex-package.json"];

/// The package folder that contains this program in its `bin` folder. `None` if the program is in no such package.
pub(super) fn package(program: &Path) -> Option<PathBuf> {
    let folder = program.parent().filter(|bin| bin.ends_with("bin"))?.parent()?;
    MARKERS.iter().any(|marker| folder.join(marker).is_file()).then(|| folder.to_owned())
}
