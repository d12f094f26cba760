//! System calls without a safe wrapper: fork, `mount_setattr`, `close_range`.

#![allow(unsafe_code)] // A SAFETY comment explains each unsafe call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;
use rustix::process::Pid;

/// The process in which [`fork`] returns.
pub(crate) enum Forked {
    /// The parent process. Contains the process id of the child.
    Parent(Pid),
    /// The child.
    Child,
}

/// Forks this process.
///
/// # Errors
/// When this process has more than one thread, or the system refuses.
pub(crate) fn fork() -> io::Result<Forked> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("cannot fork a process with several threads"));
    }
    // SAFETY: this process has only one thread. No lock can therefore be held by another thread and stay locked in the
    // child. The child may therefore call any function.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => Ok(Forked::Child),
        nix::unistd::ForkResult::Parent { child } => Pid::from_raw(child.as_raw())
            .map(Forked::Parent)
            .ok_or_else(|| io::Error::other("the new process has no process id here")),
    }
}

/// Restrictions to add to a mount.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Forbid {
    /// Forbids writing.
    pub(super) writes: bool,
    /// Forbids the use of device files.
    pub(super) devices: bool,
    /// Forbids running programs.
    pub(super) programs: bool,
}

/// Restricts a mount and, with `recursive`, all mounts below it. Always makes the mount private, so that later mounts
/// of the host do not propagate into it, and always disables set-id programs.
///
/// # Errors
/// The error of the failed system call.
pub(super) fn restrict_mount(mount: impl AsFd, forbid: Forbid, recursive: bool) -> io::Result<()> {
    let mut attributes = libc::MOUNT_ATTR_NOSUID;
    for (forbidden, attribute) in [
        (forbid.writes, libc::MOUNT_ATTR_RDONLY),
        (forbid.devices, libc::MOUNT_ATTR_NODEV),
        (forbid.programs, libc::MOUNT_ATTR_NOEXEC),
    ] {
        if forbidden {
            attributes |= attribute;
        }
    }
    let request =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a valid C string, the structure is valid for the given length, and the kernel only reads
    // both.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Turns a detached mount into an idmapped mount with the id mapping of a user namespace.
///
/// # Errors
/// When the file system does not support idmapped mounts, or the kernel is older than 5.12.
pub(super) fn map_owners(mount: impl AsFd, namespace: impl AsFd) -> io::Result<()> {
    let userns_fd = u64::try_from(namespace.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let request =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    // SAFETY: the path is a valid C string, the structure is valid for the given length, and the kernel only reads
    // both.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor except standard input, output and error. A new process calls this function before it opens
/// descriptors, to close the descriptors that it inherited from its parent.
///
/// # Errors
/// The error of the failed system call.
pub(crate) fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor above 2 yet, so no owner loses its descriptor.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
