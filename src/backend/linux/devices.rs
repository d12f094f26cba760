//! `/dev` and `/proc` inside: the few devices every program expects, and the process list of the bottle
//! alone with what tells of the host covered up.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat, symlinkat};
use rustix::mount::MountAttrFlags;

use super::failure::Step;
use super::mounts::{Tree, file, folder};
use super::sys::Forbid;
use crate::backend::local::handoff::SetupFailure;

/// Devices without memory or owner.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// Links that programs expect in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];

/// Shared memory; browsers need more than the 64 MiB that engines give.
const SHM_SIZE: &str = "25%";

/// Files of `/proc` that tell about the kernel, its keys or the host's hardware, or act on it.
const MASKED_FILES: [&str; 10] = [
    "cmdline",
    "interrupts",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "latency_stats",
    "modules",
    "sysrq-trigger",
    "timer_list",
];

/// Folders of `/proc` of the same kind.
const MASKED_FOLDERS: [&str; 4] = ["acpi", "asound", "bus", "scsi"];

/// Folders of `/proc` whose settings are the machine's.
const FROZEN: [&str; 3] = ["fs", "irq", "sys"];

/// Fills both under the new root.
pub(super) fn build(root: BorrowedFd<'_>) -> Result<(), SetupFailure> {
    let working = Forbid { writes: false, devices: false, programs: true };
    let folder = folder(root, Path::new("/dev")).step("make /dev")?;
    for name in DEVICES {
        let path = Path::new("/dev").join(name);
        let tree = Tree::of_host(&path, working).step_at("open", &path)?;
        tree.attach(file(&folder, Path::new(name)).step_at("make", &path)?).step_at("mount", &path)?;
    }
    for (target, link) in LINKS {
        symlinkat(target, root, link).step_at("link", Path::new(link))?;
    }
    let quiet = MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let pts = [("mode", "0620"), ("ptmxmode", "0666")];
    let shm = [("mode", "1777"), ("size", SHM_SIZE)];
    mount(root, "devpts", "/dev/pts", &pts, quiet)?;
    mount(root, "tmpfs", "/dev/shm", &shm, quiet | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    mount(root, "proc", "/proc", &[], quiet | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    cover(root)
}

fn mount(
    root: BorrowedFd<'_>,
    kind: &str,
    path: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<(), SetupFailure> {
    let path = Path::new(path);
    let tree = Tree::new(kind, options, attributes).step_at("make", path)?;
    tree.attach(folder(root, path).step_at("make", path)?).step_at("mount", path)
}

fn cover(root: BorrowedFd<'_>) -> Result<(), SetupFailure> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let proc = openat(root, "proc", flags | OFlags::DIRECTORY, Mode::empty()).step("open /proc")?;
    let nothing = Forbid { writes: true, devices: false, programs: true };
    for name in MASKED_FILES {
        if let Ok(over) = openat(&proc, name, flags, Mode::empty()) {
            let null = Tree::of_host(Path::new("/dev/null"), nothing).step("open /dev/null")?;
            null.attach(over).step_at("cover /proc", Path::new(name))?;
        }
    }
    for name in MASKED_FOLDERS {
        if let Ok(over) = openat(&proc, name, flags, Mode::empty()) {
            let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
            let empty = Tree::new("tmpfs", &[("size", "4k"), ("mode", "0555")], read_only)
                .step_at("make a cover for /proc", Path::new(name))?;
            empty.attach(over).step_at("cover /proc", Path::new(name))?;
        }
    }
    for name in FROZEN {
        if let Ok(over) = openat(&proc, name, flags, Mode::empty()) {
            let frozen = Tree::of_folder(&proc, name, nothing).step_at("open /proc", Path::new(name))?;
            frozen.attach(over).step_at("freeze /proc", Path::new(name))?;
        }
    }
    Ok(())
}
