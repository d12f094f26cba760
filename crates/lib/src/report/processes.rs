//! The JSON output of the commands for programs, processes and services of a bottle.

use std::time::Duration;

use bottle_instance::output_pieces::OutputPieces;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Exit, STDERR};
use bottle_protocol::session::process::{OutputRead, ProcessInfo, ProcessName, ProcessState};
use bottle_protocol::session::service::ServiceInfo;
use jiff::Timestamp;
use serde::Serialize;

use crate::clip::Clip;
use crate::exec::Captured;

/// The document that `bottle exec --json` prints.
#[derive(Debug, Serialize)]
pub struct Executed {
    /// The exit code of `bottle exec`.
    pub exit: u8,
    /// The exit code of the command. `None` if a signal ended the command, or if the command's end is unknown.
    pub code: Option<u8>,
    /// The signal that ended the command.
    pub signal: Option<u8>,
    /// Whether the command was ended because its time limit passed.
    pub timed_out: bool,
    /// Whether the user interrupted the command. The command's end is then unknown.
    pub interrupted: bool,
    /// The time from the start of the command to its end, in milliseconds.
    pub duration_ms: u64,
    /// The standard output. With `--merge`, also contains the standard error.
    pub stdout: ExecutedOutput,
    /// The standard error. `None` with `--merge`.
    pub stderr: Option<ExecutedOutput>,
}

impl Executed {
    /// Returns the document about a command. `exit` is how the command exited, and is `None` if this is unknown. `code`
    /// is the exit code of `bottle exec`. With `merged`, the standard output also contains the standard error.
    pub fn of(
        code: u8,
        exit: Option<Exit>,
        timed_out: bool,
        duration: Duration,
        captured: &Captured,
        merged: bool,
    ) -> Self {
        let end = exit.map(|exit| ProcessEnd::from(ProcessState::Exited(exit)));
        let (of_command, signal) = end.map_or((None, None), |end| (end.code, end.signal));
        Self {
            exit: code,
            code: of_command,
            signal,
            timed_out,
            interrupted: exit.is_none() && !timed_out,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            stdout: ExecutedOutput::of(&captured.stdout),
            stderr: (!merged).then(|| ExecutedOutput::of(&captured.stderr)),
        }
    }
}

/// An element of the array that `bottle ps --json` prints.
#[derive(Debug, Serialize)]
pub struct BottleProcess {
    /// The bottle in which the process runs.
    pub bottle: String,
    /// The handle of the process. `None` for the agent.
    pub handle: Option<String>,
    /// The name that was given to the process at its start, if any.
    pub name: Option<String>,
    /// The process id inside the bottle.
    pub pid: u32,
    /// The program and the arguments of the process.
    pub command: Vec<String>,
    /// Whether the process has a terminal.
    pub terminal: bool,
    /// When the process was started.
    pub started_at: Timestamp,
    /// When the process ended. `None` while the process runs.
    pub ended_at: Option<Timestamp>,
    /// Whether the process runs, or how it ended.
    #[serde(flatten)]
    pub state: ProcessEnd,
    /// The number of running processes in the session of this process.
    pub processes: u32,
    /// The processor time that the processes in the session used. It is kept when the process ends.
    pub cpu_seconds: f64,
    /// The memory that the processes in the session use.
    pub memory_bytes: u64,
}

impl BottleProcess {
    /// Returns the document about a process of this bottle.
    pub fn of(bottle: &Slug, info: ProcessInfo) -> Self {
        Self {
            bottle: bottle.to_string(),
            handle: info.handle.map(String::from),
            name: info.name.map(String::from),
            pid: info.pid,
            command: info.argv,
            terminal: info.terminal,
            started_at: info.started_at,
            ended_at: info.ended_at,
            state: info.state.into(),
            processes: info.processes,
            #[allow(clippy::cast_precision_loss, reason = "no process runs for 2^53 milliseconds")]
            cpu_seconds: info.cpu_ms as f64 / 1000.0,
            memory_bytes: info.memory_bytes,
        }
    }
}

/// Whether a process runs, or how it ended.
#[derive(Debug, Serialize)]
pub struct ProcessEnd {
    /// `running`, `exited` or `killed`.
    pub state: &'static str,
    /// The exit code, if the process exited.
    pub code: Option<u8>,
    /// The signal that ended the process, if any.
    pub signal: Option<u8>,
}

impl From<ProcessState> for ProcessEnd {
    fn from(state: ProcessState) -> Self {
        let (state, code, signal) = match state {
            ProcessState::Running => ("running", None, None),
            ProcessState::Exited(Exit::Code(code)) => ("exited", Some(code), None),
            ProcessState::Exited(Exit::Signal(signal)) => ("killed", None, Some(signal)),
        };
        Self { state, code, signal }
    }
}

/// The document that `bottle process wait --json` prints. With `--all`, an element of the array that it prints.
#[derive(Debug, Serialize)]
pub struct WaitedProcess {
    /// The process that ended, as the command names it. `None` if the command names several processes, and none of them
    /// ended within the time limit.
    pub process: Option<String>,
    /// Whether the process runs, or how it ended.
    #[serde(flatten)]
    pub state: ProcessEnd,
}

impl WaitedProcess {
    /// Returns the document about a process.
    pub fn of(process: &ProcessName, state: ProcessState) -> Self {
        Self { process: Some(process.to_string()), state: state.into() }
    }

    /// Returns the document about the first process that ended. `None` means that all processes in `named` still run.
    pub fn first(named: &[ProcessName], ended: Option<&(ProcessName, Exit)>) -> Self {
        match (ended, named) {
            (Some((process, exit)), _) => Self::of(process, ProcessState::Exited(*exit)),
            (None, [only]) => Self::of(only, ProcessState::Running),
            (None, _) => Self { process: None, state: ProcessState::Running.into() },
        }
    }
}

/// The document that `bottle process start --json` prints.
#[derive(Debug, Serialize)]
pub struct StartedProcess {
    /// The handle by which other commands name the process.
    pub handle: String,
    /// The process id inside the bottle.
    pub pid: u32,
}

/// The document that `bottle process wait --until REGEX --json` prints.
#[derive(Debug, Serialize)]
pub struct MatchedLine {
    /// The line, without its line break.
    pub line: String,
    /// The position after the line in the output.
    pub next: u64,
}

/// An entry of the document that `bottle service list --json` prints. Also the document that `bottle service start` and
/// `bottle service stop` print.
#[derive(Debug, Serialize)]
pub struct BottleService {
    /// The name of the service.
    pub name: String,
    /// `starting`, `ready`, `restarting`, `exited`, `failed` or `stopped`.
    pub state: &'static str,
    /// When the service was last ready, in UTC.
    pub ready_at: Option<Timestamp>,
    /// How often the service was started again.
    pub restarts: u64,
    /// The handle of the process of the service's last run.
    pub handle: Option<String>,
    /// The exit code of the service's last run.
    pub code: Option<u8>,
    /// The signal that killed the service's last run.
    pub signal: Option<u8>,
    /// Why the service failed, exited or is started again.
    pub why: Option<String>,
}

impl From<ServiceInfo> for BottleService {
    fn from(info: ServiceInfo) -> Self {
        let end = info.exit.map(|exit| ProcessEnd::from(ProcessState::Exited(exit)));
        let (code, signal) = end.map_or((None, None), |end| (end.code, end.signal));
        Self {
            name: info.name.to_string(),
            state: info.state.name(),
            ready_at: info.ready_at,
            restarts: info.restarts,
            handle: info.process.map(String::from),
            code,
            signal,
            why: info.why,
        }
    }
}

/// The document that `bottle process log --json` prints.
#[derive(Debug, Serialize)]
pub struct ProcessOutput {
    /// The text of the part, or of one stream of the part. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
    /// The streams of the text, in its order.
    pub streams: Vec<StreamText>,
    /// The position of the first byte of the part, counted from the first byte of the output.
    pub from: u64,
    /// The position of the next part of the output.
    pub next: u64,
    /// The position after the last byte that was written so far.
    pub end: u64,
    /// The number of bytes after the requested position that are no longer kept.
    pub lost: u64,
    /// Whether the process runs, or how it ended.
    #[serde(flatten)]
    pub state: ProcessEnd,
}

impl ProcessOutput {
    /// Returns the document about a part of a process's output. A part ends at the end of a character, so only bytes
    /// that the process wrote become U+FFFD.
    pub fn of(pieces: &OutputPieces, read: OutputRead) -> Self {
        let OutputRead { from, next, lost, end, state, cpu_ms: _ } = read;
        let (mut text, mut streams) = (String::new(), Vec::new());
        for piece in pieces.iter() {
            let shown = String::from_utf8_lossy(&piece.bytes);
            let stream = if piece.fd == STDERR { "stderr" } else { "stdout" };
            streams.push(StreamText { stream, bytes: shown.len() });
            text += &shown;
        }
        Self { text, streams, from, next, end, lost, state: state.into() }
    }
}

/// A piece of a text, which is of one stream.
#[derive(Debug, Serialize)]
pub struct StreamText {
    /// `stdout` or `stderr`. The output of a terminal, and that of a process with `--merge`, is `stdout`.
    pub stream: &'static str,
    /// The length of the piece in the text, as UTF-8, in bytes.
    pub bytes: usize,
}

/// An output stream of a command.
#[derive(Debug, Serialize)]
pub struct ExecutedOutput {
    /// The whole output, or its beginning and its end. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
    /// The size of the whole output in bytes.
    pub bytes: u64,
    /// The number of bytes that are missing in the middle of the text.
    pub omitted: u64,
}

impl ExecutedOutput {
    /// Returns the document about a clipped output.
    pub fn of(clip: &Clip) -> Self {
        Self { text: clip.text(), bytes: clip.bytes(), omitted: clip.omitted() }
    }
}
