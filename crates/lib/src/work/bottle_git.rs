//! Runs git in the bottle and reads its output. The output is untrusted, so its length is limited.

use std::time::Duration;

use bottle_channel::{Channel, Event};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Exit, FailureKind, GuestEvent, GuestRequest, Process, STDERR, STDOUT};

use super::{ObjectId, Root};
use crate::connect::{keeper_lost, open_guest};
use crate::failure::{Failure, Kind};

/// The time limit for one git command in the bottle. The commands read a few small files, but the agent may have
/// replaced these files with pipes, which block git.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The exit code of a shell for a program that does not exist.
const NOT_FOUND: u8 = 127;

/// The maximum number of bytes kept of standard output. The rest is dropped.
const MAX_OUTPUT: usize = 16 << 20;

/// The maximum number of bytes kept of standard error. The rest is dropped.
const MAX_STDERR: usize = 4096;

/// The maximum number of branches of a workspace that are read. Further branches are ignored.
const BRANCHES: usize = 1000;

/// A bottle in which git commands run.
pub(crate) struct BottleGit<'a> {
    /// The connection to the bottle's keeper.
    pub channel: &'a Channel,
    /// The root of the workspace that contains the repository.
    pub root: &'a Root,
}

/// The result of a git command.
pub(crate) struct GitOutput {
    code: u8,
    output: Vec<u8>,
    stderr: Vec<u8>,
}

impl GitOutput {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

/// The git repository in a bottle's workspace.
pub(crate) struct Workspace<'a> {
    inside: BottleGit<'a>,
    /// The commit that `HEAD` points to. `None` if there are no commits.
    pub head: Option<ObjectId>,
}

/// Whether git's standard error says that a directory is not in a repository.
fn is_no_repository(stderr: &[u8]) -> bool {
    String::from_utf8_lossy(stderr).contains("not a git repository")
}

impl<'a> BottleGit<'a> {
    /// Finds the repository in the workspace.
    ///
    /// # Errors
    /// Returns an error if git is missing in the bottle, or the workspace is not a git repository.
    pub(crate) async fn workspace(self) -> Result<Workspace<'a>, Failure> {
        let root = self.root;
        self.find_workspace()
            .await?
            .ok_or_else(|| nothing_committed(&root.slug, format!("{root} is not a git repository")))
    }

    /// Finds the repository in the workspace. `None` if the workspace is not a git repository.
    ///
    /// # Errors
    /// Returns an error if git is missing in the bottle, or fails.
    pub(crate) async fn find_workspace(self) -> Result<Option<Workspace<'a>>, Failure> {
        let found = self.git(&["rev-parse", "--git-dir"]).await?;
        if found.code == NOT_FOUND {
            return Err(self.no_git());
        }
        if found.code != 0 && is_no_repository(&found.stderr) {
            return Ok(None);
        }
        if found.code != 0 {
            let stderr = String::from_utf8_lossy(&found.stderr);
            let slug = &self.root.slug;
            return Err(Failure::state(format!("git in {slug} failed: {}", stderr.trim()))
                .about(slug)
                .hint(copy_out_hint(slug)));
        }
        let head = self.git(&["rev-parse", "--quiet", "--verify", "HEAD^{commit}"]).await?;
        let head = if head.code == 0 { ObjectId::parse(&head.text()) } else { None };
        Ok(Some(Workspace { inside: self, head }))
    }

    async fn git(&self, arguments: &[&str]) -> Result<GitOutput, Failure> {
        let path = self.root.path();
        let mut argv = vec!["git", "--no-pager", "-C", &path];
        argv.extend(arguments);
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        // `GIT_OPTIONAL_LOCKS` prevents git from writing to the repository, because this would be treated as a change
        // of the work. `GIT_CEILING_DIRECTORIES` prevents git from using a repository that contains the root's
        // directory.
        let ceiling = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let env = [("LC_ALL", "C"), ("GIT_OPTIONAL_LOCKS", "0"), ("GIT_CEILING_DIRECTORIES", ceiling)];
        let process = Process {
            argv: argv.clone(),
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Process::default()
        };
        let run = self.run_to_end(process);
        tokio::time::timeout(TIMEOUT, run).await.map_err(|_| {
            Failure::failed(format!("`{}` in the bottle timed out", argv.join(" ")))
                .hint(copy_out_hint(&self.root.slug))
        })?
    }

    async fn run_to_end(&self, process: Process) -> Result<GitOutput, Failure> {
        let mut stream = open_guest(self.channel, GuestRequest::Exec(process)).await?;
        let mut output = GitOutput { code: 0, output: Vec::new(), stderr: Vec::new() };
        while let Some(event) = stream.next().await {
            match event {
                Event::Data { fd: STDOUT, bytes } => {
                    let room = MAX_OUTPUT - output.output.len();
                    output.output.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Event::Data { fd: STDERR, bytes } => {
                    let room = MAX_STDERR - output.stderr.len();
                    output.stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Event::Data { .. } => {}
                Event::Message(json) => match serde_json::from_slice(&json) {
                    Ok(GuestEvent::Exited(exit)) => {
                        output.code = Exit::shell_code(exit);
                        return Ok(output);
                    }
                    Ok(GuestEvent::Failed(failure)) if failure.kind == FailureKind::NotFound => {
                        return Err(self.no_git());
                    }
                    Ok(GuestEvent::Failed(failure)) => return Err(Failure::failed(failure.message)),
                    _ => {}
                },
                Event::End | Event::Reset(_) => break,
            }
        }
        Err(keeper_lost("the bottle ended the command"))
    }

    fn no_git(&self) -> Failure {
        let slug = &self.root.slug;
        Failure::state(format!("git is not installed in {slug}")).about(slug).hint(copy_out_hint(slug))
    }
}

/// The error if a bottle has no commits to pull.
pub(crate) fn nothing_committed(slug: &Slug, message: String) -> Failure {
    Failure::new(Kind::NothingCommitted, message)
        .about(slug)
        .hint(format!("`bottle pull {slug} --uncommitted` takes its files as one commit"))
}

/// The hint that a workspace can be copied out if git cannot export it.
pub(crate) fn copy_out_hint(slug: &Slug) -> String {
    format!("`bottle cp {slug}:. DIRECTORY` copies the workspace out")
}

impl Workspace<'_> {
    /// Returns the commits that the repository's branches and its stash point to.
    pub(crate) async fn tips(&self) -> Result<Vec<ObjectId>, Failure> {
        let count = format!("--count={BRANCHES}");
        let arguments = ["for-each-ref", &count, "--format=%(objectname)", "refs/heads", "refs/stash"];
        let output = self.expect(&arguments).await?;
        Ok(output.text().lines().filter_map(ObjectId::parse).collect())
    }

    async fn expect(&self, arguments: &[&str]) -> Result<GitOutput, Failure> {
        let output = self.inside.git(arguments).await?;
        if output.code == 0 {
            return Ok(output);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Failure::failed(format!("`git {}` in the bottle failed: {stderr}", arguments[0]))
            .hint(copy_out_hint(&self.inside.root.slug)))
    }
}
