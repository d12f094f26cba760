//! Parses an untrusted tar archive one member at a time, with limited memory.
//!
//! The guest parses archives that the host sends, and the host parses archives that the guest sends. Neither the guest
//! nor the host trusts the writer of an archive. The `tar` library would read a name of any length into memory. This
//! module therefore parses the extension headers itself, with a size limit for each header, and rejects all unsupported
//! headers.

mod sparse;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use tar::{Entries, Entry, EntryType};

use self::sparse::Map;
pub use self::sparse::{Content, append_extended_file, append_file};

/// The maximum depth of nested directories. A copy of a deeper tree fails. The depth is limited because each level
/// needs an open descriptor while a tree is read.
pub const MAX_DEPTH: usize = 128;

/// The maximum length of a name or link target in bytes, which is the kernel's PATH_MAX. An archive with a longer name
/// or link target is rejected.
const MAX_NAME: u64 = 4096;

/// The maximum size of an extended header in bytes, which is enough for two names and some numbers. An archive with a
/// larger header is rejected.
const MAX_EXTENSIONS: u64 = 64 * 1024;

/// The prefix of keys that store extended attributes in an extended header.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// The maximum number of members in an archive. A larger archive is rejected.
const MAX_MEMBERS: usize = 1_000_000;

/// The maximum size of all names and headers of an archive in bytes. An archive with more bytes of names and headers is
/// rejected, because unpacking keeps the names of directories in memory.
const MAX_NAMES: u64 = 256 << 20;

/// The error that an archive violates a rule of this module. Errors of the `tar` library have another type.
#[derive(Debug)]
pub struct BadMember(String);

impl fmt::Display for BadMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMember {}

/// The type of an archive member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink, with its target.
    Link(PathBuf),
    /// A hard link, with the name of the member that it links to.
    HardLink(PathBuf),
    /// Any other type, such as a device or a pipe.
    Other(EntryType),
}

/// A member of an archive.
pub struct Member<'a, R: Read> {
    /// The name in the archive. The name is not checked. [`Member::place`] returns a path that is safe to use.
    pub name: PathBuf,
    /// The type of the member.
    pub what: What,
    /// The permission bits, without set-id and sticky bits.
    pub mode: u32,
    /// The set-id and sticky bits. Only a caller that runs no program of the archive may apply these bits.
    pub special: u32,
    /// The user id of the owner. 0 if the number in the archive is not a valid user id.
    pub uid: u32,
    /// The group id of the owner. 0 if the number in the archive is not a valid group id.
    pub gid: u32,
    /// The modification time, in seconds since the epoch.
    pub mtime: u64,
    /// The nanoseconds of the modification time.
    pub mtime_nanos: u32,
    /// The extended attributes, as pairs of name and value.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The content of a file.
    pub content: Content<'a, R>,
}

impl<R: Read> Member<'_, R> {
    /// Returns the member's path relative to the target directory. The path is not absolute, contains no `..`,
    /// and is at most [`MAX_DEPTH`] levels deep.
    ///
    /// # Errors
    /// Fails if the member's name is absolute, contains `..` or is too deep.
    pub fn place(&self) -> io::Result<PathBuf> {
        place(&self.name)
    }
}

/// Reads the members of an archive in order.
pub struct Members<'a, R: Read> {
    entries: Entries<'a, R>,
    seen: usize,
    /// The total size of the names and headers that were read so far, in bytes.
    names: u64,
}

impl<'a, R: Read> Members<'a, R> {
    /// Creates a parser for the members in `entries`. The caller must not have read any entry.
    #[must_use]
    pub fn new(entries: Entries<'a, R>) -> Self {
        Self { entries: entries.raw(true), seen: 0, names: 0 }
    }

    /// Returns the next member. Returns `None` at the end of the archive.
    ///
    /// # Errors
    /// Fails if the archive is invalid, truncated, or exceeds a limit.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot say that reading failed for good")]
    pub fn next(&mut self) -> io::Result<Option<Member<'a, R>>> {
        let mut extensions = Extensions::default();
        for entry in self.entries.by_ref() {
            let mut entry = entry?;
            self.seen += 1;
            if self.seen > MAX_MEMBERS {
                return Err(refused(format!("the archive has more than {MAX_MEMBERS} members")));
            }
            let kind = entry.header().entry_type();
            let header = matches!(kind, EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader);
            // The name field in a member's own header has a fixed size of 100 bytes.
            self.names = self.names.saturating_add(if header { entry.size() } else { 100 });
            if self.names > MAX_NAMES {
                return Err(refused(format!("the archive has more than {MAX_NAMES} bytes of names")));
            }
            match kind {
                EntryType::GNULongName => extensions.name = Some(long_name(&mut entry)?),
                EntryType::GNULongLink => extensions.link = Some(long_name(&mut entry)?),
                EntryType::XHeader => extensions.extend(&mut entry)?,
                // Global headers are skipped, because a copy does not use them.
                EntryType::XGlobalHeader => {}
                kind => return member(entry, kind, extensions).map(Some),
            }
        }
        Ok(None)
    }
}

/// The contents of the extension headers that precede a member.
#[derive(Default)]
struct Extensions {
    name: Option<PathBuf>,
    link: Option<PathBuf>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The modification time: seconds, and nanoseconds.
    mtime: Option<(u64, u32)>,
    uid: Option<u32>,
    gid: Option<u32>,
    holes: Holes,
}

/// The description of a sparse file in the extended header of the file.
#[derive(Default)]
struct Holes {
    /// Whether the file has the format GNU.sparse 1.0. In this format, the map precedes the data.
    major: bool,
    /// The map of the file if it has the format GNU.sparse 0.1.
    map: Option<Vec<u8>>,
    /// The size of the file, including its holes.
    size: Option<u64>,
}

impl Holes {
    /// Returns the map of the file's data. Returns `None` if the file has no holes.
    fn map(self, entry: &mut Entry<'_, impl Read>, kind: EntryType) -> io::Result<Option<Map>> {
        let stored = entry.size();
        let missing = || refused("a sparse file has no size");
        if kind == EntryType::GNUSparse {
            let header = entry.header().as_gnu().ok_or_else(missing)?;
            return Map::of_header(header, stored).map(Some);
        }
        match (self.major, self.map) {
            (true, _) => Map::read(entry, self.size.ok_or_else(missing)?, stored).map(Some),
            (false, Some(map)) => Map::of_text(&map, self.size.ok_or_else(missing)?, stored).map(Some),
            (false, None) => Ok(None),
        }
    }
}

fn member<R: Read>(
    mut entry: Entry<'_, R>,
    kind: EntryType,
    extensions: Extensions,
) -> io::Result<Member<'_, R>> {
    let header = entry.header();
    let name = match extensions.name {
        Some(name) => name,
        None => PathBuf::from(OsString::from_vec(header.path_bytes().into_owned())),
    };
    let what = match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => What::File,
        EntryType::Directory => What::Directory,
        EntryType::Symlink | EntryType::Link => {
            let short = || header.link_name_bytes().map(|name| OsString::from_vec(name.into_owned()).into());
            let target =
                extensions.link.or_else(short).ok_or_else(|| about(&name, "a link without a target"))?;
            if kind == EntryType::Symlink { What::Link(target) } else { What::HardLink(target) }
        }
        other => What::Other(other),
    };
    let bits = header.mode()?;
    let (mode, special) = (bits & 0o777, bits & 0o7000);
    let (mtime, mtime_nanos) = match extensions.mtime {
        Some(time) => time,
        None => (header.mtime()?, 0),
    };
    let id = |extended: Option<u32>, own: io::Result<u64>| {
        extended.or_else(|| own.ok().and_then(|id| u32::try_from(id).ok())).unwrap_or(0)
    };
    let (uid, gid) = (id(extensions.uid, header.uid()), id(extensions.gid, header.gid()));
    let map = match what {
        What::File => extensions.holes.map(&mut entry, kind).map_err(|error| about(&name, error))?,
        _ => None,
    };
    let content = Content::new(entry, map);
    let attributes = extensions.attributes;
    Ok(Member { name, what, mode, special, uid, gid, mtime, mtime_nanos, attributes, content })
}

/// Returns the path of a member's name relative to the target directory. See [`Member::place`].
pub(crate) fn place(name: &Path) -> io::Result<PathBuf> {
    let mut place = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => place.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(about(name, "the name points outside the archive"));
            }
        }
    }
    if place.components().count() > MAX_DEPTH {
        return Err(about(name, format!("more than {MAX_DEPTH} directories deep")));
    }
    Ok(place)
}

fn bounded<R: Read>(entry: &mut Entry<'_, R>, bound: u64) -> io::Result<Vec<u8>> {
    if entry.size() > bound {
        return Err(refused(format!("the archive has a name or header of {} bytes", entry.size())));
    }
    let mut bytes = Vec::new();
    entry.take(bound).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn long_name<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<PathBuf> {
    let mut bytes = bounded(entry, MAX_NAME)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(OsString::from_vec(bytes).into())
}

impl Extensions {
    /// Parses an extended header (POSIX), which may contain long names and extended attributes. A `size` record is
    /// rejected: it could differ from the size in the member's own header, and the member's own header determines where
    /// the member ends.
    fn extend<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> io::Result<()> {
        let bytes = bounded(entry, MAX_EXTENSIONS)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (key, value) =
                record(&mut rest).ok_or_else(|| refused("the archive has a damaged extended header"))?;
            let path = || Some(PathBuf::from(OsString::from_vec(value.to_vec())));
            match key {
                b"path" => self.name = path(),
                b"linkpath" => self.link = path(),
                b"mtime" => self.mtime = time(value).or(self.mtime),
                b"uid" => self.uid = number(value),
                b"gid" => self.gid = number(value),
                b"GNU.sparse.name" => self.name = path(),
                b"GNU.sparse.major" if value == b"1" => self.holes.major = true,
                b"GNU.sparse.minor" if value == b"0" => {}
                b"GNU.sparse.map" => self.holes.map = Some(value.to_vec()),
                b"GNU.sparse.realsize" | b"GNU.sparse.size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    self.holes.size = Some(size.ok_or_else(unsupported_sparse)?);
                }
                // This record repeats the number of pieces in the map, so it is skipped.
                b"GNU.sparse.numblocks" => {}
                key if key.starts_with(b"GNU.sparse.") => return Err(unsupported_sparse()),
                b"size" => return Err(refused("the archive has a size in an extended header")),
                key => {
                    if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                        self.attributes.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Parses a time in seconds with a fraction. Returns `None` if the time is before the epoch or malformed.
fn time(value: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some((seconds.parse().ok()?, digits.parse().ok()?))
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn unsupported_sparse() -> io::Error {
    refused("the archive has a sparse file in an unsupported format")
}

/// Parses the next record of an extended header. A record has the form `LENGTH KEY=VALUE\n`. `LENGTH` is the length of
/// the complete record. The value may contain any bytes.
fn record<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let digits = rest.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let (record, after) = rest.split_at_checked(length)?;
    let record = record.get(digits + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    *rest = after;
    Some((&record[..equals], &record[equals + 1..]))
}

/// Returns an error that names a member's path and the cause.
pub(crate) fn about(path: &Path, why: impl fmt::Display) -> io::Error {
    refused(format!("{path:?}: {why}"))
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::other(BadMember(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_records_by_their_length() {
        for (text, expected) in [
            (&b"12 path=a/b\n"[..], Some((&b"path"[..], &b"a/b"[..]))),
            (b"9 k=a\n=b\n", Some((b"k", b"a\n=b"))),
            (b"5 k=\nmore", Some((b"k", b""))),
            (b"6 k=\n", None),
            (b"99 k=v\n", None),
            (b"6 kv\n\n", None),
            (b"3 \n", None),
            (b"0 k=v\n", None),
            (b"-1 k=v\n", None),
            (b"", None),
        ] {
            assert_eq!(record(&mut &*text), expected, "{text:?}");
        }
    }

    #[test]
    fn parses_times_with_a_fraction() {
        for (text, expected) in [
            ("5", Some((5, 0))),
            ("5.25", Some((5, 250_000_000))),
            ("1.0000000019", Some((1, 1))),
            ("-5.5", None),
            ("5.x", None),
            ("", None),
        ] {
            assert_eq!(time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn refuses_names_outside_the_target() {
        for (name, expected) in [("a/b", Some("a/b")), ("./a/./b/", Some("a/b")), (".", Some(""))] {
            assert_eq!(place(Path::new(name)).ok().as_deref(), expected.map(Path::new), "{name}");
        }
        for name in ["/a", "..", "a/../../b", "a/.."] {
            assert!(place(Path::new(name)).is_err(), "{name}");
        }
        assert!(place(Path::new(&"d/".repeat(MAX_DEPTH + 1))).is_err());
    }
}
