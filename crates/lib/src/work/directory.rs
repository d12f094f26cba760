//! Reads the files of a directory on the host into a temporary repository, and checks that paths of a bottle stay
//! inside a directory.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use bottle_protocol::secret_files::normalized;
use bottle_repository::conversion::Pointer;
use bottle_repository::{Directory, FastImport, ReadError};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::workspace::MAX_FILE;

/// The maximum number of nested directories below a path, and of empty directories in one directory.
const MAX_LEVELS: usize = 128;
const MAX_EMPTY: usize = 1000;

/// The result of importing a path of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A file or link was imported, or there was nothing to import.
    Imported,
    /// A file was imported, and it has the same content as at the start of the bottle.
    AsAtStart,
    /// The path has an entry that no file may replace, for this reason.
    Blocked(&'static str),
}

/// Imports the file or link at this path of the directory, if there is one. Follows no links. `deleted` contains the
/// files that the merge may delete. `pointers` identifies the content that Git LFS files had at the start of the
/// bottle.
///
/// # Errors
/// Returns an error if a file cannot be read, or git fails.
pub(super) fn import_file(
    directory: &Directory,
    path: &[u8],
    (deleted, pointers): (&BTreeSet<Vec<u8>>, &HashMap<Vec<u8>, Pointer>),
    import: &mut FastImport,
) -> io::Result<Found> {
    let place = path_of(path.to_vec());
    for parent in place.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
        match existing(directory, parent)? {
            Some(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => break,
            Some(_) if !deleted.contains(parent.as_os_str().as_bytes()) => {
                return Ok(Found::Blocked("one of its directories is a file or a link here"));
            }
            _ => {}
        }
    }
    let Some(found) = existing(directory, &place)? else { return Ok(Found::Imported) };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let (parent, name) = (place.parent().unwrap_or(&place), place.file_name().unwrap_or_default());
            let parent = directory.directory(parent)?.ok_or(io::ErrorKind::NotFound)?;
            let target = parent.link(Path::new(name))?.unwrap_or_default();
            let target = target.as_os_str().as_bytes();
            import.file(path, "120000", target.len() as u64, &mut { target })?;
        }
        FileType::Directory => {
            if !has_only(directory, &place, deleted, MAX_LEVELS)? {
                return Ok(Found::Blocked("a directory has this name here"));
            }
        }
        FileType::RegularFile => {
            let content = match directory.read(&place, MAX_FILE) {
                Err(ReadError::TooLong { .. }) => return Ok(Found::Blocked("it is too large here")),
                content => content.map_err(io::Error::other)?.unwrap_or_default(),
            };
            let mode = if found.st_mode & 0o100 == 0 { "100644" } else { "100755" };
            import.file(path, mode, content.len() as u64, &mut content.as_slice())?;
            if let Some(pointer) = pointers.get(path)
                && Pointer::of(&mut content.as_slice())? == *pointer
            {
                return Ok(Found::AsAtStart);
            }
        }
        _ => return Ok(Found::Blocked("it is not a file here")),
    }
    Ok(Found::Imported)
}

/// The status of a path, without following a link. `None` if the path does not exist.
fn existing(directory: &Directory, path: &Path) -> io::Result<Option<Stat>> {
    match directory.stat(path) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => Ok(None),
        found => found,
    }
}

/// Whether the directory `below` in `top` contains only files that are in `files`.
fn has_only(top: &Directory, below: &Path, files: &BTreeSet<Vec<u8>>, levels: usize) -> io::Result<bool> {
    let Some(directory) = top.directory(below)? else { return Ok(true) };
    let (names, more) = directory.names(files.len() + MAX_EMPTY)?;
    if more || levels == 0 {
        return Ok(false);
    }
    for name in names {
        let path = below.join(name);
        let is_directory = existing(top, &path)?
            .is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        let is_known = match is_directory {
            true => has_only(top, &path, files, levels - 1)?,
            false => files.contains(path.as_os_str().as_bytes()),
        };
        if !is_known {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a relative path stays in its directory, and is not in a git directory.
pub fn is_inside(path: &Path) -> bool {
    let allowed = |component| matches!(component, Component::Normal(name) if !is_git(name));
    !path.as_os_str().is_empty() && path.components().all(allowed)
}

/// Whether a file system may treat this name as `.git`.
fn is_git(name: &OsStr) -> bool {
    matches!(normalized(name.as_bytes()).as_str(), ".git" | "git~1")
}

/// Whether the target of a link at this relative path stays in the directory, and outside of its git directory.
///
/// `..` is allowed only at the beginning of a target. After a name, `..` can lead out of the directory, because the
/// name can be another link.
pub(super) fn leads_inside(path: &Path, target: &Path) -> bool {
    let mut above = path.components().count().saturating_sub(1);
    let mut has_name = false;
    for component in target.components() {
        match component {
            Component::Normal(name) if !is_git(name) => has_name = true,
            Component::CurDir => {}
            Component::ParentDir if above > 0 && !has_name => above -= 1,
            _ => return false,
        }
    }
    true
}

/// Converts bytes to a path.
pub(super) fn path_of(bytes: Vec<u8>) -> PathBuf {
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_paths_that_lead_outside() {
        for path in ["a", "a/b", ".github/x", ".gitignore", "git", "...", "a/.gitmodules"] {
            assert!(is_inside(Path::new(path)), "{path}");
        }
        for path in [
            "",
            "/a",
            "../a",
            "a/../b",
            ".git",
            "a/.git/hooks/x",
            ".GIT/x",
            "git~1/x",
            ".git./x",
            ".g\u{200c}it/x",
            ".git::$DATA",
        ] {
            assert!(!is_inside(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn refuses_links_that_lead_outside() {
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d"), ("a", "./b/c")] {
            assert!(leads_inside(Path::new(path), Path::new(target)), "{path} -> {target}");
        }
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", "../b"),
            ("a/b", "../../c"),
            ("a", "b/../../c"),
            // `b/link` can be a link to `..`.
            ("a", "b/link/../c"),
            ("a", ".git/config"),
            ("a", ".."),
        ] {
            assert!(!leads_inside(Path::new(path), Path::new(target)), "{path} -> {target}");
        }
    }
}
