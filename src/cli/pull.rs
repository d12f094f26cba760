//! `bottle pull`: fetches a bottle's commits into a branch of the user's repository.

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_guest::file_clock::before_any_change;

use super::completions;
use super::connect::{connect_or_open_files, keeper_lost, unavailable, unlistable};
use super::error::CliError;
use super::exit;
use super::git::{BottleGit, Fetched, Repository, Scratch, copy_out_hint};
use super::json_schema;
use super::output::{Output, counted};
use super::progress;
use crate::backend::Access;
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::{State, Store};
use crate::keeper::protocol::{KeeperEvent, KeeperRequest};

/// Fetch a bottle's commits into the branch `bottle/SLUG` of your repository
///
/// Uses the repository that the bottle was started in with `--cwd`, otherwise the repository that contains
/// the working directory. In this repository, the command changes only the branch `bottle/SLUG`, and no tag,
/// submodule, configuration or checked-out file. It also works after the bottle ended, if its files are preserved.
#[derive(Debug, clap::Args)]
pub(crate) struct Pull {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::with_files())]
    slug: Slug,
    /// Fetch this branch instead of the bottle's HEAD
    #[arg(long, value_name = "BRANCH")]
    branch: Option<String>,
    /// Also fetch from every bottle that was forked from this one, each into its own branch
    #[arg(long)]
    all_forks: bool,
}

/// The result of a pull.
pub(crate) struct Pulled {
    fetched: Fetched,
    /// The number of uncommitted files in the bottle.
    uncommitted: usize,
    /// The number of branches with commits that the user's repository does not have.
    elsewhere: usize,
}

impl Pulled {
    /// Whether git has no further changes in the bottle that could be lost.
    pub(crate) fn is_complete(&self) -> bool {
        self.uncommitted == 0 && self.elsewhere == 0
    }
}

impl Pull {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        super::block_on(async {
            if self.all_forks {
                return self.pull_all(host, output).await;
            }
            let pulled = self.pull_one(host, &self.slug, output).await?;
            report(&self.slug, &pulled, output)
        })?;
        Ok(exit::DONE)
    }

    async fn pull_one(&self, host: &Host, slug: &Slug, output: &Output) -> Result<Pulled, CliError> {
        let pulled = async {
            let record = record(host, slug).await?;
            let channel = connect_or_open_files(host, slug, Access::Read).await?;
            let branch = self.branch.as_deref();
            let left = "the local branch is either unchanged or complete";
            let pulling = async |_| pull(host, &record, &channel, branch).await;
            progress::with_progress("pulling", left, output, pulling).await
        };
        pulled.await.map_err(|error: CliError| error.about_if_unset(slug))
    }

    /// Pulls from the bottle and from its forks. A bottle that cannot be pulled does not prevent the others.
    async fn pull_all(&self, host: &Host, output: &Output) -> Result<(), CliError> {
        let forks = forks(host, &self.slug)?;
        let mut all = Vec::new();
        let mut failed = None;
        for slug in std::iter::once(&self.slug).chain(&forks) {
            match self.pull_one(host, slug, output).await {
                Ok(pulled) if output.json => all.push(described(slug, &pulled)),
                Ok(pulled) => report(slug, &pulled, output)?,
                Err(error) => {
                    let message = error.message.clone();
                    if failed.replace(error).is_some() {
                        output.warn(format!("{slug} was not pulled: {message}"));
                    }
                }
            }
        }
        if output.json {
            output.print_json(&all)?;
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The bottles that were forked from this one or from its forks, without those of which only logs remain.
fn forks(host: &Host, slug: &Slug) -> Result<Vec<Slug>, CliError> {
    let listed = Store::of(host).list().map_err(unlistable)?;
    let mut origins: Vec<(Slug, Slug)> = Vec::new();
    for listed in listed {
        if let State::Alive(record) | State::Dead(record) | State::Preserved(record) = listed.state
            && !record.has_only_logs()
            && let Some(from) = record.forked_from
        {
            origins.push((listed.slug, from));
        }
    }
    let mut found = vec![slug.clone()];
    let mut next = 0;
    while let Some(from) = found.get(next).cloned() {
        let of_it = origins.iter().filter(|(slug, origin)| *origin == from && !found.contains(slug));
        let of_it: Vec<Slug> = of_it.map(|(slug, _)| slug.clone()).collect();
        found.extend(of_it);
        next += 1;
    }
    Ok(found.split_off(1))
}

/// Returns the record of a bottle that runs or is preserved.
pub(crate) async fn record(host: &Host, slug: &Slug) -> Result<Record, CliError> {
    match Store::of(host).state(slug) {
        Some(State::Alive(record) | State::Dead(record) | State::Preserved(record)) => Ok(*record),
        _ => Err(unavailable(host, slug).await),
    }
}

/// Fetches the commits. If this saved all work in the bottle, reports it to the keeper.
pub(crate) async fn pull(
    host: &Host,
    record: &Record,
    channel: &Channel,
    branch: Option<&str>,
) -> Result<Pulled, CliError> {
    let repository = repository(host, record).await?;
    let workspace = BottleGit { channel, slug: &record.slug }.workspace().await?;
    if workspace.head.is_none() && branch.is_none() {
        return Err(CliError::state(format!("{} has no commits", record.slug))
            .about(&record.slug)
            .hint("`bottle diff` shows its files, `bottle cp` copies them out"));
    }
    // Changes that the agent makes after this time may be missing from the pull.
    let started_at = before_any_change();
    let tips = workspace.tips().await?;
    let fetched = repository.fetch(&record.slug, branch).await?;
    let uncommitted = uncommitted(host, &repository, &record.slug, channel, &fetched).await?;
    let mut elsewhere = 0;
    for tip in &tips {
        elsewhere += usize::from(!repository.has(tip).await?);
    }
    let pulled = Pulled { fetched, uncommitted, elsewhere };
    if pulled.is_complete() {
        let mut stream =
            channel.open(&KeeperRequest::Pulled { at: started_at }).await.map_err(keeper_lost)?;
        match stream.receive::<KeeperEvent>().await {
            Ok(KeeperEvent::Done) => {}
            // If the keeper did not record the pull, it preserves the bottle's work although the work was pulled.
            other => tracing::warn!("the keeper did not record the pull: {other:?}"),
        }
    }
    Ok(pulled)
}

/// Counts uncommitted files by comparing their content on the host. The agent controls the git in the bottle,
/// which could hide changes that would be lost with the bottle.
async fn uncommitted(
    host: &Host,
    repository: &Repository<'_>,
    slug: &Slug,
    channel: &Channel,
    fetched: &Fetched,
) -> Result<usize, CliError> {
    let counted = async {
        let scratch = Scratch::create(host, Some(repository), Some(&fetched.after)).await?;
        let tip = scratch.fetch(slug).await?;
        scratch.uncommitted(channel, slug, tip.as_ref()).await
    };
    counted.await.map_err(|error| CliError {
        message: format!(
            "{} was pulled; its uncommitted files are unknown: {}",
            fetched.branch, error.message
        ),
        ..error
    })
}

/// Returns the repository that the workspace was copied from, otherwise the repository that contains the
/// working directory.
pub(crate) async fn repository<'a>(host: &'a Host, record: &Record) -> Result<Repository<'a>, CliError> {
    let folder = if record.copied_cwd { &record.cwd } else { &host.cwd };
    Repository::containing(host, folder).await?.ok_or_else(|| {
        CliError::state(format!("{} is not in a git repository", folder.display()))
            .hint(copy_out_hint(&record.slug))
    })
}

/// Prints the result of the pull.
pub(crate) fn report(slug: &Slug, pulled: &Pulled, output: &Output) -> Result<(), CliError> {
    if output.json {
        return output.print_json(&described(slug, pulled));
    }
    let Pulled { fetched: Fetched { branch, commits, .. }, uncommitted, elsewhere } = pulled;
    output.print(branch)?;
    output.note(match commits {
        0 => format!("{branch} has no commits that HEAD lacks"),
        1 => format!("{branch} has 1 commit that HEAD lacks; `git log HEAD..{branch}` shows it"),
        many => format!("{branch} has {many} commits that HEAD lacks; `git log HEAD..{branch}` shows them"),
    });
    if *uncommitted > 0 {
        let (files, are) = (counted(*uncommitted, "file"), if *uncommitted == 1 { "is" } else { "are" });
        output.warn(format!("{files} {are} uncommitted; `bottle diff {slug}` shows the changes"));
    }
    if *elsewhere > 0 {
        let branches =
            if *elsewhere == 1 { "1 other branch".to_owned() } else { format!("{elsewhere} other branches") };
        output.warn(format!("commits on {branches} in the bottle were not pulled; `--branch` pulls one"));
    }
    Ok(())
}

fn described(slug: &Slug, pulled: &Pulled) -> json_schema::Pulled {
    let Pulled { fetched: Fetched { branch, before, after, commits }, uncommitted, elsewhere } = pulled;
    json_schema::Pulled {
        slug: slug.to_string(),
        branch: branch.clone(),
        before: before.as_ref().map(|id| id.as_str().to_owned()),
        after: after.as_str().to_owned(),
        commits: *commits,
        uncommitted: *uncommitted,
        elsewhere: *elsewhere,
    }
}
