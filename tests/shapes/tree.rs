//! Reads and compares the files of a directory, byte by byte and mode by mode.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The maximum number of compared bytes of a file. Of a larger file, only this many bytes at the beginning, and the
/// size, are compared.
const MOST: u64 = 16 << 20;

/// The maximum number of differences in a message.
const SHOWN: usize = 12;

/// A file, a link or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The type and the permissions.
    mode: u32,
    /// The digest of the content, or the target of a link.
    content: Vec<u8>,
    size: u64,
    /// The extended attributes, with access control lists.
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The number of the inode and the time of the last change. `None` for a directory, because its time changes with
    /// its entries.
    identity: Option<(u64, i64, i64)>,
}

impl Entry {
    fn read(path: &Path) -> Result<Self> {
        let metadata = path.symlink_metadata()?;
        let kind = metadata.file_type();
        let content = if kind.is_symlink() {
            path.read_link()?.into_os_string().into_vec()
        } else if kind.is_file() {
            let mut hash = Sha256::new();
            let mut content = Vec::new();
            let _ = File::open(path)?.take(MOST).read_to_end(&mut content)?;
            hash.update(&content);
            hash.finalize().to_vec()
        } else {
            Vec::new()
        };
        let identity = (!kind.is_dir()).then(|| (metadata.ino(), metadata.mtime(), metadata.mtime_nsec()));
        let size = if kind.is_dir() { 0 } else { metadata.len() };
        Ok(Self { mode: metadata.mode(), content, size, attributes: attributes(path)?, identity })
    }

    /// Whether both entries are equal, apart from their inode and time.
    fn is_like(&self, other: &Self) -> bool {
        Self { identity: None, ..self.clone() } == Self { identity: None, ..other.clone() }
    }

    fn shown(&self) -> String {
        let Self { mode, content, size, attributes, identity } = self;
        let content: String = content.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let names: Vec<_> = attributes.keys().map(|name| String::from_utf8_lossy(name)).collect();
        format!("{mode:o} {size} B {content} {names:?} {identity:?}")
    }
}

/// The extended attributes of a file.
fn attributes(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).context("list attributes")?;
    let mut all = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value).context("read an attribute")?;
        value.truncate(length);
        let _ = all.insert(name.to_vec(), value);
    }
    Ok(all)
}

/// All entries below a directory, by their paths relative to the directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree(BTreeMap<PathBuf, Entry>);

impl Tree {
    pub(crate) fn read(top: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let mut next = vec![PathBuf::new()];
        while let Some(directory) = next.pop() {
            for entry in fs::read_dir(top.join(&directory))? {
                let entry = entry?;
                let path = directory.join(entry.file_name());
                let read = Entry::read(&top.join(&path)).with_context(|| path.display().to_string())?;
                let _ = tree.0.insert(path.clone(), read);
                if entry.file_type()?.is_dir() {
                    next.push(path);
                }
            }
        }
        Ok(tree)
    }

    /// The entries in a directory that are not in a git directory, by their paths relative to the directory.
    pub(crate) fn work(&self, directory: &str) -> Self {
        let inside = self.0.iter().filter_map(|(path, entry)| {
            let path = path.strip_prefix(directory).ok().filter(|path| !path.as_os_str().is_empty())?;
            (!is_git(path)).then(|| (path.to_owned(), entry.clone()))
        });
        Self(inside.collect())
    }

    /// The entries that [`Tree::work`] does not return: everything that no agent may change.
    pub(crate) fn beside(&self, directory: &str, is_allowed: impl Fn(&Path) -> bool) -> Self {
        let is_beside = |path: &Path| match path.strip_prefix(directory) {
            Ok(inside) => is_git(inside),
            Err(_) => true,
        };
        let others = self.0.iter().filter(|(path, _)| is_beside(path) && !is_allowed(path));
        Self(others.map(|(path, entry)| (path.clone(), entry.clone())).collect())
    }

    /// The same tree, but with the original entries at and below these paths.
    pub(crate) fn with_original(mut self, paths: &[&str], original: &Self) -> Self {
        let is_original = |path: &Path| paths.iter().any(|original| path.starts_with(original));
        self.0.retain(|path, _| !is_original(path));
        let of_original = original.0.iter().filter(|(path, _)| is_original(path));
        self.0.extend(of_original.map(|(path, entry)| (path.clone(), entry.clone())));
        self
    }

    /// The differences to `expected`. An entry that `before` had with the same content must still be the same file, and
    /// not a copy.
    pub(crate) fn differences(&self, expected: &Self, before: Option<&Self>) -> Vec<String> {
        let mut found = Vec::new();
        for path in self.0.keys().chain(expected.0.keys().filter(|path| !self.0.contains_key(*path))) {
            let difference = match (self.0.get(path), expected.0.get(path)) {
                (Some(is), Some(expected)) if !is.is_like(expected) => {
                    format!("is {}, expected {}", is.shown(), expected.shown())
                }
                (Some(is), None) => format!("is there: {}", is.shown()),
                (None, Some(expected)) => format!("is missing: {}", expected.shown()),
                (Some(is), Some(expected)) => {
                    let before = before.and_then(|before| before.0.get(path));
                    match before.filter(|before| before.is_like(expected) && *before != is) {
                        Some(before) => format!("was written again: {}, {}", before.shown(), is.shown()),
                        None => continue,
                    }
                }
                (None, None) => continue,
            };
            found.push(format!("{} {difference}", path.display()));
        }
        shorten(found)
    }

    /// The lines that [`crate::flow::LIST`] prints in a bottle that has these paths and all entries below them.
    pub(crate) fn listed(&self, paths: &[PathBuf]) -> Vec<String> {
        let is_listed = |path: &Path| path.ancestors().any(|path| paths.iter().any(|listed| listed == path));
        let mut lines = Vec::new();
        for (path, entry) in self.0.iter().filter(|(path, _)| is_listed(path)) {
            let name = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
            match entry.mode & 0o170_000 {
                0o120_000 => lines.push(format!("l {} ./{name}", String::from_utf8_lossy(&entry.content))),
                0o100_000 => {
                    lines.push(format!("f {:o} {} ./{name}", entry.mode & 0o7777, entry.size));
                    if entry.size < MOST {
                        let digest: String = entry.content.iter().map(|byte| format!("{byte:02x}")).collect();
                        lines.push(format!("{digest}  ./{name}"));
                    }
                }
                _ => {}
            }
        }
        lines.sort();
        lines
    }

    /// All paths.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.keys().cloned().collect()
    }
}

/// The differences between two sorted lists of lines.
pub(crate) fn lines_differ<S: AsRef<str>>(is: &[S], expected: &[S]) -> Vec<String> {
    let has = |lines: &[S], line: &S| lines.iter().any(|other| other.as_ref() == line.as_ref());
    let more = is.iter().filter(|line| !has(expected, line)).map(|line| format!("is: {}", line.as_ref()));
    let less = expected.iter().filter(|line| !has(is, line));
    shorten(more.chain(less.map(|line| format!("expected: {}", line.as_ref()))).collect())
}

fn shorten(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Whether a path is in a git directory.
fn is_git(path: &Path) -> bool {
    path.components().any(|component| component.as_os_str() == ".git")
}
