//! What the keeper and its clients ask of a guest, and what it answers.
//!
//! Each request opens a stream. Unless it says otherwise a stream carries the events listed with it and
//! ends on the guest's side after the last one. Terminal and pipe bytes travel as data frames whose
//! first byte is [`STDIN`], [`STDOUT`] or [`STDERR`]; a terminal has output on `STDOUT` only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::secret::{self, Secret};

/// Data towards a process; an empty one closes its standard input.
pub const STDIN: u8 = 0;
/// A process's standard output, or a terminal's.
pub const STDOUT: u8 = 1;
/// A process's standard error.
pub const STDERR: u8 = 2;

/// Output the guest keeps for the next one to attach, in bytes.
pub const SCROLLBACK: usize = 1 << 20;

/// The first frame of a stream towards the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestRequest {
    /// Once, before any process: environment and files. Answers [`GuestEvent::Done`].
    Provision(Provision),
    /// Once, after `Provision`: starts the agent. Answers [`GuestEvent::Started`], then
    /// [`GuestEvent::Exited`] when it ends; its bytes go to whoever is attached.
    StartAgent(Process),
    /// Joins the agent: the kept output first, then what comes; [`GuestEvent::Exited`] last. May be
    /// opened before `StartAgent`, so that nothing of a piped agent's output is lost.
    Attach(Attach),
    /// Another process beside the agent: `Started`, data, `Exited`.
    Exec(Process),
    /// A tar stream of `path` on `STDOUT`, then `Done`.
    CopyOut(CopyOut),
    /// A tar stream on `STDIN` (ended by `End`) is unpacked into the folder `path`, then `Done`.
    CopyIn(CopyIn),
    /// The agent's kept output (at most `tail` lines), and with `follow` what comes, until it ends.
    Logs(Logs),
    /// What the bottle can reach, tried from inside. Answers [`GuestEvent::Probed`].
    Probe(Probe),
    /// Asks the agent to end (SIGTERM), kills it after `grace_ms`, then `Done` and pid 1 exits. Asked for
    /// work, it answers with that instead.
    Stop(Stop),
    /// Answers [`GuestEvent::Status`].
    Status,
    /// By the clocks that stamp the bottle's files: everything written so far is not newer than the answer,
    /// everything written after it is. Answers [`GuestEvent::Moment`] after a tick of theirs.
    Moment,
    /// By the same clocks: everything written from now on is newer than the answer; what was written within a tick
    /// before may be, too. Answers [`GuestEvent::Moment`] at once.
    Now,
    /// Whether the workspace holds anything newer than this, provisioned or not. Answers
    /// [`GuestEvent::Changed`].
    Changed(Changed),
}

/// See [`GuestRequest::Provision`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// Environment of the agent and of every exec. Values may be the agent's own secrets, so they live in
    /// the guest's memory and in the processes' environment only.
    pub env: BTreeMap<String, SecretText>,
    /// Files written before anything runs.
    pub files: Vec<ProvisionedFile>,
}

/// A value that may be secret, on the channel.
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
    /// Absolute path inside; folders on the way are made.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The text.
    pub content: SecretText,
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Program and arguments; the program is looked up in the bottle's `PATH`.
    pub argv: Vec<String>,
    /// Laid over the provisioned environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the workspace when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// A terminal of this size, or pipes when absent.
    #[serde(default)]
    pub terminal: Option<Size>,
    /// Whether anything will come on `STDIN`; false gives the process an empty one.
    #[serde(default)]
    pub stdin: bool,
    /// Another user of the bottle by name or number; the agent's own when absent.
    #[serde(default)]
    pub user: Option<String>,
    /// Of the agent only: its output waits for its first client, who gets all of it. Otherwise it goes on
    /// when nobody looks, and what is older than [`SCROLLBACK`] is gone.
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

/// See [`GuestRequest::Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Watch only: input and resizes on this stream are ignored. Otherwise this client takes the
    /// terminal over from the one before, whose stream is reset with a sentence.
    pub read_only: bool,
    /// The client's terminal; the agent's takes this size.
    #[serde(default)]
    pub size: Option<Size>,
}

/// See [`GuestRequest::CopyOut`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyOut {
    /// File or folder inside; relative to the workspace when not absolute.
    pub path: String,
}

/// See [`GuestRequest::CopyIn`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyIn {
    /// Folder inside that receives the entries, made when missing.
    pub path: String,
}

/// See [`GuestRequest::Logs`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// Only the last so many lines.
    #[serde(default)]
    pub tail: Option<u64>,
    /// Go on with what comes.
    #[serde(default)]
    pub follow: bool,
}

/// See [`GuestRequest::Probe`]: what to try, besides what every bottle is tried for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Addresses of the host itself, each with a port that answers over TCP and UDP outside the bottle at this
    /// moment. One that is local to a link has no interface: it is tried by each that the bottle has.
    pub host: Vec<std::net::SocketAddr>,
    /// Addresses at which other bottles have something that listens.
    #[serde(default)]
    pub others: Vec<std::net::SocketAddr>,
    /// Leave out what a user may have put into the bottle on purpose: secrets in its environment, files of
    /// their home. Then it may be asked for before the provisions.
    #[serde(default)]
    pub isolation_only: bool,
}

/// See [`GuestRequest::Stop`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// Look for work newer than this when nothing runs any more, and answer [`GuestEvent::Changed`].
    #[serde(default)]
    pub work_since: Option<jiff::Timestamp>,
}

/// See [`GuestRequest::Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// The moment, by the clock that stamps files.
    pub since: jiff::Timestamp,
}

/// A message from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestEvent {
    /// The request was carried out.
    Done,
    /// The process runs.
    Started {
        /// Its id inside.
        pid: u32,
    },
    /// The process ended; all its output has been sent.
    Exited(Exit),
    /// The request could not be carried out.
    Failed(Failure),
    /// See [`GuestRequest::Status`].
    Status {
        /// Whether and how the agent ended.
        agent: AgentState,
        /// What of the bottle's own services does not work, a sentence each (a port of the proxy that
        /// could not be listened on).
        #[serde(default)]
        troubles: Vec<String>,
        /// The limit that the bottle was found beyond; then everything in it was killed.
        #[serde(default)]
        overrun: Option<Overrun>,
    },
    /// See [`GuestRequest::Moment`].
    Moment {
        /// The moment.
        at: jiff::Timestamp,
    },
    /// See [`GuestRequest::Changed`].
    Changed {
        /// Whether there is work in it.
        work: bool,
    },
    /// See [`GuestRequest::Probe`].
    Probed {
        /// One line of the table each.
        attempts: Vec<Attempt>,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Exit {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

impl Exit {
    /// The code a shell would report: 128 + n for signal n.
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
    /// What kind, so that the edge can choose an exit code.
    pub kind: FailureKind,
    /// A lower-case fragment that names its subject.
    pub message: String,
}

/// See [`Failure::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The program is not there (exit 127).
    NotFound,
    /// The program is there and cannot be run (exit 126).
    NotExecutable,
    /// The path is not there or may not be used.
    BadPath,
    /// The request does not fit the state (a second `Provision`, an attach before it).
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
    /// Ended.
    Exited(Exit),
}

/// A message towards the guest on an open stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientMessage {
    /// The client's terminal changed.
    Resize(Size),
    /// Send this signal to the process (1–31).
    Signal {
        /// Its number.
        signal: u8,
    },
    /// The client leaves and the bottle lives on; read by the keeper, which then ends the stream.
    Detach,
}

/// A limit that a bottle went beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrun {
    /// What of.
    pub resource: Limited,
    /// The limit, in bytes.
    pub limit: u64,
    /// Whether the manifest asked for it; else it keeps the machine usable.
    pub asked: bool,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limited {
    /// Memory of all processes, and files in memory.
    Memory,
    /// The bottle's own folders on the disk.
    Disk,
    /// What is left of the disk that they lie on: less than the limit, while they take more than it.
    FreeDisk,
}

/// One thing tried from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// What was tried to reach, in words a newcomer understands.
    pub target: String,
    /// How (`tcp 198.51.100.1:443`, `env`).
    pub via: String,
    /// The address that was tried, where it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<std::net::SocketAddr>,
    /// What came of it.
    pub result: Reach,
    /// What was seen (`network unreachable`, `403 host-not-allowed`).
    pub seen: String,
}

/// What an attempt found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The attempt was blocked, as it must be.
    #[serde(alias = "closed")]
    Blocked,
    /// The target was reached, though it must not be.
    #[serde(alias = "open")]
    Reached,
    /// Neither could be shown.
    Unknown,
}
