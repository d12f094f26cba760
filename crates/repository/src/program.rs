//! Finds programs without searching the working directory.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Finds a program in the absolute directories of a `PATH` variable. An empty or relative entry of `PATH` means the
/// working directory, in which a project or an agent may have put a program of this name. Such entries are skipped.
///
/// If `name` contains a slash, nothing is found.
#[must_use]
pub fn find(name: &str, path_variable: &OsStr) -> Option<PathBuf> {
    if name.is_empty() || name.contains('/') {
        return None;
    }
    absolute(path_variable).map(|directory| directory.join(name)).find(|path| is_executable(path))
}

/// Returns a `PATH` variable without its relative and empty entries.
#[must_use]
pub fn absolute_path(path_variable: &OsStr) -> OsString {
    // The entries contain no separator, because `PATH` was split at the separators.
    std::env::join_paths(absolute(path_variable)).unwrap_or_default()
}

/// Returns the absolute directories of a `PATH` variable, in their order.
fn absolute(path_variable: &OsStr) -> impl Iterator<Item = PathBuf> + '_ {
    std::env::split_paths(path_variable).filter(|entry| entry.is_absolute())
}

/// Whether a path is the path of a regular file that may be executed.
fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_relative_and_empty_entries() {
        let top = tempfile::tempdir().expect("a directory");
        let program = top.path().join("git");
        std::fs::write(&program, "").expect("written");
        let absolute = top.path().to_str().expect("UTF-8");
        let found = |variable: &str| find("git", OsStr::new(variable));
        assert_eq!(found(absolute), None, "not executable");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("set");
        assert_eq!(found(absolute), Some(program.clone()));
        assert_eq!(found(&format!(":.:bin:{absolute}")), Some(program));
        assert_eq!(absolute_path(OsStr::new(&format!(":.:bin:{absolute}"))), absolute);
        for variable in ["", ":", ".", "bin"] {
            assert_eq!(found(variable), None, "{variable:?}");
        }
        assert_eq!(find("../git", OsStr::new(absolute)), None);
        assert_eq!(find("", OsStr::new(absolute)), None);
    }
}
