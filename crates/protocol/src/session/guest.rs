//! Messages between the guest and the keeper process, and between the guest and the keeper's clients.
//!
//! Each request opens a stream. Unless noted otherwise, the guest sends the listed events on the stream and ends the
//! stream after the last event. Bytes of terminals and pipes are sent as data frames. The first byte of a data frame is
//! [`STDIN`], [`STDOUT`] or [`STDERR`]; the output of a terminal is always `STDOUT`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::files::{FileEvent, FilePath, FileRequest};
use super::process::{
    EndProcess, OutputRead, ProcessInfo, ProcessName, ReadOutput, ResizeTerminal, SignalProcess,
    StartProcess, WriteInput,
};
pub use super::program::{Exit, Process, Size};
use super::service::{Service, ServiceInfo, StopService};
use bottle_policy::secret::{self, Secret};

/// Data for a process. An empty frame closes the standard input of the process.
pub const STDIN: u8 = 0;
/// Data from the standard output of a process, or from its terminal.
pub const STDOUT: u8 = 1;
/// Data from the standard error of a process.
pub const STDERR: u8 = 2;

/// Size of the buffer for the agent's output, in bytes. The guest sends the content of the buffer to each
/// client that attaches. Older output is dropped.
pub const SCROLLBACK: usize = 1 << 20;

/// The request that opens a stream to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestRequest {
    /// Sent once, before any process starts: sets the environment and writes files. Returns
    /// [`GuestEvent::Done`].
    Provision(Provision),
    /// Sent once, after `Provision`: starts the agent. Returns [`GuestEvent::Started`], and
    /// [`GuestEvent::Exited`] when the agent exits. Attached clients receive the agent's output.
    StartAgent(Process),
    /// Attaches to the agent or a process of `StartProcess`. Returns first the buffered output, then live output, and
    /// at the end [`GuestEvent::Exited`]. May be sent before `StartAgent`, so that no output of an agent with pipes is
    /// lost.
    Attach(Attach),
    /// Runs another process alongside the agent. Returns `Started`, data, and `Exited`.
    Exec(Process),
    /// Starts a process that outlives its client. Returns [`GuestEvent::ProcessStarted`].
    StartProcess(StartProcess),
    /// Lists the agent and the processes of `StartProcess`. Returns [`GuestEvent::Processes`].
    ListProcesses,
    /// Returns [`GuestEvent::Processes`] with the processes that clients started: immediately, and again whenever such
    /// a process starts, until the client ends the stream. The processor time and memory of these processes are not
    /// measured.
    WatchProcesses,
    /// Sends a part of a process's output as data, and then [`GuestEvent::Read`]. With `follow`, sends further parts.
    ReadOutput(ReadOutput),
    /// Writes data to the input of a process. Returns `Done`.
    WriteInput(WriteInput),
    /// Sends a signal to a process. Returns `Done`.
    SignalProcess(SignalProcess),
    /// Sets the size of a process's terminal. The next resize of an attached client replaces it. Returns `Done`.
    ResizeTerminal(ResizeTerminal),
    /// Ends a process and its session. Returns `Exited`.
    EndProcess(EndProcess),
    /// Waits for the ends of at most [`PROCESSES_MAX`](super::process::PROCESSES_MAX) processes. Returns
    /// [`GuestEvent::ProcessEnded`] for each process, in the order in which the processes ended, until the client ends
    /// the stream.
    WaitForProcesses {
        /// The processes.
        processes: Vec<ProcessName>,
    },
    /// Starts a service. Returns [`GuestEvent::Service`] as soon as the service is ready or has failed to become ready.
    StartService(Service),
    /// Restarts a service that has ended. Returns `Service`, as [`GuestRequest::StartService`] does.
    StartServiceAgain {
        /// The name of the service.
        service: ProcessName,
    },
    /// Lists the services. Returns [`GuestEvent::Services`].
    ListServices,
    /// Stops a service with its processes. Returns `Service`.
    StopService(StopService),
    /// Returns [`GuestEvent::Service`] whenever a service ends without a request to stop it, until the client ends the
    /// stream.
    WatchServices,
    /// Performs an operation on files of the workspace. The [`FileRequest`] defines the data and the
    /// [`GuestEvent::Files`] that the guest returns.
    Files(FileRequest),
    /// Sends a tar stream of `path` on `STDOUT`, and then `Done`.
    CopyOut(CopyOut),
    /// Unpacks a tar stream from `STDIN` (terminated by `End`) into the directory `path`. Returns `Done`.
    CopyIn(CopyIn),
    /// Returns the agent's buffered output (at most `tail` lines). With `follow`, also returns live output
    /// until the agent exits.
    Logs(Logs),
    /// Runs the isolation probe inside the bottle. Returns [`GuestEvent::Probed`].
    Probe(Probe),
    /// Sends SIGTERM to the agent, and SIGKILL after `grace_ms`. Then returns `Done`, or
    /// [`GuestEvent::Changed`] if `work` is set, and pid 1 exits.
    Stop(Stop),
    /// Ends all processes as [`GuestRequest::Stop`] does, but pid 1 keeps running, so that clients can copy files.
    /// Returns `Done`.
    EndProcesses {
        /// The time between SIGTERM and SIGKILL, in milliseconds.
        grace_ms: u64,
    },
    /// Pauses all processes of the bottle except pid 1, with SIGSTOP. Processes that start later are not paused.
    /// Returns `Done`.
    Pause,
    /// Continues the processes of a paused bottle, with SIGCONT. Returns `Done`, also if the bottle is not paused.
    Continue,
    /// Asks for the agent's state. Returns [`GuestEvent::Status`].
    Status,
    /// Asks for the time of the clocks from which files in the bottle get their timestamps. Files that were
    /// written before this request are not newer than the returned time; files that are written after the
    /// response are newer. Returns [`GuestEvent::Moment`] after one clock tick.
    Moment,
    /// Like `Moment`, but without waiting for a clock tick. Files that are written from now on are newer than the
    /// returned time; files that were written within the last clock tick may be newer too. Returns
    /// [`GuestEvent::Moment`] immediately.
    Now,
    /// Asks what changed in the workspace after a given time. Allowed before and after
    /// `Provision`. Returns [`GuestEvent::Changed`].
    Changed(Changed),
}

/// The environment and files of a bottle ([`GuestRequest::Provision`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// The environment of the agent and of every `Exec` process. Values may be the agent's secrets. The
    /// values exist only in the guest's memory and in the environment of these processes.
    pub env: BTreeMap<String, SecretText>,
    /// The names of the variables whose values are redacted in output that clients read.
    #[serde(default)]
    pub secret: BTreeSet<String>,
    /// Files that are written before any process starts.
    pub files: Vec<ProvisionedFile>,
    /// The directories whose changes count as unsaved work. `None` means the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Vec<String>>,
    /// The number of processes that the guest keeps, at most [`PROCESSES_MAX`](super::process::PROCESSES_MAX). `None`
    /// means [`PROCESSES_DEFAULT`](super::process::PROCESSES_DEFAULT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
}

/// A value on the channel that may be secret.
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
    /// Absolute path inside the bottle. Parent directories that do not exist are created.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The content of the file.
    pub content: SecretText,
}

/// Options of [`GuestRequest::Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Whether the client only watches. If true, input and resizes on its stream are ignored. If false, this client
    /// takes over the terminal, and the stream of the previous client is reset with a message.
    pub read_only: bool,
    /// The process to which the client attaches; the agent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessName>,
    /// The size of the client's terminal. The agent's terminal is resized to this size.
    #[serde(default)]
    pub size: Option<Size>,
}

/// Options of [`GuestRequest::CopyOut`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyOut {
    /// The file or directory inside the bottle. A relative path starts at the workspace.
    pub path: String,
}

/// Options of [`GuestRequest::CopyIn`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyIn {
    /// The directory inside the bottle that receives the files. The directory is created if it does not exist.
    pub path: String,
}

/// Options of [`GuestRequest::Logs`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// The number of lines to return, counted from the end. If absent, all buffered lines.
    #[serde(default)]
    pub tail: Option<u64>,
    /// Whether to continue with live output.
    #[serde(default)]
    pub follow: bool,
}

/// Additional targets of the isolation probe ([`GuestRequest::Probe`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Addresses of the host. Each one has a port that currently accepts TCP and UDP from outside the bottle.
    /// Link-local addresses are given without an interface. The probe tries them on every interface of the
    /// bottle.
    pub host: Vec<std::net::SocketAddr>,
    /// Addresses on which other bottles listen.
    #[serde(default)]
    pub others: Vec<std::net::SocketAddr>,
    /// Whether to skip checks for data that a user may have put into the bottle on purpose: secrets in the
    /// environment and files of the user's home directory. A probe with this flag may run before `Provision`.
    #[serde(default)]
    pub isolation_only: bool,
}

/// Options of [`GuestRequest::Stop`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// If set, the guest searches for unsaved work after all processes have stopped, and returns
    /// [`GuestEvent::Changed`].
    #[serde(default)]
    pub work: Option<Changed>,
}

/// Options of [`GuestRequest::Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// The guest reports changes after this time. It is a time of the clocks from which files get their timestamps
    /// ([`GuestEvent::Moment`]).
    pub since: jiff::Timestamp,
    /// The directories to search. If the list is empty, the guest searches the directories of [`Provision::work`], or
    /// the workspace if `work` is not set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<String>,
    /// Changes of ignored files are reported only from this time on. `None` means the time `since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored_since: Option<jiff::Timestamp>,
    /// The directories of the workspace that were copied from a working tree whose ignore rules are known. In other
    /// directories, no file is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenDirectory>,
}

impl Changed {
    /// Asks for every change after `since` in the default directories ([`Changed::directories`]).
    #[must_use]
    pub fn since(since: jiff::Timestamp) -> Self {
        Self { since, directories: Vec::new(), ignored_since: None, given: Vec::new() }
    }
}

/// A directory that was copied into the workspace, and the ignore rules that applied to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenDirectory {
    /// The directory's name in the workspace. Empty if the directory is the workspace itself.
    pub name: String,
    /// The directory's path relative to the top of the working tree from which it was copied.
    pub below: FilePath,
    /// The ignore files, in order of increasing precedence.
    pub rules: Vec<RuleFile>,
    /// The files that git tracks although the rules ignore them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tracked: Vec<FilePath>,
}

/// An ignore file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// The directory to which the file's patterns apply, as a path relative to the top of the working tree.
    pub base: FilePath,
    /// The content of the ignore file.
    pub text: String,
}

/// What changed in a workspace ([`GuestEvent::Changed`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// Whether there is unsaved work.
    pub work: bool,
    /// The number of changed files that the rules ignore, excluding build output.
    #[serde(default)]
    pub ignored: u64,
    /// The paths of the first of these ignored files, relative to the workspace.
    #[serde(default)]
    pub named: Vec<FilePath>,
    /// Directories that may have lost files. A directory lost files if the host recorded more files in it at the start
    /// than [`SuspectDirectory`] counts.
    #[serde(default)]
    pub suspects: Vec<SuspectDirectory>,
    /// Whether the search ended before it was complete.
    #[serde(default)]
    pub unfinished: bool,
}

/// A directory that changed, and that contains ignored entries or is empty. The ignored entries can be the cause of the
/// change. If the directory had more files at the start, it lost files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspectDirectory {
    /// The index in [`Changed::given`] of the copied directory that contains this directory.
    pub given: usize,
    /// The directory's path relative to the copied directory.
    pub path: FilePath,
    /// The number of files in the directory that are not ignored.
    pub files: u64,
    /// The number of subdirectories, at any depth, that contain files that are not ignored.
    pub directories: u64,
}

/// A message from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestEvent {
    /// The request succeeded.
    Done,
    /// The process started.
    Started {
        /// The process id inside the bottle.
        pid: u32,
    },
    /// The process of [`GuestRequest::StartProcess`] started.
    ProcessStarted {
        /// The handle of the process.
        handle: ProcessName,
        /// The process id inside the bottle.
        pid: u32,
    },
    /// The processes ([`GuestRequest::ListProcesses`]), in the order of their start.
    Processes {
        /// The list of processes. The agent comes first.
        processes: Vec<ProcessInfo>,
    },
    /// A process ended ([`GuestRequest::WaitForProcesses`]), and all its output is in the log.
    ProcessEnded {
        /// The process, as the request names it.
        process: ProcessName,
        /// How the process exited.
        exit: Exit,
    },
    /// The range of a process's output that was sent ([`GuestRequest::ReadOutput`]).
    Read(OutputRead),
    /// A service ([`GuestRequest::StartService`]).
    Service(ServiceInfo),
    /// The services ([`GuestRequest::ListServices`]), in the order of their start.
    Services {
        /// The services.
        services: Vec<ServiceInfo>,
    },
    /// The result of [`GuestRequest::Files`].
    Files(FileEvent),
    /// The process exited, and all its output has been sent.
    Exited(Exit),
    /// The request failed.
    Failed(Failure),
    /// The state of the bottle ([`GuestRequest::Status`]).
    Status {
        /// The agent's state.
        agent: AgentState,
        /// Failures of the guest itself, one sentence each. An example is a listener port that could not be bound.
        #[serde(default)]
        troubles: Vec<String>,
        /// The limit that the bottle exceeded. The guest killed all processes of the bottle for this reason.
        #[serde(default)]
        overrun: Option<Overrun>,
        /// The time since the agent last wrote output, in milliseconds. `None` if the agent has not written output.
        #[serde(default)]
        quiet_ms: Option<u64>,
        /// The size of the agent's terminal, if it has one.
        #[serde(default)]
        terminal: Option<Size>,
    },
    /// The time of the clocks from which files get their timestamps ([`GuestRequest::Moment`],
    /// [`GuestRequest::Now`]).
    Moment {
        /// The time of the file clocks.
        at: jiff::Timestamp,
    },
    /// What changed in the workspace ([`GuestRequest::Changed`]).
    Changed(Changes),
    /// The results of the isolation probe ([`GuestRequest::Probe`]).
    Probed {
        /// The probe's attempts. Each attempt is a line of the result table.
        attempts: Vec<Attempt>,
    },
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind of the failure. The command line chooses the exit code by this kind.
    pub kind: FailureKind,
    /// The message, a lower-case fragment that contains its subject.
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
    /// The request is not allowed in the current state, for example a second `Provision`, or an `Attach` before
    /// `Provision`.
    BadState,
    /// Another failure.
    Other,
}

/// The agent's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentState {
    /// The agent has not started yet.
    Waiting,
    /// The agent is running.
    Running,
    /// The agent has exited.
    Exited(Exit),
}

/// A message to the guest on an open stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientMessage {
    /// The client's terminal was resized.
    Resize(Size),
    /// Send a signal (1–31) to the process.
    Signal {
        /// The number of the signal.
        signal: u8,
    },
    /// The client detaches, and the bottle keeps running. The keeper handles this message and ends the
    /// stream.
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
    /// Whether the manifest sets the limit. If false, the limit is the default limit that keeps the machine usable.
    pub asked: bool,
}

/// A limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limited {
    /// Memory of all processes, including files in memory.
    Memory,
    /// The bottle's directories on disk.
    Disk,
    /// Free space on the disk that holds the bottle's directories. The bottle exceeds the limit if the free space is
    /// smaller than the limit and the directories use more space than the limit.
    FreeDisk,
}

/// One attempt of the isolation probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The target, in words that a newcomer understands.
    pub target: String,
    /// How the target was tried (`tcp 198.51.100.1:443`, `env`).
    pub via: String,
    /// The target address, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<std::net::SocketAddr>,
    /// The result of the attempt.
    pub result: Reach,
    /// What the probe observed (`network unreachable`, `403 host-not-allowed`).
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
