//! Runs git in `bottle`'s own git directory.
//!
//! Git reads only the configuration of this directory: not the user's, not the system's, and never the configuration of
//! a repository that an agent or a project wrote. Git has its own environment, no terminal, no input, a deadline, and
//! limits for its memory, its files and its output.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::store::Place;
use crate::{limits, program};

/// The time limit of one command. It is needed because an agent controls the amount of data.
const DEADLINE: Duration = Duration::from_secs(300);

/// The maximum number of bytes that are kept of standard output if the caller names no limit.
const MAX_OUTPUT: usize = 1 << 20;

/// The maximum number of bytes that are kept of standard error, from its start. Further bytes are dropped.
const MAX_STDERR: usize = 4096;

/// The directories in which git finds the few programs that it needs in addition to its own.
const SYSTEM_PATH: &str = "/usr/bin:/bin";

/// The environment of each git process.
const ENVIRONMENT: [(&str, &str); 12] = [
    ("GIT_DIR", "."),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_CEILING_DIRECTORIES", "/"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    // Without this variable, a replace reference would make git show the content of another object.
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    ("GIT_PAGER", "cat"),
    ("LC_ALL", "C"),
];

/// The git program that is installed on this machine.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    search: OsString,
}

/// A handle that runs git in `bottle`'s own git directory. The directory exists at least as long as this value.
#[derive(Debug, Clone)]
pub struct Git {
    program: Program,
    place: Arc<Place>,
}

/// Output of limited length, and whether it was truncated.
#[derive(Debug, Default)]
pub struct Text {
    /// The bytes, up to the limit.
    pub bytes: Vec<u8>,
    /// Whether the output had more bytes.
    pub cut: bool,
}

/// The result of a command that ended.
#[derive(Debug)]
pub struct Output {
    /// The exit code. `None` if a signal ended the command.
    pub code: Option<i32>,
    /// The first bytes of standard output.
    pub stdout: Text,
    /// The first bytes of standard error.
    pub stderr: Vec<u8>,
}

/// Why git failed. The messages can contain text of an agent.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// No absolute directory of `PATH` contains git.
    #[error("git is not installed")]
    Missing,
    /// Git could not be started.
    #[error("cannot run git: {0}")]
    Spawn(#[source] io::Error),
    /// Git took too long, and was killed.
    #[error("`git {0}` timed out")]
    Late(String),
    /// Git ended with an error.
    #[error("`git {command}` failed: {stderr}")]
    Failed {
        /// The name of the command.
        command: String,
        /// The first bytes of standard error.
        stderr: String,
    },
}

impl Program {
    /// Finds git in the absolute directories of a `PATH` variable.
    ///
    /// # Errors
    /// Returns [`GitError::Missing`].
    pub fn find(path_variable: &OsStr) -> Result<Self, GitError> {
        let path = program::find("git", path_variable).ok_or(GitError::Missing)?;
        // Git starts its own helper programs, and searches for them in the directory of the git program.
        let mut search = path.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
        search.push(":");
        search.push(SYSTEM_PATH);
        Ok(Self { path, search })
    }

    /// Creates a command without arguments, with the environment and the limits of all git commands. It runs in
    /// `directory`.
    fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().envs(ENVIRONMENT).env("PATH", &self.search).current_dir(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        limits::limit(&mut command);
        command
    }

    /// Reads variables from the user's and the system's own configuration files, which are trusted. Git reads them
    /// outside of any repository. Each entry of the result is `KEY\nVALUE\0`. `variables` are the environment variables
    /// that say where the user's files are.
    ///
    /// # Errors
    /// Returns [`GitError::Spawn`].
    pub fn user_configuration<'a>(
        &self,
        keys: &str,
        variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
    ) -> Result<Vec<u8>, GitError> {
        self.read_configuration(&["--get-regexp", keys], variables)
    }

    /// Finds the user's own ignore file: `core.excludesFile` of the user's or the system's configuration, otherwise
    /// `git/ignore` in the user's configuration directory (gitignore(5)). The file may not exist. `None` if the value
    /// is not an absolute path, or no configuration directory is known. `variables` are the environment variables that
    /// say where the user's files are.
    ///
    /// # Errors
    /// Returns [`GitError::Spawn`].
    pub fn user_ignore_file(&self, variables: &[(&str, &OsStr)]) -> Result<Option<PathBuf>, GitError> {
        self.user_file("core.excludesFile", "ignore", variables)
    }

    /// Finds the user's own attribute file in the same way as [`Self::user_ignore_file`]: `core.attributesFile`,
    /// otherwise `git/attributes` (gitattributes(5)).
    ///
    /// # Errors
    /// Returns [`GitError::Spawn`].
    pub fn user_attributes_file(&self, variables: &[(&str, &OsStr)]) -> Result<Option<PathBuf>, GitError> {
        self.user_file("core.attributesFile", "attributes", variables)
    }

    fn user_file(
        &self,
        setting: &str,
        name: &str,
        variables: &[(&str, &OsStr)],
    ) -> Result<Option<PathBuf>, GitError> {
        let arguments = ["--type=path", "--get", setting];
        let mut value = self.read_configuration(&arguments, variables.iter().copied())?;
        if value.pop().is_some() {
            return Ok(Some(PathBuf::from(OsString::from_vec(value))).filter(|path| path.is_absolute()));
        }
        let place = |variable: &str, below: &str| {
            let (_, value) =
                variables.iter().find(|(found, value)| *found == variable && !value.is_empty())?;
            Some(Path::new(value).join(below).join(name)).filter(|path| path.is_absolute())
        };
        Ok(place("XDG_CONFIG_HOME", "git").or_else(|| place("HOME", ".config/git")))
    }

    fn read_configuration<'a>(
        &self,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
    ) -> Result<Vec<u8>, GitError> {
        let mut command = self.command(Path::new("/"));
        for name in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"] {
            command.env_remove(name);
        }
        command.envs(variables).args(["config", "--null"]).args(arguments);
        let output = command.stdout(Stdio::piped()).output().map_err(GitError::Spawn)?;
        Ok(output.stdout)
    }
}

impl Git {
    pub(crate) fn in_store(program: Program, place: Arc<Place>) -> Self {
        Self { program, place }
    }

    /// Creates a command without arguments, whose standard streams are `/dev/null`.
    #[must_use]
    pub fn command(&self) -> Command {
        self.program.command(self.place.path())
    }

    /// Runs a command to its end, whatever its exit code is.
    ///
    /// # Errors
    /// Returns [`GitError`] if the command did not run or took too long.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output, GitError> {
        self.run_command(self.command(), arguments, None, MAX_OUTPUT).await
    }

    /// Runs a command with `input` as its standard input. Keeps at most `most` bytes of its output.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::run`].
    pub async fn run_with(&self, arguments: &[&str], input: &[u8], most: usize) -> Result<Output, GitError> {
        self.run_command(self.command(), arguments, Some(input), most).await
    }

    /// Runs `command`, which [`Self::command`] created, with these arguments.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::run`].
    pub async fn run_command(
        &self,
        mut command: Command,
        arguments: &[&str],
        input: Option<&[u8]>,
        most: usize,
    ) -> Result<Output, GitError> {
        command.args(arguments);
        run(command, word(arguments), input, most).await
    }

    /// Returns at most `most` bytes of the output of a command. If the command writes more, it is killed.
    ///
    /// # Errors
    /// Returns a [`GitError`] of any kind.
    pub async fn read(&self, arguments: &[&str], most: usize) -> Result<Text, GitError> {
        let output = self.run_command(self.command(), arguments, None, most).await?;
        if output.succeeded() || output.stdout.cut {
            return Ok(output.stdout);
        }
        Err(output.failed(word(arguments)))
    }

    /// Runs a command, and fails if its exit code is not 0.
    ///
    /// # Errors
    /// Returns a [`GitError`] of any kind.
    pub async fn expect(&self, arguments: &[&str]) -> Result<Output, GitError> {
        let output = self.run(arguments).await?;
        if output.succeeded() { Ok(output) } else { Err(output.failed(word(arguments))) }
    }
}

impl Output {
    /// Whether the exit code is 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns standard error as text, which can contain text of an agent.
    #[must_use]
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim().to_owned()
    }

    /// Returns the error for a command that failed.
    #[must_use]
    pub fn failed(&self, command: &str) -> GitError {
        GitError::Failed { command: command.to_owned(), stderr: self.error_text() }
    }
}

/// Finds the name of the git command among its arguments.
fn word<'a>(arguments: &[&'a str]) -> &'a str {
    arguments.iter().find(|word| !word.starts_with('-')).copied().unwrap_or("git")
}

async fn run(
    mut command: Command,
    word: &str,
    input: Option<&[u8]>,
    most: usize,
) -> Result<Output, GitError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    // Git is killed when this call is dropped, so that an interrupted command does not continue to run.
    let spawned = tokio::process::Command::from(command).kill_on_drop(true).spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => GitError::Missing,
        _ => GitError::Spawn(error),
    })?;
    let (stdin, output, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let running = async {
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                // The write fails if the command ends before it has read all of its input.
                let _ = stdin.write_all(input).await;
            }
        };
        let ((), mut bytes, mut stderr) = tokio::join!(
            write,
            read_at_most(output, most + 1, true),
            read_at_most(stderr, MAX_STDERR, false)
        );
        let cut = bytes.len() > most;
        bytes.truncate(most);
        stderr.truncate(MAX_STDERR);
        if cut {
            let _ = child.start_kill();
        }
        let status = child.wait().await.map_err(GitError::Spawn)?;
        Ok(Output { code: status.code(), stdout: Text { bytes, cut }, stderr })
    };
    tokio::time::timeout(DEADLINE, running).await.map_err(|_| GitError::Late(word.to_owned()))?
}

/// Reads at most `most` bytes. Further bytes are read and dropped, so that git does not block on a full pipe. If
/// `stops` is set, the function returns at the limit instead.
async fn read_at_most(from: Option<impl AsyncRead + Unpin>, most: usize, stops: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = (&mut from).take(most as u64).read_to_end(&mut bytes).await;
        if bytes.len() < most || !stops {
            let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_ignore_file_of_the_user_only() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path();
        let program = Program::find(&std::env::var_os("PATH").expect("a path")).expect("git");
        let found = |variables: &[(&str, &Path)]| {
            let variables: Vec<_> =
                variables.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
            program.user_ignore_file(&variables).expect("read")
        };
        let (system, nowhere) = (("GIT_CONFIG_SYSTEM", Path::new("/dev/null")), Path::new("none"));
        assert_eq!(found(&[system, ("HOME", path)]), Some(path.join(".config/git/ignore")));
        let config = path.join("config");
        assert_eq!(
            found(&[system, ("HOME", path), ("XDG_CONFIG_HOME", &config)]),
            Some(config.join("git/ignore"))
        );
        assert_eq!(found(&[system, ("HOME", nowhere)]), None);
        for (value, expected) in [
            ("~/mine", Some(path.join("mine"))),
            ("/etc/ignore", Some("/etc/ignore".into())),
            // A relative path is ignored, because no repository is its base.
            ("mine", None),
        ] {
            let text = format!("[core]\n\texcludesFile = {value}\n");
            std::fs::write(path.join(".gitconfig"), text).expect("written");
            assert_eq!(found(&[system, ("HOME", path)]), expected, "{value}");
        }
    }
}
