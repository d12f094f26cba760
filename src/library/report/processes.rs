//! The JSON output of programs, processes and services of a bottle.

use bottle_contract::session::guest::Exit;
use bottle_contract::session::process::ProcessState;
use jiff::Timestamp;
use serde::Serialize;

use crate::library::clip::Clip;

/// The document that `bottle exec --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Executed {
    /// The exit code of `bottle exec`.
    pub(crate) exit: u8,
    /// The exit code of the command. `None` if a signal ended it, or if its end is unknown.
    pub(crate) code: Option<u8>,
    /// The signal that ended the command.
    pub(crate) signal: Option<u8>,
    /// Whether the command was ended because its time limit passed.
    pub(crate) timed_out: bool,
    /// Whether the user interrupted the command, so that its end is unknown.
    pub(crate) interrupted: bool,
    /// The time from the start of the command to its end.
    pub(crate) duration_ms: u64,
    pub(crate) stdout: ExecutedOutput,
    /// `None` with `--merge`.
    pub(crate) stderr: Option<ExecutedOutput>,
}

/// An element of the array that `bottle ps --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct BottleProcess {
    /// `None` for the agent.
    pub(crate) handle: Option<String>,
    pub(crate) name: Option<String>,
    /// The process id inside the bottle.
    pub(crate) pid: u32,
    pub(crate) command: Vec<String>,
    pub(crate) terminal: bool,
    pub(crate) started_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    #[serde(flatten)]
    pub(crate) state: ProcessEnd,
    /// The number of its processes that run.
    pub(crate) processes: u32,
    pub(crate) cpu_seconds: f64,
    pub(crate) memory_bytes: u64,
}

/// Whether a process runs, and how it ended.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessEnd {
    /// `running`, `exited` or `killed`.
    pub(crate) state: &'static str,
    pub(crate) code: Option<u8>,
    pub(crate) signal: Option<u8>,
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

/// The document that `bottle process start --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct StartedProcess {
    pub(crate) handle: String,
    pub(crate) pid: u32,
}

/// The document that `bottle process wait --until REGEX --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct MatchedLine {
    /// The line, without its break.
    pub(crate) line: String,
    /// The position behind the line.
    pub(crate) next: u64,
}

/// An entry of the document that `bottle service list --json` prints, and the document of `bottle service start` and
/// `bottle service stop`.
#[derive(Debug, Serialize)]
pub(crate) struct BottleService {
    /// Its name.
    pub(crate) name: String,
    /// `starting`, `ready`, `restarting`, `exited`, `failed` or `stopped`.
    pub(crate) state: &'static str,
    /// When it was last ready, in UTC.
    pub(crate) ready_at: Option<Timestamp>,
    /// How often it was started again.
    pub(crate) restarts: u64,
    /// The handle of the process of its last run.
    pub(crate) handle: Option<String>,
    /// The exit code of its last run.
    pub(crate) code: Option<u8>,
    /// The signal that killed its last run.
    pub(crate) signal: Option<u8>,
    /// Why it failed, exited or is started again.
    pub(crate) why: Option<String>,
}

/// The document that `bottle process log --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessOutput {
    /// Bytes that are not UTF-8 are U+FFFD.
    pub(crate) text: String,
    /// The position of the first byte of the text, counted from the first byte of the output.
    pub(crate) from: u64,
    /// The position at which the next part begins.
    pub(crate) next: u64,
    /// The position behind the last byte so far.
    pub(crate) end: u64,
    /// The number of bytes behind the wanted position that are not kept any more.
    pub(crate) lost: u64,
    #[serde(flatten)]
    pub(crate) state: ProcessEnd,
}

/// An output stream of a command.
#[derive(Debug, Serialize)]
pub(crate) struct ExecutedOutput {
    /// The whole output, or its beginning and its end. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) text: String,
    /// The size of the whole output.
    pub(crate) bytes: u64,
    /// The number of bytes that are missing in the middle of the text.
    pub(crate) omitted: u64,
}

impl ExecutedOutput {
    pub(crate) fn of(clip: &Clip) -> Self {
        Self { text: clip.text(), bytes: clip.bytes(), omitted: clip.omitted() }
    }
}
