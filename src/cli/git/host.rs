//! Runs the host's git.
//!
//! Git runs without user or system configuration (which could redirect the fetch), without prompts and hooks,
//! and with a single transport, [`super::pipe()`].

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::{ObjectId, Root, copy_out_hint, pipe};
use crate::cli::error::CliError;
use crate::cli::output::inert;
use crate::host::Host;

/// Settings that override the repository's own configuration.
const CONFIGURATION: [&str; 12] = [
    "protocol.allow=never",
    "protocol.ssh.allow=always",
    "fetch.fsckObjects=true",
    "transfer.fsckObjects=true",
    "transfer.bundleURI=false",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "fetch.prune=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "credential.helper=",
    "gc.auto=0",
];

/// The arguments of each fetch.
const FETCH: [&str; 8] = [
    "fetch",
    "--no-progress",
    "--no-tags",
    "--no-recurse-submodules",
    "--no-write-fetch-head",
    "--no-auto-maintenance",
    "--refmap=",
    "--upload-pack=git-upload-pack",
];

/// The user's environment variables that git and the transport need.
const INHERITED: [&str; 4] = ["PATH", "HOME", "XDG_RUNTIME_DIR", "TMPDIR"];

/// The maximum number of characters, from the end of git's standard error, that an error message quotes.
const STDERR_TAIL: usize = 2000;

/// A repository of the user on the host.
pub(crate) struct Repository<'a> {
    pub(super) host: &'a Host,
    pub(super) folder: PathBuf,
}

/// A failed fetch.
#[derive(Debug, thiserror::Error)]
#[error("cannot fetch: {stderr}")]
pub(super) struct FetchError {
    pub(super) cause: FetchCause,
    /// The end of git's standard error.
    stderr: String,
}

/// Why git could not fetch. Every cause except `Other` has its own error message, and is recognized by the text
/// of git's output, which is in English because of `LC_ALL=C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FetchCause {
    NoSuchReference,
    Diverged,
    CheckedOut,
    Other,
}

/// The result of a fetch.
pub(crate) struct Fetched {
    /// The branch that was updated, without `refs/heads/`.
    pub(crate) branch: String,
    /// The commit that the branch pointed to before the fetch.
    pub(crate) before: Option<ObjectId>,
    /// The commit of earlier uncommitted work that the fetch removed from the branch.
    pub(crate) replaced: Option<ObjectId>,
    /// The commit that the branch points to after the fetch.
    pub(crate) after: ObjectId,
    /// The number of commits that are not reachable from the repository's `HEAD`.
    pub(crate) commits: u64,
}

impl<'a> Repository<'a> {
    /// Finds the repository that contains this folder; none if no repository does.
    ///
    /// # Errors
    /// Returns an error if git is not installed or fails.
    pub(crate) async fn containing(host: &'a Host, folder: &Path) -> Result<Option<Self>, CliError> {
        let here = Self { host, folder: folder.to_owned() };
        if !folder.is_dir() {
            return Ok(None);
        }
        let found = here.git(&["rev-parse", "--git-dir"]).await?;
        if found.status.success() {
            return Ok(Some(here));
        }
        if is_no_repository(&found.stderr) {
            return Ok(None);
        }
        Err(here.unusable(&found))
    }

    /// Returns the path of a file in the git directory. The file may not exist.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(super) async fn git_path(&self, part: &str) -> Result<PathBuf, CliError> {
        let found = self.git(&["rev-parse", "--git-path", part]).await?;
        let path = found.stdout.strip_suffix(b"\n").filter(|path| found.status.success() && !path.is_empty());
        let path = path.ok_or_else(|| self.unusable(&found))?;
        let place = self.folder.join(OsStr::from_bytes(path));
        std::path::absolute(place).map_err(|error| CliError::failed(error.to_string()))
    }

    /// Returns the path of the folder in the repository, which ends with a slash; empty for the root of its files.
    ///
    /// # Errors
    /// Returns an error if git fails, or the path is not UTF-8.
    pub(super) async fn prefix(&self) -> Result<String, CliError> {
        let found = self.git(&["rev-parse", "--show-prefix"]).await?;
        let prefix = String::from_utf8(found.stdout.clone()).ok().filter(|_| found.status.success());
        let prefix = prefix.ok_or_else(|| self.unusable(&found))?;
        Ok(prefix.strip_suffix('\n').unwrap_or(&prefix).to_owned())
    }

    /// Returns the root of the repository's files.
    ///
    /// # Errors
    /// Returns an error if git fails, for example in a bare repository.
    pub(crate) async fn top(&self) -> Result<PathBuf, CliError> {
        let found = self.git(&["rev-parse", "--show-toplevel"]).await?;
        let path = found.stdout.strip_suffix(b"\n").filter(|path| found.status.success() && !path.is_empty());
        path.map(|path| OsStr::from_bytes(path).into()).ok_or_else(|| self.unusable(&found))
    }

    /// Whether ignore rules of the repository exclude the folder.
    ///
    /// # Errors
    /// Returns an error if git is not installed.
    pub(crate) async fn ignores_own_folder(&self) -> Result<bool, CliError> {
        Ok(self.git(&["check-ignore", "--quiet", "."]).await?.status.success())
    }

    /// Whether the repository is a partial clone, which lacks objects.
    ///
    /// # Errors
    /// Returns an error if git is not installed.
    pub(super) async fn is_partial(&self) -> Result<bool, CliError> {
        let names = self
            .git(&["config", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$"])
            .await?;
        Ok(names.status.success())
    }

    /// Returns the paths of tracked files that a sparse checkout leaves out of the working tree.
    ///
    /// # Errors
    /// Returns an error if git is not installed.
    pub(super) async fn left_out_by_sparse_checkout(&self) -> Result<HashSet<Vec<u8>>, CliError> {
        let enabled = self.git(&["config", "--type=bool", "core.sparseCheckout"]).await?;
        if enabled.stdout != b"true\n" {
            return Ok(HashSet::new());
        }
        let listed = self.git(&["ls-files", "-t", "-z", "--full-name", ":/"]).await?;
        let paths = listed.stdout.split(|byte| *byte == 0).filter_map(|line| line.strip_prefix(b"S "));
        Ok(paths.map(<[u8]>::to_vec).collect())
    }

    fn unusable(&self, output: &Output) -> CliError {
        CliError::failed(format!("git cannot use {}: {}", self.folder.display(), stderr_tail(output)))
    }

    /// Returns the commit that `HEAD` points to.
    pub(crate) async fn head(&self) -> Result<Option<ObjectId>, CliError> {
        self.resolve("HEAD").await
    }

    /// Whether the repository has this commit.
    pub(crate) async fn has(&self, commit: &ObjectId) -> Result<bool, CliError> {
        let known = self.git(&["cat-file", "-e", &format!("{}^{{commit}}", commit.as_str())]).await?;
        Ok(known.status.success())
    }

    /// Fetches a commit from the reference `source` of the local repository `from` into the branch of `root`. Updates
    /// no other branch. Replaces an earlier commit of uncommitted work, and no other commits that `from` does not have.
    ///
    /// # Errors
    /// Returns an error if the fetch fails. The error has a hint.
    pub(super) async fn take(
        &self,
        root: &Root,
        from: &Repository<'_>,
        source: &str,
    ) -> Result<Fetched, CliError> {
        let branch = &root.branch;
        let target = format!("refs/heads/{branch}");
        let before = self.resolve(&target).await?;
        let replaced = match &before {
            Some(before) if self.is_replaced(before, from, source).await? => Some(before.clone()),
            _ => None,
        };
        let force = if replaced.is_some() { "+" } else { "" };
        let mut command = self.command();
        command.args(["-c", "protocol.file.allow=always"]);
        command.args(FETCH).arg(&from.folder).arg(format!("{force}{source}:{target}"));
        let fetched = run(command).await?;
        if !fetched.status.success() {
            return Err(FetchError::new(stderr_tail(&fetched)).explained(root, None));
        }
        let after = self.resolve(&target).await?;
        let after = after.ok_or_else(|| {
            CliError::failed(format!("cannot find {branch} after the fetch"))
                .hint("another process removed it; pull again")
        })?;
        let commits = self.count(&after).await?;
        Ok(Fetched { branch: branch.clone(), before, replaced, after, commits })
    }

    /// Whether a fetch replaces this commit of the branch, because it is a commit of earlier uncommitted work on a
    /// commit that `source` contains.
    async fn is_replaced(
        &self,
        before: &ObjectId,
        from: &Repository<'_>,
        source: &str,
    ) -> Result<bool, CliError> {
        if !self.is_replaceable(before).await? || from.is_ancestor(before, source).await? {
            return Ok(false);
        }
        match self.parent(before).await? {
            Some(parent) => from.is_ancestor(&parent, source).await,
            None => Ok(true),
        }
    }

    async fn is_ancestor(&self, commit: &ObjectId, of: &str) -> Result<bool, CliError> {
        Ok(self.git(&["merge-base", "--is-ancestor", commit.as_str(), of]).await?.status.success())
    }

    /// Fetches one reference of the bottle's repository into a reference of this one.
    ///
    /// # Errors
    /// Returns an error if git is not installed. If git fails, the inner result is an error.
    pub(super) async fn fetch_as(
        &self,
        root: &Root,
        source: &str,
        target: &str,
    ) -> Result<Result<(), FetchError>, CliError> {
        let mut command = self.command();
        command.env("GIT_SSH_COMMAND", self.transport()?).env("GIT_SSH_VARIANT", "simple");
        command.env(pipe::SLUG, root.slug.as_str()).env(pipe::PATH, root.path());
        command.env("BOTTLE_HOME", &self.host.home);
        command.args(FETCH).args(["ssh://bottle/workspace", &format!("{source}:{target}")]);
        let fetched = run(command).await?;
        Ok(if fetched.status.success() { Ok(()) } else { Err(FetchError::new(stderr_tail(&fetched))) })
    }

    /// Returns the command of the transport, quoted for the shell that git uses.
    fn transport(&self) -> Result<String, CliError> {
        let program = self.host.program.to_str().and_then(|program| shlex::try_quote(program).ok());
        let program = program.ok_or_else(|| CliError::failed("cannot pass this program's path to git"))?;
        Ok(format!("{program} __git-pipe"))
    }

    pub(super) async fn branch_reference(&self, branch: &str) -> Result<String, CliError> {
        let name = format!("refs/heads/{branch}");
        let good = self.git(&["check-ref-format", &name]).await?.status.success();
        // A colon would make the name a refspec, and a star would make it a pattern.
        if good && !branch.contains([':', '*', '^']) {
            return Ok(name);
        }
        Err(CliError::usage(format!("{branch:?} is not a valid branch name"))
            .about("--branch")
            .hint("write it as `git branch` in the bottle shows it"))
    }

    pub(super) async fn resolve(&self, name: &str) -> Result<Option<ObjectId>, CliError> {
        let name = format!("{name}^{{commit}}");
        let found = self.git(&["rev-parse", "--quiet", "--verify", "--end-of-options", &name]).await?;
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        Ok(if found.status.success() { ObjectId::parse(&text) } else { None })
    }

    async fn count(&self, tip: &ObjectId) -> Result<u64, CliError> {
        let mut arguments = vec!["rev-list", "--count", tip.as_str()];
        if self.head().await?.is_some() {
            arguments.extend(["--not", "HEAD"]);
        }
        arguments.push("--");
        let counted = self.git(&arguments).await?;
        String::from_utf8_lossy(&counted.stdout)
            .trim()
            .parse()
            .map_err(|_| CliError::failed(format!("git cannot count commits: {}", stderr_tail(&counted))))
    }

    pub(super) async fn git(&self, arguments: &[&str]) -> Result<Output, CliError> {
        let mut command = self.command();
        command.args(arguments);
        run(command).await
    }

    /// Creates a git command without arguments.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("git");
        command.env_clear();
        for name in INHERITED {
            command.envs(self.host.env.get(OsStr::new(name)).map(|value| (name, value)));
        }
        command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("LC_ALL", "C")
            .arg("-C")
            .arg(&self.folder);
        for setting in CONFIGURATION {
            command.args(["-c", setting]);
        }
        command
    }
}

pub(super) async fn run(mut command: Command) -> Result<Output, CliError> {
    command.stdin(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    // Git is killed when this process ends, so that an interrupted fetch does not appear to be complete.
    command.kill_on_drop(true);
    command.output().await.map_err(spawn_failed)
}

/// The error when git cannot be run.
pub(super) fn spawn_failed(error: std::io::Error) -> CliError {
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    CliError::cannot("run git", error).hint_if(missing.then(|| "install git on this machine".to_owned()))
}

/// Returns the end of git's standard error. Parts of this text may come from the bottle.
pub(super) fn stderr_tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    let from = text.char_indices().rev().nth(STDERR_TAIL).map_or(0, |(at, _)| at);
    inert(&text[from..])
}

/// Whether git's standard error says that a folder is not in a repository.
pub(super) fn is_no_repository(stderr: &[u8]) -> bool {
    String::from_utf8_lossy(stderr).contains("not a git repository")
}

impl FetchError {
    fn new(stderr: String) -> Self {
        let says = |words: &str| stderr.contains(words);
        let cause = if says("couldn't find remote ref") {
            FetchCause::NoSuchReference
        } else if says("non-fast-forward") || says("[rejected]") {
            FetchCause::Diverged
        } else if says("refusing to fetch into") {
            FetchCause::CheckedOut
        } else {
            FetchCause::Other
        };
        Self { cause, stderr }
    }

    /// Creates the error for a user who pulls this branch, or `HEAD`.
    pub(super) fn explained(self, root: &Root, branch: Option<&str>) -> CliError {
        let Root { slug, branch: own, .. } = root;
        match (self.cause, branch) {
            (FetchCause::NoSuchReference, Some(branch)) => {
                let folder = if root.is_folder() { format!(" -C {}", root.path()) } else { String::new() };
                CliError::state(format!("{}there is no branch {branch:?} in the bottle", root.label()))
                    .about("--branch")
                    .hint(format!("`bottle exec {slug} -- git{folder} branch` lists its branches"))
            }
            (FetchCause::NoSuchReference, None) => {
                CliError::state("the bottle has no commits").hint(copy_out_hint(slug))
            }
            (FetchCause::Diverged, _) => CliError::state(format!(
                "{own} has commits that are not in the bottle"
            ))
            .hint(format!("keep them under another name with `git branch -m {own} NAME`, then pull again")),
            (FetchCause::CheckedOut, _) => CliError::state(format!("cannot update {own}: it is checked out"))
                .hint("check another branch out first"),
            (FetchCause::Other, _) => CliError::failed(self.to_string()).hint(copy_out_hint(slug)),
        }
    }
}
