//! What a native program needs beside its own file.

use std::path::{Path, PathBuf};

/// Files that mark the folder of a program that comes with others of its own, in its folder `bin`.
const MARKERS: [&str; 1] = ["codex-package.json"];

/// The folder that a program was unpacked into as a whole.
pub(super) fn package(program: &Path) -> Option<PathBuf> {
    let folder = program.parent().filter(|bin| bin.ends_with("bin"))?.parent()?;
    MARKERS.iter().any(|marker| folder.join(marker).is_file()).then(|| folder.to_owned())
}
