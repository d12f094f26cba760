//! Checks the names and the link targets of a layer's entries. The module has no side effects.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bottle_guest::archive::MAX_DEPTH;

use super::bad_image::BadImage;

/// The name prefix of a whiteout. A whiteout removes a file of lower layers.
pub const WHITEOUT: &[u8] = b".wh.";

/// The name of an opaque whiteout. An opaque whiteout removes all files of lower layers in its directory.
pub const OPAQUE: &[u8] = b".wh..wh..opq";

/// The maximum number of files in all layers of an image. Real images have fewer files. An image with more files is
/// refused.
pub(crate) const FILES_MAX: usize = 2_000_000;

/// The maximum size of all names in all layers of an image, in bytes. The code that unpacks an image keeps the names in
/// memory.
pub(crate) const NAMES_MAX: usize = 256 << 20;

/// Checks an entry name of an archive and returns it as a path.
pub fn checked_path(name: &Path) -> Result<PathBuf, BadImage> {
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
        return Err(rejected_entry(name, &format!("is more than {MAX_DEPTH} directories deep")));
    }
    Ok(path)
}

/// Whether a relative link points above the top directory.
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

/// Creates the error for an entry that is refused. If the entry's name is long, the error contains only its end.
pub(crate) fn rejected_entry(path: &Path, why: &str) -> BadImage {
    const SHOWN: usize = 100;
    let name = path.to_string_lossy();
    let skipped = name.chars().count().saturating_sub(SHOWN);
    let shown: String = name.chars().skip(skipped).collect();
    let more = if skipped > 0 { "…" } else { "" };
    BadImage::refused(format!("is hostile or damaged: {more}{shown:?} {why}"))
}

/// A layer that contains the same entry many times. Memory contains only one copy of the entry.
#[cfg(test)]
pub(crate) struct Repeated {
    entry: Vec<u8>,
    at: usize,
    left: usize,
}

#[cfg(test)]
impl Repeated {
    /// Creates a layer with `count` empty entries.
    pub(crate) fn entry(kind: tar::EntryType, name: &str, count: usize) -> Self {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        builder.append_data(&mut header, name, std::io::empty()).expect("added");
        let mut entry = builder.into_inner().expect("layer");
        // Two blocks of zeros mark the end of an archive.
        entry.truncate(entry.len() - 1024);
        Self { entry, at: 0, left: count }
    }
}

#[cfg(test)]
impl std::io::Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let rest = &self.entry[self.at..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        if self.at == self.entry.len() {
            (self.at, self.left) = (0, self.left - 1);
        }
        Ok(length)
    }
}
