//! Creates the root file system of the machines: a folder with the static `bottle` program and mount points.
//!
//! All machines of a home share it and see it read-only, under a disk of their own. No program of an image runs outside
//! the sandbox, so the image is not the machine's root.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::inside;
use crate::backend::local::layers::remove_tree;
use crate::backend::static_program::Program;
use crate::backend::{BackendError, run_blocking};

/// The name prefix of a root file system in the folder of the machines. The program's build id follows.
const PREFIX: &str = "root-";

/// Returns the root file system for this program. Creates it if it is missing.
///
/// # Errors
/// [`BackendError`] when it cannot be created. No part of it then exists.
pub(super) async fn make(machines: &Path, program: Program) -> Result<PathBuf, BackendError> {
    let folder = machines.join(format!("{PREFIX}{}", program.id));
    let made = folder.clone();
    run_blocking(move || {
        if made.is_dir() {
            return Ok(());
        }
        let content = program.bytes()?;
        fill(&made, &content).map_err(|error| {
            BackendError::failed("cannot make the root file system of the bottle's machine").because(error)
        })
    })
    .await??;
    Ok(folder)
}

/// Creates the folder atomically. Another start may create it at the same time.
fn fill(folder: &Path, program: &[u8]) -> io::Result<()> {
    let new = folder.with_file_name(format!(".new-{}", std::process::id()));
    remove_tree(&new)?;
    let made = (|| {
        DirBuilder::new().recursive(true).mode(0o700).create(&new)?;
        for name in inside::FOLDERS {
            DirBuilder::new().mode(0o755).create(new.join(name))?;
        }
        let file = new.join(inside::PROGRAM.trim_start_matches('/'));
        fs::write(&file, program)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        match fs::rename(&new, folder) {
            Err(_) if folder.is_dir() => Ok(()),
            renamed => renamed,
        }
    })();
    // Nothing remains of it after the rename. A failure to remove it is less useful than the first one.
    let _ = remove_tree(&new);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creates_it_once_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path().join("root-01");
        fill(&root, b"program").expect("made");
        fill(&root, b"program").expect("made by another start");
        assert_eq!(fs::read(root.join("bottle")).expect("program"), b"program");
        assert_eq!(fs::metadata(root.join("bottle")).expect("program").permissions().mode() & 0o777, 0o755);
        assert!(root.join("layers").is_dir());
        let names: Vec<_> =
            fs::read_dir(folder.path()).expect("listed").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["root-01"]);
    }
}
