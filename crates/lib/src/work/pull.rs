//! Fetches a bottle's commits, and its uncommitted work, into a branch of the user's repository.

use std::path::PathBuf;

use bottle_channel::Channel;
use bottle_guest::file_clock::before_any_change;
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::{State, Store};
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest};
use bottle_policy::names::Slug;
use jiff::Timestamp;

use super::bottle_git::{BottleGit, copy_out_hint, nothing_committed};
use super::scratch::Scratch;
use super::uncommitted::{Author, Uncommitted};
use super::{Beside, Fetched, LeftOut, ObjectId, Repository, Root};
use crate::connect::{keeper_lost, unlistable};
use crate::failure::{Failure, Kind};
use crate::report::{self, OneOrSeveral};
use crate::text::{inert, shown};

/// The result of a pull from one repository.
pub struct Pulled {
    /// The branch that was updated, and its commits.
    pub fetched: Fetched,
    /// The number of uncommitted files that the pull committed.
    pub taken: usize,
    /// The number of uncommitted files in the bottle that were not pulled.
    pub uncommitted: usize,
    /// The number of branches in the bottle with commits that the user's repository does not have.
    pub elsewhere: usize,
    /// The files that were not compared.
    pub left_out: LeftOut,
    /// Why the bottle's commits could not be read.
    pub unread: Option<String>,
    /// The paths of the submodules in the user's commit with which the bottle is compared.
    submodules: Vec<PathBuf>,
}

impl Pulled {
    /// Whether the pull fetched all changes in the bottle, so that no change can be lost.
    fn is_complete(&self) -> bool {
        let Self { uncommitted, elsewhere, left_out, unread, .. } = self;
        *uncommitted == 0 && *elsewhere == 0 && left_out.places.is_empty() && unread.is_none()
    }
}

/// Returns the bottles that were forked from this bottle or from its forks. Excludes bottles that have only logs.
///
/// # Errors
/// When the bottles cannot be listed.
pub fn forks(host: &Host, slug: &Slug) -> Result<Vec<Slug>, Failure> {
    let listed = Store::of(host).list().map_err(unlistable)?;
    let mut origins: Vec<(Slug, Slug)> = Vec::new();
    for listed in listed {
        if let State::Alive(record) | State::Dead(record) | State::Kept(record) = listed.state
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

/// Which work a pull fetches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The bottle's branch to fetch. `None` for the bottle's `HEAD`.
    pub branch: Option<&'a str>,
    /// Whether to fetch the uncommitted files too.
    pub uncommitted: bool,
    /// The only directory of the workspace to pull from. `None` for the whole workspace.
    pub directory: Option<&'a str>,
    /// The roots of the workspace, with the repositories that the user has confirmed. If `None`, the roots are created
    /// from the bottle's record.
    pub roots: Option<&'a [Root]>,
}

impl Wanted<'_> {
    fn roots(&self, host: &Host, record: &Record) -> Result<Vec<Root>, Failure> {
        self.roots.map_or_else(|| Root::of(host, record, self.directory), |roots| Ok(roots.to_vec()))
    }
}

/// A root, and the result of the pull from this root. `None` if the root's directory is in no repository.
type RootResult = (Root, Result<Option<Pulled>, Failure>);

/// The result of a pull from all roots of a workspace.
pub struct PulledWork {
    slug: Slug,
    /// The results of the roots. The pull from at least one root succeeded. The results of submodules come last.
    roots: Vec<RootResult>,
    /// The number of results without the results of submodules.
    without_submodules: usize,
    beside: Beside,
    /// Whether the pull was from the whole workspace.
    is_whole: bool,
}

/// Fetches the commits of a bottle, from each root of its workspace. If the pull fetched all work in the bottle,
/// reports this to the keeper.
///
/// # Errors
/// Returns an error if the pull failed for all roots.
pub async fn pull(
    host: &Host,
    record: &Record,
    channel: &Channel,
    wanted: Wanted<'_>,
) -> Result<PulledWork, Failure> {
    // Changes that the agent makes after this time may be missing from the pull.
    let started_at = before_any_change();
    let mut roots = Vec::new();
    for root in wanted.roots(host, record)? {
        let is_pulled = record.directories.is_empty() || is_in_repository(&root);
        let pulled = match is_pulled {
            true => pull_root(host, record, &root, channel, wanted).await.map(Some),
            false => Ok(None),
        };
        roots.push((root, pulled));
    }
    if !roots.iter().any(|(_, pulled)| matches!(pulled, Ok(Some(_)))) {
        return Err(nothing_pulled(&record.slug, roots));
    }
    let without_submodules = roots.len();
    pull_submodules(host, record, &mut roots, channel, wanted).await?;
    let is_whole = wanted.directory.is_none();
    let beside = if is_whole { Beside::find(channel, record).await? } else { Beside::default() };
    let work = PulledWork { slug: record.slug.clone(), roots, without_submodules, beside, is_whole };
    if work.is_complete() {
        report_to_keeper(channel, started_at).await?;
    }
    Ok(work)
}

/// Pulls the work in the submodules of the pulled repositories, and adds the results to `roots`. The work in a
/// submodule is pulled into the user's repository of this submodule. A pulled commit can refer to a submodule's
/// commits, and is useless without them.
async fn pull_submodules(
    host: &Host,
    record: &Record,
    roots: &mut Vec<RootResult>,
    channel: &Channel,
    wanted: Wanted<'_>,
) -> Result<(), Failure> {
    let mut next = 0;
    while let Some((root, pulled)) = roots.get_mut(next) {
        next += 1;
        let Ok(Some(pulled)) = pulled else { continue };
        let mut found = Vec::new();
        for path in std::mem::take(&mut pulled.submodules) {
            // A submodule for which the user has no usable repository is not pulled.
            let Ok(Some(submodule)) = root.submodule(&path) else { continue };
            // The submodule's work is pulled, so the submodule is not left out.
            pulled.left_out.places.retain(|(place, _)| !place.starts_with(&path));
            let result = match submodule.has_work(host, channel).await {
                Ok(false) => continue,
                Ok(true) => pull_root(host, record, &submodule, channel, wanted).await.map(Some),
                Err(error) => Err(error),
            };
            found.push((submodule, result));
        }
        roots.extend(found);
    }
    Ok(())
}

fn is_in_repository(root: &Root) -> bool {
    !matches!(root.repository(), Ok(None))
}

/// Returns the error if the pull failed for all roots: the first error of a root.
fn nothing_pulled(slug: &Slug, roots: Vec<RootResult>) -> Failure {
    let several = roots.len() > 1;
    let failed = roots.into_iter().find_map(|(root, pulled)| Some((root, pulled.err()?)));
    match failed {
        Some((root, error)) if several => error.reworded(|message| format!("{}{message}", root.label())),
        Some((_, error)) => error,
        None => {
            Failure::state(format!("cannot pull from {slug}: no copied directory is in a git repository"))
                .hint(copy_out_hint(slug))
        }
    }
}

/// Fetches the commits of one root, and its uncommitted files if the caller wants them.
async fn pull_root(
    host: &Host,
    record: &Record,
    root: &Root,
    channel: &Channel,
    wanted: Wanted<'_>,
) -> Result<Pulled, Failure> {
    let slug = &record.slug;
    let repository = repository(root)?;
    let (History { head, tips }, unread) = match history(channel, root, wanted).await {
        Ok(history) => (history, None),
        // The uncommitted files can be pulled without the bottle's commits.
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
        // The user already has the files of a workspace that is a directory of the user.
        if record.live().is_some() && !wanted.uncommitted {
            return Ok(Uncommitted::default());
        }
        scratch.uncommitted((channel, root), &repository, &base, tip.as_ref()).await
    };
    let (fetched, uncommitted) = if wanted.uncommitted {
        let mut uncommitted = count.await?;
        scratch.add_contents(&repository, root, &mut uncommitted)?;
        let commit = match &tip {
            Some(tip) if uncommitted.files == 0 => tip.clone(),
            // Without commits and without changes, there is nothing to pull: the commit would be empty.
            None if uncommitted.files == 0 => {
                return Err(nothing_changed(root, unread, &uncommitted.left_out));
            }
            _ => {
                let on = (&base, tip.as_ref());
                scratch.commit(&repository, root, on, &uncommitted, &author(record)).await?
            }
        };
        (scratch.pull(&repository, root, &commit).await?, uncommitted)
    } else {
        let tip =
            tip.as_ref().ok_or_else(|| nothing_committed(slug, format!("{} has no commits", named(root))))?;
        let fetched = scratch.pull(&repository, root, tip).await?;
        let uncommitted = count.await.map_err(|error| {
            error.reworded(|message| {
                format!("{} was pulled; its uncommitted files are unknown: {message}", fetched.branch)
            })
        })?;
        (fetched, uncommitted)
    };
    let elsewhere = scratch.count_missing(&tips).await?;
    // A branch that the user names can have other submodules than the base.
    let submodules = if wanted.branch.is_none() { scratch.submodules(&base).await? } else { Vec::new() };
    let Uncommitted { files, left_out, .. } = uncommitted;
    let (taken, uncommitted) = if wanted.uncommitted { (files, 0) } else { (0, files) };
    Ok(Pulled { fetched, taken, uncommitted, elsewhere, left_out, unread, submodules })
}

/// Returns the error for a workspace that has no commits, and whose files are the same as in the user's last commit.
fn nothing_changed(root: &Root, unread: Option<String>, left_out: &LeftOut) -> Failure {
    if let Some((path, why)) = left_out.places.first() {
        let path = shown(path);
        return Failure::state(format!("cannot pull from {root}: {path} is not committed: {why}"))
            .hint(copy_out_hint(&root.slug));
    }
    let why = unread.map_or_else(|| "it has no commits".to_owned(), |why| inert(&why));
    Failure::state(format!("cannot pull from {root}: {why}, and its files are those of your last commit"))
        .hint(copy_out_hint(&root.slug))
}

/// Names the root in a message: the bottle, or one of the directories in its workspace.
fn named(root: &Root) -> String {
    if root.is_directory() { root.to_string() } else { root.slug.to_string() }
}

/// The bottle's last commit, and the commits that its branches point to.
#[derive(Default)]
struct History {
    head: Option<ObjectId>,
    tips: Vec<ObjectId>,
}

async fn history(channel: &Channel, root: &Root, wanted: Wanted<'_>) -> Result<History, Failure> {
    let bottle = BottleGit { channel, root };
    let found =
        if wanted.uncommitted { bottle.find_workspace().await? } else { Some(bottle.workspace().await?) };
    let Some(workspace) = found else { return Ok(History::default()) };
    let tips = workspace.tips().await?;
    Ok(History { head: workspace.head, tips })
}

/// Reports to the keeper that the user has all changes that are older than the time `at`.
async fn report_to_keeper(channel: &Channel, at: Timestamp) -> Result<(), Failure> {
    let mut stream = channel.open(&KeeperRequest::Pulled { at }).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await {
        Ok(KeeperEvent::Done) => {}
        // If the keeper did not record the pull, it keeps the bottle's work although the work was pulled.
        other => tracing::warn!("the keeper did not record the pull: {other:?}"),
    }
    Ok(())
}

/// Returns the author of the bottle's commits. A name without letters and digits is replaced by the agent's name,
/// because git refuses such a name.
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
fn repository(root: &Root) -> Result<Repository, Failure> {
    root.repository()?.ok_or_else(|| {
        let slug = &root.slug;
        let hint = match (root.is_without_repository(), root.is_live) {
            (false, _) => copy_out_hint(slug),
            (true, false) => format!("`bottle apply {slug}` brings the changes into the directory"),
            (true, true) => {
                format!("the changes are in the directory already; `bottle diff {slug}` shows them")
            }
        };
        Failure::state(format!("{} is not in a git repository", root.directory.display())).hint(hint)
    })
}

impl PulledWork {
    /// Whether the pull fetched all changes in the bottle, so that no change can be lost.
    pub fn is_complete(&self) -> bool {
        let is_complete =
            |(_, pulled): &RootResult| matches!(pulled, Ok(Some(pulled)) if pulled.is_complete());
        self.is_whole && self.beside.is_empty() && self.roots.iter().all(is_complete)
    }

    /// Returns the branches of the roots that have uncommitted work that was not pulled.
    pub fn branches_with_more(&self) -> Vec<String> {
        let has_more = |(root, pulled): &RootResult| match pulled {
            Ok(Some(pulled)) if pulled.uncommitted > 0 => Some(pulled.fetched.branch.clone()),
            Err(error) if error.kind == Kind::NothingCommitted => Some(root.branch.clone()),
            _ => None,
        };
        let mut branches: Vec<String> = self.roots.iter().filter_map(has_more).collect();
        branches.dedup();
        branches
    }

    /// Returns each root that was pulled, with the result of the pull.
    pub fn pulled(&self) -> impl Iterator<Item = (&Root, &Pulled)> {
        self.roots.iter().filter_map(|(root, pulled)| Some((root, pulled.as_ref().ok()?.as_ref()?)))
    }

    /// Returns the output document about the pull.
    pub fn document(&self) -> OneOrSeveral<report::Pulled> {
        match &self.roots[..self.without_submodules] {
            [(root, Ok(Some(pulled)))] => {
                let submodules = self.documents().split_off(1);
                OneOrSeveral::One(report::Pulled { submodules, ..described(root, pulled) })
            }
            _ => OneOrSeveral::Several(self.documents()),
        }
    }

    /// Returns one document for each root that was pulled.
    pub fn documents(&self) -> Vec<report::Pulled> {
        self.pulled().map(|(root, pulled)| described(root, pulled)).collect()
    }

    /// Returns the warnings about work that was not pulled, except the first failure.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.failures().skip(1).collect();
        for (root, _) in self.roots.iter().filter(|(_, pulled)| matches!(pulled, Ok(None))) {
            warnings.push(format!(
                "{root} was not pulled, because {} is in no git repository; `bottle cp {} DIRECTORY` copies it out",
                inert(&root.directory.display().to_string()),
                root.source()
            ));
        }
        warnings.extend(self.beside.warning(&self.slug, "pulled"));
        warnings
    }

    /// Returns the reasons why roots were not pulled.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.roots.iter().filter_map(|(root, pulled)| Some((root, pulled.as_ref().err()?)));
        failed.map(|(root, error)| not_pulled(root, &error.message))
    }

    /// Returns the first failure of a root.
    pub fn failure(self) -> Option<Failure> {
        let failed = self.roots.into_iter().find_map(|(root, pulled)| Some((root, pulled.err()?)));
        failed.map(|(root, error)| error.reworded(|message| not_pulled(&root, message)))
    }
}

fn not_pulled(root: &Root, message: &str) -> String {
    format!("{root} was not pulled: {message}")
}

fn described(root: &Root, pulled: &Pulled) -> report::Pulled {
    let Pulled { fetched, taken, uncommitted, elsewhere, .. } = pulled;
    let Fetched { branch, before, replaced, after, commits } = fetched;
    report::Pulled {
        slug: root.slug.to_string(),
        name: root.is_directory().then(|| root.name.clone()),
        branch: branch.clone(),
        before: before.as_ref().map(|id| id.as_str().to_owned()),
        after: after.as_str().to_owned(),
        replaced: replaced.as_ref().map(|id| id.as_str().to_owned()),
        commits: *commits,
        taken: *taken,
        uncommitted: *uncommitted,
        elsewhere: *elsewhere,
        submodules: Vec::new(),
    }
}
