//! Messages between the keeper (and its clients) and the guest.
//!
//! Each request opens a stream. Unless noted otherwise, the stream carries the listed events, and the guest
//! ends it after the last one. Terminal and pipe bytes travel as data frames whose first byte is [`STDIN`],
//! [`STDOUT`] or [`STDERR`]; a terminal uses `STDOUT` only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::secret::{self, Secret};

/// Data for a process; an empty frame closes its standard input.
pub const STDIN: u8 = 0;
/// A process's standard output, or a terminal's output.
pub const STDOUT: u8 = 1;
/// A process's standard error.
pub const STDERR: u8 = 2;

/// Size of the output buffer that the guest replays to the next client, in bytes.
pub const SCROLLBACK: usize = 1 << 20;

/// The request that opens a stream to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestRequest {
    /// Once, before any process: sets environment and files. Returns [`GuestEvent::Done`].
    Provision(Provision),
    /// Once, after `Provision`: starts the agent. Returns [`GuestEvent::Started`], then
    /// [`GuestEvent::Exited`] when the agent exits. Attached clients receive its output.
    StartAgent(Process),
    /// Attaches to the agent: first the buffered output, then live output, [`GuestEvent::Exited`] last. May
    /// precede `StartAgent`, so that no output of a piped agent is lost.
    Attach(Attach),
    /// Runs another process beside the agent: `Started`, data, `Exited`.
    Exec(Process),
    /// Sends a tar stream of `path` on `STDOUT`, then `Done`.
    CopyOut(CopyOut),
    /// Unpacks a tar stream on `STDIN` (ended by `End`) into the folder `path`, then `Done`.
    CopyIn(CopyIn),
    /// The agent's buffered output (at most `tail` lines), and with `follow` live output until the agent
    /// exits.
    Logs(Logs),
    /// Runs the isolation probe from inside. Returns [`GuestEvent::Probed`].
    Probe(Probe),
    /// Sends SIGTERM to the agent, SIGKILL after `grace_ms`, then returns `Done`, and pid 1 exits. With
    /// `work_since` it returns [`GuestEvent::Changed`] instead of `Done`.
    Stop(Stop),
    /// The agent's state. Returns [`GuestEvent::Status`].
    Status,
    /// The time of the clocks that stamp the bottle's files: files written so far are not newer than the
    /// returned time, files written later are. Returns [`GuestEvent::Moment`] after one clock tick.
    Moment,
    /// The same without waiting: files written from now on are newer than the returned time; files written
    /// within the last tick may be newer too. Returns [`GuestEvent::Moment`] at once.
    Now,
    /// Whether the workspace contains files newer than this, provisioned or not. Returns
    /// [`GuestEvent::Changed`].
    Changed(Changed),
}

/// Environment and files of a bottle ([`GuestRequest::Provision`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// Environment of the agent and every exec. Values may be the agent's own secrets; they exist only in the
    /// guest's memory and the processes' environment.
    pub env: BTreeMap<String, SecretText>,
    /// Files written before any process starts.
    pub files: Vec<ProvisionedFile>,
}

/// A possibly secret value on the channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(#[serde(serialize_with = "secret::on_channel")] pub Secret);

impl From<&str> for SecretText {
    fn from(value: &str) -> Self {
        Self(Secret::new(value.to_owned()))
    }
}

/// One file of [`Provision`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvisionedFile {
    /// Absolute path inside the bottle; missing parent folders are created.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The content.
    pub content: SecretText,
}

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Program and arguments; the program is looked up in the bottle's `PATH`.
    pub argv: Vec<String>,
    /// Added to the provisioned environment; overrides it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the workspace when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Runs in a terminal of this size, or with pipes if absent.
    #[serde(default)]
    pub terminal: Option<Size>,
    /// Whether the client sends data on `STDIN`; if false the process gets an empty one.
    #[serde(default)]
    pub stdin: bool,
    /// The user in the bottle, by name or number; the agent's user if absent.
    #[serde(default)]
    pub user: Option<String>,
    /// For the agent only: buffers all output until the first client attaches. Otherwise the agent runs on
    /// without a client, and output beyond [`SCROLLBACK`] is dropped.
    #[serde(default)]
    pub awaited: bool,
}

/// A terminal's size in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Options of [`GuestRequest::Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Watch only: input and resizes on this stream are ignored. Otherwise this client takes over the
    /// terminal, and the previous client's stream is reset with a message.
    pub read_only: bool,
    /// The size of the client's terminal; the agent's terminal is resized to it.
    #[serde(default)]
    pub size: Option<Size>,
}

/// Options of [`GuestRequest::CopyOut`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyOut {
    /// File or folder inside the bottle; relative to the workspace if not absolute.
    pub path: String,
}

/// Options of [`GuestRequest::CopyIn`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyIn {
    /// Folder inside the bottle that receives the entries; created if missing.
    pub path: String,
}

/// Options of [`GuestRequest::Logs`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// Only this many last lines.
    #[serde(default)]
    pub tail: Option<u64>,
    /// Continue with live output.
    #[serde(default)]
    pub follow: bool,
}

/// Additional targets of the isolation probe ([`GuestRequest::Probe`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Addresses of the host, each with a port that currently answers over TCP and UDP outside the bottle. A
    /// link-local one has no interface: the probe tries it on every interface of the bottle.
    pub host: Vec<std::net::SocketAddr>,
    /// Addresses where other bottles listen.
    #[serde(default)]
    pub others: Vec<std::net::SocketAddr>,
    /// Skip what a user may have put into the bottle on purpose: secrets in its environment, files of their
    /// home. Such a probe may run before `Provision`.
    #[serde(default)]
    pub isolation_only: bool,
}

/// Options of [`GuestRequest::Stop`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// After all processes have stopped, look for files newer than this and return [`GuestEvent::Changed`].
    #[serde(default)]
    pub work_since: Option<jiff::Timestamp>,
}

/// Options of [`GuestRequest::Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// The time, by the clock that stamps files.
    pub since: jiff::Timestamp,
}

/// A message from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestEvent {
    /// The request succeeded.
    Done,
    /// The process started.
    Started {
        /// Its process id inside the bottle.
        pid: u32,
    },
    /// The process exited; all its output has been sent.
    Exited(Exit),
    /// The request failed.
    Failed(Failure),
    /// The state of the bottle ([`GuestRequest::Status`]).
    Status {
        /// The agent's state.
        agent: AgentState,
        /// Failures of the bottle's services, one sentence each (a listener port that could not be bound, for
        /// example).
        #[serde(default)]
        troubles: Vec<String>,
        /// The limit that the bottle exceeded; all its processes were then killed.
        #[serde(default)]
        overrun: Option<Overrun>,
    },
    /// A time of the file clocks ([`GuestRequest::Moment`], [`GuestRequest::Now`]).
    Moment {
        /// The time.
        at: jiff::Timestamp,
    },
    /// Whether the workspace changed ([`GuestRequest::Changed`]).
    Changed {
        /// Whether there are newer files.
        work: bool,
    },
    /// The results of the isolation probe ([`GuestRequest::Probe`]).
    Probed {
        /// One line of the result table each.
        attempts: Vec<Attempt>,
    },
}

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Exit {
    /// With this exit code.
    Code(u8),
    /// Killed by this signal.
    Signal(u8),
}

impl Exit {
    /// The exit code that a shell reports: 128 + n for signal n.
    #[must_use]
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128u8.saturating_add(signal),
        }
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind; the command line chooses an exit code by it.
    pub kind: FailureKind,
    /// The message, a lower-case fragment that names its subject.
    pub message: String,
}

/// The kind of a failure ([`Failure::kind`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The program does not exist (exit code 127).
    NotFound,
    /// The program exists but cannot be executed (exit code 126).
    NotExecutable,
    /// The path does not exist or is not allowed.
    BadPath,
    /// The request is invalid in this state (a second `Provision`, an attach before it).
    BadState,
    /// Anything else.
    Other,
}

/// The agent's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentState {
    /// Not started yet.
    Waiting,
    /// Running.
    Running,
    /// Exited.
    Exited(Exit),
}

/// A message to the guest on an open stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientMessage {
    /// The client's terminal was resized.
    Resize(Size),
    /// Send this signal to the process (1–31).
    Signal {
        /// The signal's number.
        signal: u8,
    },
    /// The client detaches and the bottle keeps running. The keeper reads this and ends the stream.
    Detach,
}

/// A limit that a bottle exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrun {
    /// The limited resource.
    pub resource: Limited,
    /// The limit, in bytes.
    pub limit: u64,
    /// Whether the manifest sets the limit; otherwise it is the default that keeps the machine usable.
    pub asked: bool,
}

/// A limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limited {
    /// Memory of all processes, including files in memory.
    Memory,
    /// The bottle's own folders on disk.
    Disk,
    /// Free space of the disk with the bottle's folders: below the limit, while the folders use more than the
    /// limit.
    FreeDisk,
}

/// One attempt of the isolation probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The target, in words a newcomer understands.
    pub target: String,
    /// The method (`tcp 198.51.100.1:443`, `env`).
    pub via: String,
    /// The target address, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<std::net::SocketAddr>,
    /// The result.
    pub result: Reach,
    /// The observation (`network unreachable`, `403 host-not-allowed`).
    pub seen: String,
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The target is blocked, as required.
    #[serde(alias = "closed")]
    Blocked,
    /// The target was reached, which is an isolation failure.
    #[serde(alias = "open")]
    Reached,
    /// The attempt was inconclusive.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::Reach;

    #[test]
    fn reads_results_by_their_old_names() {
        for (written, result) in [
            ("closed", Reach::Blocked),
            ("blocked", Reach::Blocked),
            ("open", Reach::Reached),
            ("reached", Reach::Reached),
        ] {
            let read: Reach = serde_json::from_value(written.into()).expect(written);
            assert_eq!(read, result, "{written}");
        }
        assert_eq!(serde_json::to_value(Reach::Blocked).expect("written"), "blocked");
    }
}
