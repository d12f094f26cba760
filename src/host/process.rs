//! Identifies processes in a way that is safe even if the kernel reuses a process id.
//!
//! In files and in the ledger, a process is written as `pid:start`: its id and its start time, which is field
//! 22 of `/proc/PID/stat` in clock ticks since boot. A zombie counts as ended, because it has no resources.
//! To send a signal, a pidfd is opened before the start time is compared, so that the signal reaches the
//! identified process or none.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process id with the process's start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// The process id, in the PID namespace of this program.
    pub pid: u32,
    /// The start time of the process, in clock ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// Returns the process that currently has this id. Returns `None` if there is none, or if it is a zombie.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be read for another reason.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let stat = match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        match parse_stat(&stat) {
            Some((b'Z' | b'X', _)) => Ok(None),
            Some((_, start)) => Ok(Some(Self { pid, start })),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("cannot parse /proc/{pid}/stat"))),
        }
    }

    /// Returns this process.
    ///
    /// # Errors
    /// Returns an error if `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())?.ok_or_else(|| io::Error::other("/proc does not list this process"))
    }

    /// Whether the process is still running.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(Self::of(self.pid), Ok(Some(now)) if now == self)
    }

    /// Kills the process and waits until it has ended. Succeeds if it has already ended.
    ///
    /// # Errors
    /// Returns an error if this user may not signal the process, or if it does not end within `patience`.
    pub fn kill(self, patience: Duration) -> io::Result<()> {
        let Some(process) = self.signal(Signal::KILL)? else { return Ok(()) };
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).map_err(|_| io::Error::other("the wait is too long"))?;
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the process does not end")),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends SIGINT to the process, as Ctrl-C does. Succeeds if the process has already ended.
    ///
    /// # Errors
    /// Returns an error if this user may not signal the process.
    pub fn interrupt(self) -> io::Result<()> {
        self.signal(Signal::INT).map(drop)
    }

    /// Sends a signal to the process. Returns none if it has already ended.
    fn signal(self, signal: Signal) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !self.is_alive() {
            return Ok(None);
        }
        match pidfd_send_signal(&process, signal) {
            Ok(()) => Ok(Some(process)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.start)
    }
}

impl FromStr for ProcessId {
    type Err = BadProcessId;

    fn from_str(text: &str) -> Result<Self, BadProcessId> {
        let bad = || BadProcessId(text.to_owned());
        let (pid, start) = text.split_once(':').ok_or_else(bad)?;
        Ok(Self { pid: pid.parse().map_err(|_| bad())?, start: start.parse().map_err(|_| bad())? })
    }
}

/// The error for a text that does not have the form `pid:start`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a process in the form pid:start")]
pub struct BadProcessId(String);

/// Whether an error for a file in `/proc/PID` means that the process has ended.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::SRCH)
}

/// Returns the state and start time. The program name in parentheses may contain any character, so fields are
/// counted from the last `)`.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let name_end = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // The state is field 3, so field 22 is the nineteenth field after it.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn parses_names_with_parentheses_and_spaces() {
        let stat = b"42 (a) R 1 (b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        assert_eq!(parse_stat(stat), Some((b'S', 987_654)));
        for broken in [&b""[..], b"42 (a", b"42 (a) S 1 2", b"42 (\xff) \xff"] {
            assert_eq!(parse_stat(broken), None);
        }
    }

    #[test]
    fn parses_and_displays_the_text_form() {
        let own = ProcessId::own().expect("own");
        assert_eq!(own.to_string().parse(), Ok(own));
        for bad in ["", "1", "1:", ":1", "1:2:3", "-1:2", "a:b"] {
            assert!(bad.parse::<ProcessId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kills_the_identified_process_and_no_reused_id() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep");
        let named = ProcessId::of(child.id()).expect("read").expect("alive");
        let other = ProcessId { start: named.start + 1, ..named };
        other.kill(Duration::from_secs(5)).expect("nothing to do");
        assert!(named.is_alive());

        named.kill(Duration::from_secs(5)).expect("killed");
        assert!(!named.is_alive(), "a zombie counts as ended");
        child.wait().expect("reaped");
        named.kill(Duration::from_secs(5)).expect("twice is no error");
    }
}
