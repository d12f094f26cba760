//! Builds `/dev` and `/proc` of a sandbox. `/dev` contains only the devices that every program expects. `/proc`
//! contains the bottle's processes; entries with information about the host are masked.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use bottle_backend::memory;
use rustix::fs::{Dir, FileType, Mode, OFlags, openat, symlinkat};
use rustix::mount::MountAttrFlags;

use super::mounts::{Tree, directory, file};
use super::spec::SandboxSpec;
use super::sys::Forbid;
use crate::local::failure::Step;
use crate::local::spawn_ipc::{SetupFailure, SetupPart};

/// The host's devices that a sandbox gets. These devices have no state and no owner.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// Links that programs expect in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];

/// The entries of `/proc` that stay visible besides the processes. Programs read the machine size, the load and the
/// kernel features from these entries. Other entries can reveal or change the host's disks, hardware or locks.
const VISIBLE: [&str; 10] = [
    "cgroups",
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo",
    "stat",
    "sysvipc",
    "uptime",
    "version",
    "vmstat",
];

/// The directory of `/proc` with the kernel's settings. The sandbox makes this directory read-only and does not cover
/// it, because many programs read it.
const SETTINGS: &str = "sys";

/// The restrictions of a mount that covers an entry of `/proc`: writing and running programs are forbidden. Devices
/// must be allowed, because the device `/dev/null` covers each file.
const NOTHING: Forbid = Forbid { writes: true, devices: false, programs: true };

/// Builds `/dev` and `/proc` under the new root.
pub(super) fn build(root: BorrowedFd<'_>, spec: &SandboxSpec) -> Result<(), SetupFailure> {
    let working = Forbid { writes: false, devices: false, programs: true };
    let directory = directory(root, Path::new("/dev")).step("make /dev")?;
    for name in DEVICES {
        let path = Path::new("/dev").join(name);
        let tree = Tree::clone_host(&path, working).step_at("open", &path)?;
        tree.attach(file(&directory, Path::new(name)).step_at("make", &path)?).step_at("mount", &path)?;
    }
    for (target, link) in LINKS {
        symlinkat(target, root, link).step_at("link", Path::new(link))?;
    }
    let quiet = MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let pts = [("mode", "0620"), ("ptmxmode", "0666")];
    let shm = quiet | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount(root, "/dev/pts", Tree::new("devpts", &pts, quiet))?;
    mount(root, "/dev/shm", Tree::in_memory("1777", memory::shared(spec.scratch), shm))?;
    let proc = Tree::new("proc", &[], quiet | MountAttrFlags::MOUNT_ATTR_NODEV);
    mount(root, "/proc", Ok(proc.step_of(SetupPart::Proc, "make /proc")?))?;
    cover(root)
}

fn mount(root: BorrowedFd<'_>, path: &str, tree: io::Result<Tree>) -> Result<(), SetupFailure> {
    let path = Path::new(path);
    tree.step_at("make", path)?.attach(directory(root, path).step_at("make", path)?).step_at("mount", path)
}

/// Covers every file and directory of `/proc` that is not on the allowlist, and makes [`SETTINGS`] read-only. The
/// allowlist ensures that entries which newer kernels add are covered too.
fn cover(root: BorrowedFd<'_>) -> Result<(), SetupFailure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let proc = openat(root, "proc", flags, Mode::empty()).step("open /proc")?;
    let listed = Dir::read_from(&proc).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut covers = Covers::default();
    for entry in listed.step("list /proc")? {
        let name = entry.file_name();
        let text = name.to_str().unwrap_or_default();
        let is_process = text.starts_with(|first: char| first.is_ascii_digit());
        if is_process || VISIBLE.contains(&text) || text.starts_with('.') {
            continue;
        }
        let made = match entry.file_type() {
            FileType::Symlink => continue,
            FileType::Directory if text == SETTINGS => make_read_only(&proc, name),
            FileType::Directory => covers.directory(&proc, name),
            _ => covers.file(&proc, name),
        };
        made.step_at("cover /proc", Path::new(text))?;
    }
    Ok(())
}

/// The mount that covered the first file of `/proc`, and the mount that covered the first directory. Duplicates of
/// these mounts cover the other files and directories.
#[derive(Default)]
struct Covers {
    file: Option<Tree>,
    directory: Option<Tree>,
}

impl Covers {
    fn file(&mut self, proc: &OwnedFd, name: &CStr) -> io::Result<()> {
        let fresh = || Tree::clone_host(Path::new("/dev/null"), NOTHING);
        put(&mut self.file, fresh, proc, name)
    }

    fn directory(&mut self, proc: &OwnedFd, name: &CStr) -> io::Result<()> {
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
        let fresh = || {
            let options = [("size", "4k"), ("mode", "0555")];
            Tree::new("tmpfs", &options, read_only | MountAttrFlags::MOUNT_ATTR_NOEXEC)
        };
        put(&mut self.directory, fresh, proc, name)
    }
}

fn put(
    used: &mut Option<Tree>,
    fresh: impl FnOnce() -> io::Result<Tree>,
    proc: &OwnedFd,
    name: &CStr,
) -> io::Result<()> {
    let over = openat(proc, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let tree = match used {
        Some(attached) => attached.duplicate()?,
        None => fresh()?,
    };
    tree.attach(over)?;
    used.get_or_insert(tree);
    Ok(())
}

fn make_read_only(proc: &OwnedFd, name: &CStr) -> io::Result<()> {
    let over = openat(proc, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    Tree::clone_at(proc, name, NOTHING)?.attach(over)
}
