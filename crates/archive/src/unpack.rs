//! Extracts an untrusted tar stream from a bottle to the user's disk.
//!
//! The agent controls the stream, so the stream is treated as hostile. The archive is extracted into a new directory,
//! which the caller moves to its destination when the extraction is complete. Only files, directories and links are
//! created. The parent of an entry is always a directory that was created here, never a link. The parent is opened by
//! descriptor, because another agent may work in the destination (`--cwd=live`) and replace directories with links
//! during the extraction. A link must not point outside the copy. Only the permission bits `rwx` are set. Sparse files
//! remain sparse, and [`DiskBudget`] prevents the disk from filling up.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use bottle_guest::archive::{Content, Member, Members, What};
use bottle_repository::Directory;
use bottle_scan::Redactor;

use super::DiskBudget;

/// The maximum number of skipped entries that are reported by name. Further skipped entries are not reported.
const MAX_NAMED: usize = 20;

/// The maximum size in bytes of a file whose secrets are masked. If secrets are masked, a larger file is skipped,
/// because the whole file has to fit in memory.
const MASKED_MAX: u64 = 64 << 20;

/// The limits of an extraction.
#[derive(Debug, Default)]
pub struct Rules {
    /// The maximum total size of all files in bytes. A file that would exceed this maximum is skipped. In contrast,
    /// exceeding the [`DiskBudget`] is an error.
    pub max_bytes: Option<u64>,
    /// If present, masks the secrets in every file.
    pub mask: Option<Redactor>,
}

/// The result of an extraction.
#[derive(Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// The first path component, which all entries have in common; `None` for an empty archive.
    pub top: Option<PathBuf>,
    /// The number of files that were created.
    pub files: u64,
    /// The names of the first skipped entries.
    pub skipped: Vec<String>,
}

/// Extracts the archive into the empty directory `root`.
///
/// # Errors
/// Returns an error if the archive is malformed, truncated or exceeds a limit, or if the disk cannot be
/// written.
pub fn unpack(root: &Directory, archive: &mut dyn Read, rules: &Rules) -> io::Result<Unpacked> {
    let mut extractor = Extractor::new(root, rules, DiskBudget::for_directory(root.path())?);
    let mut archive = tar::Archive::new(archive);
    let mut members = Members::new(archive.entries()?);
    while let Some(mut member) = members.next()? {
        extractor.member(&mut member)?;
    }
    Ok(Unpacked { top: extractor.top, files: extractor.files, skipped: extractor.skipped })
}

struct Extractor<'a> {
    root: &'a Directory,
    rules: &'a Rules,
    budget: DiskBudget,
    directories: HashSet<PathBuf>,
    /// The directory of the last entry. It is cached, because the next entry is usually in the same directory.
    last: Option<(PathBuf, Directory)>,
    /// The first path component, which all entries have in common.
    top: Option<PathBuf>,
    /// The number of bytes extracted so far.
    bytes: u64,
    files: u64,
    skipped: Vec<String>,
}

impl<'a> Extractor<'a> {
    fn new(root: &'a Directory, rules: &'a Rules, budget: DiskBudget) -> Self {
        let (directories, skipped) = (HashSet::new(), Vec::new());
        Self { root, rules, budget, directories, last: None, top: None, bytes: 0, files: 0, skipped }
    }

    fn member(&mut self, member: &mut Member<'_, impl Read>) -> io::Result<()> {
        let created = match member.place() {
            Ok(path) => match self.under_top(&member.name, path) {
                Some(relative) => self.create(member, &relative)?,
                None => false,
            },
            Err(_) => false,
        };
        if !created && self.skipped.len() < MAX_NAMED {
            self.skipped.push(member.name.display().to_string());
        }
        Ok(())
    }

    /// Creates one entry. Returns false if the entry's kind, size or path is not allowed.
    fn create(&mut self, member: &mut Member<'_, impl Read>, relative: &Path) -> io::Result<bool> {
        match &member.what {
            What::Directory => self.directory(relative),
            What::File => {
                // A masked file is written without holes, so it needs its full size.
                let masked = self.rules.mask.is_some();
                let size = if masked { member.content.size() } else { member.content.taken() };
                let mode = member.mode;
                if !self.within_limits(size) || !self.parents(relative)? {
                    return Ok(false);
                }
                self.budget.take(size)?;
                let (parent, name) = self.place(relative)?;
                let mut file = parent.new_file(name)?;
                self.write_content(&mut file, &mut member.content)?;
                file.set_permissions(Permissions::from_mode(mode | 0o600))?;
                self.bytes += size;
                self.files += 1;
                Ok(true)
            }
            What::Link(link) => {
                if !stays_within(relative, link) || !self.parents(relative)? {
                    return Ok(false);
                }
                self.budget.take(0)?;
                let (parent, name) = self.place(relative)?;
                parent.new_link(name, link)?;
                Ok(true)
            }
            What::HardLink(_) | What::Other(_) => Ok(false),
        }
    }

    fn within_limits(&self, size: u64) -> bool {
        let within =
            self.rules.max_bytes.is_none_or(|max_bytes| size <= max_bytes.saturating_sub(self.bytes));
        within && (self.rules.mask.is_none() || size <= MASKED_MAX)
    }

    fn write_content(&self, file: &mut File, content: &mut Content<'_, impl Read>) -> io::Result<()> {
        let Some(mask) = &self.rules.mask else { return content.copy_to(file) };
        // The file is read completely, because otherwise a secret that spans two chunks would not be found.
        let mut bytes = Vec::new();
        content.take(MASKED_MAX).read_to_end(&mut bytes)?;
        file.write_all(&mask.redact_bytes(&bytes))
    }

    /// Returns the entry's path below the common first component; `None` if the entry has another first
    /// component.
    fn under_top(&mut self, name: &Path, path: PathBuf) -> Option<PathBuf> {
        // The name `.` is the requested directory itself. Entries below `.` have no first component in common, so
        // `workspace` is added as the first component.
        let own = name.starts_with(".") || path.as_os_str().is_empty();
        let relative = if own { Path::new("workspace").join(path) } else { path };
        let top = PathBuf::from(relative.components().next()?.as_os_str());
        (*self.top.get_or_insert_with(|| top.clone()) == top).then_some(relative)
    }

    fn directory(&mut self, relative: &Path) -> io::Result<bool> {
        if self.directories.contains(relative) {
            return Ok(true);
        }
        if !self.parents(relative)? {
            return Ok(false);
        }
        let (parent, name) = self.place(relative)?;
        if parent.stat(Path::new(name))?.is_some() {
            return Ok(false);
        }
        parent.new_directory(name)?;
        self.budget.take(0)?;
        self.directories.insert(relative.to_owned());
        Ok(true)
    }

    /// Opens the parent directory of an entry, which must exist. Returns this directory and the entry's name in it.
    fn place<'b>(&mut self, relative: &'b Path) -> io::Result<(&Directory, &'b OsStr)> {
        let parent = relative.parent().unwrap_or(Path::new(""));
        let name = relative.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let last = match self.last.take().filter(|(path, _)| path == parent) {
            Some(last) => last,
            // Fails if another process replaced a directory with a link.
            None => (parent.to_owned(), self.root.directory(parent)?.ok_or(io::ErrorKind::NotFound)?),
        };
        Ok((&self.last.insert(last).1, name))
    }

    /// Creates the parent directories of an entry. Returns false if one of the paths already exists, unless this
    /// extraction created it as a directory.
    fn parents(&mut self, relative: &Path) -> io::Result<bool> {
        let Some(parent) = relative.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
            return Ok(true);
        };
        self.directory(parent)
    }
}

/// Whether the target of a link at `relative` is inside the copy, below the common first component.
///
/// `..` is allowed only at the beginning of the target, where it refers to directories that were created here.
/// After a name, `..` could leave the copy, because the name may be another link and `..` is relative to that link's
/// target.
fn stays_within(relative: &Path, link: &Path) -> bool {
    let mut depth = relative.components().count() - 1;
    let mut named = false;
    for component in link.components() {
        match component {
            Component::Normal(_) => {
                named = true;
                depth += 1;
            }
            Component::CurDir => {}
            // At depth 1 the path is the common first component itself, which a link must not leave.
            Component::ParentDir if depth > 1 && !named => depth -= 1,
            _ => return false,
        }
    }
    depth > 0
}
#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;
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
        let here = tempfile::tempdir().expect("directory");
        let unpacked = unpack(&Directory::open(here.path()).expect("opened"), &mut { bytes }, rules);
        (here, unpacked)
    }

    #[test]
    fn refuses_an_oversized_name_or_header_before_reading_it() {
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(1 << 40);
            header.set_cksum();
            let endless = header.as_bytes().chain(io::repeat(b'a'));
            let here = tempfile::tempdir().expect("directory");
            let error =
                unpack(&Directory::open(here.path()).expect("opened"), &mut { endless }, &Rules::default())
                    .expect_err("too long");
            assert!(error.to_string().contains("bytes"), "{kind:?}: {error}");
        }
    }

    #[test]
    fn skips_files_beyond_the_byte_limit_and_extracts_the_rest() {
        let bytes = archive(&[
            (EntryType::Regular, "top/one", b"12345"),
            (EntryType::Regular, "top/much", &[b'x'; 100]),
            (EntryType::Regular, "top/two", b"12345"),
            (EntryType::Regular, "top/three", b"1"),
        ]);
        let (here, unpacked) = unpack_all(&bytes, &Rules { max_bytes: Some(10), mask: None });
        let unpacked = unpacked.expect("unpacked");
        assert_eq!(
            (unpacked.files, unpacked.skipped),
            (2, vec!["top/much".to_owned(), "top/three".to_owned()])
        );
        assert!(here.path().join("top/two").is_file());
    }

    #[test]
    fn masks_secrets_in_every_file() {
        let mask = Redactor::new(&[Secret::new("hunter2-hunter2".to_owned())]).expect("redactor");
        let bytes = archive(&[(EntryType::Regular, "log", b"it is hunter2-hunter2.")]);
        let (here, unpacked) = unpack_all(&bytes, &Rules { max_bytes: None, mask: Some(mask) });
        assert_eq!(unpacked.expect("unpacked").files, 1);
        assert_eq!(std::fs::read_to_string(here.path().join("log")).expect("read"), "it is [redacted].");
    }
}
