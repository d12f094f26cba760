//! Writes stored trees of an agent's files as one layer of an image.
//!
//! The layer is canonical: equal trees result in equal bytes. Entries are sorted by name. Each entry has an owner, a
//! mode, a time with nanoseconds, and its `user.*` attributes. Hard links stay links, and holes of sparse files stay
//! holes. The upper layer of an overlay becomes a layer with whiteouts. The trees must not change while they are read.
//! The agent chose their names, links and depth.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_guest::archive::append_extended_file;
use rustix::fs::{AtFlags, Dir, FileType, Stat, readlinkat, statat};
use serde::{Deserialize, Serialize};
use tar::{Builder, EntryType, Header};

use super::copy::attributes::{OPAQUE, user_attributes};
use super::copy::{MAX_DEPTH, MAX_LINKS, about};
use super::nofollow::Readable;
use crate::image::saved::entry;

/// The maximum number of entries of a layer. A reader refuses an archive with more than a million members, and an entry
/// may need two members.
const MAX_ENTRIES: usize = 500_000;

/// The length of a name or link target that fits into a header, in bytes.
const SHORT_NAME: usize = 100;

/// The owner of an entry, and the entry's set-id and sticky bits. The stored tree does not contain these bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The set-id and sticky bits of the mode.
    pub special: u32,
}

impl Ownership {
    /// The ownership of an entry that root owns and that has no set-id or sticky bits.
    pub const ROOT: Self = Self { uid: 0, gid: 0, special: 0 };
}

/// The function that returns the owner of the entry at a path. The path is relative to the root of the image.
pub(crate) type Owners<'a> = &'a dyn Fn(&Path) -> Ownership;

/// Writes one layer.
pub struct LayerTar<'a> {
    out: Builder<&'a mut dyn Write>,
    owners: Owners<'a>,
    /// Whether the tree is the upper layer of an overlay.
    overlay: bool,
    /// The paths of the entries that are left out, relative to the root of the image.
    skipped: &'a [&'a str],
    /// The name of the first entry of each hard-linked file, by inode.
    links: HashMap<u64, PathBuf>,
    entries_left: usize,
}

impl<'a> LayerTar<'a> {
    /// Starts a layer. The entries at the paths `skipped`, and the entries below these paths, are left out.
    pub fn new(out: &'a mut dyn Write, owners: Owners<'a>, skipped: &'a [&'a str]) -> Self {
        let out = Builder::new(out);
        Self { out, owners, overlay: false, skipped, links: HashMap::new(), entries_left: MAX_ENTRIES }
    }

    /// Adds the content of the directory `name` in `at` below the path `inside`, which is relative to the root of the
    /// image. The directory itself gets an entry unless `inside` is empty. `overlay` says whether the tree is the upper
    /// layer of an overlay.
    ///
    /// # Errors
    /// When an entry cannot be read, when a layer cannot contain the entry's name, or when the output cannot be
    /// written.
    pub fn tree(&mut self, at: &OwnedFd, name: &str, inside: &Path, overlay: bool) -> io::Result<()> {
        self.overlay = overlay;
        // Inode numbers are unique only within one tree.
        self.links.clear();
        let name = CString::new(name)?;
        self.directory(at.as_fd(), &name, inside, 0)
    }

    /// Adds the directories from `top` to the parent of `inside`, with the times of the directory `name` in `at`. If a
    /// layer lacks the parent directory of an entry, an engine creates the directory with root as the owner, even if an
    /// earlier layer contains the directory.
    ///
    /// # Errors
    /// The errors of [`LayerTar::tree`].
    pub fn parents(&mut self, at: &OwnedFd, name: &str, inside: &Path, top: &Path) -> io::Result<()> {
        let mut stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        stat.st_mode = 0o755;
        let mut parents: Vec<&Path> =
            inside.ancestors().skip(1).take_while(|parent| parent.starts_with(top)).collect();
        parents.reverse();
        parents.into_iter().try_for_each(|parent| {
            let added = self.entry(EntryType::Directory, parent, None, &stat, &[]);
            added.map_err(|error| about(parent, &error))
        })
    }

    /// Completes the layer.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.finish()
    }

    fn directory(&mut self, at: BorrowedFd<'_>, name: &CStr, path: &Path, depth: usize) -> io::Result<()> {
        let named = |error: io::Error| about(path, &error);
        if depth > MAX_DEPTH {
            let why = format!("more than {MAX_DEPTH} directories deep");
            return Err(named(io::Error::new(io::ErrorKind::InvalidFilename, why)));
        }
        let directory = Readable::directory(at, name).map_err(|error| named(error.into()))?;
        let from = directory.file_descriptor();
        let stat = directory.stat().map_err(|error| named(error.into()))?;
        let mut attributes = user_attributes(from).map_err(named)?;
        let is_opaque = attributes.iter().any(|(name, _)| name.to_bytes() == OPAQUE);
        attributes.retain(|(name, _)| name.to_bytes() != OPAQUE);
        if !path.as_os_str().is_empty() {
            self.entry(EntryType::Directory, path, None, &stat, &attributes).map_err(named)?;
        }
        if self.overlay && is_opaque {
            self.whiteout(&path.join(OsStr::from_bytes(entry::OPAQUE))).map_err(named)?;
        }
        for name in names_in(from).map_err(named)? {
            let inner = path.join(OsStr::from_bytes(name.to_bytes()));
            if self.skipped.iter().any(|skipped| inner == Path::new(skipped)) {
                continue;
            }
            let left = self.entries_left.checked_sub(1).ok_or_else(|| {
                let why = format!("more than {MAX_ENTRIES} files and directories");
                named(io::Error::new(io::ErrorKind::QuotaExceeded, why))
            })?;
            self.entries_left = left;
            self.member(from.as_fd(), &name, &inner, depth)?;
        }
        Ok(())
    }

    fn member(&mut self, at: BorrowedFd<'_>, name: &CStr, path: &Path, depth: usize) -> io::Result<()> {
        let named = |error: io::Error| about(path, &error);
        if name.to_bytes().starts_with(entry::WHITEOUT) {
            let why = "an image cannot contain a file of this name";
            return Err(named(io::Error::new(io::ErrorKind::InvalidFilename, why)));
        }
        let stat =
            statat(at, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| named(io::Error::from(error)))?;
        let written = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.directory(at, name, path, depth + 1),
            FileType::RegularFile => self.file(at, name, path, &stat),
            FileType::Symlink => readlinkat(at, name, Vec::new())
                .map_err(io::Error::from)
                .and_then(|target| self.entry(EntryType::Symlink, path, Some(target.to_bytes()), &stat, &[])),
            FileType::Fifo => self.entry(EntryType::Fifo, path, None, &stat, &[]),
            FileType::CharacterDevice if self.overlay && stat.st_rdev == 0 => {
                let mut whiteout = entry::WHITEOUT.to_vec();
                whiteout.extend_from_slice(name.to_bytes());
                self.whiteout(&path.with_file_name(OsStr::from_bytes(&whiteout)))
            }
            // Sockets and devices belong to a running system, so the layer does not contain them.
            _ => Ok(()),
        };
        written.map_err(named)
    }

    fn file(&mut self, at: BorrowedFd<'_>, name: &CStr, path: &Path, seen: &Stat) -> io::Result<()> {
        if seen.st_nlink > 1 {
            if let Some(first) = self.links.get(&seen.st_ino).cloned() {
                return self.entry(EntryType::Link, path, Some(first.as_os_str().as_bytes()), seen, &[]);
            }
            if self.links.len() < MAX_LINKS {
                self.links.insert(seen.st_ino, path.to_owned());
            }
        }
        let file = Readable::file(at, name)?;
        let stat = file.stat()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it was replaced while it was read"));
        }
        let attributes = user_attributes(file.file_descriptor())?;
        let mut header = self.header(EntryType::Regular, path, &stat);
        header.set_size(u64::try_from(stat.st_size).unwrap_or(0));
        let content = File::from(file.file_descriptor().try_clone()?);
        append_extended_file(&mut self.out, &mut header, path, content, &records(&stat, &attributes))
    }

    /// Adds an entry without content.
    fn entry(
        &mut self,
        kind: EntryType,
        path: &Path,
        target: Option<&[u8]>,
        stat: &Stat,
        attributes: &[(CString, Vec<u8>)],
    ) -> io::Result<()> {
        let mut header = self.header(kind, path, stat);
        header.set_size(0);
        let mut records = records(stat, attributes);
        let name = path.as_os_str().as_bytes();
        let old = header.as_old_mut();
        let short = &name[..name.len().min(SHORT_NAME)];
        old.name[..short.len()].copy_from_slice(short);
        if short.len() < name.len() {
            records.push(("path".to_owned(), name.to_vec()));
        }
        if let Some(target) = target {
            let short = &target[..target.len().min(SHORT_NAME)];
            old.linkname[..short.len()].copy_from_slice(short);
            if short.len() < target.len() {
                records.push(("linkpath".to_owned(), target.to_vec()));
            }
        }
        header.set_cksum();
        let extended = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.out.append_pax_extensions(extended)?;
        self.out.append(&header, io::empty())
    }

    fn whiteout(&mut self, path: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(0);
        header.set_size(0);
        self.out.append_data(&mut header, path, io::empty())
    }

    fn header(&self, kind: EntryType, path: &Path, stat: &Stat) -> Header {
        let Ownership { uid, gid, special } = (self.owners)(path);
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_mode((stat.st_mode & 0o1777) | special);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header
    }
}

/// Returns the records of an entry's extended header. They contain the metadata that the header cannot contain.
fn records(stat: &Stat, attributes: &[(CString, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
    let mut records = Vec::new();
    if stat.st_mtime_nsec != 0 && stat.st_mtime >= 0 {
        records.push(("mtime".to_owned(), format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec).into()));
    }
    for (name, value) in attributes {
        records.push((format!("SCHILY.xattr.{}", name.to_string_lossy()), value.clone()));
    }
    records
}

/// Returns the names in a directory, sorted.
pub(super) fn names_in(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn the_directories_above_a_tree_have_an_owner() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(root.path().join("projects")).expect("a directory");
        std::fs::write(root.path().join("projects/one"), "x").expect("a file");
        let at =
            rustix::fs::open(root.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
        let owners = |_: &Path| Ownership { uid: 7, gid: 8, special: 0 };
        let mut bytes = Vec::new();
        let mut tar = LayerTar::new(&mut bytes, &owners, &[]);
        let (home, inside) = (Path::new("home/agent"), Path::new("home/agent/.claude/projects"));
        tar.parents(&at, "projects", inside, home).expect("added");
        tar.tree(&at, "projects", inside, false).expect("added");
        tar.finish().expect("complete");
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries: Vec<_> = archive
            .entries()
            .expect("entries")
            .map(|entry| {
                let entry = entry.expect("an entry");
                assert_eq!((entry.header().uid().ok(), entry.header().gid().ok()), (Some(7), Some(8)));
                entry.path().expect("a path").to_string_lossy().into_owned()
            })
            .collect();
        let expected = ["home/agent", "home/agent/.claude", "home/agent/.claude/projects"];
        assert_eq!(entries[..3], expected);
        assert_eq!(entries[3..], ["home/agent/.claude/projects/one"]);
    }
}
