//! Watches memory and disk use by polling, for backends that cannot enforce limits on memory and disk use.
//!
//! Memory use includes all processes, and files in memory. The watch first counts shared memory once for each process.
//! This sum is fast to compute and never too low. Only if this sum exceeds the limit, the watch computes the exact
//! memory use. The watch does not see memory that no process has mapped, such as a file of `memfd_create` or an unused
//! shared memory segment. Disk use is the disk space that the bottle's directories use. Large directories take longer
//! to scan, and are therefore scanned less often. If the disk is nearly full, the watch stops bottles that use much of
//! the disk.
//!
//! The watch runs on its own thread, so that scanning many processes or files does not block the session.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bottle_protocol::session::guest::{Limited, Overrun};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use tokio::sync::oneshot;

use crate::config::{Limit, Limits};
use crate::proc_stat::pids;

/// The interval between measurements of memory use.
const MEMORY_INTERVAL: Duration = Duration::from_millis(200);
/// The interval between measurements of disk use.
const DISK_INTERVAL: Duration = Duration::from_secs(2);
/// The minimum pause after a measurement, as a multiple of the duration of the measurement. This pause limits the CPU
/// time of the watch.
const PAUSE_FACTOR: u32 = 15;

/// The minimum free disk space in bytes. If the disk has less free space, a bottle that uses more than this amount is
/// stopped. On a small disk, the minimum is the size of the disk divided by `SPARE_PART`.
const SPARE: u64 = 1 << 30;
const SPARE_PART: u64 = 50;

/// Directories of a file system that keeps files in memory.
const IN_MEMORY: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// The maximum depth of nested directories. Each level needs an open descriptor. Deeper nesting counts as an exceeded
/// limit, so that no file can be hidden from the measurement. No build nests directories this deep.
const DEEPEST: usize = 256;

/// The unit of `st_blocks` on every file system (stat(2)).
const BLOCK: u64 = 512;

/// Starts the watch on its own thread. The returned receiver gets the limit that is exceeded. Returns `None` if there
/// are no limits.
///
/// # Errors
/// Fails if the thread cannot be started.
pub(crate) fn start(
    limits: Limits,
    changed: Option<OwnedFd>,
) -> io::Result<Option<oneshot::Receiver<Overrun>>> {
    if limits == Limits::default() {
        return Ok(None);
    }
    let Limits { memory, disk, directories, given } = limits;
    let own = Own { directories, changed, given };
    let (found, overrun) = oneshot::channel();
    std::thread::Builder::new().name("watch".to_owned()).stack_size(512 << 10).spawn(move || {
        // Sending the result fails if the guest is exiting.
        let _ = found.send(watch(memory, disk, &own));
    })?;
    Ok(Some(overrun))
}

/// Polls until a limit is exceeded.
fn watch(memory: Option<Limit>, disk: Option<Limit>, own: &Own) -> Overrun {
    let spare = own.directories.first().map(|directory| Limit { bytes: spare(directory), asked: false });
    let (mut often, mut large, mut full) =
        (Round::every(MEMORY_INTERVAL), Round::every(DISK_INTERVAL), Round::every(DISK_INTERVAL));
    loop {
        let over = often
            .check(memory, Limited::Memory, memory_beyond)
            .or_else(|| large.check(disk, Limited::Disk, |limit| own.use_of_disk() > limit))
            .or_else(|| full.check(spare, Limited::FreeDisk, |limit| own.fills_the_disk(limit)));
        if let Some(over) = over {
            return over;
        }
        let next = often.due.min(large.due).min(full.due);
        std::thread::sleep(next.saturating_duration_since(Instant::now()).max(MEMORY_INTERVAL / 4));
    }
}

/// Returns the number of bytes that must remain free on the disk of `directory`.
fn spare(directory: &Path) -> u64 {
    let size = rustix::fs::statvfs(directory).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    SPARE.min(size / SPARE_PART)
}

/// The bottle's directories on the disk.
struct Own {
    directories: Vec<PathBuf>,
    /// An additional directory. The watch knows only its descriptor, not its path.
    changed: Option<OwnedFd>,
    /// The number of bytes in the directories that do not count.
    given: u64,
}

impl Own {
    /// Measures the disk use of the directories in bytes. A file with several hard links is counted once, and
    /// unreadable entries are skipped. If directories are nested deeper than [`DEEPEST`], the result is the maximum
    /// number.
    fn use_of_disk(&self) -> u64 {
        let mut scan = DiskScan::default();
        if let Some(changed) = &self.changed {
            scan.add(changed, Path::new("."));
        }
        self.directories.iter().for_each(|directory| scan.add(CWD, directory));
        if scan.too_deep { u64::MAX } else { scan.bytes.saturating_sub(self.given) }
    }

    /// Returns whether the disk has less than `spare` bytes free while the directories use more than `spare` bytes.
    fn fills_the_disk(&self, spare: u64) -> bool {
        let left = |directory: &PathBuf| {
            let disk = rustix::fs::statvfs(directory).ok()?;
            Some(disk.f_bavail.saturating_mul(disk.f_frsize))
        };
        self.directories.iter().filter_map(left).any(|left| left < spare) && self.use_of_disk() > spare
    }
}

/// Measures the disk use of a directory in bytes, with the same method as the watch. Does not count files in
/// directories that are nested deeper than 256 levels.
#[must_use]
pub fn use_of_disk(directory: &Path) -> u64 {
    let mut scan = DiskScan::default();
    scan.add(CWD, directory);
    scan.bytes
}

/// The schedule of one kind of measurement.
struct Round {
    every: Duration,
    due: Instant,
}

impl Round {
    fn every(every: Duration) -> Self {
        Self { every, due: Instant::now() }
    }

    fn check(
        &mut self,
        limit: Option<Limit>,
        resource: Limited,
        beyond: impl FnOnce(u64) -> bool,
    ) -> Option<Overrun> {
        let now = Instant::now();
        if now < self.due {
            return None;
        }
        let over = limit.filter(|limit| beyond(limit.bytes));
        self.due = Instant::now() + self.every.max(now.elapsed() * PAUSE_FACTOR);
        over.map(|limit| Overrun { resource, limit: limit.bytes, asked: limit.asked })
    }
}

/// Returns whether all processes and files in memory together use more than the limit.
fn memory_beyond(limit: u64) -> bool {
    let files = files_in_memory();
    // The first sum counts every page of every process, so it counts shared pages several times.
    files.saturating_add(pids().map(|pid| resident(pid).unwrap_or(0)).sum()) > limit
        && files.saturating_add(pids().map(own_memory).sum()) > limit
}

fn files_in_memory() -> u64 {
    let used = |path: &str| {
        let found = rustix::fs::statvfs(path).ok()?;
        Some(found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize))
    };
    IN_MEMORY.into_iter().filter_map(used).sum()
}

/// Returns the number of resident bytes of a process. The second field of `statm` is the number of resident pages
/// (proc(5)).
fn resident(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(u64::try_from(rustix::param::page_size()).unwrap_or(4096)))
}

/// Returns a process's private memory and its share of shared memory, in bytes. Pages of files are left out, because
/// the kernel can read these pages again. If the exact numbers of the process are unreadable, all of its resident pages
/// are counted.
fn own_memory(pid: i32) -> u64 {
    let exact = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    exact.ok().and_then(|text| proportional(&text)).or_else(|| resident(pid)).unwrap_or(0)
}

/// Parses `smaps_rollup`, and returns the process's share of anonymous memory, shared memory and swap, in bytes.
fn proportional(text: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((field("Pss_Anon")? + field("Pss_Shmem")? + field("SwapPss").unwrap_or(0)).saturating_mul(1024))
}

/// One directory level of a depth-first scan.
struct Level {
    directory: OwnedFd,
    below: Vec<CString>,
}

/// The disk use of several directories.
#[derive(Default)]
struct DiskScan {
    bytes: u64,
    /// The device and inode of each file with several hard links that is already counted.
    seen: HashSet<(u64, u64)>,
    /// Whether a directory is nested deeper than [`DEEPEST`]. The files in this directory are not counted.
    too_deep: bool,
}

impl DiskScan {
    /// Adds the files beneath `directory`. `directory` is a path relative to `at`. Files on other disks are skipped.
    fn add(&mut self, at: impl AsFd, directory: &Path) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(top) = rustix::fs::openat(at, directory, flags, Mode::empty()) else { return };
        let Ok(disk) = rustix::fs::fstat(&top).map(|stat| stat.st_dev) else { return };
        let mut levels = vec![self.level(top, disk)];
        while let Some(last) = levels.last_mut() {
            let Some(name) = last.below.pop() else {
                levels.pop();
                continue;
            };
            let Ok(next) = rustix::fs::openat(&last.directory, &name, flags, Mode::empty()) else { continue };
            if levels.len() < DEEPEST {
                levels.push(self.level(next, disk));
            } else {
                self.too_deep = true;
            }
        }
    }

    /// Counts the entries of a directory, and collects its subdirectories on the same disk.
    fn level(&mut self, directory: OwnedFd, disk: u64) -> Level {
        let mut below = Vec::new();
        for entry in Dir::read_from(&directory).into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_nlink == 1 || self.seen.insert((stat.st_dev, stat.st_ino)) {
                let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
                self.bytes = self.bytes.saturating_add(bytes);
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_dev == disk {
                below.push(name.to_owned());
            }
        }
        Level { directory, below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_private_memory_and_a_proportion_of_shared_memory() {
        let text = "55d0-7ffe ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:  800 kB\nPss_Anon:      100 kB\n\
                    Pss_File:  690 kB\nPss_Shmem:       8 kB\nSwap:  7 kB\nSwapPss:      2 kB\n";
        assert_eq!(proportional(text), Some(110 << 10));
        assert_eq!(proportional("Rss: 900 kB\n"), None);
        let pid = i32::try_from(std::process::id()).expect("a process id");
        let own = own_memory(pid);
        assert!(own > 0 && own <= resident(pid).expect("a process"), "{own}");
    }

    #[test]
    fn counts_a_directory_nested_too_deep_as_unlimited_use() {
        let directory = tempfile::tempdir().expect("directory");
        let own = Own { directories: vec![directory.path().to_owned()], changed: None, given: 0 };
        fs::create_dir_all(directory.path().join("d/".repeat(DEEPEST - 1))).expect("made");
        assert!(own.use_of_disk() < 1 << 30);
        fs::create_dir_all(directory.path().join("d/".repeat(DEEPEST))).expect("made");
        assert_eq!(own.use_of_disk(), u64::MAX);
        assert!(use_of_disk(directory.path()) < 1 << 30);
    }

    #[test]
    fn counts_each_file_of_a_directory_once() {
        let directory = tempfile::tempdir().expect("directory");
        let before = use_of_disk(directory.path());
        fs::create_dir_all(directory.path().join("a/b")).expect("made");
        fs::write(directory.path().join("a/b/file"), vec![1; 1 << 20]).expect("written");
        fs::hard_link(directory.path().join("a/b/file"), directory.path().join("again")).expect("linked");
        std::os::unix::fs::symlink("/usr", directory.path().join("a/usr")).expect("linked");
        let sparse = fs::File::create(directory.path().join("sparse")).expect("made");
        sparse.set_len(1 << 30).expect("long");
        let more = use_of_disk(directory.path()) - before;
        assert!((1 << 20..1 << 21).contains(&more), "{more}");
        assert_eq!(use_of_disk(&directory.path().join("absent")), 0);
        // For a directory that is passed as a descriptor, the result is the same, minus the bytes that do not count.
        let opened = fs::File::open(directory.path()).expect("opened").into();
        let own = Own { directories: Vec::new(), changed: Some(opened), given: before };
        assert_eq!(own.use_of_disk(), more);
    }

    #[test]
    fn reports_an_exceeded_limit() {
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join("file"), vec![1; 1 << 20]).expect("written");
        let limit = |bytes| Some(Limit { bytes, asked: true });
        let directories = vec![directory.path().to_owned()];
        let own = Own { directories, changed: None, given: 0 };
        let over = watch(limit(u64::MAX), limit(1 << 19), &own);
        assert_eq!(over, Overrun { resource: Limited::Disk, limit: 1 << 19, asked: true });
        let over = watch(limit(1 << 10), None, &own);
        assert_eq!(over.resource, Limited::Memory);
        assert!(start(Limits::default(), None).expect("nothing to start").is_none());
    }
}
