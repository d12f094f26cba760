//! Merges a bottle's changes with the user's files, and writes the result.

use std::path::PathBuf;

use bottle_channel::Channel;
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::tool_files::tool_files;
use bottle_policy::names::Slug;

use super::bottle_git::copy_out_hint;
use super::merge::{Deletions, Merge};
use super::root::{compared, is_without_repository, require_copy};
use super::{Beside, LeftOut, Root, Work};
use crate::failure::Failure;
use crate::notice::{Notice, Notify};
use crate::report::{self, OneOrSeveral};
use crate::text::{counted, inert};

/// The work of a bottle, merged with the user's files. No file is written yet.
pub struct Merges<'a> {
    slug: Slug,
    /// Whether the result contains text files with conflicts, with conflict markers in the text.
    markers: bool,
    /// The merged work of each root.
    pub roots: Vec<Merged<'a>>,
    /// The entries of the workspace outside of the roots. These entries do not belong to the work.
    pub beside: Beside,
}

/// The work of one root, merged with the files of a directory on the host.
pub struct Merged<'a> {
    /// The work of the bottle.
    pub work: Work<'a>,
    /// The directory on the host.
    pub directory: PathBuf,
    /// The result of the merge.
    pub merge: Merge,
    /// The files that were not compared.
    pub left_out: LeftOut,
}

impl Merged<'_> {
    /// Whether the merge changes any file.
    pub fn has_changes(&self) -> bool {
        !self.merge.changed.is_empty()
    }
}

impl<'a> Merges<'a> {
    /// Merges the work in these roots with the files of their directories on the host. `is_whole` says whether `roots`
    /// are all roots of the workspace. With `markers`, the result contains text files with conflicts, with conflict
    /// markers in the text.
    ///
    /// # Errors
    /// When a root cannot be merged. A root without a repository is left out with a warning, if another root can be
    /// merged.
    pub async fn of(
        host: &'a Host,
        (record, channel): (&Record, &Channel),
        (roots, is_whole): (Vec<Root>, bool),
        markers: bool,
        notify: Notify<'_>,
    ) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for root in roots {
            all.push(merge(host, &root, channel, markers, notify).await.map_err(|error| (root, error)));
        }
        let beside = if is_whole { Beside::find(channel, record).await? } else { Beside::default() };
        // If one directory cannot be merged, the other directories are not changed either.
        let roots = compared(all, is_without_repository, notify)?;
        Ok(Self { slug: record.slug.clone(), markers, roots, beside })
    }

    /// Whether the merge changes any file.
    pub fn has_changes(&self) -> bool {
        self.roots.iter().any(Merged::has_changes)
    }

    /// Whether any file cannot be merged.
    pub fn has_conflicts(&self) -> bool {
        self.roots.iter().any(|merged| !merged.merge.conflicts.is_empty())
    }

    /// Changes the files of all directories, or of none. Records which files were applied, as the base of the next
    /// merge.
    ///
    /// # Errors
    /// When a file has changed since the merge, or cannot be written.
    pub async fn apply(&self, host: &Host, notify: Notify<'_>) -> Result<(), Failure> {
        apply_all(&self.roots)?;
        record_all(host, &self.roots, notify).await;
        Ok(())
    }

    /// Why the result must not be applied: a conflict without markers, or many deletions that are not allowed.
    pub fn refusal(&self, allow_deletions: bool) -> Option<Failure> {
        if self.has_conflicts() && !self.markers {
            return Some(conflicts(&self.slug, &self.roots));
        }
        let is_refused = |merged: &&Merged<'_>| merged.merge.deletions.are_many() && !allow_deletions;
        self.roots.iter().find(is_refused).map(|merged| many_deletions(&self.slug, merged))
    }

    /// Returns the output document about the changes. `applied` says whether the changes were written.
    pub fn document(&self, applied: bool) -> OneOrSeveral<report::Applied> {
        match &self.roots[..] {
            [one] => OneOrSeveral::One(described(one, applied)),
            several => OneOrSeveral::Several(several.iter().map(|one| described(one, applied)).collect()),
        }
    }
}

/// Refuses a bottle whose workspace is a directory of the user, because this directory already contains the changes.
///
/// # Errors
/// When the workspace is a directory of the user.
pub fn require_copy_to_apply(record: &Record) -> Result<(), Failure> {
    require_copy(record, &format!("apply the changes of {}", record.slug), instead(record))
}

/// The hint for a bottle whose workspace is a directory of the user.
fn instead(record: &Record) -> String {
    let slug = &record.slug;
    let road = match record.live().is_some_and(|live| live.repository.is_some()) {
        true => format!("`bottle pull {slug}` brings its commits"),
        false => format!("`bottle diff {slug}` shows them"),
    };
    format!("the changes are in the directory already; {road}")
}

/// Merges the work in one root with the files of the root's directory on the host.
async fn merge<'a>(
    host: &'a Host,
    root: &Root,
    channel: &Channel,
    markers: bool,
    notify: Notify<'_>,
) -> Result<Merged<'a>, Failure> {
    let mut work = Work::open(host, root.clone(), channel, notify).await?;
    work.use_own_base().await?;
    work.use_applied(host).await?;
    let directory = directory(&work)?;
    let left_out = work.import(channel).await?;
    let merge = work.merge(&directory, markers).await?;
    Ok(Merged { work, directory, merge, left_out })
}

/// Changes the files of all directories, or of none.
fn apply_all(all: &[Merged<'_>]) -> Result<(), Failure> {
    let changed: Vec<&Merged<'_>> = all.iter().filter(|merged| merged.has_changes()).collect();
    for Merged { work, directory, merge, .. } in &changed {
        work.scratch.check_apply(merge, directory)?;
    }
    for (index, Merged { work, directory, merge, .. }) in changed.iter().enumerate() {
        let Err(error) = work.scratch.apply(merge, directory) else { continue };
        for Merged { work, directory, merge, .. } in &changed[..index] {
            if work.scratch.revert_apply(merge, directory).is_err() {
                let left =
                    format!("{} was changed already, and could not be changed back", directory.display());
                return Err(error.hint(format!("{left}; `bottle apply` again applies the rest")));
            }
        }
        return Err(error);
    }
    Ok(())
}

/// Records which files were applied, as the base of the next merge.
async fn record_all(host: &Host, all: &[Merged<'_>], notify: Notify<'_>) {
    for Merged { work, .. } in all.iter().filter(|merged| merged.has_changes()) {
        if let Err(error) = work.record_applied(host).await {
            let cause = inert(&error.message);
            notify(Notice::Warning(format!("the next `bottle apply` may find more conflicts: {cause}")));
        }
    }
}

/// Returns the host directory to which a bottle's changes are applied. The paths of the changes are relative to this
/// directory.
fn directory(work: &Work<'_>) -> Result<PathBuf, Failure> {
    let directory = &work.root.directory;
    if !directory.is_dir() {
        return Err(Failure::state(format!("{} no longer exists", directory.display()))
            .about(directory.display())
            .hint(copy_out_hint(&work.root.slug)));
    }
    match &work.own {
        Some(own) if work.is_of_whole_repository() => own.top(),
        _ => Ok(directory.clone()),
    }
}

fn conflicts(slug: &Slug, all: &[Merged<'_>]) -> Failure {
    let files = counted(all.iter().map(|merged| merged.merge.conflicts.len()).sum::<usize>(), "file");
    let instead = match all.iter().all(|merged| merged.work.is_of_directory()) {
        true => format!("`bottle cp {slug}:. DIRECTORY` copies the workspace out"),
        false => format!("`bottle pull {slug}` makes a branch"),
    };
    Failure::state(format!("cannot apply the changes of {slug}: conflicts in {files}; nothing was changed"))
        .hint(format!("`bottle apply {slug} --conflict-markers` writes them into the files; {instead}"))
}

fn many_deletions(slug: &Slug, merged: &Merged<'_>) -> Failure {
    let Deletions { lost, tracked, .. } = merged.merge.deletions;
    let file = if merged.work.is_of_directory() { "given file" } else { "tracked file" };
    let of = format!("{lost} of {}", counted(tracked, file));
    Failure::state(format!("cannot apply the changes of {slug}: they delete {of}; nothing was changed"))
        .about("--allow-deletions")
        .hint(format!("`bottle apply {slug} --allow-deletions` deletes them; `bottle diff {slug} --stat` shows the changes"))
}

fn described(merged: &Merged<'_>, applied: bool) -> report::Applied {
    let Merged { work, directory, merge, .. } = merged;
    let text = |path: &PathBuf| path.display().to_string();
    report::Applied {
        slug: work.root.slug.to_string(),
        name: work.root.is_directory().then(|| work.root.name.clone()),
        directory: directory.display().to_string(),
        applied: applied && merged.has_changes(),
        changed: merge.changed.iter().map(text).collect(),
        deleted: merge.deletions.paths.iter().map(text).collect(),
        merged: merge.merged.iter().map(text).collect(),
        already: merge.already,
        conflicts: merge
            .conflicts
            .iter()
            .map(|conflict| report::Conflict {
                path: text(&conflict.path),
                cause: conflict.why,
                markers: applied && conflict.marked,
            })
            .collect(),
        used_by_tools: tool_files(merge.changed.iter().map(PathBuf::as_path))
            .map(|(path, _)| path.display().to_string())
            .collect(),
    }
}
