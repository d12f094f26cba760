//! Makes the pseudo-terminal the controlling terminal of the child. This happens between fork and exec, and
//! needs unsafe code.
#![allow(
    unsafe_code,
    reason = "Command::pre_exec is unsafe and there is no safe way to a controlling terminal"
)]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Starts `command` on a new terminal. Returns the process and the controlling side of the terminal.
pub(super) fn spawn(mut command: Command, size: Winsize) -> Result<(Child, File)> {
    let master =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).context("open a pty")?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    tcsetwinsize(&terminal, size)?;
    let terminal = File::from(terminal);
    command
        .stdin(Stdio::from(terminal.try_clone()?))
        .stdout(Stdio::from(terminal.try_clone()?))
        .stderr(Stdio::from(terminal));
    // SAFETY: the closure makes two system calls and nothing else: no allocation, no lock, no
    // environment, so it is sound after fork in a process with other threads.
    unsafe { command.pre_exec(own_terminal) };
    let child = command.spawn().context("start on a terminal")?;
    Ok((child, File::from(master)))
}

/// Starts a new session. Its controlling terminal is standard input.
fn own_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    Ok(())
}
