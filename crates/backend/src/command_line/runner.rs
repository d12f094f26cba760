//! Runs a program with a deadline, a fixed environment and bounded output.
//!
//! The program can be missing, hang, print without end, or print terminal sequences. The runner starts the program as
//! the leader of a new process group, so that a kill also ends the program's children. A program that ended
//! successfully may leave a background process that keeps the output pipes open. The runner does not wait for that
//! process.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_host::Host;
use bottle_text::terminal::inert;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// The size limit of standard output in bytes. A list of a thousand machines is shorter. The runner kills a program
/// that prints more.
const OUTPUT_MAX: usize = 8 << 20;

/// The number of bytes of standard error that the runner keeps. The runner keeps the last bytes, because a program
/// prints its error after its progress output.
const ERRORS_MAX: usize = 16 << 10;

/// The maximum number of characters that [`last_words`] returns.
const LAST_WORDS_MAX: usize = 300;

/// How long the runner continues to read the pipes after the program ended. All output of the program itself is in the
/// pipes at that time; only background processes can write more.
const DRAIN: Duration = Duration::from_millis(100);

/// How long a killed program may take to end. After this time, the runner continues without the program's exit status.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A command-line program of an engine.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name of the program, which the runner searches on the `PATH` of `env`.
    name: &'static str,
    /// The complete environment of the program.
    env: Vec<(OsString, OsString)>,
}

/// What a successful program printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// The end of standard error.
    pub stderr: Vec<u8>,
}

/// Why a program did not succeed. The error message is worded as the cause in `cannot VERB OBJECT: CAUSE`.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No program of this name is on the `PATH`.
    #[error("`{0}` is not installed")]
    Missing(&'static str),
    /// The program cannot be started, or its output cannot be read.
    #[error("`{0}` cannot be run")]
    Unusable(&'static str, #[source] io::Error),
    /// The program did not end in time and was killed.
    #[error("`{program}` did not finish within {} s{}", .within.as_secs(), after_colon(.last_words))]
    Late {
        /// The program and its first arguments.
        program: String,
        /// The deadline.
        within: Duration,
        /// The last line of standard error, from [`last_words`].
        last_words: String,
    },
    /// The program printed more than `OUTPUT_MAX` bytes to standard output and was killed.
    #[error("`{0}` printed more than {limit} MiB", limit = OUTPUT_MAX >> 20)]
    Flood(String),
    /// The program ended with a failure.
    #[error("`{program}` failed ({}){}", exit(.status), after_colon(.last_words))]
    Failed {
        /// The program and its first arguments.
        program: String,
        /// The exit status, or the signal that killed the program.
        status: ExitStatus,
        /// The end of standard error.
        stderr: Vec<u8>,
        /// The last line of standard error, from [`last_words`].
        last_words: String,
    },
}

impl Program {
    /// Creates the program `name`. The program's environment contains the host's values of `variables`, and of the
    /// variables that every program needs, such as `PATH`.
    pub fn new(host: &Host, name: &'static str, variables: &[&str]) -> Self {
        let env = ["PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR"].iter().chain(variables);
        let env = env.filter_map(|name| Some(((*name).into(), host.env.get(OsStr::new(name))?.clone())));
        Self { name, env: env.collect() }
    }

    /// Runs the program with an empty standard input, and waits until it ends. Kills the program if it runs longer than
    /// `within`.
    ///
    /// # Errors
    /// [`RunError`].
    pub async fn run(&self, arguments: &[OsString], within: Duration) -> Result<Output, RunError> {
        let mut child = self.spawn(arguments)?;
        let (stdout, stderr) = (Kept::new(Keep::Beginning), Kept::new(Keep::End));
        let readers = [
            child.stdout.take().map(|pipe| stdout.read(pipe)),
            child.stderr.take().map(|pipe| stderr.read(pipe)),
        ];
        let ended = tokio::time::timeout(within, wait(&mut child, &stdout)).await;
        let ended = match ended {
            Ok(ended) => ended.map_err(|error| RunError::Unusable(self.name, error)),
            Err(_) => {
                let last_words = stderr.last_words();
                Err(RunError::Late { program: self.described(arguments), within, last_words })
            }
        };
        let status = match ended {
            Ok(Some(status)) => status,
            Ok(None) => {
                kill(&mut child).await;
                return Err(RunError::Flood(self.described(arguments)));
            }
            Err(error) => {
                kill(&mut child).await;
                return Err(error);
            }
        };
        drain(readers).await;
        self.require_success(arguments, status, &stderr)?;
        Ok(Output { stdout: stdout.take(), stderr: stderr.take() })
    }

    fn require_success(
        &self,
        arguments: &[OsString],
        status: ExitStatus,
        stderr: &Kept,
    ) -> Result<(), RunError> {
        if status.success() {
            return Ok(());
        }
        let last_words = stderr.last_words();
        Err(RunError::Failed {
            program: self.described(arguments),
            status,
            stderr: stderr.take(),
            last_words,
        })
    }

    fn spawn(&self, arguments: &[OsString]) -> Result<Child, RunError> {
        let unusable = |error| RunError::Unusable(self.name, error);
        // A child inherits an ignored SIGCHLD, and could then not wait for its own children. A child does not inherit a
        // handler, so this line installs one.
        drop(signal(SignalKind::child()).map_err(unusable)?);
        let program = self.find().ok_or(RunError::Missing(self.name))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RunError::Missing(self.name),
            _ => unusable(error),
        })
    }

    /// Returns the absolute path of the program. Skips relative directories on the `PATH`, because the working
    /// directory can be a directory that an agent wrote.
    fn find(&self) -> Option<PathBuf> {
        let (_, path) = self.env.iter().find(|(name, _)| name == "PATH")?;
        std::env::split_paths(path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(self.name))
            .find(|program| program.is_file())
    }

    /// Returns the program's name and up to two subcommands, for error messages.
    fn described(&self, arguments: &[OsString]) -> String {
        let words = arguments.iter().take_while(|word| !word.as_encoded_bytes().starts_with(b"-"));
        let words: Vec<_> = words.take(2).map(|word| word.to_string_lossy()).collect();
        [self.name.into()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// Reads the rest of the program's own output. If a background process keeps a pipe open, waits at most [`DRAIN`].
async fn drain(readers: impl IntoIterator<Item = Option<JoinHandle<()>>>) {
    for reader in readers.into_iter().flatten() {
        let abort = reader.abort_handle();
        if tokio::time::timeout(DRAIN, reader).await.is_err() {
            abort.abort();
        }
    }
}

impl RunError {
    /// Returns the last bytes of a failed program's standard error. Empty for all other errors.
    #[cfg_attr(
        target_os = "macos",
        allow(dead_code, reason = "only a backend that exists on Linux parses errors")
    )]
    pub fn stderr(&self) -> &[u8] {
        match self {
            Self::Failed { stderr, .. } => stderr,
            _ => &[],
        }
    }
}

/// Waits until the program ends. Returns `None` if the program printed more than [`OUTPUT_MAX`] bytes.
async fn wait(child: &mut Child, stdout: &Kept) -> io::Result<Option<ExitStatus>> {
    tokio::select! {
        // A program that printed too much can end by itself, because the runner has closed the pipe.
        status = child.wait() => status.map(|status| (!stdout.overflowed()).then_some(status)),
        () = stdout.overflows.notified() => Ok(None),
    }
}

/// Kills the program and the processes of its group.
async fn kill(child: &mut Child) {
    if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // The kill fails if all processes of the group have ended by themselves.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = tokio::time::timeout(KILL_TIMEOUT, child.wait()).await;
}

/// Which part of a stream the runner keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The first [`OUTPUT_MAX`] bytes. A longer stream is an error.
    Beginning,
    /// The last [`ERRORS_MAX`] bytes.
    End,
}

/// The kept part of a stream, and a notification that the stream is longer than [`OUTPUT_MAX`].
struct Kept {
    keep: Keep,
    bytes: Arc<Mutex<Vec<u8>>>,
    overflows: Arc<tokio::sync::Notify>,
}

impl Kept {
    fn new(keep: Keep) -> Self {
        Self { keep, bytes: Arc::default(), overflows: Arc::default() }
    }

    /// Starts a task that reads the pipe until its end or until the limit of [`Keep::Beginning`].
    fn read(&self, mut pipe: impl AsyncRead + Unpin + Send + 'static) -> JoinHandle<()> {
        let (keep, kept, overflows) = (self.keep, Arc::clone(&self.bytes), Arc::clone(&self.overflows));
        tokio::spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..count]);
                match keep {
                    Keep::Beginning if kept.len() > OUTPUT_MAX => {
                        overflows.notify_one();
                        return;
                    }
                    Keep::End if kept.len() > 2 * ERRORS_MAX => {
                        let cut = kept.len() - ERRORS_MAX;
                        kept.drain(..cut);
                    }
                    _ => {}
                }
            }
        })
    }

    /// Whether the stream exceeded the limit of [`Keep::Beginning`].
    fn overflowed(&self) -> bool {
        let length = self.bytes.lock().unwrap_or_else(PoisonError::into_inner).len();
        matches!(self.keep, Keep::Beginning) && length > OUTPUT_MAX
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn last_words(&self) -> String {
        last_words(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the last line that is not empty, without terminal sequences, and cut to `LAST_WORDS_MAX` characters. A
/// carriage return ends a line too, because programs overwrite their progress output with it.
pub fn last_words(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let last = text.split(['\n', '\r']).map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    inert(&last.chars().take(LAST_WORDS_MAX).collect::<String>()).to_string()
}

fn after_colon(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

fn exit(status: &ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use bottle_test_support::script_file::script_file;

    use super::*;

    /// Creates a program named `engine` that runs this shell script.
    fn program(script: &str) -> (tempfile::TempDir, Program) {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("engine");
        script_file(&path, script);
        let path = format!("relative:{}:/usr/bin:/bin", directory.path().display());
        (directory, Program { name: "engine", env: vec![("PATH".into(), path.into())] })
    }

    async fn run(script: &str, within: Duration) -> Result<Output, RunError> {
        let (_directory, program) = program(script);
        program.run(&["machine".into(), "ls".into(), "--secret".into()], within).await
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn returns_what_a_program_prints_and_gives_it_only_its_environment() {
        let output = run("echo \"$*\"; env | grep -c SECRET; echo progress >&2", LONG).await.expect("ran");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "machine ls --secret\n0\n");
        assert_eq!(output.stderr, b"progress\n");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let missing =
            Program { name: "no-such-engine", env: vec![("PATH".into(), "/usr/bin:relative".into())] };
        let error = missing.run(&[], LONG).await.expect_err("missing");
        assert_eq!(error.to_string(), "`no-such-engine` is not installed");
    }

    #[tokio::test]
    async fn a_failure_has_the_last_words_without_terminal_sequences() {
        let script =
            "printf 'pulling 1%%\\rpulling 99%%\\r\\033[31mthe disk is full\\033[0m\\n\\n' >&2; exit 3";
        let error = run(script, LONG).await.expect_err("failed").to_string();
        assert!(error.starts_with("`engine machine ls` failed (exit 3): "), "{error}");
        assert!(error.contains("the disk is full") && !error.contains('\u{1b}'), "{error}");
        let killed = run("kill -9 $$", LONG).await.expect_err("killed").to_string();
        assert_eq!(killed, "`engine machine ls` failed (signal 9)");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_with_its_children() {
        let (directory, program) =
            program("sleep 60 & echo $! > \"$(dirname \"$0\")/child\"; echo waiting >&2; wait");
        let begun = Instant::now();
        let error = program.run(&["start".into()], Duration::from_secs(1)).await.expect_err("late");
        assert_eq!(error.to_string(), "`engine start` did not finish within 1 s: waiting");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let child = fs::read_to_string(directory.path().join("child")).expect("started");
        let child: u32 = child.trim().parse().expect("an id");
        let gone = || !bottle_host::process::ProcessId::of(child).is_ok_and(|process| process.is_some());
        for _ in 0..100 {
            if gone() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the child {child} still runs");
    }

    #[tokio::test]
    async fn endless_output_ends_the_program_and_endless_progress_does_not() {
        let error = run("exec yes", LONG).await.expect_err("endless");
        assert_eq!(error.to_string(), "`engine machine ls` printed more than 8 MiB");
        let output = run("yes progress | head -c 18000000 >&2; echo the end >&2", LONG).await.expect("ran");
        assert!(output.stderr.len() <= 3 * ERRORS_MAX);
        assert_eq!(last_words(&output.stderr), "the end");
    }

    #[tokio::test]
    async fn does_not_wait_for_a_process_that_a_successful_program_left() {
        let begun = Instant::now();
        let output = run("echo started; sleep 30 &", LONG).await.expect("ran");
        assert_eq!(output.stdout, b"started\n");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
