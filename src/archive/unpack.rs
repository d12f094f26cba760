//! A tar stream from inside a bottle, onto the user's disk.
//!
//! The stream is the agent's to write, so it is taken for hostile. It is unpacked into a fresh folder, for the
//! caller to move into place when it is whole. Only files, folders and links are made; every parent is a
//! folder made here, never a link; a link may not lead out of the copy; no bits but rwx are set. Holes of a file stay
//! holes, and the disk does not get full.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use bottle_guest::archive::{Content, Member, Members, What};
use bottle_scan::Redactor;

use super::Room;

/// Names of what was left out that are told one by one.
const TOLD: usize = 20;

/// The largest file that is read into memory to be masked.
const MASKED_MAX: u64 = 64 << 20;

/// What may be unpacked, and how.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// The most bytes of all files together; a file that goes beyond is left out. Whatever the rules, what the disk has
    /// free is the bound ([`Room`]): beyond it is an error.
    pub(crate) most: Option<u64>,
    /// Masks secrets in every file.
    pub(crate) mask: Option<Redactor>,
}

/// What was unpacked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// The first path component, which all entries share; none of an empty archive.
    pub(crate) top: Option<PathBuf>,
    /// Files that were made.
    pub(crate) files: u64,
    /// Names of what was left out, the first of them.
    pub(crate) skipped: Vec<String>,
}

/// Unpacks all of it into the empty folder `root`.
///
/// # Errors
/// When the archive is broken, breaks off or goes beyond a bound, or the disk cannot be written.
pub(crate) fn unpack(root: &Path, archive: &mut dyn Read, rules: &Rules) -> io::Result<Unpacked> {
    let mut unpacker = Unpacker::new(root, rules, Room::below(root)?);
    let mut archive = tar::Archive::new(archive);
    let mut members = Members::new(archive.entries()?);
    while let Some(mut member) = members.next()? {
        unpacker.member(&mut member)?;
    }
    Ok(Unpacked { top: unpacker.top, files: unpacker.files, skipped: unpacker.skipped })
}

struct Unpacker<'a> {
    root: &'a Path,
    rules: &'a Rules,
    room: Room,
    folders: HashSet<PathBuf>,
    /// The first path component; all entries share it.
    top: Option<PathBuf>,
    /// Bytes that were unpacked.
    bytes: u64,
    files: u64,
    skipped: Vec<String>,
}

impl<'a> Unpacker<'a> {
    fn new(root: &'a Path, rules: &'a Rules, room: Room) -> Self {
        let (folders, skipped) = (HashSet::new(), Vec::new());
        Self { root, rules, room, folders, top: None, bytes: 0, files: 0, skipped }
    }

    fn member(&mut self, member: &mut Member<'_, impl Read>) -> io::Result<()> {
        let made = match member.place() {
            Ok(place) => match self.placed(&member.name, place) {
                Some(inside) => self.make(member, &inside)?,
                None => false,
            },
            Err(_) => false,
        };
        if !made && self.skipped.len() < TOLD {
            self.skipped.push(member.name.display().to_string());
        }
        Ok(())
    }

    /// Makes one entry; false when it is of a kind, or at a place, that is left out.
    fn make(&mut self, member: &mut Member<'_, impl Read>, inside: &Path) -> io::Result<bool> {
        let target = self.root.join(inside);
        match &member.what {
            What::Folder => self.folder(inside),
            What::File => {
                // A file that is masked is written whole.
                let masked = self.rules.mask.is_some();
                let size = if masked { member.content.size() } else { member.content.taken() };
                let mode = member.mode;
                if !self.may_take(size) || !self.parents(inside)? {
                    return Ok(false);
                }
                self.room.take(size)?;
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
                self.fill(&mut file, &mut member.content)?;
                file.set_permissions(fs::Permissions::from_mode(mode | 0o600))?;
                self.bytes += size;
                self.files += 1;
                Ok(true)
            }
            What::Link(link) => {
                if !stays_within(inside, link) || !self.parents(inside)? {
                    return Ok(false);
                }
                self.room.take(0)?;
                std::os::unix::fs::symlink(link, &target)?;
                Ok(true)
            }
            What::HardLink(_) | What::Other(_) => Ok(false),
        }
    }

    fn may_take(&self, size: u64) -> bool {
        let room = self.rules.most.is_none_or(|most| size <= most.saturating_sub(self.bytes));
        room && (self.rules.mask.is_none() || size <= MASKED_MAX)
    }

    fn fill(&self, file: &mut File, content: &mut Content<'_, impl Read>) -> io::Result<()> {
        let Some(mask) = &self.rules.mask else { return content.copy_to(file) };
        // Whole: a secret that is cut in two is not found.
        let mut bytes = Vec::new();
        content.take(MASKED_MAX).read_to_end(&mut bytes)?;
        file.write_all(&mask.redact_bytes(&bytes))
    }

    /// The place under the one top; nothing when it is under another.
    fn placed(&mut self, name: &Path, place: PathBuf) -> Option<PathBuf> {
        // `.` is the folder that was asked for itself: its entries then have no top of their own.
        let own = name.starts_with(".") || place.as_os_str().is_empty();
        let inside = if own { Path::new("workspace").join(place) } else { place };
        let top = PathBuf::from(inside.components().next()?.as_os_str());
        (*self.top.get_or_insert_with(|| top.clone()) == top).then_some(inside)
    }

    fn folder(&mut self, inside: &Path) -> io::Result<bool> {
        if self.folders.contains(inside) {
            return Ok(true);
        }
        if !self.parents(inside)? || self.root.join(inside).symlink_metadata().is_ok() {
            return Ok(false);
        }
        self.room.take(0)?;
        fs::create_dir(self.root.join(inside))?;
        self.folders.insert(inside.to_owned());
        Ok(true)
    }

    /// Makes the folders above, unless something else stands in their place.
    fn parents(&mut self, inside: &Path) -> io::Result<bool> {
        let Some(parent) = inside.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
            return Ok(true);
        };
        self.folder(parent)
    }
}

/// Whether a link at `inside` leads to a place under the copy's top.
///
/// A way up counts only at its beginning, where it goes through folders that were made here. After a name
/// it would start from wherever that name leads, which may be another link.
fn stays_within(inside: &Path, link: &Path) -> bool {
    let mut depth = inside.components().count() - 1;
    let mut named = false;
    for component in link.components() {
        match component {
            Component::Normal(_) => {
                named = true;
                depth += 1;
            }
            Component::CurDir => {}
            // One component is the top itself, which a link must not leave.
            Component::ParentDir if depth > 1 && !named => depth -= 1,
            _ => return false,
        }
    }
    depth > 0
}
#[cfg(test)]
mod tests {
    use bottle_contract::secret::Secret;
    use tar::EntryType;

    use super::*;

    fn archive(pieces: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, content) in pieces {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, *content).expect("append");
        }
        builder.into_inner().expect("archive")
    }

    fn unpack_all(bytes: &[u8], rules: &Rules) -> (tempfile::TempDir, io::Result<Unpacked>) {
        let here = tempfile::tempdir().expect("folder");
        let unpacked = unpack(here.path(), &mut { bytes }, rules);
        (here, unpacked)
    }

    #[test]
    fn a_name_or_header_beyond_its_bound_is_refused_before_it_is_read() {
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(1 << 40);
            header.set_cksum();
            let endless = header.as_bytes().chain(io::repeat(b'a'));
            let here = tempfile::tempdir().expect("folder");
            let error = unpack(here.path(), &mut { endless }, &Rules::default()).expect_err("too long");
            assert!(error.to_string().contains("bytes"), "{kind:?}: {error}");
        }
    }

    #[test]
    fn what_goes_beyond_the_rules_is_left_out_and_the_rest_is_there() {
        let bytes = archive(&[
            (EntryType::Regular, "top/one", b"12345"),
            (EntryType::Regular, "top/much", &[b'x'; 100]),
            (EntryType::Regular, "top/two", b"12345"),
            (EntryType::Regular, "top/three", b"1"),
        ]);
        let (here, unpacked) = unpack_all(&bytes, &Rules { most: Some(10), mask: None });
        let unpacked = unpacked.expect("unpacked");
        assert_eq!(
            (unpacked.files, unpacked.skipped),
            (2, vec!["top/much".to_owned(), "top/three".to_owned()])
        );
        assert!(here.path().join("top/two").is_file());
    }

    #[test]
    fn secrets_are_masked_in_every_file() {
        let mask = Redactor::new(&[Secret::new("hunter2-hunter2".to_owned())]).expect("redactor");
        let bytes = archive(&[(EntryType::Regular, "log", b"it is hunter2-hunter2.")]);
        let (here, unpacked) = unpack_all(&bytes, &Rules { most: None, mask: Some(mask) });
        assert_eq!(unpacked.expect("unpacked").files, 1);
        assert_eq!(fs::read_to_string(here.path().join("log")).expect("read"), "it is [redacted].");
    }
}
