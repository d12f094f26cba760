//! Prepares a child process between fork and exec.
#![allow(unsafe_code)] // Only the unsafe function `pre_exec` can run code between fork and exec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use rustix::process::{Resource, Rlimit, ioctl_tiocsctty, setrlimit, setsid};

use crate::config::Confine;

/// Starts a new session in the child process, and sets the limit on open files to `files`. The child inherits none of
/// the guest's descriptors. If `terminal` is true, the child's standard input becomes the controlling terminal.
pub(crate) fn separate(command: &mut Command, terminal: bool, files: Rlimit, confine: Option<Confine>) {
    let in_child = move || -> io::Result<()> {
        setsid()?;
        if terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        setrlimit(Resource::Nofile, files)?;
        close_on_exec_from(3)?;
        confine.as_ref().map_or(Ok(()), |confine| (confine.0)())
    };
    // SAFETY: between fork and exec, only async-signal-safe calls are allowed. The closure makes four system calls, and
    // the calls that the type `Confine` allows. The closure allocates no memory, takes no lock, and does not access
    // state of the parent process.
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Marks all descriptors from `first` on as close-on-exec. The guest opens its own descriptors as close-on-exec. This
/// call covers descriptors that a backend left open. If the kernel does not support the flag of `close_range`, as in
/// gVisor, the function marks each of the first descriptors with a separate call.
pub(crate) fn close_on_exec_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call receives three integers and no pointer. With the flag `CLOEXEC`, the call only sets flags on
    // descriptors of this process.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {
            mark_one_by_one(first);
            Ok(())
        }
        error => Err(error),
    }
}

/// Marks the descriptors from `first` up to, but not including, [`LEFT_OPEN`] as close-on-exec. Descriptors that are
/// not open are skipped.
fn mark_one_by_one(first: libc::c_uint) {
    for descriptor in first..LEFT_OPEN {
        // SAFETY: the call receives integers and no pointer, and only sets a flag on a descriptor of this process.
        // `fcntl` is async-signal-safe.
        unsafe { libc::fcntl(descriptor.cast_signed(), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// The descriptor number below which a backend may have left descriptors open. A backend leaves only a few descriptors
/// with low numbers open.
const LEFT_OPEN: libc::c_uint = 1024;
