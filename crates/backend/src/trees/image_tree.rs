//! Unpacks the layers of an image into a directory, each layer over the previous layers.
//!
//! Every name is untrusted. Paths are opened from the top of the tree, and a link is followed only if its target is in
//! the tree. Entries that an image must not contain are refused; the error contains the entry's name.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_archive::DiskBudget;
use bottle_guest::archive::{Member, Members, What};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, fchmod, fsetxattr,
    futimens, linkat, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use tar::EntryType;

use super::layer_tar::Ownership;
use super::remove::remove_tree_at;
use crate::image::saved::BadImage;
use crate::image::saved::entry::{
    FILES_MAX, NAMES_MAX, OPAQUE, WHITEOUT, checked_path, escapes, rejected_entry,
};

/// The prefix of the attributes of overlay file systems.
const OVERLAY: &[u8] = b"user.overlay.";

/// The directory of devices, over which a bottle mounts another directory. Devices in it are skipped.
const DEVICES: &str = "dev";

/// The file tree of an image.
pub struct Tree {
    top: OwnedFd,
    /// The final modes and times of directories. The directories stay writable until these are set.
    directories: BTreeMap<PathBuf, (Mode, Timestamps)>,
    /// The entries whose owner is not root, or that have set-id or sticky bits. On disk, all files have the same owner.
    owners: BTreeMap<PathBuf, Ownership>,
    files: usize,
    /// The size of the names of all entries so far, in bytes.
    names: usize,
    bytes: u64,
    budget: DiskBudget,
}

/// The paths that the current layer has added.
#[derive(Default)]
struct LayerPaths {
    names: HashSet<PathBuf>,
}

impl LayerPaths {
    /// Whether this layer has added the path or a path below it.
    fn contains(&self, path: &Path) -> bool {
        self.names.contains(path)
    }

    fn add(&mut self, path: &Path) -> bool {
        // The layer also adds the parent directories of the path.
        for parent in path.ancestors().skip(1).take_while(|parent| !parent.as_os_str().is_empty()) {
            if !self.names.insert(parent.to_owned()) {
                break;
            }
        }
        self.names.insert(path.to_owned())
    }
}

impl Tree {
    /// Creates a tree in this empty directory.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn new(directory: &Path) -> Result<Self, BadImage> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|error| BadImage::Disk(error.into()))?;
        let budget = DiskBudget::for_directory(directory).map_err(BadImage::Disk)?;
        let (directories, owners) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { top, directories, owners, files: 0, names: 0, bytes: 0, budget })
    }

    /// Returns the top directory of the tree.
    pub fn top(&self) -> BorrowedFd<'_> {
        self.top.as_fd()
    }

    /// Returns the size in bytes of all unpacked files, including files that a later layer replaced.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Unpacks a layer over the earlier layers. `name` identifies the layer in errors.
    ///
    /// # Errors
    /// [`BadImage`]. The tree is then incomplete.
    pub fn put(&mut self, name: &str, layer: &mut dyn Read) -> Result<(), BadImage> {
        let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {name:?}: {error}"));
        let mut archive = tar::Archive::new(layer);
        let mut members = Members::new(archive.entries().map_err(damaged)?);
        let mut layer_paths = LayerPaths::default();
        while let Some(mut member) = members.next().map_err(damaged)? {
            self.files += 1;
            if self.files > FILES_MAX {
                return Err(BadImage::refused(format!("has more than {FILES_MAX} files")));
            }
            self.names = self.names.saturating_add(member.name.as_os_str().len());
            if self.names > NAMES_MAX {
                return Err(BadImage::refused(format!("has more than {} MiB of names", NAMES_MAX >> 20)));
            }
            self.budget.take(member.content.taken()).map_err(BadImage::Disk)?;
            self.member(&mut member, &mut layer_paths)?;
        }
        Ok(())
    }

    /// Sets the final mode and time of every directory. Deeper directories come first, because a change in a directory
    /// updates its time. Returns the ownership of each entry whose owner is not root, or that has set-id or sticky
    /// bits.
    ///
    /// # Errors
    /// When a directory cannot be changed.
    pub fn settle(self) -> Result<BTreeMap<PathBuf, Ownership>, BadImage> {
        for (path, (mode, time)) in self.directories.iter().rev() {
            let opened = match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
                // A later layer removed or replaced the directory.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
                opened => opened.map_err(|error| BadImage::at(path, error))?,
            };
            fchmod(&opened, *mode).map_err(|error| BadImage::at(path, error))?;
            futimens(&opened, time).map_err(|error| BadImage::at(path, error))?;
        }
        Ok(self.owners)
    }

    fn member(
        &mut self,
        member: &mut Member<'_, impl Read>,
        layer_paths: &mut LayerPaths,
    ) -> Result<(), BadImage> {
        let path = checked_path(&member.name)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            // The entry is the top directory, which this program created.
            return Ok(());
        };
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        if name.as_bytes().starts_with(WHITEOUT) {
            return self.whiteout(&path, &parent, &name, layer_paths);
        }
        if !layer_paths.add(&path) && member.what != What::Directory {
            return Err(rejected_entry(&path, "occurs twice in its layer"));
        }
        if !matches!(member.what, What::HardLink(_)) {
            self.set_owner(&path, member);
        }
        let parent = self.directory(&parent)?;
        let entry = EntrySlot { parent: parent.as_fd(), name: &name, path: &path };
        match &member.what {
            What::Directory => {
                entry.make_directory()?;
                let mode = Mode::from_raw_mode(member.mode);
                self.directories.insert(path.clone(), (mode, times(member)));
                let opened = entry.open_directory()?;
                set_attributes(&opened, member, &path)
            }
            What::File => {
                entry.remove()?;
                self.bytes = self.bytes.saturating_add(member.content.taken());
                entry.make_file(member)
            }
            What::Link(target) => {
                let target = target.clone();
                entry.remove()?;
                entry.make_link(&target)?;
                entry.set_time(member)
            }
            What::HardLink(target) => {
                let target = target.clone();
                self.make_hard_link(&entry, &target)
            }
            What::Other(EntryType::Fifo) => {
                entry.remove()?;
                mknodat(entry.parent, entry.name, FileType::Fifo, Mode::from_raw_mode(member.mode), 0)
                    .map_err(|error| BadImage::at(&path, error))?;
                entry.set_time(member)
            }
            What::Other(EntryType::Char | EntryType::Block) if path.parent() == Some(Path::new(DEVICES)) => {
                Ok(())
            }
            What::Other(EntryType::Char | EntryType::Block) => Err(rejected_entry(&path, "is a device")),
            What::Other(_) => Err(rejected_entry(&path, "has an unsupported type")),
        }
    }

    fn set_owner(&mut self, path: &Path, member: &Member<'_, impl Read>) {
        let owner = Ownership { uid: member.uid, gid: member.gid, special: member.special };
        if owner == Ownership::ROOT {
            self.owners.remove(path);
        } else {
            self.owners.insert(path.to_owned(), owner);
        }
    }

    /// Creates a hard link to an existing file.
    fn make_hard_link(&self, entry: &EntrySlot<'_>, target: &Path) -> Result<(), BadImage> {
        let from = checked_path(target)
            .map_err(|_| rejected_entry(entry.path, "is a hard link that points outside"))?;
        let Some(name) = from.file_name() else {
            return Err(rejected_entry(entry.path, "is a hard link to a directory"));
        };
        let gone =
            || rejected_entry(entry.path, &format!("is a hard link to {target:?}, which is not there"));
        let parent = match self.open(from.parent().unwrap_or(Path::new("")), OFlags::PATH | OFlags::DIRECTORY)
        {
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(rejected_entry(entry.path, "is a hard link that points outside"));
            }
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(gone()),
            opened => opened.map_err(|error| BadImage::at(entry.path, error))?,
        };
        let found = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(gone()),
            found => found.map_err(|error| BadImage::at(entry.path, error))?,
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(rejected_entry(entry.path, "is a hard link to a directory"));
        }
        if from != entry.path {
            entry.remove()?;
            linkat(&parent, name, entry.parent, entry.name, AtFlags::empty())
                .map_err(|error| BadImage::at(entry.path, error))?;
        }
        Ok(())
    }

    fn whiteout(
        &mut self,
        path: &Path,
        parent: &Path,
        name: &OsStr,
        layer_paths: &LayerPaths,
    ) -> Result<(), BadImage> {
        let opened = match self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY) {
            // The directory does not exist.
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(rejected_entry(path, "is in a directory that is a link and points outside"));
            }
            opened => Some(opened.map_err(|error| BadImage::at(path, error))?),
        };
        if name.as_bytes() == OPAQUE {
            let Some(opened) = opened else { return Ok(()) };
            return self.empty(&opened, parent, layer_paths);
        }
        let removed = OsStr::from_bytes(&name.as_bytes()[WHITEOUT.len()..]);
        if removed.is_empty() || removed == "." || removed == ".." || removed.as_bytes().starts_with(WHITEOUT)
        {
            return Err(rejected_entry(path, "is a whiteout without a valid name"));
        }
        // A whiteout affects only lower layers.
        let gone = parent.join(removed);
        if layer_paths.contains(&gone) {
            return Ok(());
        }
        let Some(opened) = opened else { return Ok(()) };
        EntrySlot { parent: opened.as_fd(), name: removed, path: &gone }.remove()
    }

    /// Removes files of lower layers from a directory.
    fn empty(&self, directory: &OwnedFd, path: &Path, layer_paths: &LayerPaths) -> Result<(), BadImage> {
        let failed = |error: Errno| BadImage::at(path, error);
        for entry in Dir::read_from(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            let inner = path.join(&name);
            let entry = EntrySlot { parent: directory.as_fd(), name: &name, path: &inner };
            if !layer_paths.contains(&inner) {
                entry.remove()?;
            } else if entry.is_directory()? {
                self.empty(&entry.open_directory()?, &inner, layer_paths)?;
            }
        }
        Ok(())
    }

    /// Opens a directory and creates the missing parts of its path.
    ///
    /// # Errors
    /// When the path is not a directory, or a link in the path points outside the tree.
    pub fn directory(&self, path: &Path) -> Result<OwnedFd, BadImage> {
        match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(rejected_entry(
                    path,
                    "must be a directory, and a link on its path points outside",
                ));
            }
            Err(Errno::NOTDIR) => return Err(rejected_entry(path, "must be a directory, and is not")),
            opened => return opened.map_err(|error| BadImage::at(path, error)),
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(BadImage::at(path, Errno::NOENT));
        };
        let parent = self.directory(parent)?;
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(BadImage::at(path, error)),
        }
        // A dangling link exists but is not a directory.
        let entry = EntrySlot { parent: parent.as_fd(), name, path };
        entry.open_directory().map_err(|_| rejected_entry(path, "must be a directory, and is not"))
    }

    /// Opens a path. A link is followed only if its target is in the tree.
    fn open(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        openat2(&self.top, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }
}

/// The name of an entry in an open directory of the tree.
struct EntrySlot<'a> {
    parent: BorrowedFd<'a>,
    name: &'a OsStr,
    /// The complete path, for errors.
    path: &'a Path,
}

impl EntrySlot<'_> {
    fn failed(&self, error: Errno) -> BadImage {
        BadImage::at(self.path, error)
    }

    fn is_directory(&self) -> Result<bool, BadImage> {
        match statat(self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => {
                let found = found.map_err(|error| self.failed(error))?;
                Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
            }
        }
    }

    /// Removes the existing entry, of any type.
    fn remove(&self) -> Result<(), BadImage> {
        match unlinkat(self.parent, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) if self.is_directory()? => {
                remove_tree_at(self.parent, self.name).map_err(|error| BadImage::at(self.path, error))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn make_directory(&self) -> Result<(), BadImage> {
        if !self.is_directory()? {
            self.remove()?;
            mkdirat(self.parent, self.name, Mode::from_raw_mode(0o755))
                .map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn open_directory(&self) -> Result<OwnedFd, BadImage> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.parent, self.name, flags, Mode::empty()).map_err(|error| self.failed(error))
    }

    fn make_file(&self, member: &mut Member<'_, impl Read>) -> Result<(), BadImage> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.parent, self.name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|error| self.failed(error))?);
        member.content.copy_to(&mut file).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => rejected_entry(self.path, "is truncated"),
            // Only file system errors have an error number. Errors in the archive have none.
            _ if error.raw_os_error().is_some() => BadImage::at(self.path, error),
            _ => rejected_entry(self.path, &format!("cannot be read: {error}")),
        })?;
        set_attributes(&file, member, self.path)?;
        fchmod(&file, Mode::from_raw_mode(member.mode)).map_err(|error| self.failed(error))?;
        futimens(&file, &times(member)).map_err(|error| self.failed(error))
    }

    /// Sets the times of a link or a named pipe without opening it.
    fn set_time(&self, member: &Member<'_, impl Read>) -> Result<(), BadImage> {
        utimensat(self.parent, self.name, &times(member), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| self.failed(error))
    }

    /// Creates a symbolic link. Absolute links are allowed, because they are followed only inside a bottle, where the
    /// top of the tree is the root.
    fn make_link(&self, target: &Path) -> Result<(), BadImage> {
        if escapes(self.path, target) {
            return Err(rejected_entry(self.path, &format!("is a link that points outside, to {target:?}")));
        }
        symlinkat(target, self.parent, self.name).map_err(|error| self.failed(error))
    }
}

/// Sets `user.*` attributes. Skips other attributes, because they grant rights or have no meaning in a bottle.
fn set_attributes(file: impl AsFd, member: &Member<'_, impl Read>, path: &Path) -> Result<(), BadImage> {
    for (name, value) in &member.attributes {
        if name.starts_with(OVERLAY) {
            return Err(rejected_entry(path, "has an attribute that only overlay file systems set"));
        }
        if !name.starts_with(b"user.") {
            continue;
        }
        match fsetxattr(&file, OsString::from(OsStr::from_bytes(name)), value, XattrFlags::empty()) {
            // `NOTSUP` means that the file system does not support attributes.
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => return Err(BadImage::at(path, error)),
        }
    }
    Ok(())
}

fn times(member: &Member<'_, impl Read>) -> Timestamps {
    let time =
        Timespec { tv_sec: i64::try_from(member.mtime).unwrap_or(0), tv_nsec: i64::from(member.mtime_nanos) };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::saved::entry::Repeated;

    #[test]
    fn the_names_of_all_layers_together_are_limited() {
        let here = tempfile::tempdir().expect("directory");
        let mut tree = Tree::new(here.path()).expect("tree");
        // A whiteout in a directory that does not exist leaves nothing on disk.
        let name = format!("{}.wh.x", format!("{}/", "n".repeat(250)).repeat(16));
        let half = NAMES_MAX / name.len() / 2 + 1;
        tree.put("one", &mut Repeated::entry(EntryType::Regular, &name, half)).expect("unpacked");
        let refused = tree.put("two", &mut Repeated::entry(EntryType::Regular, &name, half));
        let refused = refused.expect_err("too many names").to_string();
        assert_eq!(refused, "has more than 256 MiB of names");
        assert_eq!(std::fs::read_dir(here.path()).expect("directory").count(), 0);
    }
}
