//! Runs git, ssh and the gate's other subprocesses.
//!
//! Each subprocess has a small environment, its own process group, resource limits and a timeout.
//! Dropping its [`Running`] kills the whole group.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Address space of one subprocess: a delta that claims to become more is no delta.
const MEMORY: u64 = 4 << 30;

/// Bytes of the largest file that a subprocess may write.
const FILE: u64 = 8 << 30;

/// Processor seconds of one subprocess.
const SECONDS: u64 = 1800;

/// Time limit for a subprocess to exit once its input has ended.
const EXIT_WITHIN: Duration = Duration::from_secs(60);

/// Bytes of a subprocess's stderr that are kept.
const MOST_STDERR: u64 = 64 << 10;

/// Search path for git and ssh.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Reserved low-numbered descriptors, which subprocesses inherit beside the three standard ones.
///
/// A shell can name only single digits, so the numbers are reserved at process start.
pub(crate) struct ReservedFds {
    slots: Mutex<Vec<OwnedFd>>,
}

/// Number of reserved descriptors.
const SLOTS: usize = 2;

/// The largest descriptor number that every shell can name.
const MOST_SHELL_FD: i32 = 9;

impl ReservedFds {
    /// Reserves the lowest free descriptors. Call it before anything else is opened.
    ///
    /// # Errors
    /// The kernel's error, or too many descriptors are open: then no hook could reach the gate.
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

    /// Spawns a command that inherits `passed` at the reserved numbers. `command` gets these numbers
    /// and builds it.
    pub(crate) fn spawn(
        &self,
        passed: &[&OwnedFd],
        command: impl FnOnce(&[i32]) -> Command,
    ) -> io::Result<Child> {
        use std::os::fd::AsRawFd;
        // One spawn at a time: until the slots are reset, every new process would inherit `passed`.
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
        let child = spawned?;
        if let Some(pid) = pid_of(&child) {
            for (resource, most) in [
                (Resource::As, MEMORY),
                (Resource::Fsize, FILE),
                (Resource::Cpu, SECONDS),
                (Resource::Core, 0),
            ] {
                let limit = Rlimit { current: Some(most), maximum: Some(most) };
                // Fails if the process has exited already.
                let _ = rustix::process::prlimit(Some(pid), resource, limit);
            }
        }
        Ok(child)
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// A subprocess and its process group. Dropping this kills the group.
pub(crate) struct Running {
    pub(crate) child: Child,
    group: Option<Pid>,
}

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        let group = pid_of(&child);
        Self { child, group }
    }

    /// Waits for a normal exit after the end of input, up to [`EXIT_WITHIN`]: receive-pack leaves its
    /// quarantine behind when a signal kills it.
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
        // The group outlives its leader if that leaves children; a group that no longer exists is fine.
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// The result of a subprocess that exited.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) success: bool,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    /// Its stderr, cut off at [`MOST_STDERR`].
    pub(crate) stderr: String,
}

/// A subprocess that did not start or exit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    #[error("cannot run {0}")]
    Run(String, #[source] io::Error),
    #[error("git cannot list the refs")]
    Refs,
    #[error("{what} did not exit within {} s", within.as_secs())]
    Timeout { what: String, within: Duration },
}

/// The folder and environment in which git runs.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    /// The mirror: both git's directory and the working directory.
    pub(crate) mirror: PathBuf,
    /// Variables beside the common ones.
    pub(crate) env: Vec<(String, String)>,
}

impl Git {
    pub(crate) fn new(mirror: &Path) -> Self {
        Self { mirror: mirror.to_owned(), env: Vec::new() }
    }

    /// The same with additional variables.
    pub(crate) fn with_env(&self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut more = self.clone();
        more.env.extend(env);
        more
    }

    /// A command with its standard streams on `/dev/null`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
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

    /// Spawns git with its stdout in a pipe, and its stdin if it gets `input`.
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

    /// Runs git, which inherits the descriptors `passed`, and waits for its exit. `arguments` gets
    /// their numbers.
    pub(crate) async fn run_with_fds(
        &self,
        fds: &ReservedFds,
        passed: &[&OwnedFd],
        arguments: impl FnOnce(&[i32]) -> Vec<String>,
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
            command
        });
        let child = child.map_err(|error| GitError::Run(what.clone(), error))?;
        finish(Running::new(child), &what, &[], within).await
    }

    /// Runs git without additional descriptors and waits for its exit.
    pub(crate) async fn run(
        &self,
        fds: &ReservedFds,
        arguments: &[&str],
        within: Duration,
    ) -> Result<Output, GitError> {
        self.run_with_fds(fds, &[], |_| arguments.iter().map(|&a| a.to_owned()).collect(), within).await
    }
}

/// Bytes of stdout that are kept: lists of refs, and short output.
const MOST_STDOUT: u64 = 64 << 20;

/// Writes `input` to a subprocess, collects its output and waits for its exit.
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
                // A process that does not read all input reports the reason by its exit code.
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

/// A pipe with both ends close-on-exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Writes a secret into a pipe, closes the write end and returns the read end: its owner reads the secret
/// once.
pub(crate) fn secret_pipe(secret: &[u8]) -> io::Result<OwnedFd> {
    let (read, write) = pipe()?;
    // Less than a pipe's capacity, so that the write never blocks.
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
