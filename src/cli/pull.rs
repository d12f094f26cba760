//! `bottle pull`: fetches a bottle's commits, and its uncommitted work, into a branch of the user's repository.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_lib::connect::open_files;
use bottle_lib::work::{PulledWork, Root, Wanted, forks, pull};
use bottle_policy::names::Slug;

use super::candidates;
use super::confirm_repositories::confirm_repositories;
use super::pulled_work::{failed, print, report, warn};
use crate::console::error::{CliError, Kind, require_answer};
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// Fetch a bottle's commits into the branch `bottle/SLUG` of your repository
///
/// Uses the repository that the bottle was started in with `--cwd`. If there is none, or it is not the one that was
/// copied, asks; `--repository` answers. In this repository, the command changes only the branch `bottle/SLUG`, and no tag,
/// submodule, configuration or checked-out file. It also works after the bottle ended, if its files are kept.
///
/// With several `--cwd`, fetches from each directory into the repository that it was copied from.
#[derive(Debug, clap::Args)]
pub(crate) struct Pull {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// Fetch this branch instead of the bottle's HEAD
    #[arg(long, value_name = "BRANCH")]
    branch: Option<String>,
    /// Also take the uncommitted and new files, except ignored ones, as one commit on top of the branch. The bottle's
    /// repository does not change
    #[arg(long, conflicts_with = "branch")]
    uncommitted: bool,
    /// Only fetch from the repository in this directory of the workspace
    #[arg(long, alias = "folder", value_name = "DIRECTORY")]
    directory: Option<String>,
    /// Fetch into this repository, instead of the one that was copied
    #[arg(long, value_name = "PATH")]
    repository: Option<PathBuf>,
    /// Also fetch from every bottle that was forked from this one, each into its own branch
    #[arg(long)]
    all_forks: bool,
}

impl Pull {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(async {
            if self.all_forks {
                return self.pull_all(host, output).await;
            }
            self.pull_and_offer(host, output).await
        })?;
        Ok(exit::DONE)
    }

    /// Pulls from the bottle. If the pull left uncommitted work behind, or if nothing is committed, offers to pull the
    /// uncommitted work too.
    async fn pull_and_offer(&self, host: &Host, output: &Output) -> Result<(), CliError> {
        let asks = !self.uncommitted && self.branch.is_none() && !output.json && terminal::interactive();
        let pulled = self.pull_one(host, &self.slug, self.uncommitted, output).await;
        let question = match &pulled {
            Ok(pulled) => question(pulled),
            Err(error) if error.failure.kind == Kind::NothingCommitted => {
                Some(format!("Take the files of its workspace, as one commit on bottle/{}?", self.slug))
            }
            Err(_) => None,
        };
        let Some(question) = question.filter(|_| asks) else { return report(pulled?, output) };
        match &pulled {
            Ok(pulled) => {
                print(pulled, output)?;
                pulled.failures().take(1).for_each(|failure| output.warn(failure));
            }
            Err(error) => output.warn(&error.failure.message),
        }
        let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
        if !require_answer(asked, "the uncommitted work was not taken")? {
            return failed(pulled?);
        }
        report(self.pull_one(host, &self.slug, true, output).await?, output)
    }

    async fn pull_one(
        &self,
        host: &Host,
        slug: &Slug,
        uncommitted: bool,
        output: &Output,
    ) -> Result<PulledWork, CliError> {
        let pulled = async {
            let (record, channel) = open_files(host, slug, |_| Ok(())).await?;
            let directory = self.directory.as_deref();
            let mut roots = Root::of(host, &record, directory)?;
            confirm_repositories(&mut roots, self.repository.as_deref(), Some(&host.cwd), output)?;
            let wanted =
                Wanted { branch: self.branch.as_deref(), uncommitted, directory, roots: Some(&roots) };
            let left = "the local branch is either unchanged or complete";
            let pulling = async |_| Ok(pull(host, &record, &channel, wanted).await?);
            progress::with_progress("pulling", left, output, pulling).await
        };
        pulled.await.map_err(|error: CliError| error.about_if_unset(slug))
    }

    /// Pulls from the bottle and from its forks. If the pull from one bottle fails, continues with the other bottles.
    async fn pull_all(&self, host: &Host, output: &Output) -> Result<(), CliError> {
        let forks = forks(host, &self.slug)?;
        let mut all = Vec::new();
        let mut failed = None;
        for slug in std::iter::once(&self.slug).chain(&forks) {
            let error = match self.pull_one(host, slug, self.uncommitted, output).await {
                Ok(pulled) => {
                    if output.json {
                        all.extend(pulled.documents());
                        warn(&pulled, output);
                    } else {
                        print(&pulled, output)?;
                    }
                    pulled.failure().map(CliError::from)
                }
                Err(error) => Some(error),
            };
            let Some(error) = error else { continue };
            let message = error.failure.message.clone();
            if failed.replace(error).is_some() {
                output.warn(format!("{slug} was not pulled: {message}"));
            }
        }
        if output.json {
            output.print_json(&all)?;
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Returns the question whether to pull the uncommitted work too. Returns `None` if all work is committed.
fn question(work: &PulledWork) -> Option<String> {
    let branches = work.branches_with_more();
    (!branches.is_empty())
        .then(|| format!("Take the uncommitted work too, as one commit on {}?", branches.join(", ")))
}
