//! Memory and disk, looked at now and then where nothing outside limits them.
//!
//! Memory is that of all processes together and of files in memory. What processes share is first counted for
//! each of them, which is quick and never too little; only beyond the limit is it counted exactly. What no
//! process has mapped (a file of `memfd_create`, an unused segment) is not seen. Disk is what the bottle's
//! folders take; looking takes as long as they are large, so it is done less often then. A disk that is nearly
//! full ends the bottles that take much of it.
//!
//! A thread of its own: a bottle that has more processes or files than can be looked at in no time must not
//! hold up its session.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bottle_contract::session::guest::{Limited, Overrun};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use tokio::sync::oneshot;

use crate::config::{Limit, Limits};

/// Between two looks, when a look takes no time.
const OFTEN: Duration = Duration::from_millis(200);
/// The same for the disk.
const NOW_AND_THEN: Duration = Duration::from_secs(2);
/// How much longer than a look the rest after it is, at least: it must not become the bottle's main work.
const REST: u32 = 15;

/// What has to be left of a disk, and of a small one which part.
const SPARE: u64 = 1 << 30;
const SPARE_PART: u64 = 50;

/// Where files are in memory.
const IN_MEMORY: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// Folders deeper than this are not looked into: each level holds a descriptor. No build nests so deep, and who
/// does it to hide something has a disk that is still the host's to watch.
const DEEPEST: usize = 256;

/// What a file's blocks are counted in, whatever its file system (stat(2)).
const BLOCK: u64 = 512;

/// Begins to watch; the receiver resolves when a limit is overrun. `None` when there is nothing to watch.
///
/// # Errors
/// When no thread can be made.
pub(crate) fn start(
    limits: Limits,
    changed: Option<OwnedFd>,
) -> io::Result<Option<oneshot::Receiver<Overrun>>> {
    if limits == Limits::default() {
        return Ok(None);
    }
    let Limits { memory, disk, folders, given } = limits;
    let own = Own { folders, changed, given };
    let (found, overrun) = oneshot::channel();
    std::thread::Builder::new().name("watch".to_owned()).stack_size(512 << 10).spawn(move || {
        // Nobody waits any more when the guest goes.
        let _ = found.send(watch(memory, disk, &own));
    })?;
    Ok(Some(overrun))
}

/// Looks until a limit is overrun.
fn watch(memory: Option<Limit>, disk: Option<Limit>, own: &Own) -> Overrun {
    let spare = own.folders.first().map(|folder| Limit { bytes: spare(folder), asked: false });
    let (mut often, mut large, mut full) =
        (Round::every(OFTEN), Round::every(NOW_AND_THEN), Round::every(NOW_AND_THEN));
    loop {
        let over = often
            .look(memory, Limited::Memory, memory_beyond)
            .or_else(|| large.look(disk, Limited::Disk, |limit| own.use_of_disk() > limit))
            .or_else(|| full.look(spare, Limited::FreeDisk, |limit| own.fills_the_disk(limit)));
        if let Some(over) = over {
            return over;
        }
        let next = often.due.min(large.due).min(full.due);
        std::thread::sleep(next.saturating_duration_since(Instant::now()).max(OFTEN / 4));
    }
}

/// What has to be left of the disk for its user to go on working.
fn spare(folder: &Path) -> u64 {
    let size = rustix::fs::statvfs(folder).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    SPARE.min(size / SPARE_PART)
}

/// What a bottle has on the disk.
struct Own {
    folders: Vec<PathBuf>,
    /// One more, which has no path.
    changed: Option<OwnedFd>,
    /// Of what the folders take, what it was given.
    given: u64,
}

impl Own {
    /// What it takes; a file with several names counts once. What cannot be looked at is left out.
    fn use_of_disk(&self) -> u64 {
        let mut seen = HashSet::new();
        let changed = self.changed.as_ref().map_or(0, |folder| take(folder, Path::new("."), &mut seen));
        let others = self.folders.iter().map(|folder| take(CWD, folder, &mut seen));
        others.fold(changed, u64::saturating_add).saturating_sub(self.given)
    }

    /// Whether less than this is left of the disk, and the folders take more than it.
    fn fills_the_disk(&self, spare: u64) -> bool {
        let left = |folder: &PathBuf| {
            let disk = rustix::fs::statvfs(folder).ok()?;
            Some(disk.f_bavail.saturating_mul(disk.f_frsize))
        };
        self.folders.iter().filter_map(left).any(|left| left < spare) && self.use_of_disk() > spare
    }
}

/// What a folder of this machine takes on its disk, as the watch of a bottle counts it.
#[must_use]
pub fn use_of_disk(folder: &Path) -> u64 {
    take(CWD, folder, &mut HashSet::new())
}

/// When something is looked at next.
struct Round {
    every: Duration,
    due: Instant,
}

impl Round {
    fn every(every: Duration) -> Self {
        Self { every, due: Instant::now() }
    }

    fn look(
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
        self.due = Instant::now() + self.every.max(now.elapsed() * REST);
        over.map(|limit| Overrun { resource, limit: limit.bytes, asked: limit.asked })
    }
}

/// Whether all processes and files in memory take more than this.
fn memory_beyond(limit: u64) -> bool {
    let files = files_in_memory();
    // Every page of every process: too much, as they share some.
    files.saturating_add(processes().map(|pid| resident(pid).unwrap_or(0)).sum()) > limit
        && files.saturating_add(processes().map(own_memory).sum()) > limit
}

fn files_in_memory() -> u64 {
    let used = |path: &str| {
        let found = rustix::fs::statvfs(path).ok()?;
        Some(found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize))
    };
    IN_MEMORY.into_iter().filter_map(used).sum()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The second field of `statm`, in pages (proc(5)).
fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(u64::try_from(rustix::param::page_size()).unwrap_or(4096)))
}

/// What a process has for itself, and its part of what it shares; pages of files can be read again and do not
/// count. A process that does not let itself be looked into has all of its pages counted.
fn own_memory(pid: u32) -> u64 {
    let exact = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    exact.ok().and_then(|text| proportional(&text)).or_else(|| resident(pid)).unwrap_or(0)
}

/// Of `smaps_rollup`: the process's part of anonymous and shared memory and of swap.
fn proportional(text: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((field("Pss_Anon")? + field("Pss_Shmem")? + field("SwapPss").unwrap_or(0)).saturating_mul(1024))
}

/// One level of the way down.
struct Level {
    folder: OwnedFd,
    below: Vec<CString>,
}

fn take(at: impl AsFd, folder: &Path, seen: &mut HashSet<(u64, u64)>) -> u64 {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut bytes = 0_u64;
    let Ok(top) = rustix::fs::openat(at, folder, flags, Mode::empty()) else { return 0 };
    let Ok(disk) = rustix::fs::fstat(&top).map(|stat| stat.st_dev) else { return 0 };
    let mut way = vec![level(top, disk, &mut bytes, seen)];
    while let Some(last) = way.last_mut() {
        let Some(name) = last.below.pop() else {
            way.pop();
            continue;
        };
        if let Ok(next) = rustix::fs::openat(&last.folder, &name, flags, Mode::empty())
            && way.len() < DEEPEST
        {
            way.push(level(next, disk, &mut bytes, seen));
        }
    }
    bytes
}

/// Counts what is in a folder, and remembers the folders in it that are on the same disk.
fn level(folder: OwnedFd, disk: u64, bytes: &mut u64, seen: &mut HashSet<(u64, u64)>) -> Level {
    let mut below = Vec::new();
    for entry in Dir::read_from(&folder).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if stat.st_nlink == 1 || seen.insert((stat.st_dev, stat.st_ino)) {
            *bytes += u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_dev == disk {
            below.push(name.to_owned());
        }
    }
    Level { folder, below }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_own_memory_and_its_part_of_what_it_shares() {
        let text = "55d0-7ffe ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:  800 kB\nPss_Anon:      100 kB\n\
                    Pss_File:  690 kB\nPss_Shmem:       8 kB\nSwap:  7 kB\nSwapPss:      2 kB\n";
        assert_eq!(proportional(text), Some(110 << 10));
        assert_eq!(proportional("Rss: 900 kB\n"), None);
        let own = own_memory(std::process::id());
        assert!(own > 0 && own <= resident(std::process::id()).expect("a process"), "{own}");
    }

    #[test]
    fn a_folder_takes_what_is_in_it_once_and_no_more() {
        let folder = tempfile::tempdir().expect("folder");
        let before = use_of_disk(folder.path());
        fs::create_dir_all(folder.path().join("a/b")).expect("made");
        fs::write(folder.path().join("a/b/file"), vec![1; 1 << 20]).expect("written");
        fs::hard_link(folder.path().join("a/b/file"), folder.path().join("again")).expect("linked");
        std::os::unix::fs::symlink("/usr", folder.path().join("a/usr")).expect("linked");
        let sparse = fs::File::create(folder.path().join("sparse")).expect("made");
        sparse.set_len(1 << 30).expect("long");
        let more = use_of_disk(folder.path()) - before;
        assert!((1 << 20..1 << 21).contains(&more), "{more}");
        assert_eq!(use_of_disk(&folder.path().join("absent")), 0);
        // Opened, it is the same, and what was given does not count.
        let opened = fs::File::open(folder.path()).expect("opened").into();
        let own = Own { folders: Vec::new(), changed: Some(opened), given: before };
        assert_eq!(own.use_of_disk(), more);
    }

    #[test]
    fn a_limit_is_overrun_by_what_is_beyond_it() {
        let folder = tempfile::tempdir().expect("folder");
        fs::write(folder.path().join("file"), vec![1; 1 << 20]).expect("written");
        let limit = |bytes| Some(Limit { bytes, asked: true });
        let folders = vec![folder.path().to_owned()];
        let own = Own { folders, changed: None, given: 0 };
        let over = watch(limit(u64::MAX), limit(1 << 19), &own);
        assert_eq!(over, Overrun { resource: Limited::Disk, limit: 1 << 19, asked: true });
        let over = watch(limit(1 << 10), None, &own);
        assert_eq!(over.resource, Limited::Memory);
        assert!(start(Limits::default(), None).expect("nothing to start").is_none());
    }
}
