//! `bottle apply`: lays a bottle's changes onto the user's files.

use std::path::{Path, PathBuf};

use bottle_channel::Channel;
use bottle_contract::names::Slug;

use super::completions;
use super::connect::connect_or_open_files;
use super::diff::{compared, warn_left_out};
use super::error::{CliError, Kind, require_answer};
use super::exit;
use super::git::{Beside, Conflict, LeftOut, Merge, Root, Work};
use super::json_schema;
use super::live;
use super::output::{Output, counted, inert, one_line};
use super::progress;
use super::pull::record;
use super::terminal::{self, TerminalUser};
use crate::backend::Access;
use crate::host::Host;
use crate::instance::tool_files::tool_files;

/// The maximum number of paths that a warning names individually.
const MAX_NAMED: usize = 20;

/// Lay a bottle's changes onto your files, committed or not
///
/// Changes the directory that the bottle was started in with `--cwd`, otherwise the working directory. Shows the changes and asks first. Merges three-way: changes of yours in other places of a
/// file remain. If a file has a conflict, nothing is changed. Your commits, branches and the index do not change.
///
/// With several `--cwd`, changes the directory of each folder. If a file in one of them has a conflict, none is
/// changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::with_files())]
    slug: Slug,
    /// Apply only the changes in this folder of the workspace
    #[arg(long, value_name = "FOLDER")]
    folder: Option<String>,
    /// Apply to this repository, instead of the one that was copied
    #[arg(long, value_name = "PATH")]
    repository: Option<PathBuf>,
    /// Apply without asking
    #[arg(short, long)]
    yes: bool,
    /// Show what would change, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Apply even if there are conflicts: write conflict markers into text files, and leave other files with
    /// conflicts as they are
    #[arg(long)]
    conflict_markers: bool,
}

impl Apply {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let applied = super::block_on(self.apply(host, output));
        applied.map_err(|error| error.about_if_unset(&self.slug))
    }

    async fn apply(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let record = record(host, &self.slug).await?;
        let instead = format!(
            "the changes are in the directory already; `bottle pull {}` brings its commits",
            self.slug
        );
        live::require_copy(&record, &format!("apply the changes of {}", self.slug), instead)?;
        let channel = connect_or_open_files(host, &self.slug, Access::Read).await?;
        let folder = self.folder.as_deref();
        let mut roots = Root::of(host, &record, folder)?;
        Root::confirm_repositories(&mut roots, self.repository.as_deref(), None, output)?;
        let merging = async |_| {
            let mut all = Vec::new();
            for root in roots {
                all.push(self.merge(host, &root, &channel, output).await.map_err(|error| (root, error)));
            }
            let beside =
                if folder.is_none() { Beside::find(&channel, &record).await? } else { Beside::default() };
            // A failure in one directory prevents changes in the others.
            Ok((compared(all, is_without_repository, output)?, beside))
        };
        let (all, beside) =
            progress::with_progress("comparing", "nothing was changed", output, merging).await?;
        all.iter().for_each(|merged| show(merged, output));
        beside.warn(&self.slug, "applied", output);
        let has_conflicts = all.iter().any(|merged| !merged.merge.conflicts.is_empty());
        let has_changes = all.iter().any(Merged::has_changes);
        let stops = has_conflicts && !self.conflict_markers;
        let applies = !self.dry_run && !stops && has_changes;
        let applied = applies && (self.yes || confirmed(&all, output)?);
        if applied {
            apply_all(&all).await?;
            record_all(host, &all, output).await;
        }
        print(&all, applied, output)?;
        if stops && !self.dry_run {
            return Err(conflicts(&self.slug, &all));
        }
        if applied && has_conflicts {
            output.warn("files with conflicts need your decision");
            return Ok(exit::FAILED);
        }
        for Merged { folder, .. } in all.iter().filter(|merged| !merged.has_changes()) {
            output.note(format!("{} needs no change", folder.display()));
        }
        if has_changes && !applied {
            output.note("nothing was changed");
        }
        Ok(exit::DONE)
    }

    /// Merges the work in a workspace, or in a folder of it, with the files of its directory.
    async fn merge<'a>(
        &self,
        host: &'a Host,
        root: &Root,
        channel: &Channel,
        output: &Output,
    ) -> Result<Merged<'a>, CliError> {
        let mut work = Work::open(host, root.clone(), channel, output).await?;
        work.use_own_base().await?;
        work.use_applied(host).await?;
        let folder = folder(&work)?;
        let left_out = work.import(channel).await?;
        let merge = work.merge(&folder, self.conflict_markers).await?;
        Ok(Merged { work, folder, merge, left_out })
    }
}

/// Whether a folder cannot be compared because neither the bottle nor the user has a repository of it.
pub(crate) fn is_without_repository(error: &CliError) -> bool {
    error.kind == Kind::NothingCommitted
}

/// The work of a workspace, or of a folder of it, merged with the files of a directory.
struct Merged<'a> {
    work: Work<'a>,
    /// The directory.
    folder: PathBuf,
    merge: Merge,
    left_out: LeftOut,
}

impl Merged<'_> {
    fn has_changes(&self) -> bool {
        !self.merge.changed.is_empty()
    }
}

/// Changes the directories: all of them, or none.
async fn apply_all(all: &[Merged<'_>]) -> Result<(), CliError> {
    let changed: Vec<&Merged<'_>> = all.iter().filter(|merged| merged.has_changes()).collect();
    if let [Merged { work, folder, merge, .. }] = changed[..] {
        return work.scratch.apply(merge, folder).await;
    }
    for Merged { work, folder, merge, .. } in &changed {
        work.scratch.check_apply(merge, folder).await?;
    }
    for (index, Merged { work, folder, merge, .. }) in changed.iter().enumerate() {
        let Err(error) = work.scratch.apply(merge, folder).await else { continue };
        for Merged { work, folder, .. } in &changed[..index] {
            if work.scratch.revert_apply(folder).await.is_err() {
                let left = format!("{} was changed already, and could not be changed back", folder.display());
                return Err(error.hint(format!("{left}; `bottle apply` again applies the rest")));
            }
        }
        return Err(error);
    }
    Ok(())
}

/// Records what was applied, so that the next merge begins there.
async fn record_all(host: &Host, all: &[Merged<'_>], output: &Output) {
    for Merged { work, .. } in all.iter().filter(|merged| merged.has_changes()) {
        if let Err(error) = work.record_applied(host).await {
            output
                .warn(format!("the next `bottle apply` may find more conflicts: {}", inert(&error.message)));
        }
    }
}

/// Prints the changed files: with their directory if there are several.
fn print(all: &[Merged<'_>], applied: bool, output: &Output) -> Result<(), CliError> {
    if output.json {
        return match all {
            [one] => output.print_json(&described(one, applied)),
            several => {
                let all: Vec<_> = several.iter().map(|merged| described(merged, applied)).collect();
                output.print_json(&all)
            }
        };
    }
    for Merged { folder, merge, .. } in all.iter().filter(|_| applied) {
        let path = |path: &PathBuf| if all.len() > 1 { folder.join(path) } else { path.clone() };
        merge.changed.iter().try_for_each(|changed| output.print(&shown(&path(changed))))?;
    }
    Ok(())
}

/// The folder that a bottle's changes are applied to: that of the paths in the comparison.
fn folder(work: &Work<'_>) -> Result<PathBuf, CliError> {
    let folder = &work.root.directory;
    if !folder.is_dir() {
        return Err(CliError::state(format!("{} no longer exists", folder.display()))
            .about(folder.display())
            .hint(super::git::copy_out_hint(&work.root.slug)));
    }
    match &work.own {
        Some(own) if work.is_of_whole_repository() => own.top(),
        _ => Ok(folder.clone()),
    }
}

/// Shows what would change, before the question.
fn show(merged: &Merged<'_>, output: &Output) {
    let Merged { work, folder, merge, left_out } = merged;
    let label = work.root.label();
    if !output.json && !merge.changed.is_empty() {
        output.write_error_lines(&format!("changes in {}:", inert(&folder.display().to_string())));
        output.write_error_lines(&inert(merge.stat.trim_end()));
    }
    if merge.already > 0 {
        output.note(format!("{label}no change needed in {}", counted(merge.already, "file")));
    }
    for path in merge.merged.iter().take(MAX_NAMED) {
        output.note(format!("{label}{} is merged with your changes", shown(path)));
    }
    let more = |count: usize, output: &Output| {
        if let Some(more @ 1..) = count.checked_sub(MAX_NAMED) {
            output.warn(format!("{label}and {} more", counted(more, "file")));
        }
    };
    let used: Vec<_> = tool_files(merge.changed.iter().map(PathBuf::as_path)).collect();
    for (path, why) in used.iter().take(MAX_NAMED) {
        output.warn(format!("{label}the agent changed {}: {why}", shown(path)));
    }
    more(used.len(), output);
    for Conflict { path, why, marked } in merge.conflicts.iter().take(MAX_NAMED) {
        let effect = if *marked { "gets conflict markers" } else { "stays as it is" };
        output.warn(format!("{label}conflict in {}: {why}; your file {effect}", shown(path)));
    }
    more(merge.conflicts.len(), output);
    warn_left_out(&work.root.name, left_out, "applied", output);
}

fn confirmed(all: &[Merged<'_>], output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to apply the changes: there is no terminal")
            .about("--yes")
            .hint("`--dry-run` shows the changes; `--yes` applies them"));
    }
    let in_each = |Merged { folder, merge, .. }: &Merged<'_>| {
        format!("{} in {}", counted(merge.changed.len(), "file"), one_line(&folder.display().to_string()))
    };
    let changes: Vec<String> = all.iter().filter(|merged| merged.has_changes()).map(in_each).collect();
    let question = format!("Change {}?", changes.join(", and "));
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was changed")
}

fn conflicts(slug: &Slug, all: &[Merged<'_>]) -> CliError {
    let files = counted(all.iter().map(|merged| merged.merge.conflicts.len()).sum::<usize>(), "file");
    CliError::state(format!("cannot apply the changes of {slug}: conflicts in {files}; nothing was changed")).hint(format!(
        "`bottle apply {slug} --conflict-markers` writes them into the files; `bottle pull {slug}` makes a branch"
    ))
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

fn described(merged: &Merged<'_>, applied: bool) -> json_schema::Applied {
    let Merged { work, folder, merge, .. } = merged;
    let text = |path: &PathBuf| path.display().to_string();
    json_schema::Applied {
        slug: work.root.slug.to_string(),
        name: work.root.is_folder().then(|| work.root.name.clone()),
        folder: folder.display().to_string(),
        applied: applied && merged.has_changes(),
        changed: merge.changed.iter().map(text).collect(),
        merged: merge.merged.iter().map(text).collect(),
        already: merge.already,
        conflicts: merge
            .conflicts
            .iter()
            .map(|conflict| json_schema::Conflict {
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
