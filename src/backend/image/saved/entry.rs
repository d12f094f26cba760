//! Checks the names and the link targets of a layer's entries. The module has no side effects.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bottle_guest::archive::MAX_DEPTH;

use super::BadImage;

/// The name prefix of a whiteout, which removes a file of lower layers.
pub(crate) const WHITEOUT: &[u8] = b".wh.";

/// The name of an opaque whiteout, which removes all files of lower layers in its folder.
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";

/// The maximum number of files in all layers of an image. Real images have fewer; an image with more is refused.
pub(crate) const FILES_MAX: usize = 2_000_000;

/// Checks an entry name of an archive and returns it as a path.
pub(crate) fn checked_path(name: &Path) -> Result<PathBuf, BadImage> {
    if name.as_os_str().as_bytes().contains(&b'\0') {
        return Err(rejected_entry(name, "has a name with a NUL byte"));
    }
    let mut path = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::RootDir => return Err(rejected_entry(name, "is an absolute name")),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(rejected_entry(name, "points outside the image"));
            }
        }
    }
    if path.components().count() > MAX_DEPTH {
        return Err(rejected_entry(name, &format!("is more than {MAX_DEPTH} folders deep")));
    }
    Ok(path)
}

/// Whether a relative link leads above the top folder.
pub(crate) fn escapes(path: &Path, target: &Path) -> bool {
    if target.is_absolute() {
        return false;
    }
    let mut depth = path.components().count() - 1;
    for component in target.components() {
        match component {
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
    }
    false
}

/// The error for an entry that is refused. Of a long name, it contains only the end.
pub(crate) fn rejected_entry(path: &Path, why: &str) -> BadImage {
    const SHOWN: usize = 100;
    let name = path.to_string_lossy();
    let skipped = name.chars().count().saturating_sub(SHOWN);
    let shown: String = name.chars().skip(skipped).collect();
    let more = if skipped > 0 { "…" } else { "" };
    BadImage::refused(format!("is hostile or damaged: {more}{shown:?} {why}"))
}
