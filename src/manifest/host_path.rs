//! Paths of the host that a bottle names, and the one rule for what they are relative to.
//!
//! A path belongs to `$BOTTLE_HOME`, to the user's own home (`~/`), or is absolute. It never
//! belongs to the working directory: that is a project, and a project must not choose a Dockerfile, a
//! root certificate or a key.

use std::io;
use std::path::{Component, Path, PathBuf};

/// A path that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// Nothing there, or a NUL character.
    #[error("must be a path")]
    NoPath,
    /// An absolute path, or one below `~`, where only the home is allowed.
    #[error("must be a path relative to $BOTTLE_HOME")]
    NotRelative,
    /// `..` leads out of `$BOTTLE_HOME`.
    #[error("leads out of $BOTTLE_HOME")]
    LeadsOut,
    /// `~name`.
    #[error(
        "must begin with `/`, with `~/`, or be relative to $BOTTLE_HOME; another user's home has no meaning here"
    )]
    OthersHome,
}

/// A path relative to `$BOTTLE_HOME` that does not lead out of it by its own words. `.` and inner `..`
/// are folded away; whether a link leads out is asked when the file is used.
///
/// # Errors
/// [`BadPath`], which of the rules is broken.
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
            _ => return Err(BadPath::LeadsOut),
        }
    }
    if folded.as_os_str().is_empty() { Err(BadPath::NoPath) } else { Ok(folded) }
}

/// A path anywhere on the host, as written: absolute, below `~/`, or relative to `$BOTTLE_HOME`
/// without leading out of it.
///
/// # Errors
/// [`BadPath`], which of the rules is broken.
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

/// The real place of a path from [`within_home`], every link resolved.
///
/// # Errors
/// When it is not there, or a link leads out of `$BOTTLE_HOME`; a fragment that follows the path.
pub fn real_within(bottle_home: &Path, path: &Path) -> Result<PathBuf, String> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    let real = bottle_home.join(path).canonicalize().map_err(cannot)?;
    if real.starts_with(bottle_home.canonicalize().map_err(cannot)?) {
        Ok(real)
    } else {
        Err("is a link that leads out of $BOTTLE_HOME: put the file itself there".to_owned())
    }
}

/// The absolute path that one from [`on_host`] or [`within_home`] means.
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
    fn home_paths_stay_in_the_home() {
        for (text, wanted) in [
            ("images/dev.tar", Ok("images/dev.tar")),
            ("./a/../b", Ok("b")),
            ("", Err(BadPath::NoPath)),
            (".", Err(BadPath::NoPath)),
            ("..", Err(BadPath::LeadsOut)),
            ("a/../../b", Err(BadPath::LeadsOut)),
            ("/etc/passwd", Err(BadPath::NotRelative)),
            ("~/x", Err(BadPath::NotRelative)),
            ("a\0b", Err(BadPath::NoPath)),
        ] {
            assert_eq!(within_home(text), wanted.map(PathBuf::from), "{text:?}");
        }
    }

    #[test]
    fn a_link_out_of_the_home_is_no_way_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let home = folder.path().join("home");
        std::fs::create_dir(&home).expect("folder");
        std::fs::write(home.join("file"), "").expect("write");
        std::os::unix::fs::symlink("file", home.join("inner")).expect("link");
        std::os::unix::fs::symlink("/etc/passwd", home.join("outer")).expect("link");
        let real = home.canonicalize().expect("real").join("file");
        for (path, expected) in [
            ("file", Ok(real.clone())),
            ("inner", Ok(real)),
            ("outer", Err("is a link that leads out of $BOTTLE_HOME")),
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
    fn host_paths_have_three_roots() {
        let (bottle, user) = (Path::new("/h/.bottle"), Path::new("/h"));
        for (text, wanted) in
            [("/etc/ca.pem", "/etc/ca.pem"), ("~/ca.pem", "/h/ca.pem"), ("ca.pem", "/h/.bottle/ca.pem")]
        {
            assert_eq!(absolute(&on_host(text).expect(text), bottle, user), Path::new(wanted));
        }
        assert_eq!(on_host("~root/x"), Err(BadPath::OthersHome));
        assert_eq!(on_host("../x"), Err(BadPath::LeadsOut));
    }
}
