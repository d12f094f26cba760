//! Defines the settings of a bottle's guest, and converts paths in requests.

use std::path::{Component, Path, PathBuf};

use bottle_policy::names::WORKSPACE;
use rustix::process::Rlimit;

use crate::config::{Confine, Programs};

/// The settings from the backend that stay the same until the guest exits.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) root: PathBuf,
    pub(crate) programs: Programs,
    /// The original limit on open files, before the guest raised its own limit. Processes of the bottle get this limit.
    pub(crate) files: Rlimit,
    /// An additional restriction for processes of the bottle.
    pub(crate) confine: Option<Confine>,
}

impl Facts {
    /// Converts a path in a request to a path of the guest. A relative path begins in the workspace. The
    /// conversion is purely textual. Code that opens files for the host must use `rooted` instead.
    pub(crate) fn inside(&self, path: &str) -> PathBuf {
        let mut found = self.root.clone();
        found.push(relative_to_root(path));
        found
    }
}

/// Converts a path in a request to a path relative to the bottle's root. Resolves `..` as text and never leaves the
/// root.
pub(crate) fn relative_to_root(path: &str) -> PathBuf {
    let absolute = Path::new(WORKSPACE).join(path);
    let mut found = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => {
                found.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_paths_within_the_root() {
        for (path, relative) in [
            ("/etc/passwd", "etc/passwd"),
            ("notes", "workspace/notes"),
            ("../../../etc", "etc"),
            ("/a/../../b/./c", "b/c"),
            ("/", ""),
            ("", "workspace"),
        ] {
            assert_eq!(relative_to_root(path), Path::new(relative), "{path}");
        }
    }
}
