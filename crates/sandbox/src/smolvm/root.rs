//! Creates the root file system of the machines: a directory with the static `bottle` program and mount points.
//!
//! All machines of a home share this root file system. Each machine sees it read-only, below a disk of its own. No
//! program of an image runs outside the sandbox, so the machine's root file system does not need the image.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bottle_backend::static_program::Program;
use bottle_backend::trees::remove_tree;
use bottle_backend::{BackendError, Unused, run_blocking};
use bottle_host::process::ProcessId;

use super::inside;

/// The name prefix of a root file system in the directory of the machines. The program's build id follows the prefix.
const PREFIX: &str = "root-";

/// The name prefix of a root file system that is being created. The id of the process that creates it and a number
/// follow the prefix.
const NEW_PREFIX: &str = ".new-";

/// The [`Unused::kind`] of a root file system.
pub(super) const KIND: &str = "machine-root";

/// Returns the root file system for this program. Creates a missing root file system.
///
/// # Errors
/// [`BackendError`] when the root file system cannot be created. In this case, no part of it exists.
pub(super) async fn make(machines: &Path, program: Program) -> Result<PathBuf, BackendError> {
    let directory = machines.join(format!("{PREFIX}{}", program.id));
    let made = directory.clone();
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
    Ok(directory)
}

/// Lists the root file systems of other builds of the program than `current`, and incomplete root file systems that
/// killed starts left behind.
///
/// # Errors
/// When the directory of the machines cannot be read.
pub(super) fn unused(machines: &Path, current: &str) -> io::Result<Vec<Unused>> {
    let entries = match fs::read_dir(machines) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut unused = Vec::new();
    for entry in entries {
        let Ok(id) = entry?.file_name().into_string() else { continue };
        let why = if let Some(build) = id.strip_prefix(PREFIX) {
            if build == current {
                continue;
            }
            "belongs to another build of bottle"
        } else if let Some(pid) = id.strip_prefix(NEW_PREFIX).and_then(maker) {
            if ProcessId::of(pid)?.is_some() {
                continue;
            }
            "was being made by a start that was killed"
        } else {
            continue;
        };
        unused.push(Unused { kind: KIND.to_owned(), id, why: why.to_owned(), bytes: None });
    }
    Ok(unused)
}

/// Removes a root file system that [`unused`] listed.
///
/// # Errors
/// When the root file system cannot be removed, or when `id` is not a name that [`unused`] could list.
pub(super) fn remove(machines: &Path, id: &str) -> io::Result<()> {
    let plain = (id.starts_with(PREFIX) || id.starts_with(NEW_PREFIX)) && !id.contains('/');
    if !plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{id:?} is no root file system")));
    }
    remove_tree(&machines.join(id))
}

/// Returns the id of the process that creates the root file system with this name. `name` is the name without
/// [`NEW_PREFIX`].
fn maker(name: &str) -> Option<u32> {
    name.split_once('-')?.0.parse().ok()
}

/// Creates the root file system atomically. Another start, even in the same process, may create the same root file
/// system at the same time.
fn fill(directory: &Path, program: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let new = directory.with_file_name(format!("{NEW_PREFIX}{}-{number}", std::process::id()));
    // A killed process that had the same process id may have left the directory behind.
    remove_tree(&new)?;
    let made = (|| {
        DirBuilder::new().recursive(true).mode(0o700).create(&new)?;
        for name in inside::DIRECTORIES {
            DirBuilder::new().mode(0o755).create(new.join(name))?;
        }
        let file = new.join(inside::PROGRAM.trim_start_matches('/'));
        fs::write(&file, program)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        match fs::rename(&new, directory) {
            Err(_) if directory.is_dir() => Ok(()),
            renamed => renamed,
        }
    })();
    // If the rename succeeded, the temporary directory no longer exists. An error of this removal is ignored, because
    // it is less useful than the error of the creation.
    let _ = remove_tree(&new);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creates_it_once_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().expect("directory");
        let root = directory.path().join("root-01");
        fill(&root, b"program").expect("made");
        fill(&root, b"program").expect("made by another start");
        assert_eq!(fs::read(root.join("bottle")).expect("program"), b"program");
        assert_eq!(fs::metadata(root.join("bottle")).expect("program").permissions().mode() & 0o777, 0o755);
        assert!(root.join("layers").is_dir());
        let names: Vec<_> =
            fs::read_dir(directory.path()).expect("listed").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["root-01"]);
    }

    #[test]
    fn lists_roots_of_other_builds_and_of_killed_starts() {
        let directory = tempfile::tempdir().expect("directory");
        let own = format!(".new-{}-0", std::process::id());
        for name in ["root-01", "root-02", ".new-999999999-3", &own, ".cache", "rootfs"] {
            fs::create_dir(directory.path().join(name)).expect("made");
        }
        let mut listed: Vec<String> =
            unused(directory.path(), "02").expect("listed").into_iter().map(|unused| unused.id).collect();
        listed.sort();
        assert_eq!(listed, [".new-999999999-3", "root-01"]);
        for id in &listed {
            remove(directory.path(), id).expect("removed");
        }
        for id in ["../x", "root-/../../x", ".cache"] {
            assert!(remove(directory.path(), id).is_err(), "{id}");
        }
        assert_eq!(unused(directory.path(), "02").expect("listed"), []);
        assert!(unused(&directory.path().join("missing"), "02").expect("none").is_empty());
    }
}
