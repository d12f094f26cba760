//! `bottle pull`: fetches a bottle's commits, and its uncommitted work, into a branch of the user's repository.

use std::time::{Duration, Instant};

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_guest::file_clock::before_any_change;
use jiff::Timestamp;

use super::completions;
use super::connect::{connect_or_open_files, keeper_lost, unavailable, unlistable};
use super::diff::warn_left_out;
use super::error::{CliError, Kind, require_answer};
use super::exit;
use super::git::{
    Author, BottleGit, Fetched, LeftOut, ObjectId, Repository, Scratch, Uncommitted, copy_out_hint,
    nothing_committed,
};
use super::json_schema;
use super::output::{Output, counted, inert};
use super::progress;
use super::terminal::{self, TerminalUser};
use crate::backend::Access;
use crate::host::Host;
use crate::instance::record::{Record, Status};
use crate::instance::{State, Store};
use crate::keeper::protocol::{KeeperEvent, KeeperRequest};

/// The maximum time for the end of a bottle that is being torn down.
const ENDING: Duration = Duration::from_secs(30);

/// The pause between two looks at its state.
const POLL: Duration = Duration::from_millis(50);

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
    /// Also take the uncommitted and new files, except ignored ones, as one commit on top of the branch. The bottle's
    /// repository does not change
    #[arg(long, conflicts_with = "branch")]
    uncommitted: bool,
    /// Also fetch from every bottle that was forked from this one, each into its own branch
    #[arg(long)]
    all_forks: bool,
}

/// The result of a pull.
pub(crate) struct Pulled {
    fetched: Fetched,
    /// The number of uncommitted files that the pull committed.
    taken: usize,
    /// The number of uncommitted files in the bottle that were not pulled.
    uncommitted: usize,
    /// The number of branches with commits that the user's repository does not have.
    elsewhere: usize,
    /// The files that were not compared.
    left_out: LeftOut,
    /// Why the bottle's commits could not be read.
    unread: Option<String>,
}

impl Pulled {
    /// Whether the bottle has no further changes that could be lost.
    pub(crate) fn is_complete(&self) -> bool {
        let Self { uncommitted, elsewhere, left_out, unread, .. } = self;
        *uncommitted == 0 && *elsewhere == 0 && left_out.places.is_empty() && unread.is_none()
    }
}

impl Pull {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        super::block_on(async {
            if self.all_forks {
                return self.pull_all(host, output).await;
            }
            self.pull_and_offer(host, output).await
        })?;
        Ok(exit::DONE)
    }

    /// Pulls. If uncommitted work was left behind, or nothing is committed, offers to take it too.
    async fn pull_and_offer(&self, host: &Host, output: &Output) -> Result<(), CliError> {
        let asks = !self.uncommitted && self.branch.is_none() && !output.json && terminal::interactive();
        let pulled = self.pull_one(host, &self.slug, self.uncommitted, output).await;
        let question = match &pulled {
            Ok(pulled) if asks && pulled.uncommitted > 0 => {
                report(&self.slug, pulled, output)?;
                format!("Take the uncommitted work too, as one commit on {}?", pulled.fetched.branch)
            }
            Err(error) if asks && error.kind == Kind::NothingCommitted => {
                output.warn(&error.message);
                format!("Take the files of its workspace, as one commit on bottle/{}?", self.slug)
            }
            _ => return report(&self.slug, &pulled?, output),
        };
        let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
        if !require_answer(asked, "the uncommitted work was not taken")? {
            return pulled.map(drop);
        }
        report(&self.slug, &self.pull_one(host, &self.slug, true, output).await?, output)
    }

    async fn pull_one(
        &self,
        host: &Host,
        slug: &Slug,
        uncommitted: bool,
        output: &Output,
    ) -> Result<Pulled, CliError> {
        let pulled = async {
            let record = record(host, slug).await?;
            let channel = connect_or_open_files(host, slug, Access::Read).await?;
            let wanted = Wanted { branch: self.branch.as_deref(), uncommitted };
            let left = "the local branch is either unchanged or complete";
            let pulling = async |_| pull(host, &record, &channel, wanted).await;
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
            match self.pull_one(host, slug, self.uncommitted, output).await {
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

/// Returns the record of a bottle that runs or is preserved. Waits for the end of a bottle that is being torn down: its
/// files can be read again after that.
pub(crate) async fn record(host: &Host, slug: &Slug) -> Result<Record, CliError> {
    let patience = Instant::now() + ENDING;
    loop {
        match Store::of(host).state(slug) {
            Some(State::Alive(record)) if record.status == Status::Ending && Instant::now() < patience => {
                tokio::time::sleep(POLL).await;
            }
            Some(State::Alive(record) | State::Dead(record) | State::Preserved(record)) => {
                return Ok(*record);
            }
            _ => return Err(unavailable(host, slug).await),
        }
    }
}

/// Which work a pull fetches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    /// This branch instead of the bottle's HEAD.
    pub(crate) branch: Option<&'a str>,
    /// The uncommitted files too.
    pub(crate) uncommitted: bool,
}

/// Fetches the commits. If this saved all work in the bottle, reports it to the keeper.
pub(crate) async fn pull(
    host: &Host,
    record: &Record,
    channel: &Channel,
    wanted: Wanted<'_>,
) -> Result<Pulled, CliError> {
    let slug = &record.slug;
    let repository = repository(host, record).await?;
    // Changes that the agent makes after this time may be missing from the pull.
    let started_at = before_any_change();
    let (History { head, tips }, unread) = match history(channel, slug, wanted).await {
        Ok(history) => (history, None),
        // The files can be pulled without the bottle's commits.
        Err(error) if wanted.uncommitted => (History::default(), Some(error.message)),
        Err(error) => return Err(error),
    };
    if head.is_none() && wanted.branch.is_none() && !wanted.uncommitted {
        return Err(nothing_committed(slug, format!("{slug} has no commits")));
    }
    let own_head = repository.head().await?;
    let scratch = Scratch::create(host, Some(&repository), own_head.as_ref().or(head.as_ref())).await?;
    let tip = match wanted.branch {
        Some(branch) => Some(scratch.fetch_branch(slug, branch).await?),
        None if head.is_some() => scratch.fetch(slug).await?,
        None => None,
    };
    let copied = Some(&repository).filter(|_| record.copied_cwd);
    let base = scratch.base(own_head.as_ref(), tip.as_ref(), copied).await?;
    let count = async {
        // The user has the files of a live workspace already.
        if record.live().is_some() && !wanted.uncommitted {
            return Ok(Uncommitted::default());
        }
        scratch.uncommitted(channel, slug, &repository, &base, tip.as_ref()).await
    };
    let (fetched, uncommitted) = if wanted.uncommitted {
        let uncommitted = count.await?;
        let commit = match &tip {
            Some(tip) if uncommitted.files == 0 => tip.clone(),
            _ => scratch.commit(&repository, slug, &base, tip.as_ref(), &author(record)).await?,
        };
        (scratch.pull(&repository, slug, &commit).await?, uncommitted)
    } else {
        let tip = tip.as_ref().ok_or_else(|| nothing_committed(slug, format!("{slug} has no commits")))?;
        let fetched = scratch.pull(&repository, slug, tip).await?;
        let uncommitted = count.await.map_err(|error| CliError {
            message: format!(
                "{} was pulled; its uncommitted files are unknown: {}",
                fetched.branch, error.message
            ),
            ..error
        })?;
        (fetched, uncommitted)
    };
    let mut elsewhere = 0;
    for tip in &tips {
        elsewhere += usize::from(!repository.has(tip).await?);
    }
    let Uncommitted { files, left_out } = uncommitted;
    let (taken, uncommitted) = if wanted.uncommitted { (files, 0) } else { (0, files) };
    let pulled = Pulled { fetched, taken, uncommitted, elsewhere, left_out, unread };
    if pulled.is_complete() {
        report_to_keeper(channel, started_at).await?;
    }
    Ok(pulled)
}

/// The bottle's last commit, and the commits that its branches point to.
#[derive(Default)]
struct History {
    head: Option<ObjectId>,
    tips: Vec<ObjectId>,
}

async fn history(channel: &Channel, slug: &Slug, wanted: Wanted<'_>) -> Result<History, CliError> {
    let bottle = BottleGit { channel, slug };
    let found =
        if wanted.uncommitted { bottle.find_workspace().await? } else { Some(bottle.workspace().await?) };
    let Some(workspace) = found else { return Ok(History::default()) };
    let tips = workspace.tips().await?;
    Ok(History { head: workspace.head, tips })
}

/// Reports that the user has all changes that are older than this time.
async fn report_to_keeper(channel: &Channel, at: Timestamp) -> Result<(), CliError> {
    let mut stream = channel.open(&KeeperRequest::Pulled { at }).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await {
        Ok(KeeperEvent::Done) => {}
        // If the keeper did not record the pull, it preserves the bottle's work although the work was pulled.
        other => tracing::warn!("the keeper did not record the pull: {other:?}"),
    }
    Ok(())
}

/// The author of the bottle's commits. A name without letters and digits, which git refuses, is replaced.
fn author(record: &Record) -> Author {
    let known = record.author.clone();
    let (name, email) = known.map(|author| (author.name.value, author.email.value)).unzip();
    Author {
        name: name
            .filter(|name| name.contains(char::is_alphanumeric))
            .unwrap_or_else(|| record.agent.to_string()),
        email: email.unwrap_or_else(|| format!("{}@bottle.invalid", record.agent)),
    }
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
    let Pulled { fetched, taken, uncommitted, elsewhere, left_out, unread } = pulled;
    let Fetched { branch, commits, replaced, .. } = fetched;
    output.print(branch)?;
    output.note(match commits {
        0 => format!("{branch} has no commits that HEAD lacks"),
        1 => format!("{branch} has 1 commit that HEAD lacks; `git log HEAD..{branch}` shows it"),
        many => format!("{branch} has {many} commits that HEAD lacks; `git log HEAD..{branch}` shows them"),
    });
    if *taken > 0 {
        output.note(format!("its last commit has the uncommitted work: {}", counted(*taken, "file")));
    }
    if let Some(replaced) = replaced {
        let replaced = replaced.short();
        output.note(format!("this replaces {replaced}, which an earlier `bottle pull --uncommitted` made"));
    }
    if let Some(cause) = unread {
        output.warn(format!("the bottle's commits were not pulled: {}", inert(cause)));
    }
    if *uncommitted > 0 {
        let (files, are) = (counted(*uncommitted, "file"), if *uncommitted == 1 { "is" } else { "are" });
        output.warn(format!(
            "{files} {are} uncommitted; `bottle diff {slug}` shows the changes, \
             `bottle pull {slug} --uncommitted` takes them too"
        ));
    }
    warn_left_out(left_out, "pulled", output);
    if *elsewhere > 0 {
        let branches =
            if *elsewhere == 1 { "1 other branch".to_owned() } else { format!("{elsewhere} other branches") };
        output.warn(format!("commits on {branches} in the bottle were not pulled; `--branch` pulls one"));
    }
    Ok(())
}

fn described(slug: &Slug, pulled: &Pulled) -> json_schema::Pulled {
    let Pulled { fetched, taken, uncommitted, elsewhere, .. } = pulled;
    let Fetched { branch, before, replaced, after, commits } = fetched;
    json_schema::Pulled {
        slug: slug.to_string(),
        branch: branch.clone(),
        before: before.as_ref().map(|id| id.as_str().to_owned()),
        after: after.as_str().to_owned(),
        replaced: replaced.as_ref().map(|id| id.as_str().to_owned()),
        commits: *commits,
        taken: *taken,
        uncommitted: *uncommitted,
        elsewhere: *elsewhere,
    }
}
