//! Parses and resolves paths of the host in manifests.
//!
//! A path is absolute, relative to `$BOTTLE_HOME`, or relative to the user's home (`~/`). A path is never relative to
//! the working directory. The working directory may be a project, and a project must not choose a Dockerfile, a root
//! certificate or a key.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Why a path cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// The path is empty, or contains a NUL character.
    #[error("must be a path")]
    NoPath,
    /// The path is absolute or begins with `~`, where only a path relative to `$BOTTLE_HOME` is allowed.
    #[error("must be a path relative to $BOTTLE_HOME")]
    NotRelative,
    /// The path leaves `$BOTTLE_HOME` through `..`.
    #[error("points outside $BOTTLE_HOME")]
    Outside,
    /// The path has the form `~name`.
    #[error(
        "must begin with `/` or `~/`, or be relative to $BOTTLE_HOME; another user's home is not supported"
    )]
    OthersHome,
}

/// Parses a path relative to `$BOTTLE_HOME` that stays inside this directory. Resolves `.` and inner `..`
/// lexically. Links are checked when the file is used.
///
/// # Errors
/// Returns [`BadPath`] if the text is not such a path.
pub fn within_home(text: &str) -> Result<PathBuf, BadPath> {
    check(text)?;
    if text.starts_with(['/', '~']) {
        return Err(BadPath::NotRelative);
    }
    let mut folded = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::Normal(part) => folded.push(part),
            Component::CurDir => {}
            Component::ParentDir if folded.pop() => {}
            _ => return Err(BadPath::Outside),
        }
    }
    if folded.as_os_str().is_empty() { Err(BadPath::NoPath) } else { Ok(folded) }
}

/// Parses a path on the host: absolute, in `~/`, or relative to `$BOTTLE_HOME` and inside it.
///
/// # Errors
/// Returns [`BadPath`] if the text is not such a path.
pub fn on_host(text: &str) -> Result<PathBuf, BadPath> {
    check(text)?;
    if text.starts_with('/') || text.starts_with("~/") {
        Ok(PathBuf::from(text))
    } else if text.starts_with('~') {
        Err(BadPath::OthersHome)
    } else {
        within_home(text)
    }
}

/// Resolves all links in a path that [`within_home`] returned.
///
/// # Errors
/// Returns an error if the path does not exist, or a link points outside `$BOTTLE_HOME`. The error is a sentence
/// fragment. It follows the path in a message.
pub fn real_within(bottle_home: &Path, path: &Path) -> Result<PathBuf, String> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    let real = bottle_home.join(path).canonicalize().map_err(cannot)?;
    if real.starts_with(bottle_home.canonicalize().map_err(cannot)?) {
        Ok(real)
    } else {
        Err("is a link that points outside $BOTTLE_HOME: put the file itself there".to_owned())
    }
}

/// Returns the absolute path for a path that [`on_host`] or [`within_home`] returned.
#[must_use]
pub fn absolute(path: &Path, bottle_home: &Path, user_home: &Path) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) => user_home.join(rest),
        Err(_) => bottle_home.join(path),
    }
}

fn check(text: &str) -> Result<(), BadPath> {
    if text.is_empty() || text.contains('\0') { Err(BadPath::NoPath) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_paths_stay_inside_the_home() {
        for (text, wanted) in [
            ("images/dev.tar", Ok("images/dev.tar")),
            ("./a/../b", Ok("b")),
            ("", Err(BadPath::NoPath)),
            (".", Err(BadPath::NoPath)),
            ("..", Err(BadPath::Outside)),
            ("a/../../b", Err(BadPath::Outside)),
            ("/etc/passwd", Err(BadPath::NotRelative)),
            ("~/x", Err(BadPath::NotRelative)),
            ("a\0b", Err(BadPath::NoPath)),
        ] {
            assert_eq!(within_home(text), wanted.map(PathBuf::from), "{text:?}");
        }
    }

    #[test]
    fn refuses_a_link_that_points_outside_the_home() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let home = directory.path().join("home");
        std::fs::create_dir(&home).expect("directory");
        std::fs::write(home.join("file"), "").expect("write");
        std::os::unix::fs::symlink("file", home.join("inner")).expect("link");
        std::os::unix::fs::symlink("/etc/passwd", home.join("outer")).expect("link");
        let real = home.canonicalize().expect("real").join("file");
        for (path, expected) in [
            ("file", Ok(real.clone())),
            ("inner", Ok(real)),
            ("outer", Err("is a link that points outside $BOTTLE_HOME")),
            ("nothing", Err("cannot be read: No such file")),
        ] {
            match (real_within(&home, Path::new(path)), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{path}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{path}: {found}"),
                (found, expected) => panic!("{path}: {found:?}, {expected:?}"),
            }
        }
    }

    #[test]
    fn resolves_paths_against_three_roots() {
        let (bottle, user) = (Path::new("/h/.bottle"), Path::new("/h"));
        for (text, wanted) in
            [("/etc/ca.pem", "/etc/ca.pem"), ("~/ca.pem", "/h/ca.pem"), ("ca.pem", "/h/.bottle/ca.pem")]
        {
            assert_eq!(absolute(&on_host(text).expect(text), bottle, user), Path::new(wanted));
        }
        assert_eq!(on_host("~root/x"), Err(BadPath::OthersHome));
        assert_eq!(on_host("../x"), Err(BadPath::Outside));
    }
}
