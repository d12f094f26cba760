//! Finds programs by the absolute directories of `PATH` alone. A relative or empty entry is the working directory, which
//! an agent or a project may have written.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The absolute directories of a `PATH` variable, in their order.
fn absolute(path_variable: &OsStr) -> impl Iterator<Item = PathBuf> + '_ {
    std::env::split_paths(path_variable).filter(|folder| folder.is_absolute())
}

/// Returns a `PATH` variable without its relative and empty entries.
#[must_use]
pub fn absolute_path(path_variable: &OsStr) -> OsString {
    // The entries contain no separator, because they were split there.
    std::env::join_paths(absolute(path_variable)).unwrap_or_default()
}

/// Returns the absolute path of the first executable file with this name in the absolute directories of a `PATH`
/// variable. `None` if there is none, or the name is a path.
#[must_use]
pub fn find(name: &str, path_variable: &OsStr) -> Option<PathBuf> {
    if name.is_empty() || name.contains('/') {
        return None;
    }
    absolute(path_variable).map(|folder| folder.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn finds_programs_in_absolute_directories_only() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |path: &str| folder.path().join(path);
        for name in ["first", "second"] {
            fs::create_dir(at(name)).expect("created");
        }
        fs::write(at("first/tool"), "").expect("written");
        fs::write(at("second/tool"), "").expect("written");
        fs::set_permissions(at("second/tool"), fs::Permissions::from_mode(0o755)).expect("mode");
        let joined = std::env::join_paths([
            Path::new(""),
            Path::new("."),
            Path::new("bin"),
            &at("absent"),
            &at("first"),
            &at("second"),
        ]);
        let path = joined.expect("PATH");
        assert_eq!(find("tool", &path), Some(at("second/tool")));
        assert_eq!(find("other", &path), None);
        assert_eq!(find("", &path), None);
        assert_eq!(find("../second/tool", &path), None);
        assert_eq!(find("tool", OsStr::new(".:")), None);
        let kept = std::env::join_paths([at("absent"), at("first"), at("second")]).expect("PATH");
        assert_eq!(absolute_path(&path), kept);
    }
}
