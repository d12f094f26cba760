//! `bottle pull`: fetches a bottle's commits, and its uncommitted work, into a branch of the user's repository.

use std::path::PathBuf;
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
    Author, Beside, BottleGit, Fetched, LeftOut, ObjectId, Repository, Root, Scratch, Uncommitted,
    copy_out_hint, nothing_committed, quoted,
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
/// Uses the repository that the bottle was started in with `--cwd`. If there is none, or it is not the one that was
/// copied, asks; `--repository` answers. In this repository, the command changes only the branch `bottle/SLUG`, and no tag,
/// submodule, configuration or checked-out file. It also works after the bottle ended, if its files are preserved.
///
/// With several `--cwd`, fetches from each folder into the repository that it was copied from.
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
    /// Only fetch from the repository in this folder of the workspace
    #[arg(long, value_name = "FOLDER")]
    folder: Option<String>,
    /// Fetch into this repository, instead of the one that was copied
    #[arg(long, value_name = "PATH")]
    repository: Option<PathBuf>,
    /// Also fetch from every bottle that was forked from this one, each into its own branch
    #[arg(long)]
    all_forks: bool,
}

/// The result of a pull from one repository.
struct Pulled {
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
    fn is_complete(&self) -> bool {
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
            Ok(pulled) => pulled.question(),
            Err(error) if error.kind == Kind::NothingCommitted => {
                Some(format!("Take the files of its workspace, as one commit on bottle/{}?", self.slug))
            }
            Err(_) => None,
        };
        let Some(question) = question.filter(|_| asks) else { return pulled?.report(output) };
        match &pulled {
            Ok(pulled) => {
                pulled.print(output)?;
                pulled.failed().take(1).for_each(|(root, error)| output.warn(not_pulled(root, error)));
            }
            Err(error) => output.warn(&error.message),
        }
        let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
        if !require_answer(asked, "the uncommitted work was not taken")? {
            return pulled?.failure().map_or(Ok(()), Err);
        }
        self.pull_one(host, &self.slug, true, output).await?.report(output)
    }

    async fn pull_one(
        &self,
        host: &Host,
        slug: &Slug,
        uncommitted: bool,
        output: &Output,
    ) -> Result<PulledWork, CliError> {
        let pulled = async {
            let record = record(host, slug).await?;
            let channel = connect_or_open_files(host, slug, Access::Read).await?;
            let folder = self.folder.as_deref();
            let mut roots = Root::of(host, &record, folder)?;
            Root::confirm_repositories(&mut roots, self.repository.as_deref(), Some(&host.cwd), output)?;
            let wanted = Wanted { branch: self.branch.as_deref(), uncommitted, folder, roots: Some(&roots) };
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
            let error = match self.pull_one(host, slug, self.uncommitted, output).await {
                Ok(pulled) => {
                    if output.json {
                        all.extend(pulled.described());
                        pulled.warn(output);
                    } else {
                        pulled.print(output)?;
                    }
                    pulled.failure()
                }
                Err(error) => Some(error),
            };
            let Some(error) = error else { continue };
            let message = error.message.clone();
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
    /// Only this folder of the workspace.
    pub(crate) folder: Option<&'a str>,
    /// The parts of the workspace, with the repositories that the user has confirmed. `None` for those of the record.
    pub(crate) roots: Option<&'a [Root]>,
}

impl Wanted<'_> {
    fn roots(&self, host: &Host, record: &Record) -> Result<Vec<Root>, CliError> {
        self.roots.map_or_else(|| Root::of(host, record, self.folder), |roots| Ok(roots.to_vec()))
    }
}

/// The result of a pull from a workspace, or from a folder of it; none if its directory is in no repository.
type RootResult = (Root, Result<Option<Pulled>, CliError>);

/// The result of a pull: from the workspace, or from each of its folders.
pub(crate) struct PulledWork {
    slug: Slug,
    /// The results, of which at least one is a success.
    roots: Vec<RootResult>,
    beside: Beside,
    /// Whether the pull was from the whole workspace.
    is_whole: bool,
}

/// Fetches the commits, from each folder if the workspace has several. If this saved all work in the bottle, reports it
/// to the keeper.
///
/// # Errors
/// Returns an error if nothing could be fetched.
pub(crate) async fn pull(
    host: &Host,
    record: &Record,
    channel: &Channel,
    wanted: Wanted<'_>,
) -> Result<PulledWork, CliError> {
    // Changes that the agent makes after this time may be missing from the pull.
    let started_at = before_any_change();
    let mut roots = Vec::new();
    for root in wanted.roots(host, record)? {
        let is_pulled = record.folders.is_empty() || is_in_repository(&root);
        let pulled = match is_pulled {
            true => pull_root(host, record, &root, channel, wanted).await.map(Some),
            false => Ok(None),
        };
        roots.push((root, pulled));
    }
    if !roots.iter().any(|(_, pulled)| matches!(pulled, Ok(Some(_)))) {
        return Err(nothing_pulled(&record.slug, roots));
    }
    let is_whole = wanted.folder.is_none();
    let beside = if is_whole { Beside::find(channel, record).await? } else { Beside::default() };
    let work = PulledWork { slug: record.slug.clone(), roots, beside, is_whole };
    if work.is_complete() {
        report_to_keeper(channel, started_at).await?;
    }
    Ok(work)
}

fn is_in_repository(root: &Root) -> bool {
    !matches!(root.repository(), Ok(None))
}

/// The error if nothing could be fetched: that of the first folder with one.
fn nothing_pulled(slug: &Slug, roots: Vec<RootResult>) -> CliError {
    let several = roots.len() > 1;
    let failed = roots.into_iter().find_map(|(root, pulled)| Some((root, pulled.err()?)));
    match failed {
        Some((root, error)) if several => {
            CliError { message: format!("{}{}", root.label(), error.message), ..error }
        }
        Some((_, error)) => error,
        None => {
            CliError::state(format!("cannot pull from {slug}: no copied directory is in a git repository"))
                .hint(copy_out_hint(slug))
        }
    }
}

/// Fetches the commits of a workspace, or of a folder of it.
async fn pull_root(
    host: &Host,
    record: &Record,
    root: &Root,
    channel: &Channel,
    wanted: Wanted<'_>,
) -> Result<Pulled, CliError> {
    let slug = &record.slug;
    let repository = repository(root)?;
    let (History { head, tips }, unread) = match history(channel, root, wanted).await {
        Ok(history) => (history, None),
        // The files can be pulled without the bottle's commits.
        Err(error) if wanted.uncommitted => (History::default(), Some(error.message)),
        Err(error) => return Err(error),
    };
    if head.is_none() && wanted.branch.is_none() && !wanted.uncommitted {
        return Err(nothing_committed(slug, format!("{} has no commits", named(root))));
    }
    let own_head = repository.head()?;
    let scratch = Scratch::create(host, Some(&repository), None)?;
    let tip = match wanted.branch {
        Some(branch) => Some(scratch.fetch_branch((channel, root), branch).await?),
        None if head.is_some() => scratch.fetch((channel, root)).await?,
        None => None,
    };
    scratch.lend(&repository, tip.as_ref())?;
    let tip = tip.map(|tip| tip.commit);
    let copied = Some(&repository).filter(|_| root.is_copy);
    let base = scratch.base(own_head.as_ref(), tip.as_ref(), copied).await?;
    let count = async {
        // The user has the files of a live workspace already.
        if record.live().is_some() && !wanted.uncommitted {
            return Ok(Uncommitted::default());
        }
        scratch.uncommitted((channel, root), &repository, &base, tip.as_ref()).await
    };
    let (fetched, uncommitted) = if wanted.uncommitted {
        let uncommitted = count.await?;
        let commit = match &tip {
            Some(tip) if uncommitted.files == 0 => tip.clone(),
            // Without commits and without changes, there is nothing to pull: a commit of it would be empty.
            None if uncommitted.files == 0 => return Err(nothing_changed(root, unread)),
            _ => scratch.commit(&repository, root, &base, tip.as_ref(), &author(record)).await?,
        };
        (scratch.pull(&repository, root, &commit).await?, uncommitted)
    } else {
        let tip =
            tip.as_ref().ok_or_else(|| nothing_committed(slug, format!("{} has no commits", named(root))))?;
        let fetched = scratch.pull(&repository, root, tip).await?;
        let uncommitted = count.await.map_err(|error| CliError {
            message: format!(
                "{} was pulled; its uncommitted files are unknown: {}",
                fetched.branch, error.message
            ),
            ..error
        })?;
        (fetched, uncommitted)
    };
    let elsewhere = scratch.count_missing(&tips).await?;
    let Uncommitted { files, left_out } = uncommitted;
    let (taken, uncommitted) = if wanted.uncommitted { (files, 0) } else { (0, files) };
    Ok(Pulled { fetched, taken, uncommitted, elsewhere, left_out, unread })
}

/// The error for a workspace without commits that has the files of the user's last commit.
fn nothing_changed(root: &Root, unread: Option<String>) -> CliError {
    let why = unread.map_or_else(|| "it has no commits".to_owned(), |why| inert(&why));
    CliError::state(format!("cannot pull from {root}: {why}, and its files are those of your last commit"))
        .hint(copy_out_hint(&root.slug))
}

/// What has commits: the bottle, or one of its folders.
fn named(root: &Root) -> String {
    if root.is_folder() { root.to_string() } else { root.slug.to_string() }
}

/// The bottle's last commit, and the commits that its branches point to.
#[derive(Default)]
struct History {
    head: Option<ObjectId>,
    tips: Vec<ObjectId>,
}

async fn history(channel: &Channel, root: &Root, wanted: Wanted<'_>) -> Result<History, CliError> {
    let bottle = BottleGit { channel, root };
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

/// Returns the repository that contains the directory of a workspace.
fn repository(root: &Root) -> Result<Repository, CliError> {
    root.repository()?.ok_or_else(|| {
        CliError::state(format!("{} is not in a git repository", root.directory.display()))
            .hint(copy_out_hint(&root.slug))
    })
}

impl PulledWork {
    /// Whether the bottle has no further changes that could be lost.
    pub(crate) fn is_complete(&self) -> bool {
        let is_complete =
            |(_, pulled): &RootResult| matches!(pulled, Ok(Some(pulled)) if pulled.is_complete());
        self.is_whole && self.beside.is_empty() && self.roots.iter().all(is_complete)
    }

    /// Whether to take uncommitted work too, if there is some.
    fn question(&self) -> Option<String> {
        let has_more = |(root, pulled): &RootResult| match pulled {
            Ok(Some(pulled)) if pulled.uncommitted > 0 => Some(pulled.fetched.branch.clone()),
            Err(error) if error.kind == Kind::NothingCommitted => Some(root.branch.clone()),
            _ => None,
        };
        let mut branches: Vec<String> = self.roots.iter().filter_map(has_more).collect();
        branches.dedup();
        (!branches.is_empty())
            .then(|| format!("Take the uncommitted work too, as one commit on {}?", branches.join(", ")))
    }

    /// Prints what was pulled, and returns the first failure of a folder.
    pub(crate) fn report(self, output: &Output) -> Result<(), CliError> {
        if !output.json {
            self.print(output)?;
            return self.failure().map_or(Ok(()), Err);
        }
        match &self.roots[..] {
            [(root, Ok(Some(pulled)))] => output.print_json(&described(root, pulled))?,
            _ => output.print_json(&self.described())?,
        }
        self.warn(output);
        self.failure().map_or(Ok(()), Err)
    }

    /// Prints what was pulled, and warns about what was not.
    fn print(&self, output: &Output) -> Result<(), CliError> {
        for (root, pulled) in &self.roots {
            if let Ok(Some(pulled)) = pulled {
                print(root, pulled, output)?;
            }
        }
        self.warn(output);
        Ok(())
    }

    /// Warns about what was not pulled, except the first failure, which is the command's.
    fn warn(&self, output: &Output) {
        for (root, error) in self.failed().skip(1) {
            output.warn(not_pulled(root, error));
        }
        for (root, _) in self.roots.iter().filter(|(_, pulled)| matches!(pulled, Ok(None))) {
            output.warn(format!(
                "{root} was not pulled, because {} is in no git repository; `bottle cp {} FOLDER` copies it out",
                inert(&root.directory.display().to_string()),
                root.source()
            ));
        }
        self.beside.warn(&self.slug, "pulled", output);
    }

    fn described(&self) -> Vec<json_schema::Pulled> {
        let pulled =
            self.roots.iter().filter_map(|(root, pulled)| Some((root, pulled.as_ref().ok()?.as_ref()?)));
        pulled.map(|(root, pulled)| described(root, pulled)).collect()
    }

    /// The folders whose pull failed.
    fn failed(&self) -> impl Iterator<Item = (&Root, &CliError)> {
        self.roots.iter().filter_map(|(root, pulled)| Some((root, pulled.as_ref().err()?)))
    }

    /// The first failure of a folder.
    fn failure(self) -> Option<CliError> {
        let failed = self.roots.into_iter().find_map(|(root, pulled)| Some((root, pulled.err()?)));
        failed.map(|(root, error)| CliError { message: not_pulled(&root, &error), ..error })
    }
}

fn not_pulled(root: &Root, error: &CliError) -> String {
    format!("{root} was not pulled: {}", error.message)
}

/// Prints what was pulled from a workspace, or from a folder of it.
fn print(root: &Root, pulled: &Pulled, output: &Output) -> Result<(), CliError> {
    let (slug, label) = (&root.slug, root.label());
    let (place, folder) = match root.is_folder() {
        true => (
            format!(" in {}", inert(&root.directory.display().to_string())),
            format!(" --folder {}", quoted(&root.name)),
        ),
        false => (String::new(), String::new()),
    };
    // No command is suggested for another directory, whose repository somebody else may have written.
    let log = |shows: &str| match root.is_folder() {
        true => String::new(),
        false => format!("; `git log HEAD..{branch}` {shows}", branch = pulled.fetched.branch),
    };
    let Pulled { fetched, taken, uncommitted, elsewhere, left_out, unread } = pulled;
    let Fetched { branch, commits, replaced, .. } = fetched;
    output.print(&format!("{label}{branch}"))?;
    output.note(match commits {
        0 => format!("{label}{branch}{place} has no commits that HEAD lacks"),
        1 => format!("{label}{branch}{place} has 1 commit that HEAD lacks{}", log("shows it")),
        many => format!("{label}{branch}{place} has {many} commits that HEAD lacks{}", log("shows them")),
    });
    if *taken > 0 {
        output.note(format!("{label}its last commit has the uncommitted work: {}", counted(*taken, "file")));
    }
    if let Some(replaced) = replaced {
        let replaced = replaced.short();
        output.note(format!(
            "{label}this replaces {replaced}, which an earlier `bottle pull --uncommitted` made"
        ));
    }
    if let Some(cause) = unread {
        output.warn(format!("{label}the bottle's commits were not pulled: {}", inert(cause)));
    }
    if *uncommitted > 0 {
        let (files, are) = (counted(*uncommitted, "file"), if *uncommitted == 1 { "is" } else { "are" });
        output.warn(format!(
            "{label}{files} {are} uncommitted; `bottle diff {slug}{folder}` shows the changes, \
             `bottle pull {slug}{folder} --uncommitted` takes them too"
        ));
    }
    warn_left_out(&root.name, left_out, "pulled", output);
    if *elsewhere > 0 {
        let branches =
            if *elsewhere == 1 { "1 other branch".to_owned() } else { format!("{elsewhere} other branches") };
        output.warn(format!(
            "{label}commits on {branches} in the bottle were not pulled; `--branch` pulls one"
        ));
    }
    Ok(())
}

fn described(root: &Root, pulled: &Pulled) -> json_schema::Pulled {
    let Pulled { fetched, taken, uncommitted, elsewhere, .. } = pulled;
    let Fetched { branch, before, replaced, after, commits } = fetched;
    json_schema::Pulled {
        slug: root.slug.to_string(),
        name: root.is_folder().then(|| root.name.clone()),
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
