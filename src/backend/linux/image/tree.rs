//! The files of an image while they are put together: one layer over the other, into a folder that nobody else
//! looks at yet.
//!
//! Every name is the image's. A place is opened from the top of the tree, and links on the way to it are followed
//! only where they stay beneath; what an archive may not say is refused, with the name that says it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bottle_guest::archive::{MAX_DEPTH, Member, Members, What};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, fchmod, fsetxattr,
    futimens, linkat, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::EntryType;

use super::BadImage;
use crate::archive::Room;
use crate::backend::local::layers;

/// More files than any image has, in all of its layers.
const FILES_MAX: usize = 2_000_000;

/// What the name of a file begins with that stands for another's removal.
const WHITEOUT: &[u8] = b".wh.";

/// The name of a file that stands for the removal of everything that lower layers have in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The attributes by which overlay file systems remember what was removed.
const OVERLAY: &[u8] = b"user.overlay.";

/// Where devices are, which a bottle has of its own.
const DEVICES: &str = "dev";

/// See the module.
pub(super) struct Tree {
    top: OwnedFd,
    /// What folders will be like at the end; until then they may be written to.
    folders: BTreeMap<PathBuf, (Mode, u64)>,
    files: usize,
    bytes: u64,
    /// Of the disk.
    room: Room,
}

/// What a layer has brought so far.
#[derive(Default)]
struct Brought {
    names: HashSet<PathBuf>,
}

impl Brought {
    /// Whether this layer has it, or something beneath it.
    fn holds(&self, place: &Path) -> bool {
        self.names.contains(place)
    }

    fn add(&mut self, place: &Path) -> bool {
        // The folders on the way are this layer's as well, whoever made them first.
        for parent in place.ancestors().skip(1).take_while(|parent| !parent.as_os_str().is_empty()) {
            if !self.names.insert(parent.to_owned()) {
                break;
            }
        }
        self.names.insert(place.to_owned())
    }
}

impl Tree {
    /// A tree in this empty folder.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn new(folder: &Path) -> Result<Self, BadImage> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top =
            rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| BadImage::Disk(error.into()))?;
        let room = Room::below(folder).map_err(BadImage::Disk)?;
        Ok(Self { top, folders: BTreeMap::new(), files: 0, bytes: 0, room })
    }

    /// The top.
    pub(super) fn top(&self) -> BorrowedFd<'_> {
        self.top.as_fd()
    }

    /// Bytes of all files that were put here, those that a later layer replaced among them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts a layer over what is there. `name` is how errors call it.
    ///
    /// # Errors
    /// [`BadImage`]; what was made by then is of no use.
    pub(super) fn put(&mut self, name: &str, layer: &mut dyn Read) -> Result<(), BadImage> {
        let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {name:?}: {error}"));
        let mut archive = tar::Archive::new(layer);
        let mut members = Members::new(archive.entries().map_err(damaged)?);
        let mut brought = Brought::default();
        while let Some(mut member) = members.next().map_err(damaged)? {
            self.files += 1;
            if self.files > FILES_MAX {
                return Err(BadImage::refused(format!("has more than {FILES_MAX} files")));
            }
            self.room.take(member.content.taken()).map_err(BadImage::Disk)?;
            self.member(&mut member, &mut brought)?;
        }
        Ok(())
    }

    /// Gives every folder the mode and time that its image has for it. Deeper ones first: a change in a folder
    /// changes its time.
    ///
    /// # Errors
    /// When one cannot be changed.
    pub(super) fn settle(self) -> Result<(), BadImage> {
        for (place, (mode, time)) in self.folders.iter().rev() {
            let opened = match self.open(place, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
                // Removed by a later layer, or something else by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
                opened => opened.map_err(|error| BadImage::at(place, error))?,
            };
            fchmod(&opened, *mode).map_err(|error| BadImage::at(place, error))?;
            futimens(&opened, &times(*time)).map_err(|error| BadImage::at(place, error))?;
        }
        Ok(())
    }

    fn member(&mut self, member: &mut Member<'_, impl Read>, brought: &mut Brought) -> Result<(), BadImage> {
        let place = placed(&member.name)?;
        let Some(name) = place.file_name().map(OsStr::to_owned) else {
            // The top itself, which is ours.
            return Ok(());
        };
        let parent = place.parent().unwrap_or(Path::new("")).to_owned();
        if name.as_bytes().starts_with(WHITEOUT) {
            return self.whiteout(&place, &parent, &name, brought);
        }
        if !brought.add(&place) && member.what != What::Folder {
            return Err(hostile(&place, "is in its layer twice"));
        }
        let parent = self.folder(&parent)?;
        let at = At { parent: parent.as_fd(), name: &name, place: &place };
        match &member.what {
            What::Folder => {
                at.make_folder()?;
                let mode = Mode::from_raw_mode(member.mode);
                self.folders.insert(place.clone(), (mode, member.mtime));
                let opened = at.open_folder()?;
                set_attributes(&opened, member, &place)
            }
            What::File => {
                at.clear()?;
                self.bytes = self.bytes.saturating_add(member.content.taken());
                at.make_file(member)
            }
            What::Link(target) => {
                let target = target.clone();
                at.clear()?;
                at.make_link(&target)
            }
            What::HardLink(target) => {
                let target = target.clone();
                self.make_hard_link(&at, &target)
            }
            What::Other(EntryType::Fifo) => {
                at.clear()?;
                mknodat(at.parent, at.name, FileType::Fifo, Mode::from_raw_mode(member.mode), 0)
                    .map_err(|error| BadImage::at(&place, error))
            }
            What::Other(EntryType::Char | EntryType::Block) if place.parent() == Some(Path::new(DEVICES)) => {
                Ok(())
            }
            What::Other(EntryType::Char | EntryType::Block) => Err(hostile(&place, "is a device")),
            What::Other(_) => Err(hostile(&place, "is of a kind that no image needs")),
        }
    }

    /// One more name for a file that is there.
    fn make_hard_link(&self, at: &At<'_>, target: &Path) -> Result<(), BadImage> {
        let from = placed(target).map_err(|_| hostile(at.place, "is a hard link that leads out"))?;
        let Some(name) = from.file_name() else {
            return Err(hostile(at.place, "is a hard link to a folder"));
        };
        let gone = || hostile(at.place, &format!("is a hard link to {target:?}, which is not there"));
        let parent = match self.open(from.parent().unwrap_or(Path::new("")), OFlags::PATH | OFlags::DIRECTORY)
        {
            Err(Errno::XDEV | Errno::LOOP) => return Err(hostile(at.place, "is a hard link that leads out")),
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(gone()),
            opened => opened.map_err(|error| BadImage::at(at.place, error))?,
        };
        let found = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(gone()),
            found => found.map_err(|error| BadImage::at(at.place, error))?,
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(hostile(at.place, "is a hard link to a folder"));
        }
        if from != at.place {
            at.clear()?;
            linkat(&parent, name, at.parent, at.name, AtFlags::empty())
                .map_err(|error| BadImage::at(at.place, error))?;
        }
        Ok(())
    }

    fn whiteout(
        &mut self,
        place: &Path,
        parent: &Path,
        name: &OsStr,
        brought: &Brought,
    ) -> Result<(), BadImage> {
        let opened = match self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY) {
            // What is not there is removed already.
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(hostile(place, "is in a folder that is a link and leads out"));
            }
            opened => Some(opened.map_err(|error| BadImage::at(place, error))?),
        };
        if name.as_bytes() == OPAQUE {
            let Some(opened) = opened else { return Ok(()) };
            return self.empty(&opened, parent, brought);
        }
        let removed = OsStr::from_bytes(&name.as_bytes()[WHITEOUT.len()..]);
        if removed.is_empty() || removed == "." || removed == ".." || removed.as_bytes().starts_with(WHITEOUT)
        {
            return Err(hostile(place, "stands for the removal of nothing that can be named"));
        }
        // Of lower layers only.
        let gone = parent.join(removed);
        if brought.holds(&gone) {
            return Ok(());
        }
        let Some(opened) = opened else { return Ok(()) };
        At { parent: opened.as_fd(), name: removed, place: &gone }.clear()
    }

    /// Removes what lower layers have in a folder.
    fn empty(&self, folder: &OwnedFd, place: &Path, brought: &Brought) -> Result<(), BadImage> {
        let failed = |error: Errno| BadImage::at(place, error);
        for entry in Dir::read_from(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            let inner = place.join(&name);
            let at = At { parent: folder.as_fd(), name: &name, place: &inner };
            if !brought.holds(&inner) {
                at.clear()?;
            } else if at.is_folder()? {
                self.empty(&at.open_folder()?, &inner, brought)?;
            }
        }
        Ok(())
    }

    /// Opens a folder and makes what is missing of it.
    ///
    /// # Errors
    /// When something else is in its place, or a link on the way to it leads out.
    pub(super) fn folder(&self, place: &Path) -> Result<OwnedFd, BadImage> {
        match self.open(place, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(hostile(place, "is where a file would go, and a link there leads out"));
            }
            Err(Errno::NOTDIR) => return Err(hostile(place, "is where a file would go, and is no folder")),
            opened => return opened.map_err(|error| BadImage::at(place, error)),
        }
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(BadImage::at(place, Errno::NOENT));
        };
        let parent = self.folder(parent)?;
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(BadImage::at(place, error)),
        }
        // A link that leads nowhere is there and is not: it is no folder.
        let at = At { parent: parent.as_fd(), name, place };
        at.open_folder().map_err(|_| hostile(place, "is where a file would go, and is no folder"))
    }

    /// Opens a place; links are followed where they stay beneath the top.
    fn open(&self, place: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        openat2(&self.top, place, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }
}

/// A place in the tree, by its folder.
struct At<'a> {
    parent: BorrowedFd<'a>,
    name: &'a OsStr,
    /// For errors.
    place: &'a Path,
}

impl At<'_> {
    fn failed(&self, error: Errno) -> BadImage {
        BadImage::at(self.place, error)
    }

    fn is_folder(&self) -> Result<bool, BadImage> {
        match statat(self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => {
                let found = found.map_err(|error| self.failed(error))?;
                Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
            }
        }
    }

    /// Removes what is there, whatever it is.
    fn clear(&self) -> Result<(), BadImage> {
        match unlinkat(self.parent, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) if self.is_folder()? => {
                layers::demolish_at(self.parent, self.name).map_err(|error| BadImage::at(self.place, error))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn make_folder(&self) -> Result<(), BadImage> {
        if !self.is_folder()? {
            self.clear()?;
            mkdirat(self.parent, self.name, Mode::from_raw_mode(0o755))
                .map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn open_folder(&self) -> Result<OwnedFd, BadImage> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.parent, self.name, flags, Mode::empty()).map_err(|error| self.failed(error))
    }

    fn make_file(&self, member: &mut Member<'_, impl Read>) -> Result<(), BadImage> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.parent, self.name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|error| self.failed(error))?);
        member.content.copy_to(&mut file).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => hostile(self.place, "is cut short"),
            // What the disk says has a number of its own; what the archive says has none.
            _ if error.raw_os_error().is_some() => BadImage::at(self.place, error),
            _ => hostile(self.place, &format!("cannot be read: {error}")),
        })?;
        set_attributes(&file, member, self.place)?;
        fchmod(&file, Mode::from_raw_mode(member.mode)).map_err(|error| self.failed(error))?;
        futimens(&file, &times(member.mtime)).map_err(|error| self.failed(error))
    }

    /// A link is followed inside a bottle only, where its top is the top of everything.
    fn make_link(&self, target: &Path) -> Result<(), BadImage> {
        if climbs_out(self.place, target) {
            return Err(hostile(self.place, &format!("is a link that leads out, to {target:?}")));
        }
        symlinkat(target, self.parent, self.name).map_err(|error| self.failed(error))
    }
}

/// The place that a name of an archive means.
fn placed(name: &Path) -> Result<PathBuf, BadImage> {
    if name.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b'\0' | b'\n')) {
        return Err(hostile(name, "has a name that no file should have"));
    }
    let mut place = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => place.push(part),
            Component::CurDir => {}
            Component::RootDir => return Err(hostile(name, "is an absolute name")),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(hostile(name, "leads out of the image"));
            }
        }
    }
    if place.components().count() > MAX_DEPTH {
        return Err(hostile(name, &format!("is more than {MAX_DEPTH} folders deep")));
    }
    Ok(place)
}

/// Whether a relative link has more ways up than there are folders above it.
fn climbs_out(place: &Path, target: &Path) -> bool {
    if target.is_absolute() {
        return false;
    }
    let mut depth = place.components().count() - 1;
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

/// Refused, with the entry that is the reason. Only the end of a long name is shown.
fn hostile(place: &Path, why: &str) -> BadImage {
    const SHOWN: usize = 100;
    let name = place.to_string_lossy();
    let skipped = name.chars().count().saturating_sub(SHOWN);
    let shown: String = name.chars().skip(skipped).collect();
    let more = if skipped > 0 { "…" } else { "" };
    BadImage::refused(format!("is hostile or damaged: {more}{shown:?} {why}"))
}

/// The two sides fail for reasons of their own.
/// `user.*`, as a user could set them. Others are the system's, and lend rights or mean nothing here.
fn set_attributes(file: impl AsFd, member: &Member<'_, impl Read>, place: &Path) -> Result<(), BadImage> {
    for (name, value) in &member.attributes {
        if name.starts_with(OVERLAY) {
            return Err(hostile(place, "has an attribute that only overlay file systems set"));
        }
        if !name.starts_with(b"user.") {
            continue;
        }
        match fsetxattr(&file, OsString::from(OsStr::from_bytes(name)), value, XattrFlags::empty()) {
            // A disk that keeps none.
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => return Err(BadImage::at(place, error)),
        }
    }
    Ok(())
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}
