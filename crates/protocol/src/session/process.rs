//! Messages about processes that outlive the client that started them, such as shells and servers.
//!
//! A process has a handle, which the guest never reuses in the bottle, and may have a name. The guest keeps the output
//! of the process in a log. A position in the log is the number of bytes since the first byte of output, so a client
//! that reads from a position neither loses nor repeats bytes. All such processes end with the bottle.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::program::{Exit, Process, Size};

/// The default number of processes that a guest keeps with their logs: the processes that run, and the last ones that
/// ended. At this number, the start of another process makes the guest remove the oldest process that has ended.
pub const PROCESSES_DEFAULT: usize = 64;

/// The largest number of processes that a guest can be told to keep. The log of each process has up to
/// [`SCROLLBACK`](super::guest::SCROLLBACK) bytes in the memory of the bottle.
pub const PROCESSES_MAX: usize = 1024;

/// The maximum length of a name in bytes.
const NAME_MAX: usize = 64;

/// A handle or a name of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProcessName(String);

/// The error for a text that is not a [`ProcessName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name consists of 1 to {NAME_MAX} letters, digits and `.`, `_`, `-`, and begins with a letter or digit"
)]
pub struct BadProcessName;

impl ProcessName {
    /// The handle with this number.
    #[must_use]
    pub fn handle(number: u64) -> Self {
        Self(format!("p{number}"))
    }

    /// Whether the text has the form of a handle. A client cannot give a process a name of this form.
    #[must_use]
    pub fn is_handle(&self) -> bool {
        let digits = self.0.strip_prefix('p').unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// The handle or name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ProcessName {
    type Error = BadProcessName;

    fn try_from(text: String) -> Result<Self, BadProcessName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins && text.len() <= NAME_MAX && text.bytes().all(allowed) {
            Ok(Self(text))
        } else {
            Err(BadProcessName)
        }
    }
}

impl std::str::FromStr for ProcessName {
    type Err = BadProcessName;

    fn from_str(text: &str) -> Result<Self, BadProcessName> {
        text.to_owned().try_into()
    }
}

impl From<ProcessName> for String {
    fn from(name: ProcessName) -> Self {
        name.0
    }
}

/// A process to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartProcess {
    /// The program.
    pub process: Process,
    /// A name, which no other running process has.
    #[serde(default)]
    pub name: Option<ProcessName>,
}

/// The maximum length of a UTF-8 character in bytes.
pub const CHARACTER_MAX: usize = 4;

/// Returns the length of the UTF-8 character at the end of `bytes` whose last bytes are missing. Returns 0 if `bytes`
/// does not end with such a character. Invalid bytes that no further bytes can complete do not count.
#[must_use]
pub fn unfinished_character(bytes: &[u8]) -> usize {
    let last = bytes.len().saturating_sub(CHARACTER_MAX - 1);
    let tail = bytes.get(last..).unwrap_or_default();
    let Some(first) = tail.iter().rposition(|byte| !is_continuation(*byte)) else { return 0 };
    match std::str::from_utf8(tail.get(first..).unwrap_or_default()) {
        Err(error) if error.error_len().is_none() => tail.len() - first,
        _ => 0,
    }
}

/// Returns the number of bytes at the beginning of `bytes` that belong to a UTF-8 character whose first byte is
/// missing.
#[must_use]
pub fn cut_character(bytes: &[u8]) -> usize {
    bytes.iter().take(CHARACTER_MAX - 1).take_while(|byte| is_continuation(**byte)).count()
}

/// Whether this byte is not the first byte of a UTF-8 character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// A request for a part of a process's output. A part ends at the end of a UTF-8 character, unless the process has
/// ended in the middle of a character.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadOutput {
    /// The process.
    pub process: ProcessName,
    /// The position of the first byte.
    pub from: ReadFrom,
    /// The maximum number of bytes. A number from 1 to 3 counts as [`CHARACTER_MAX`], so that every part has a character.
    pub max: u32,
    /// How long to wait for output, in milliseconds, if the process runs and the log has no output after the position.
    #[serde(default)]
    pub wait_ms: u64,
    /// Whether to send further parts, each with its [`OutputRead`], until the process has ended and all its output is
    /// sent. If true, `wait_ms` is ignored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

/// Where a part of the output begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadFrom {
    /// At this position, or at the oldest byte of the log if the log has already dropped the byte at this position.
    Position(u64),
    /// This number of lines before the end of the output.
    LastLines(u64),
}

/// The text that replaces the value of a secret variable in output and files, in any spelling. Positions count the
/// bytes of the value, not those of this text.
pub const REDACTED: &str = "[REDACTED]";

/// The result of [`ReadOutput`], sent after the data of each part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputRead {
    /// The position of the first byte that was sent.
    pub from: u64,
    /// The position after the last byte that was sent, where the next part begins.
    pub next: u64,
    /// The number of bytes after the requested position that the log has already dropped.
    pub lost: u64,
    /// The position after the last byte of output so far. The beginning of a UTF-8 character whose rest the process has
    /// not written yet does not count.
    pub end: u64,
    /// The state of the process.
    pub state: ProcessState,
    /// The processor time that the process had used when it ended, in milliseconds. `None` while the process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
}

/// Input for a process, in data frames of `STDIN` until the stream ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteInput {
    /// The process.
    pub process: ProcessName,
    /// Whether to close the input after the data. If the process has a terminal, the guest writes the end-of-file
    /// character to the terminal.
    #[serde(default)]
    pub close: bool,
}

/// A signal for a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalProcess {
    /// The process.
    pub process: ProcessName,
    /// The number of the signal (1 to 31). If the process has a terminal, the signals that keys cause (SIGINT, SIGQUIT,
    /// SIGTSTP) go to the foreground processes of the terminal. All other signals go to the started process and its
    /// process group.
    pub signal: u8,
}

/// A new size for the terminal of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeTerminal {
    /// The process, which has a terminal.
    pub process: ProcessName,
    /// The size.
    pub size: Size,
}

/// A process to end, with all processes of its session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndProcess {
    /// The process.
    pub process: ProcessName,
    /// The time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
}

/// The state of a process. The state changes only when the process has been reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ProcessState {
    /// The process is running.
    Running,
    /// The process exited.
    Exited(Exit),
}

/// The agent, or a process that outlives its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessInfo {
    /// The handle. `None` for the agent.
    pub handle: Option<ProcessName>,
    /// The name of the process, if it has one.
    pub name: Option<ProcessName>,
    /// The process id inside the bottle.
    pub pid: u32,
    /// The program and its arguments. A long list is truncated.
    pub argv: Vec<String>,
    /// The time at which the process started.
    pub started_at: Timestamp,
    /// The time at which the process ended.
    pub ended_at: Option<Timestamp>,
    /// The state of the process.
    pub state: ProcessState,
    /// Whether the process runs in a terminal.
    pub terminal: bool,
    /// The number of running processes in the session of this process.
    pub processes: u32,
    /// The processor time of the processes in the session, and of their children that were reaped, in milliseconds. After
    /// the end of the process, the time that it had used.
    pub cpu_ms: u64,
    /// The resident memory of the processes in the session, in bytes. Shared memory is counted once for each process.
    pub memory_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_characters_are_found() {
        for (bytes, length) in [
            (&b""[..], 0),
            (b"a", 0),
            ("é".as_bytes(), 0),
            (b"a\xc3", 1),
            (b"\xe2\x82", 2),
            ("€\u{1f600}".as_bytes(), 0),
            (b"\xf0\x9f\x98", 3),
            (b"\xc3\xc3", 1),
            // No further bytes complete these bytes.
            (b"\xff", 0),
            (b"\xc0", 0),
            (b"\x80\x80\x80\x80", 0),
            (b"\xe0\x80", 0),
            (b"\xed\xa0", 0),
            (b"\xc3\xa9\xa9", 0),
        ] {
            assert_eq!(unfinished_character(bytes), length, "{bytes:x?}");
        }
        for (bytes, length) in
            [(&b""[..], 0), (b"a\x80", 0), (b"\x82\xaca", 2), (b"\x80\x80\x80\x80", 3), ("é".as_bytes(), 0)]
        {
            assert_eq!(cut_character(bytes), length, "{bytes:x?}");
        }
    }

    #[test]
    fn names_are_safe_words() {
        for name in ["a", "p", "dev-server", "P1", "2", "a.b_c-d", &"x".repeat(64)] {
            assert!(name.parse::<ProcessName>().is_ok_and(|parsed| !parsed.is_handle()), "{name}");
        }
        for handle in ["p1", "p007"] {
            assert!(handle.parse::<ProcessName>().is_ok_and(|parsed| parsed.is_handle()), "{handle}");
        }
        for name in ["", "-a", ".", "a b", "a/b", "é", "a\n", &"x".repeat(65)] {
            assert_eq!(name.parse::<ProcessName>(), Err(BadProcessName), "{name:?}");
        }
        assert!(serde_json::from_str::<ProcessName>("\"../x\"").is_err());
    }
}
