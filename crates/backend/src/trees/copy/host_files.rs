//! Copies files of a directory of this machine into a bottle's workspace.
//!
//! The user may change the directory during the copy, and so may a bottle that works in the same directory
//! (`--cwd=live`). The walk of the directory therefore keeps a descriptor for each entry. Every path in the workspace
//! is opened below a descriptor, and a link in the path is an error. Several threads copy, because a copy spends most
//! of its time in the kernel.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bottle_guest::rooted::open_beneath;
use bottle_repository::{Entry, Stop};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown, futimens,
    mkdirat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::about;
use super::content::CopySupport;
use crate::{Copied, HostEntries, HostFiles, ProgressSink};

/// The maximum number of threads. More threads are not faster on a usual disk.
const MAX_THREADS: usize = 4;

/// The permission bits. The sticky bit and set-id bits are not copied.
const BITS: u32 = 0o777;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Copies `files` into the workspace. If root runs the copy, `owner` owns the files. Ends early, with an error, when
/// [`HostFiles::stop`] is set.
///
/// # Errors
/// When a file cannot be read or written. The error names the path of the file.
pub fn copy_host_files(files: HostFiles, workspace: &Path, owner: Option<u32>) -> io::Result<()> {
    let workspace = open_top(workspace)?;
    let to = match &files.directory {
        Some(name) => make_directory(&workspace, Path::new(name), Mode::from_raw_mode(0o755), owner)?,
        None => workspace,
    };
    let HostFiles { entries, progress, stop, .. } = files;
    let (entries, progress, stop) = (Mutex::new(entries), &progress, &stop);
    let copy = Copy { to, owner, progress, stop, files: AtomicU64::new(0), bytes: AtomicU64::new(0) };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| copy.run(&entries))).collect();
        let copied = workers.into_iter().map(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the copy panicked")))
        });
        copied.fold(Ok(()), io::Result::and)
    })?;
    match stop.is_set() {
        true => Err(io::Error::new(io::ErrorKind::Interrupted, "the copy was stopped")),
        false => Ok(()),
    }
}

struct Copy<'a> {
    to: OwnedFd,
    owner: Option<u32>,
    progress: &'a ProgressSink,
    stop: &'a Stop,
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Copy<'_> {
    /// Copies files until no file remains. After an error, the other threads end too.
    fn run(&self, entries: &Mutex<HostEntries>) -> io::Result<()> {
        let mut support = CopySupport::default();
        let copied = loop {
            match self.next_file(entries) {
                Ok(Some(entry)) => {
                    if let Err(error) = self.file(&entry, &mut support) {
                        break Err(about(entry.path(), &error));
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if copied.is_err() {
            self.stop.set();
        }
        copied
    }

    /// Returns the next regular file. First creates the directories and links that precede it while the other threads
    /// wait, so that a directory exists before its files are copied. Returns `None` after the last file, or if the copy
    /// is stopped.
    fn next_file(&self, entries: &Mutex<HostEntries>) -> io::Result<Option<Entry>> {
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.stop.is_set() {
            let Some(entry) = entries.next().transpose()? else { return Ok(None) };
            if entry.kind() == FileType::RegularFile {
                return Ok(Some(entry));
            }
            self.entry(&entry).map_err(|error| about(entry.path(), &error))?;
        }
        Ok(None)
    }

    /// Creates a directory or a link. Skips sockets, devices and pipes, and links that were removed in the meantime.
    fn entry(&self, entry: &Entry) -> io::Result<()> {
        let (parent, name) = split(entry.path())?;
        match entry.kind() {
            FileType::Directory => {
                // The agent may write in every directory of its workspace.
                let mode = Mode::from_raw_mode(entry.status().st_mode & BITS | 0o700);
                make_directory(&open_directory(&self.to, parent)?, Path::new(name), mode, self.owner)?;
            }
            FileType::Symlink => {
                let Some(target) = entry.link()? else { return Ok(()) };
                let to = open_directory(&self.to, parent)?;
                replacing(&to, name, || Ok(symlinkat(&target, &to, name)?))?;
                if let Some((user, group)) = ids(self.owner) {
                    chownat(&to, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn file(&self, entry: &Entry, support: &mut CopySupport) -> io::Result<()> {
        let Some((from, stat)) = entry.open()? else { return Ok(()) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let (parent, name) = split(entry.path())?;
        let parent = open_directory(&self.to, parent)?;
        let create = || open_beneath(&parent, Path::new(name), flags, Mode::RUSR | Mode::WUSR);
        let to = replacing(&parent, name, create)?;
        let to = File::from(to);
        support.copy(&from, &to, false)?;
        if let Some((user, group)) = ids(self.owner) {
            fchown(&to, Some(user), Some(group))?;
        }
        fchmod(&to, Mode::from_raw_mode(stat.st_mode & BITS))?;
        futimens(&to, &times(&stat))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        self.progress.report(Copied {
            files: self.files.fetch_add(1, Ordering::Relaxed) + 1,
            bytes: self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes,
        });
        Ok(())
    }
}

fn open_directory(top: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    open_beneath(top, path, DIRECTORY, Mode::empty())
}

fn open_top(directory: &Path) -> io::Result<OwnedFd> {
    rustix::fs::open(directory, DIRECTORY, Mode::empty()).map_err(|error| about(directory, &error.into()))
}

/// Creates a directory that the agent owns, and opens it. Does not change an existing directory.
fn make_directory(parent: &OwnedFd, name: &Path, mode: Mode, owner: Option<u32>) -> io::Result<OwnedFd> {
    let created = mkdirat(parent, name, Mode::RWXU);
    if !matches!(created, Ok(()) | Err(Errno::EXIST)) {
        created?;
    }
    let directory = open_directory(parent, name)?;
    if created.is_ok() {
        if let Some((user, group)) = ids(owner) {
            fchown(&directory, Some(user), Some(group))?;
        }
        fchmod(&directory, mode)?;
    }
    Ok(directory)
}

/// Creates a file or link. Replaces an entry that the launch created earlier.
fn replacing<T>(parent: &OwnedFd, name: &OsStr, create: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            unlinkat(parent, name, AtFlags::empty())?;
            create()
        }
        created => created,
    }
}

fn ids(owner: Option<u32>) -> Option<(Uid, Gid)> {
    owner.map(|id| (Uid::from_raw(id), Gid::from_raw(id)))
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

/// Returns the modification time as both times of the copy, because build tools compare modification times.
fn times(stat: &Stat) -> Timestamps {
    let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0) };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use bottle_repository::{Directory, Walk};

    use super::*;

    fn files(from: &Path, directory: Option<&str>, progress: ProgressSink) -> HostFiles {
        let walk = Walk::content(Directory::open(from).expect("opened"));
        HostFiles {
            from: from.to_owned(),
            directory: directory.map(str::to_owned),
            entries: Box::new(walk.map(|entry| Ok(entry?))),
            progress,
            stop: Stop::default(),
        }
    }

    fn copy(from: &Path, to: &Path, directory: Option<&str>) -> io::Result<u64> {
        let copied = std::sync::Arc::new(AtomicU64::new(0));
        let seen = copied.clone();
        let progress = ProgressSink::new(move |now: Copied| {
            seen.fetch_max(now.bytes, Ordering::Relaxed);
        });
        copy_host_files(files(from, directory, progress), to, None)?;
        Ok(copied.load(Ordering::Relaxed))
    }

    #[test]
    fn copies_files_with_their_modes_times_and_links() {
        let root = tempfile::tempdir().expect("directory");
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        fs::create_dir_all(from.join("bin/closed")).expect("directory");
        fs::create_dir_all(&to).expect("directory");
        fs::write(from.join("bin/tool"), "tool").expect("file");
        fs::set_permissions(from.join("bin/tool"), fs::Permissions::from_mode(0o4755)).expect("mode");
        fs::set_permissions(from.join("bin/closed"), fs::Permissions::from_mode(0o555)).expect("mode");
        symlink("/etc/passwd", from.join("link")).expect("link");
        std::os::unix::net::UnixListener::bind(from.join("socket")).expect("socket");
        assert_eq!(copy(&from, &to, Some("tools")).expect("copied"), 4);
        let to = to.join("tools");
        assert_eq!(fs::read_to_string(to.join("bin/tool")).expect("there"), "tool");
        let (old, new) = (from.join("bin/tool"), to.join("bin/tool"));
        let [old, new] = [old, new].map(|path| path.metadata().expect("there"));
        assert_eq!(new.mode() & 0o7777, 0o755, "without the set-id bit");
        assert_eq!((new.mtime(), new.mtime_nsec()), (old.mtime(), old.mtime_nsec()));
        assert_eq!(to.join("bin/closed").metadata().expect("there").mode() & 0o7777, 0o755);
        assert_eq!(fs::read_link(to.join("link")).expect("a link"), Path::new("/etc/passwd"));
        assert!(to.join("socket").symlink_metadata().is_err());
    }

    #[test]
    fn no_link_leads_out_of_the_directory_or_the_workspace() {
        let root = tempfile::tempdir().expect("directory");
        let path = |path: &str| root.path().join(path);
        for directory in ["from/inner", "from/swapped", "to", "private"] {
            fs::create_dir_all(path(directory)).expect("directory");
        }
        for file in ["from/inner/key", "from/swapped/key"] {
            fs::write(path(file), "file").expect("file");
        }
        fs::write(path("private/key"), "secret").expect("file");
        // A directory that is replaced by a link after it was listed.
        let mut files = files(&path("from"), None, ProgressSink::discard());
        let entries: Vec<_> = files.entries.collect();
        fs::rename(path("from/swapped"), path("from/moved")).expect("moved");
        symlink(path("private"), path("from/swapped")).expect("link");
        files.entries = Box::new(entries.into_iter());
        copy_host_files(files, &path("to"), None).expect("copied");
        assert_eq!(fs::read_to_string(path("to/swapped/key")).expect("there"), "file");
        // A link that replaces a directory of the workspace.
        fs::remove_dir_all(path("to/inner")).expect("removed");
        symlink(path("private"), path("to/inner")).expect("link");
        assert!(copy(&path("from"), &path("to"), None).is_err());
        assert_eq!(fs::read_to_string(path("private/key")).expect("there"), "secret");
    }

    #[test]
    fn a_stopped_copy_ends() {
        let root = tempfile::tempdir().expect("directory");
        fs::create_dir_all(root.path().join("from")).expect("directory");
        fs::write(root.path().join("from/file"), "x").expect("file");
        let to = root.path().join("to");
        fs::create_dir(&to).expect("directory");
        let mut files = files(&root.path().join("from"), None, ProgressSink::discard());
        let entry = files.entries.next().expect("an entry").expect("walked");
        files.entries = Box::new(std::iter::repeat_with(move || Ok(entry.clone())));
        files.stop.set();
        let stopped = copy_host_files(files, &to, None);
        assert_eq!(stopped.expect_err("stopped").kind(), io::ErrorKind::Interrupted);
        assert_eq!(fs::read_dir(&to).expect("directory").count(), 0);
    }
}
