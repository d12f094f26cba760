//! Runs git, ssh and other subprocesses of the gate.
//!
//! Each subprocess has a small environment, its own process group, a timeout, and resource limits that are set before
//! its program starts. Dropping the [`Running`] value of a subprocess kills its process group.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bottle_harden::child_limits::ChildLimits;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// The maximum memory in bytes of one subprocess that unpacks or reads objects from the bottle. git holds the base, the
/// instructions and the result of a delta in memory. Each of the three has at most
/// [`MOST_BUFFERED`](crate::push_check::MOST_BUFFERED) bytes. In addition, git needs about 150 bytes for each of the
/// [`MOST_OBJECTS`](crate::push_limits::MOST_OBJECTS) objects of a push.
const MEMORY: u64 = 768 << 20;

/// The maximum memory in bytes of one subprocess that reads an upstream's complete history, which may have millions of
/// objects. The bottle does not control the number or the size of these objects.
pub(crate) const UPSTREAM_MEMORY: u64 = 2 << 30;

/// The address space in bytes that a subprocess may use for packs and their indexes, in addition to its memory. The
/// mirror's configuration limits the packs (`core.packedGitLimit`).
const MAPPED: u64 = 4 << 30;

/// The maximum size of a file that a subprocess may write, in bytes. The kernel kills a subprocess that
/// writes more.
const FILE: u64 = 8 << 30;

/// The maximum CPU time of one subprocess, in seconds. The kernel kills a subprocess that exceeds the limit.
const SECONDS: u64 = 1800;

/// The time limit for a subprocess to exit after the end of its input. When the limit is reached, the subprocess is
/// killed.
const EXIT_WITHIN: Duration = Duration::from_secs(60);

/// The maximum number of bytes of a subprocess's stderr that are kept. Further bytes are dropped.
const MOST_STDERR: u64 = 64 << 10;

/// The search path for git and ssh.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The reserved descriptor numbers. Subprocesses inherit descriptors at these numbers, in addition to the three
/// standard streams.
///
/// A shell can name only descriptors with one digit, so low numbers are reserved when the process starts.
pub(crate) struct ReservedFds {
    slots: Mutex<Vec<OwnedFd>>,
}

/// The number of reserved descriptors.
const SLOTS: usize = 2;

/// The largest descriptor number that every shell can name.
const MOST_SHELL_FD: i32 = 9;

impl ReservedFds {
    /// Reserves the lowest unused descriptor numbers. This function must be called before the process opens other
    /// files.
    ///
    /// # Errors
    /// Fails with the kernel's error, or if too many descriptors are open. Without a descriptor number of one digit, a
    /// hook could not communicate with the gate.
    pub(crate) fn reserve() -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let slots: Vec<OwnedFd> =
            (0..SLOTS).map(|_| Ok(rustix::io::fcntl_dupfd_cloexec(&null, 3)?)).collect::<io::Result<_>>()?;
        if slots.iter().any(|slot| slot.as_raw_fd() > MOST_SHELL_FD) {
            return Err(io::Error::other("the parent process left too many files open"));
        }
        Ok(Self { slots: Mutex::new(slots) })
    }

    /// Spawns a command that inherits the descriptors `passed` at the reserved numbers. `command` receives
    /// these numbers and builds the command.
    pub(crate) fn spawn(
        &self,
        passed: &[&OwnedFd],
        command: impl FnOnce(&[i32]) -> Command,
    ) -> io::Result<Child> {
        use std::os::fd::AsRawFd;
        // The lock prevents concurrent spawns, because every process that is spawned before the slots are reset
        // inherits `passed`.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers: Vec<i32> = slots.iter().map(AsRawFd::as_raw_fd).collect();
        let mut command = command(&numbers);
        command.process_group(0).kill_on_drop(true);
        for (fd, slot) in passed.iter().zip(slots.iter_mut()) {
            rustix::io::dup2(fd, slot)?;
        }
        let spawned = command.spawn();
        let null = File::options().read(true).write(true).open("/dev/null")?;
        for slot in slots.iter_mut() {
            rustix::io::dup3(&null, slot, rustix::io::DupFlags::CLOEXEC)?;
        }
        spawned
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// A subprocess and its process group. Dropping it kills the process group.
pub(crate) struct Running {
    pub(crate) child: Child,
    group: Option<Pid>,
}

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        let group = pid_of(&child);
        Self { child, group }
    }

    /// Waits up to [`EXIT_WITHIN`] for a subprocess to exit after the end of its input. If receive-pack were killed
    /// immediately, its quarantine would remain.
    pub(crate) async fn drain_and_wait(mut self, mut stdout: impl AsyncRead + Unpin) {
        let exited = async {
            let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
            let _ = self.child.wait().await;
        };
        let _ = tokio::time::timeout(EXIT_WITHIN, exited).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process group continues to exist after its leader exits if the leader has children. If the group no longer
        // exists, the error is ignored.
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// The result of a subprocess that has exited.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) success: bool,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    /// The first [`MOST_STDERR`] bytes of stderr.
    pub(crate) stderr: String,
}

/// The error that a subprocess did not start or did not exit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    #[error("cannot run {0}")]
    Run(String, #[source] io::Error),
    #[error("git cannot list the refs")]
    Refs,
    #[error("{what} did not exit within {} s", within.as_secs())]
    Timeout { what: String, within: Duration },
}

/// The mirror and the environment with which git runs.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    /// The mirror, which is both the repository and the working directory of git.
    pub(crate) mirror: PathBuf,
    /// Environment variables in addition to the variables that every git process gets.
    pub(crate) env: Vec<(String, String)>,
    /// The maximum memory of one process, in bytes.
    memory: u64,
}

impl Git {
    pub(crate) fn new(mirror: &Path) -> Self {
        Self { mirror: mirror.to_owned(), env: Vec::new(), memory: MEMORY }
    }

    /// Returns a copy of this configuration with another maximum memory of one process, in bytes.
    pub(crate) fn with_memory(&self, memory: u64) -> Self {
        Self { memory, ..self.clone() }
    }

    /// Returns a copy of this configuration with additional environment variables.
    pub(crate) fn with_env(&self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut more = self.clone();
        more.env.extend(env);
        more
    }

    /// Builds a command with `/dev/null` as standard streams. The program is not started if its resource limits cannot
    /// be set.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let limits = ChildLimits {
            memory: self.memory,
            address_space: self.memory + MAPPED,
            file: FILE,
            cpu_seconds: SECONDS,
        };
        limits.apply_to(command.as_std_mut());
        command
            .current_dir(&self.mirror)
            .env_clear()
            .envs([
                ("PATH", PATH),
                ("HOME", "/nonexistent"),
                ("LC_ALL", "C"),
                ("GIT_DIR", "."),
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_ATTR_NOSYSTEM", "1"),
                ("GIT_TERMINAL_PROMPT", "0"),
                ("GIT_NO_REPLACE_OBJECTS", "1"),
                ("GIT_OPTIONAL_LOCKS", "0"),
                ("GIT_ALLOW_PROTOCOL", "ssh:https"),
            ])
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Spawns git with a pipe for stdout and, if `input` is set, a pipe for stdin.
    pub(crate) fn spawn(&self, fds: &ReservedFds, arguments: &[&str], input: bool) -> io::Result<Running> {
        let child = fds.spawn(&[], |_| {
            let mut command = self.command("git");
            command.args(arguments).stdout(Stdio::piped());
            if input {
                command.stdin(Stdio::piped());
            }
            command
        });
        child.map(Running::new)
    }

    /// Runs git with `input` on its stdin, and waits until git exits. git inherits the descriptors `passed`. The
    /// function `arguments` receives the descriptor numbers and returns git's arguments.
    pub(crate) async fn run_with_fds(
        &self,
        fds: &ReservedFds,
        passed: &[&OwnedFd],
        arguments: impl FnOnce(&[i32]) -> Vec<String>,
        input: &[u8],
        within: Duration,
    ) -> Result<Output, GitError> {
        let mut what = "git".to_owned();
        let child = fds.spawn(passed, |numbers| {
            let arguments = arguments(numbers);
            if let Some(verb) = arguments.iter().find(|argument| !argument.contains(['=', '-'])) {
                what = format!("git {verb}");
            }
            let mut command = self.command("git");
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
            if !input.is_empty() {
                command.stdin(Stdio::piped());
            }
            command
        });
        let child = child.map_err(|error| GitError::Run(what.clone(), error))?;
        finish(Running::new(child), &what, input, within).await
    }

    /// Runs git without additional descriptors, and waits until git exits.
    pub(crate) async fn run(
        &self,
        fds: &ReservedFds,
        arguments: &[&str],
        within: Duration,
    ) -> Result<Output, GitError> {
        self.run_with_fds(fds, &[], |_| arguments.iter().map(|&a| a.to_owned()).collect(), &[], within).await
    }
}

/// The maximum number of bytes of a subprocess's stdout. A subprocess that writes more fails, because its stdout is
/// closed. The longest output is a list of refs.
const MOST_STDOUT: u64 = 64 << 20;

/// Writes `input` to a subprocess, collects the output, and waits until the subprocess exits.
pub(crate) async fn finish(
    mut running: Running,
    what: &str,
    input: &[u8],
    within: Duration,
) -> Result<Output, GitError> {
    use tokio::io::AsyncWriteExt;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (stdin, stdout, stderr) =
        (running.child.stdin.take(), running.child.stdout.take(), running.child.stderr.take());
    let work = async {
        let feed = async {
            if let Some(mut stdin) = stdin {
                // The error is ignored: if a process does not read all of its input, its exit code gives the reason.
                let _ = stdin.write_all(input).await;
            }
        };
        let read = async {
            if let Some(stdout) = stdout {
                let _ = stdout.take(MOST_STDOUT).read_to_end(&mut output).await;
            }
        };
        let collect_errors = async {
            if let Some(mut stderr) = stderr {
                let _ = (&mut stderr).take(MOST_STDERR).read_to_end(&mut errors).await;
                let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
            }
        };
        tokio::join!(feed, read, collect_errors);
        running.child.wait().await
    };
    let status = match tokio::time::timeout(within, work).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return Err(GitError::Run(what.to_owned(), error)),
        Err(_) => return Err(GitError::Timeout { what: what.to_owned(), within }),
    };
    let stderr = String::from_utf8_lossy(&errors).into_owned();
    Ok(Output { success: status.success(), code: status.code(), stdout: output, stderr })
}

/// Creates a pipe. Both ends are close-on-exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Writes a secret into a pipe and closes the write end. Returns the read end, from which the secret can be read once.
pub(crate) fn secret_pipe(secret: &[u8]) -> io::Result<OwnedFd> {
    let (read, write) = pipe()?;
    // A secret is shorter than the capacity of a pipe, so the write never blocks.
    if secret.len() > 32 << 10 {
        return Err(io::Error::other("the secret is too long"));
    }
    let mut left = secret;
    while !left.is_empty() {
        let written = rustix::io::write(write.as_fd(), left)?;
        left = left.get(written..).unwrap_or_default();
    }
    Ok(read)
}
