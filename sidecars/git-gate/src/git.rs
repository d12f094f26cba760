//! Every subprocess of the gate.
//!
//! Each gets a small environment, is the leader of a group of its own, has limits and a deadline, and is
//! ended with its whole group when whoever waits for it goes away.

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

/// The largest file that one may write.
const FILE: u64 = 8 << 30;

/// Processor seconds of one.
const SECONDS: u64 = 1800;

/// How long one may take that nobody speaks with any more.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// What is kept of a subprocess's complaints.
const COMPLAINT: u64 = 64 << 10;

/// Where git and ssh are looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Descriptors that a subprocess may be given beside the three standard ones, by low numbers that a shell can
/// name. They are reserved when the process is young.
pub(crate) struct Passage {
    places: Mutex<Vec<OwnedFd>>,
}

/// How many.
const PLACES: usize = 2;

/// The largest number of a descriptor that every shell can name.
const NAMED: i32 = 9;

impl Passage {
    /// Takes the lowest free descriptors; called before anything else is opened.
    ///
    /// # Errors
    /// What the kernel says, or that too many are taken: then no hook could speak with the gate.
    pub(crate) fn reserve() -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let places: Vec<OwnedFd> =
            (0..PLACES).map(|_| Ok(rustix::io::fcntl_dupfd_cloexec(&null, 3)?)).collect::<io::Result<_>>()?;
        if places.iter().any(|place| place.as_raw_fd() > NAMED) {
            return Err(io::Error::other("whoever started this left too many files open"));
        }
        Ok(Self { places: Mutex::new(places) })
    }

    /// Starts `command` with `passed` at the reserved places; `with` gets their numbers and completes it.
    pub(crate) fn spawn(
        &self,
        passed: &[&OwnedFd],
        command: impl FnOnce(&[i32]) -> Command,
    ) -> io::Result<Child> {
        use std::os::fd::AsRawFd;
        // One at a time: between the next two steps every new process would inherit what is passed.
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers: Vec<i32> = places.iter().map(AsRawFd::as_raw_fd).collect();
        let mut command = command(&numbers);
        command.process_group(0).kill_on_drop(true);
        for (fd, place) in passed.iter().zip(places.iter_mut()) {
            rustix::io::dup2(fd, place)?;
        }
        let spawned = command.spawn();
        let null = File::options().read(true).write(true).open("/dev/null")?;
        for place in places.iter_mut() {
            rustix::io::dup3(&null, place, rustix::io::DupFlags::CLOEXEC)?;
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
                // One that has ended already needs none.
                let _ = rustix::process::prlimit(Some(pid), resource, limit);
            }
        }
        Ok(child)
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// A subprocess with its group; both end when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    group: Option<Pid>,
}

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        let group = pid_of(&child);
        Self { child, group }
    }

    /// Lets it come to its own end after its input has, so that it removes what it was making: killed by any
    /// signal, receive-pack leaves its quarantine.
    pub(crate) async fn end(mut self, mut stdout: impl AsyncRead + Unpin) {
        let ended = async {
            let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
            let _ = self.child.wait().await;
        };
        let _ = tokio::time::timeout(ENDED_WITHIN, ended).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group outlives its leader where that left somebody behind; gone already is fine.
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// How a subprocess ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) good: bool,
    pub(crate) code: Option<i32>,
    pub(crate) output: Vec<u8>,
    /// What it said, as text.
    pub(crate) complaint: String,
}

/// A subprocess did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    #[error("{0} could not be run: {1}")]
    Run(String, io::Error),
    #[error("{what} did not end within {} s", within.as_secs())]
    Late { what: String, within: Duration },
}

/// Where git works: a mirror, and what of the environment differs.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    /// The mirror: git's directory and the working directory at once.
    pub(crate) mirror: PathBuf,
    /// Beside what every git has.
    pub(crate) env: Vec<(String, String)>,
}

impl Git {
    pub(crate) fn of(mirror: &Path) -> Self {
        Self { mirror: mirror.to_owned(), env: Vec::new() }
    }

    /// With these variables too.
    pub(crate) fn with(&self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut more = self.clone();
        more.env.extend(env);
        more
    }

    /// A command with nothing connected.
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

    /// Runs git to its end.
    pub(crate) async fn run(
        &self,
        passage: &Passage,
        passed: &[&OwnedFd],
        arguments: impl FnOnce(&[i32]) -> Vec<String>,
        within: Duration,
    ) -> Result<Ended, GitError> {
        let mut what = "git".to_owned();
        let child = passage.spawn(passed, |places| {
            let arguments = arguments(places);
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

    /// The same without anything passed.
    pub(crate) async fn plain(
        &self,
        passage: &Passage,
        arguments: &[&str],
        within: Duration,
    ) -> Result<Ended, GitError> {
        self.run(passage, &[], |_| arguments.iter().map(|&a| a.to_owned()).collect(), within).await
    }
}

/// Output that is kept in memory: lists of refs, and short answers.
const OUTPUT: u64 = 64 << 20;

/// Feeds a subprocess, collects what it says and waits for its end.
pub(crate) async fn finish(
    mut running: Running,
    what: &str,
    input: &[u8],
    within: Duration,
) -> Result<Ended, GitError> {
    use tokio::io::AsyncWriteExt;
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    let (stdin, stdout, stderr) =
        (running.child.stdin.take(), running.child.stdout.take(), running.child.stderr.take());
    let work = async {
        let feed = async {
            if let Some(mut stdin) = stdin {
                // One that does not read to the end says why by its code.
                let _ = stdin.write_all(input).await;
            }
        };
        let read = async {
            if let Some(stdout) = stdout {
                let _ = stdout.take(OUTPUT).read_to_end(&mut output).await;
            }
        };
        let listen = async {
            if let Some(mut stderr) = stderr {
                let _ = (&mut stderr).take(COMPLAINT).read_to_end(&mut complaint).await;
                let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
            }
        };
        tokio::join!(feed, read, listen);
        running.child.wait().await
    };
    let status = match tokio::time::timeout(within, work).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return Err(GitError::Run(what.to_owned(), error)),
        Err(_) => return Err(GitError::Late { what: what.to_owned(), within }),
    };
    let complaint = String::from_utf8_lossy(&complaint).into_owned();
    Ok(Ended { good: status.success(), code: status.code(), output, complaint })
}

/// Two ends of a pipe that no process inherits by itself.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// A descriptor that reads on the current runtime.
pub(crate) fn reader(fd: OwnedFd) -> io::Result<tokio::net::unix::pipe::Receiver> {
    tokio::net::unix::pipe::Receiver::from_owned_fd(fd)
}

/// A descriptor that is written to on the current runtime.
pub(crate) fn writer(fd: OwnedFd) -> io::Result<tokio::net::unix::pipe::Sender> {
    tokio::net::unix::pipe::Sender::from_owned_fd(fd)
}

/// Puts a secret into a pipe and closes it: whoever has the other end reads it once.
pub(crate) fn sealed(secret: &[u8]) -> io::Result<OwnedFd> {
    let (read, write) = pipe()?;
    // Less than a pipe holds, so that this never waits.
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
