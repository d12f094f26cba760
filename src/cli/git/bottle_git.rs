//! Runs git in the bottle and reads its output: untrusted and bounded.

use std::time::Duration;

use bottle_channel::{Channel, Event};
use bottle_contract::names::{Slug, WORKSPACE};
use bottle_contract::session::guest::{Exit, FailureKind, GuestEvent, GuestRequest, Process, STDERR, STDOUT};

use super::ObjectId;
use crate::cli::connect::{lost, open_guest};
use crate::cli::error::{CliError, Kind};
use crate::cli::exit;

/// How long one command may take.
const WITHIN: Duration = Duration::from_secs(300);

/// The most bytes read of standard output.
const MOST: usize = 16 << 20;

/// The most bytes kept of standard error.
const COMPLAINTS: usize = 4096;

/// The most branches of a workspace that are read.
const BRANCHES: usize = 1000;

/// A bottle that runs commands.
pub(crate) struct Inside<'a> {
    pub(crate) channel: &'a Channel,
    /// The bottle's slug.
    pub(crate) slug: &'a Slug,
}

/// The result of a command.
pub(crate) struct Said {
    code: u8,
    output: Vec<u8>,
    complaints: Vec<u8>,
}

impl Said {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

/// The git repository in a bottle's workspace.
pub(crate) struct Workspace<'a> {
    inside: Inside<'a>,
    /// The commit of `HEAD`; none without commits.
    pub(crate) head: Option<ObjectId>,
}

impl<'a> Inside<'a> {
    /// Finds the repository in the workspace.
    ///
    /// # Errors
    /// When git is missing in the bottle, or the workspace is not a repository.
    pub(crate) async fn workspace(self) -> Result<Workspace<'a>, CliError> {
        let found = self.git(&["rev-parse", "--git-dir"]).await?;
        if found.code == exit::NOT_FOUND {
            return Err(self.no_git());
        }
        if found.code != 0 {
            let said = String::from_utf8_lossy(&found.complaints);
            let message = if said.contains("not a git repository") {
                format!("the workspace of {} is not a git repository", self.slug)
            } else {
                format!("git in {} failed: {}", self.slug, said.trim())
            };
            return Err(CliError::new(Kind::State, message).about(self.slug).hint(as_it_is(self.slug)));
        }
        let head = self.git(&["rev-parse", "--quiet", "--verify", "HEAD^{commit}"]).await?;
        let head = if head.code == 0 { ObjectId::parse(&head.text()) } else { None };
        Ok(Workspace { inside: self, head })
    }

    async fn git(&self, arguments: &[&str]) -> Result<Said, CliError> {
        let mut argv = vec!["git", "--no-pager", "-C", WORKSPACE];
        argv.extend(arguments);
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        // The query writes nothing: a write would count as a change of the work.
        let env = [("LC_ALL", "C"), ("GIT_OPTIONAL_LOCKS", "0")];
        let process = Process {
            argv: argv.clone(),
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            cwd: None,
            terminal: None,
            stdin: false,
            user: None,
            awaited: false,
        };
        let run = self.to_its_end(process);
        tokio::time::timeout(WITHIN, run).await.map_err(|_| {
            CliError::failed(format!("`{}` in the bottle timed out", argv.join(" ")))
                .hint(as_it_is(self.slug))
        })?
    }

    async fn to_its_end(&self, process: Process) -> Result<Said, CliError> {
        let mut stream = open_guest(self.channel, GuestRequest::Exec(process)).await?;
        let mut said = Said { code: 0, output: Vec::new(), complaints: Vec::new() };
        while let Some(event) = stream.next().await {
            match event {
                Event::Data { fd: STDOUT, bytes } => {
                    let room = MOST - said.output.len();
                    said.output.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Event::Data { fd: STDERR, bytes } => {
                    let room = COMPLAINTS - said.complaints.len();
                    said.complaints.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Event::Data { .. } => {}
                Event::Message(json) => match serde_json::from_slice(&json) {
                    Ok(GuestEvent::Exited(exit)) => {
                        said.code = Exit::shell_code(exit);
                        return Ok(said);
                    }
                    Ok(GuestEvent::Failed(failure)) if failure.kind == FailureKind::NotFound => {
                        return Err(self.no_git());
                    }
                    Ok(GuestEvent::Failed(failure)) => return Err(CliError::failed(failure.message)),
                    _ => {}
                },
                Event::End | Event::Reset(_) => break,
            }
        }
        Err(lost("the bottle ended the command"))
    }

    fn no_git(&self) -> CliError {
        CliError::new(Kind::State, format!("git is not installed in {}", self.slug))
            .about(self.slug)
            .hint(as_it_is(self.slug))
    }
}

/// The hint for workspaces that git cannot export.
pub(crate) fn as_it_is(slug: &Slug) -> String {
    format!("`bottle cp {slug}:. FOLDER` copies the workspace out while the bottle runs")
}

impl Workspace<'_> {
    /// Returns the commits of its branches and its stash.
    pub(crate) async fn tips(&self) -> Result<Vec<ObjectId>, CliError> {
        let count = format!("--count={BRANCHES}");
        let arguments = ["for-each-ref", &count, "--format=%(objectname)", "refs/heads", "refs/stash"];
        let said = self.expect(&arguments).await?;
        Ok(said.text().lines().filter_map(ObjectId::parse).collect())
    }

    async fn expect(&self, arguments: &[&str]) -> Result<Said, CliError> {
        let said = self.inside.git(arguments).await?;
        if said.code == 0 {
            return Ok(said);
        }
        let complaints = String::from_utf8_lossy(&said.complaints).trim().to_owned();
        Err(CliError::failed(format!("`git {}` in the bottle failed: {complaints}", arguments[0]))
            .hint(as_it_is(self.inside.slug)))
    }
}
