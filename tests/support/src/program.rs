//! Runs a program with a clean environment and a time limit, and captures its output.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

/// Copies a program to `to`, with its mode. Another process writes the copy: a process that a thread of a test forks
/// meanwhile would hold the copy open for writing until it executes its own program, and the kernel executes no such
/// file (ETXTBSY).
///
/// # Errors
/// When the program cannot be copied.
pub fn copy(program: &Path, to: &Path) -> std::io::Result<()> {
    let output = Command::new("cp").args(["-p", "--"]).args([program, to]).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// The time limit of a command. When it is exceeded, the command is killed, and the test fails with the
/// output so far.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The search path of every program under test, which is that of the distribution.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: BTreeMap<OsString, OsString>,
    directory: Option<PathBuf>,
    input: Vec<u8>,
    deadline: Duration,
}

/// How a program ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The exit code. As in a shell, it is 128 + n after signal n.
    pub code: i32,
    /// The complete standard output.
    pub stdout: String,
    /// The complete standard error.
    pub stderr: String,
    /// How long the program ran.
    pub took: Duration,
}

impl Program {
    /// Returns the `bottle` binary of this build.
    ///
    /// `BOTTLE_TEST_PROGRAM` overrides its path, for test binaries that were copied to another directory.
    ///
    /// # Errors
    /// Returns an error if the program has not been built.
    pub fn bottle() -> Result<Self> {
        for variable in ["BOTTLE_TEST_PROGRAM", "CARGO_BIN_EXE_bottle", "NEXTEST_BIN_EXE_bottle"] {
            if let Some(path) = std::env::var_os(variable) {
                return Ok(Self::at(Path::new(&path)));
            }
        }
        // A test is in `target/<profile>/deps`, and the program is in the directory above.
        let test = std::env::current_exe().context("own path")?;
        let program = test.ancestors().nth(2).map(|profile| profile.join("bottle"));
        match program.filter(|path| path.is_file()) {
            Some(path) => Ok(Self::at(&path)),
            None => bail!("the bottle program is not beside {}: build it with `cargo build`", test.display()),
        }
    }

    /// Returns a program with this path, or with this name on the search path.
    #[must_use]
    pub fn at(program: &Path) -> Self {
        let mut it = Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            directory: None,
            input: Vec::new(),
            deadline: DEADLINE,
        };
        it.env("PATH", SEARCH_PATH).env("LANG", "C.UTF-8").env("TERM", "xterm-256color");
        it
    }

    /// Returns the path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.program
    }

    /// Adds arguments.
    pub fn arguments<I, S>(&mut self, arguments: I) -> &mut Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable. By default, only `PATH`, `LANG` and `TERM` are set.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.environment.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Sets the directory in which the program runs.
    pub fn directory(&mut self, directory: impl Into<PathBuf>) -> &mut Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the standard input. By default it is empty.
    pub fn input(&mut self, input: impl Into<Vec<u8>>) -> &mut Self {
        self.input = input.into();
        self
    }

    /// Sets a time limit instead of [`DEADLINE`].
    pub fn deadline(&mut self, deadline: Duration) -> &mut Self {
        self.deadline = deadline;
        self
    }

    /// Returns a [`Command`] with these settings, for callers that manage the process themselves.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().envs(&self.environment);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    /// Runs the program until it ends.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, or exceeds its time limit. If the time limit is exceeded, the
    /// program is killed, and the error contains its output.
    pub fn run(&self) -> Result<Outcome> {
        let name = self.program.display().to_string();
        let started = Instant::now();
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let mut input = child.stdin.take().context("standard input")?;
        let text = self.input.clone();
        // Writing fails if the program does not read its input and closes the pipe.
        let writer = std::thread::spawn(move || drop(input.write_all(&text)));
        let stdout = reader(child.stdout.take().context("standard output")?);
        let stderr = reader(child.stderr.take().context("standard error")?);
        let status = wait(&mut child, started + self.deadline)?;
        let outcome = status.map(|status| -> Result<Outcome> {
            let _ = writer.join();
            let (stdout, stderr) = (finish(stdout)?, finish(stderr)?);
            Ok(Outcome { code: code(status), stdout, stderr, took: started.elapsed() })
        });
        outcome.unwrap_or_else(|| {
            // The program's children may keep the pipes open, so the rest of the output is not read.
            bail!("{name} {:?} was still running after {:?}", self.arguments, self.deadline)
        })
    }
}

impl Outcome {
    /// Fails the test, and prints both outputs, if the exit code is not `code`.
    #[track_caller]
    #[must_use = "the outcome itself, for more assertions"]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit code\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    /// Parses standard output as JSON.
    ///
    /// # Errors
    /// Returns an error if the output is not JSON. The error contains the text.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("no JSON: {}", self.stdout))
    }

    /// Returns both outputs and the exit code as one text, for snapshots of the complete output.
    #[must_use]
    pub fn transcript(&self) -> String {
        format!("exit {}\n----- stdout -----\n{}----- stderr -----\n{}", self.code, self.stdout, self.stderr)
    }
}

/// Returns the exit code as a shell reports it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Waits until the child ends, at most until `end`. Returns `None` if the child had to be killed.
pub(crate) fn wait(child: &mut Child, end: Instant) -> Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<std::io::Result<Vec<u8>>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

fn finish(reader: JoinHandle<std::io::Result<Vec<u8>>>) -> Result<String> {
    let bytes = reader.join().map_err(|_| anyhow!("the reading thread panicked"))??;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
