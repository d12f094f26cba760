//! Shares the objects of a git repository with a bottle and with its snapshots.
//!
//! A bottle's directory [`OBJECTS`](super::OBJECTS) contains the objects of the copied repository as they were when the
//! bottle started. The sandbox mounts the directory read-only outside the agent's files, and the bottle's repository
//! names it as an alternate. If several repositories were copied, each has its own subdirectory. Each file is a reflink
//! if the file system supports it, otherwise a hard link, otherwise a copy:
//!
//! - No process in the bottle can write to a file, because the mount is read-only.
//! - No function of this module changes a file's content, mode, owner or times, because a hard link would pass the
//!   change on to the user's repository.
//! - The host's `git gc` removes only the names of files in the user's repository. The names in the bottle's directory
//!   stay.
//!
//! Git never changes a file of the kinds that this module shares, and replaces an index with a rename. The module
//! leaves out all other files, such as the temporary files of a running git.

use std::ffi::{CStr, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bottle_policy::names::GIT_OBJECTS_OF_SEVERAL;
use bottle_repository::Directory;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, ioctl_ficlone, linkat, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::copy::about;
use super::layer_tar::names_in;
use super::remove_tree;
use crate::RepositoryObjects;

/// The maximum number of attempts to share the packs while git replaces some of them. After the last attempt, sharing
/// fails.
const TRIES: usize = 10;

/// The user in a bottle who reads the shared objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The user who starts the bottle. If root starts the bottle, an unprivileged user.
    Starter,
    /// Any user.
    Anyone,
}

/// The maximum number of shared files. Sharing more files fails. `git gc` packs loose objects long before a repository
/// has this many files.
const MAX_FILES: usize = 5_000_000;

/// Shares the objects of a repository with a bottle. `bottle` is the directory of the bottle's shared objects. Copies
/// the files that `reader` cannot read.
///
/// # Errors
/// When a file cannot be shared, or git replaces packs during every attempt. The error names the path.
pub fn share_repository(objects: &RepositoryObjects, bottle: &Path, reader: Reader) -> io::Result<()> {
    let from: Vec<&Directory> =
        std::iter::once(&objects.from).chain(&objects.borrowed).map(Arc::as_ref).collect();
    let Some(directory) = &objects.directory else { return share(&from, bottle, reader).map(drop) };
    let several = bottle.join(GIT_OBJECTS_OF_SEVERAL);
    make_directory(bottle)?;
    make_directory(&several)?;
    share(&from, &several.join(directory), reader).map(drop)
}

/// Shares all objects of a bottle or a snapshot with a new bottle or snapshot. `from` is the existing directory with
/// the objects, and `to` is the new directory. Returns the total size of the files in bytes.
///
/// # Errors
/// The errors of [`share_repository`].
pub fn share_all(from: &Path, to: &Path, reader: Reader) -> io::Result<u64> {
    let mut bytes = share(&[open(from)?], to, reader)?;
    let [from, to] = [from, to].map(|directory| directory.join(GIT_OBJECTS_OF_SEVERAL));
    if !is_directory(&from) {
        return Ok(bytes);
    }
    make_directory(&to)?;
    for entry in fs::read_dir(&from)? {
        let repository = entry?;
        if is_directory(&repository.path()) {
            bytes += share(&[open(&repository.path())?], &to.join(repository.file_name()), reader)?;
        }
    }
    Ok(bytes)
}

/// Whether `path` is a directory and not a link to a directory. A snapshot from another machine can contain links.
fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

/// Shares the objects in the directories `from` with the directory `to`, which is created if it is missing. The first
/// directory in `from` contains the repository's own objects; the others contain borrowed objects. Returns the total
/// size of the files in bytes. After an error, removes `to`.
fn share(from: &[impl AsFd], to: &Path, reader: Reader) -> io::Result<u64> {
    let shared = share_directories(from, to, reader);
    if shared.is_err() {
        let _ = remove_tree(to);
    }
    shared
}

fn share_directories(from: &[impl AsFd], to: &Path, reader: Reader) -> io::Result<u64> {
    make_directory(to)?;
    let to = open(to)?;
    let mut sharing = Sharing { reader, clones: true, links: true, files_left: MAX_FILES, bytes: 0 };
    for directory in from {
        let directory = directory.as_fd().try_clone_to_owned()?;
        sharing.repository(&directory, &to, from.len() > 1)?;
    }
    Ok(sharing.bytes)
}

/// Creates the directory of the shared objects. Every user of the bottle can read the directory. An existing directory
/// stays unchanged.
///
/// # Errors
/// When the directory cannot be created.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created.and_then(|()| open(directory)).and_then(|directory| let_read(&directory)),
    }
}

/// Lets every user read a directory. The mode does not depend on the umask.
fn let_read(directory: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fchmod(directory, Mode::from_raw_mode(0o755))?)
}

struct Sharing {
    reader: Reader,
    /// Whether the file system can clone files. `true` until a clone fails.
    clones: bool,
    /// Whether the files can be linked. `true` until a link fails.
    links: bool,
    files_left: usize,
    bytes: u64,
}

impl Sharing {
    /// Shares the objects of one directory. With `several`, `to` also receives the objects of other directories. Commit
    /// graphs and multi-pack indexes are then left out, because they describe only one directory.
    fn repository(&mut self, from: &OwnedFd, to: &OwnedFd, several: bool) -> io::Result<()> {
        // When git packs an object, it writes the pack before it removes the loose file, so the packs are shared last.
        // Every commit of a graph existed when git wrote the graph, so the graphs are shared first.
        if !several && let Some((from, to)) = self.inner(from, to, c"info")? {
            self.files(&from, &to, &|name| name == b"commit-graph")?;
            if let Some((from, to)) = self.inner(&from, &to, c"commit-graphs")? {
                self.files(&from, &to, &is_graph)?;
            }
        }
        for name in names_in(from)?.iter().filter(|name| is_hex(name.to_bytes(), &[2])) {
            if let Some((from, to)) = self.inner(from, to, name)? {
                self.files(&from, &to, &|name| is_hex(name, &[38, 62]))?;
            }
        }
        if let Some((from, to)) = self.inner(from, to, c"pack")? {
            self.packs(&from, &to, several)?;
        }
        Ok(())
    }

    /// Opens the directory `name` in `from`, and creates it in `to`. Returns `None` if `from` does not contain a
    /// directory of this name.
    fn inner(&self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
        let from = match openat(from, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            opened => opened.map_err(|error| named(name, error.into()))?,
        };
        let created = mkdirat(to, name, Mode::RWXU);
        if let Err(error) = created
            && error != Errno::EXIST
        {
            return Err(named(name, error.into()));
        }
        let to = openat(to, name, DIRECTORY, Mode::empty())?;
        if created.is_ok() {
            let_read(&to)?;
        }
        Ok(Some((from, to)))
    }

    /// Shares the packs in rounds, until one round has shared every pack that existed at the beginning and at the end
    /// of the round.
    fn packs(&mut self, from: &OwnedFd, to: &OwnedFd, several: bool) -> io::Result<()> {
        let wanted = |name: &[u8]| is_pack(name) && !(several && name.starts_with(b"multi-pack-index"));
        for _ in 0..TRIES {
            let before = names_in(from)?;
            let complete = self.files(from, to, &wanted)?;
            if complete && names_in(from)? == before {
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "git replaces the packs again and again"))
    }

    /// Shares the files whose names `wanted` accepts. Returns `false` if one of these files was removed during the
    /// call.
    fn files(&mut self, from: &OwnedFd, to: &OwnedFd, wanted: &dyn Fn(&[u8]) -> bool) -> io::Result<bool> {
        let mut complete = true;
        for name in names_in(from)?.iter().filter(|name| wanted(name.to_bytes())) {
            self.files_left = self.files_left.checked_sub(1).ok_or_else(|| {
                io::Error::new(io::ErrorKind::QuotaExceeded, format!("more than {MAX_FILES} git objects"))
            })?;
            match self.file(from.as_fd(), to.as_fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => complete = false,
                shared => shared.map_err(|error| named(name, error))?,
            }
        }
        Ok(complete)
    }

    fn file(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || is_same(to, name, &stat) {
            return Ok(());
        }
        // Removes a multi-pack index that an earlier round shared, if git has replaced it since then.
        match unlinkat(to, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        if self.try_clone(from, to, name)? || self.try_link(from, to, name, &stat) {
            self.bytes += u64::try_from(stat.st_size).unwrap_or(0);
            return Ok(());
        }
        let mut source = open_file(from, name)?;
        let mut copy = create_file(to, name)?;
        self.bytes += io::copy(&mut source, &mut copy)?;
        Ok(())
    }

    fn try_clone(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
        if !self.clones {
            return Ok(false);
        }
        let source = open_file(from, name)?;
        let cloned = ioctl_ficlone(&create_file(to, name)?, &source).is_ok();
        if !cloned {
            self.clones = false;
            unlinkat(to, name, AtFlags::empty())?;
        }
        Ok(cloned)
    }

    /// Hard-links the file if the bottle's user can read it. Returns whether the file is linked. Links fail across file
    /// systems, and for files of other users that this process may not link.
    fn try_link(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> bool {
        if !self.links || !is_readable(stat, self.reader) {
            return false;
        }
        match linkat(from, name, to, name, AtFlags::empty()) {
            Ok(()) => true,
            // This file has too many links. Other files can still be linked.
            Err(Errno::MLINK) => false,
            Err(_) => {
                self.links = false;
                false
            }
        }
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open(directory: &Path) -> io::Result<OwnedFd> {
    rustix::fs::open(directory, DIRECTORY, Mode::empty()).map_err(|error| about(directory, &error.into()))
}

fn open_file(at: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(openat(at, name, flags, Mode::empty())?))
}

fn create_file(at: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(at, name, flags, Mode::RUSR)?);
    // The mode does not depend on the umask.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444))?;
    Ok(file)
}

/// Whether `to` already contains a link to this file.
fn is_same(to: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> bool {
    statat(to, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Whether the bottle's user can read the file.
fn is_readable(stat: &Stat, reader: Reader) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    let is_starters = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_uid != 0;
    let own = is_starters && reader == Reader::Starter;
    mode.contains(if own { Mode::RUSR } else { Mode::ROTH })
}

fn is_hex(name: &[u8], lengths: &[usize]) -> bool {
    lengths.contains(&name.len()) && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether git writes a file of this name in `objects/info/commit-graphs`.
fn is_graph(name: &[u8]) -> bool {
    let graph = name.strip_prefix(b"graph-").and_then(|rest| rest.strip_suffix(b".graph"));
    name == b"commit-graph-chain" || graph.is_some_and(|hash| is_hex(hash, &[40, 64]))
}

/// Whether git writes a file of this name in `objects/pack`: a pack, a file that belongs to a pack, or a multi-pack
/// index.
fn is_pack(name: &[u8]) -> bool {
    if name == b"multi-pack-index" {
        return true;
    }
    let pack = [&b"pack-"[..], b"multi-pack-index-"].iter().find_map(|prefix| name.strip_prefix(*prefix));
    let mut parts = pack.unwrap_or_default().split(|byte| *byte == b'.');
    let (hash, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let kinds: [&[u8]; 7] = [b"pack", b"idx", b"rev", b"bitmap", b"keep", b"promisor", b"mtimes"];
    is_hex(hash, &[40, 64]) && kinds.contains(&kind) && parts.next().is_none()
}

fn named(name: &CStr, error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return error;
    }
    about(Path::new(OsStr::from_bytes(name.to_bytes())), &error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn opened(path: &Path) -> Arc<Directory> {
        Arc::new(Directory::open(path).expect("opened"))
    }

    const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn shares_complete_files_of_git_and_nothing_else() {
        let directory = tempfile::tempdir().expect("directory");
        let (from, to) = (directory.path().join("objects"), directory.path().join("shared"));
        let wanted = [
            format!("ab/{}", &HASH[2..]),
            format!("pack/pack-{HASH}.pack"),
            format!("pack/pack-{HASH}.idx"),
            "pack/multi-pack-index".to_owned(),
            "info/commit-graph".to_owned(),
            format!("info/commit-graphs/graph-{HASH}.graph"),
        ];
        let unwanted = [
            "ab/tmp_obj_x1".to_owned(),
            format!("abc/{}", &HASH[2..]),
            "pack/tmp_pack_x1".to_owned(),
            format!("pack/pack-{HASH}.pack.lock"),
            format!("pack/pack-{HASH}"),
            "info/alternates".to_owned(),
            "info/commit-graphs/commit-graph-chain.lock".to_owned(),
        ];
        for path in wanted.iter().chain(&unwanted) {
            let path = from.join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            fs::write(&path, "content").expect("file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("mode");
        }
        symlink("/etc/passwd", from.join("pack/multi-pack-index-x")).expect("link");
        symlink("/etc", from.join("cd")).expect("link");
        symlink("/etc/passwd", from.join(format!("ab/{}", "0".repeat(38)))).expect("link");
        let secret = from.join(format!("ab/{}", "1".repeat(38)));
        fs::write(&secret, "private").expect("file");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o400)).expect("mode");
        let bytes = share(&[open(&from).expect("opened")], &to, Reader::Starter).expect("shared");
        assert_eq!(bytes, 7 * (wanted.len() as u64 + 1));
        for path in &wanted {
            assert_eq!(fs::read_to_string(to.join(path)).expect("shared"), "content", "{path}");
        }
        for path in &unwanted {
            assert!(!to.join(path).exists(), "{path}");
        }
        assert!(!to.join("cd").exists() && fs::symlink_metadata(to.join("pack/multi-pack-index-x")).is_err());
        assert_eq!(fs::read_dir(to.join("ab")).expect("directory").count(), 2, "no link");
        let mode = fs::metadata(&secret).expect("there").mode() & 0o7777;
        assert_eq!(mode, 0o400, "the user's file keeps its mode");
        remove_tree(&to).expect("removed");
        assert_eq!(fs::read_to_string(from.join(&wanted[1])).expect("stays"), "content");
    }

    #[test]
    fn shared_objects_survive_their_removal_and_a_replaced_index() {
        let directory = tempfile::tempdir().expect("directory");
        let (from, to) = (directory.path().join("objects"), directory.path().join("shared"));
        fs::create_dir_all(from.join("pack")).expect("directory");
        let pack = format!("pack/pack-{HASH}.pack");
        for path in [pack.as_str(), "pack/multi-pack-index"] {
            fs::write(from.join(path), "old").expect("file");
        }
        share(&[open(&from).expect("opened")], &to, Reader::Starter).expect("shared");
        fs::remove_file(from.join(&pack)).expect("removed");
        fs::write(from.join("new"), "new").expect("file");
        fs::rename(from.join("new"), from.join("pack/multi-pack-index")).expect("replaced");
        share(&[open(&from).expect("opened")], &to, Reader::Starter).expect("shared again");
        assert_eq!(fs::read_to_string(to.join(&pack)).expect("there"), "old");
        assert_eq!(fs::read_to_string(to.join("pack/multi-pack-index")).expect("there"), "new");
    }

    /// One directory contains the objects of all repositories. Files that describe the objects of only one repository
    /// are left out.
    #[test]
    fn borrowed_objects_are_shared_with_those_of_the_repository() {
        let root = tempfile::tempdir().expect("directory");
        let path = |path: &str| root.path().join(path);
        let other = HASH.replace('0', "f");
        for (name, hash) in [("own", HASH), ("lender", &other)] {
            for file in [
                format!("pack/pack-{hash}.pack"),
                format!("ab/{}", &hash[2..]),
                "pack/multi-pack-index".to_owned(),
                "info/commit-graph".to_owned(),
                "info/alternates".to_owned(),
            ] {
                let file = path(name).join(file);
                fs::create_dir_all(file.parent().expect("parent")).expect("directory");
                fs::write(file, name).expect("file");
            }
        }
        let borrowed = vec![opened(&path("lender"))];
        let objects = RepositoryObjects { from: opened(&path("own")), borrowed, directory: None };
        share_repository(&objects, &path("bottle"), Reader::Starter).expect("shared");
        for (name, hash) in [("own", HASH), ("lender", &other)] {
            for file in [format!("pack/pack-{hash}.pack"), format!("ab/{}", &hash[2..])] {
                assert_eq!(fs::read_to_string(path("bottle").join(&file)).expect("shared"), name, "{file}");
            }
        }
        for file in ["pack/multi-pack-index", "info"] {
            assert!(!path("bottle").join(file).exists(), "{file}");
        }
    }

    #[test]
    fn each_of_several_repositories_has_its_own_directory() {
        let root = tempfile::tempdir().expect("directory");
        let path = |path: &str| root.path().join(path);
        for (name, text) in [("api", "of api"), ("pack", "of pack")] {
            let pack = path(name).join(format!("pack/pack-{HASH}.pack"));
            fs::create_dir_all(pack.parent().expect("parent")).expect("directory");
            fs::write(pack, text).expect("file");
            let objects = RepositoryObjects {
                from: opened(&path(name)),
                borrowed: Vec::new(),
                directory: Some(name.to_owned()),
            };
            share_repository(&objects, &path("bottle"), Reader::Anyone).expect("shared");
            assert_eq!(objects.inside(), format!("/git-objects/repositories/{name}"));
        }
        // A snapshot from another machine can contain links.
        symlink(path("api"), path("bottle/repositories/link")).expect("link");
        assert_eq!(share_all(&path("bottle"), &path("snapshot"), Reader::Starter).expect("shared"), 13);
        for (name, text) in [("api", "of api"), ("pack", "of pack")] {
            let pack = path("snapshot/repositories").join(name).join(format!("pack/pack-{HASH}.pack"));
            assert_eq!(fs::read_to_string(pack).expect("shared"), text);
        }
        assert_eq!(fs::read_dir(path("snapshot/repositories")).expect("directory").count(), 2);
        fs::remove_dir_all(path("bottle/repositories")).expect("removed");
        symlink(root.path(), path("bottle/repositories")).expect("link");
        assert_eq!(share_all(&path("bottle"), &path("other"), Reader::Starter).expect("nothing"), 0);
    }
}
