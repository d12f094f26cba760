//! Sets up a child process between fork and exec.
#![allow(unsafe_code)] // Only `pre_exec` runs code there, and it is unsafe.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use rustix::process::{Resource, Rlimit, ioctl_tiocsctty, setrlimit, setsid};

/// Gives the child a new session (with its standard input as the controlling terminal, if it is one), the
/// guest's original limit on open files, and none of the guest's descriptors.
pub(crate) fn separate(command: &mut Command, terminal: bool, files: Rlimit) {
    let in_child = move || -> io::Result<()> {
        setsid()?;
        if terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        setrlimit(Resource::Nofile, files)?;
        close_on_exec_from(3)
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes four
    // system calls, allocates nothing, takes no lock and touches no state of the parent.
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Marks every descriptor from `first` on as close-on-exec. The guest opens its own descriptors that way;
/// this covers those that a backend left open.
pub(crate) fn close_on_exec_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: three integers, no memory; with CLOEXEC it only sets flags on this process's descriptors.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
