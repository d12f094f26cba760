//! What happens in a child between fork and exec.
#![allow(unsafe_code)] // `pre_exec` is the only way there, and it is unsafe by nature.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use rustix::process::{Resource, Rlimit, ioctl_tiocsctty, setrlimit, setsid};

/// Gives the child a session of its own (with its standard input as the terminal, if it is one), the
/// limit on open files that the guest was started with, and none of the guest's descriptors.
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

/// Marks every descriptor from `first` on so that no program started later inherits it. The guest opens
/// all of its own that way; this also covers what a backend left open.
pub(crate) fn close_on_exec_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: three integers, no memory; with CLOEXEC it only sets flags on this process's descriptors.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
