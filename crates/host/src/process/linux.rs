//! Processes on Linux. The start time is field 22 of `/proc/PID/stat`, in clock ticks since boot. An [`Opened`] process
//! is a pidfd.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Returns the start time of a process. Returns `None` if no process has this id, or if the process is a zombie.
pub(super) fn start_time(pid: u32) -> io::Result<Option<u64>> {
    let stat = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    match parse_stat(&stat) {
        Some((b'Z' | b'X', _)) => Ok(None),
        Some((_, start)) => Ok(Some(start)),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("cannot parse /proc/{pid}/stat"))),
    }
}

/// An open process. While this value exists, it identifies the same process, even if the kernel reuses the process id.
pub(super) struct Opened(OwnedFd);

impl Opened {
    /// Opens the process with this id. Returns `None` if no process has this id.
    pub(super) fn open(pid: Pid) -> io::Result<Option<Self>> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self(process))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal. Returns false if the process has ended.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<bool> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has ended, for at most `patience`.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).map_err(|_| io::Error::other("the wait is too long"))?;
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&wait)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the process does not end")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether an error for a file in `/proc/PID` means that the process has ended.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::SRCH)
}

/// Returns the state and start time of a process. The program name in parentheses may contain any character, so fields
/// are counted from the last `)`.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let name_end = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // The state is field 3, so field 22 is the nineteenth field after it.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names_with_parentheses_and_spaces() {
        let stat = b"42 (a) R 1 (b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        assert_eq!(parse_stat(stat), Some((b'S', 987_654)));
        for broken in [&b""[..], b"42 (a", b"42 (a) S 1 2", b"42 (\xff) \xff"] {
            assert_eq!(parse_stat(broken), None);
        }
    }
}
