//! Identifies processes in a way that is safe even if the kernel reuses a process id.
//!
//! In files and in the ledger, a process is written as `pid:start`: the process id and the start time. The modules
//! `linux` and `macos` define the unit of the start time. A zombie is treated as ended, because it has no resources. To
//! send a signal, this module first opens the process and then compares the start time, so that the signal reaches the
//! identified process or no process.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "linux")]
pub use linux::is_gone;
#[cfg(target_os = "macos")]
use macos as system;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid};
use serde::{Deserialize, Serialize};

/// A process id with the process's start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProcessId {
    /// The process id, in the PID namespace of this program.
    pub pid: u32,
    /// The start time of the process: on Linux in clock ticks since boot, on macOS in microseconds since 1970.
    pub start: u64,
}

impl ProcessId {
    /// Returns the process that currently has this id. Returns `None` if no process has this id, or if the process is a
    /// zombie.
    ///
    /// # Errors
    /// Returns an error if the operating system does not return the start time.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        Ok(system::start_time(pid)?.map(|start| Self { pid, start }))
    }

    /// Returns this process.
    ///
    /// # Errors
    /// Returns an error if the operating system does not return the start time, for example if `/proc` is not mounted
    /// on Linux.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())?.ok_or_else(|| io::Error::other("the system does not list this process"))
    }

    /// Returns the process that started this process. Returns `None` if that process has ended.
    ///
    /// # Errors
    /// Returns an error if the operating system does not return the start time.
    pub fn parent() -> io::Result<Option<Self>> {
        let parent = getppid().and_then(|parent| u32::try_from(parent.as_raw_pid()).ok());
        parent.map_or(Ok(None), Self::of)
    }

    /// Whether the process has ended for sure. Unlike [`ProcessId::is_alive`], returns false if the operating system
    /// returns no start time, for example because this process may open no more files.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(Self::of(self.pid), Ok(now) if now != Some(self))
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
        process.wait(patience)
    }

    /// Sends SIGINT to the process, as Ctrl-C does. Succeeds if the process has already ended.
    ///
    /// # Errors
    /// Returns an error if this user may not signal the process.
    pub fn interrupt(self) -> io::Result<()> {
        self.signal(Signal::INT).map(drop)
    }

    /// Sends a signal to the process. Returns `None` if the process has already ended.
    fn signal(self, signal: Signal) -> io::Result<Option<system::Opened>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let Some(process) = system::Opened::open(pid)? else { return Ok(None) };
        if !self.is_alive() {
            return Ok(None);
        }
        Ok(process.signal(signal)?.then_some(process))
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

impl TryFrom<String> for ProcessId {
    type Error = BadProcessId;

    fn try_from(text: String) -> Result<Self, BadProcessId> {
        text.parse()
    }
}

impl From<ProcessId> for String {
    fn from(id: ProcessId) -> Self {
        id.to_string()
    }
}

/// The error for a string that does not have the form `pid:start`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a process in the form pid:start")]
pub struct BadProcessId(String);

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn parses_and_displays_the_text_form() {
        let own = ProcessId::own().expect("own");
        assert_eq!(own.to_string().parse(), Ok(own));
        for bad in ["", "1", "1:", ":1", "1:2:3", "-1:2", "a:b"] {
            assert!(bad.parse::<ProcessId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_parent_of_this_process_runs() {
        let parent = ProcessId::parent().expect("read").expect("a parent");
        assert!(!parent.has_ended() && Some(parent.pid) != Some(std::process::id()));
    }

    #[test]
    fn kills_the_identified_process_and_no_reused_id() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep");
        let named = ProcessId::of(child.id()).expect("read").expect("alive");
        let other = ProcessId { start: named.start + 1, ..named };
        other.kill(Duration::from_secs(5)).expect("nothing to do");
        assert!(named.is_alive() && !named.has_ended() && other.has_ended());

        named.kill(Duration::from_secs(5)).expect("killed");
        assert!(!named.is_alive() && named.has_ended(), "a zombie counts as ended");
        child.wait().expect("reaped");
        named.kill(Duration::from_secs(5)).expect("twice is no error");
    }
}
