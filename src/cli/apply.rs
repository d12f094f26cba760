//! `bottle apply`: lays a bottle's changes onto the user's files.

use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;

use super::completions;
use super::connect::connect_or_open_files;
use super::diff::warn_left_out;
use super::error::{CliError, require_answer};
use super::exit;
use super::git::{Conflict, LeftOut, Merge, Work};
use super::json_schema;
use super::live;
use super::output::{Output, counted, inert, one_line};
use super::progress;
use super::pull::record;
use super::terminal::{self, TerminalUser};
use crate::backend::Access;
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::tool_files::tool_files;

/// The maximum number of paths that a warning names individually.
const MAX_NAMED: usize = 20;

/// Lay a bottle's changes onto your files, committed or not
///
/// Changes the directory that the bottle was started in with `--cwd`, otherwise the repository that contains the
/// working directory. Shows the changes and asks first. Merges three-way: changes of yours in other places of a
/// file remain. If a file has a conflict, nothing is changed. Your commits, branches and the index do not change.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::with_files())]
    slug: Slug,
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
        let merging = async |_| {
            let mut work = Work::open(host, &record, &channel, output).await?;
            work.use_own_base().await?;
            work.use_applied(host, &self.slug).await?;
            let folder = folder(host, &record, &work).await?;
            let left_out = work.import((&channel, &self.slug)).await?;
            let merge = work.merge(&folder, self.conflict_markers).await?;
            Ok((work, folder, merge, left_out))
        };
        let (work, folder, merge, left_out) =
            progress::with_progress("comparing", "nothing was changed", output, merging).await?;
        show(&folder, &merge, &left_out, output);
        let stops = !merge.conflicts.is_empty() && !self.conflict_markers;
        let applies = !self.dry_run && !stops && !merge.changed.is_empty();
        let applied = applies && (self.yes || confirmed(&folder, &merge, output)?);
        if applied {
            work.scratch.apply(&merge, &folder).await?;
            if let Err(error) = work.record_applied(host, &self.slug).await {
                output.warn(format!(
                    "the next `bottle apply` may find more conflicts: {}",
                    inert(&error.message)
                ));
            }
        }
        output.json_or(&described(&self.slug, &folder, &merge, applied), || {
            merge.changed.iter().filter(|_| applied).try_for_each(|path| output.print(&shown(path)))
        })?;
        if stops && !self.dry_run {
            return Err(conflicts(&self.slug, &merge));
        }
        if applied && !merge.conflicts.is_empty() {
            output.warn("files with conflicts need your decision");
            return Ok(exit::FAILED);
        }
        if merge.changed.is_empty() {
            output.note(format!("{} needs no change", folder.display()));
        } else if !applied {
            output.note("nothing was changed");
        }
        Ok(exit::DONE)
    }
}

/// The folder that a bottle's changes are applied to: that of the paths in the comparison.
async fn folder(host: &Host, record: &Record, work: &Work<'_>) -> Result<PathBuf, CliError> {
    let folder = if record.copied_cwd { &record.cwd } else { &host.cwd };
    if !folder.is_dir() {
        return Err(CliError::state(format!("{} no longer exists", folder.display()))
            .about(folder.display())
            .hint(super::git::copy_out_hint(&record.slug)));
    }
    match &work.own {
        Some(own) if work.is_of_whole_repository() => own.top().await,
        _ => Ok(folder.clone()),
    }
}

/// Shows what would change, before the question.
fn show(folder: &Path, merge: &Merge, left_out: &LeftOut, output: &Output) {
    if !output.json && !merge.changed.is_empty() {
        output.write_error_lines(&format!("changes in {}:", inert(&folder.display().to_string())));
        output.write_error_lines(&inert(merge.stat.trim_end()));
    }
    if merge.already > 0 {
        output.note(format!("no change needed in {}", counted(merge.already, "file")));
    }
    for path in merge.merged.iter().take(MAX_NAMED) {
        output.note(format!("{} is merged with your changes", shown(path)));
    }
    let more = |count: usize, output: &Output| {
        if let Some(more @ 1..) = count.checked_sub(MAX_NAMED) {
            output.warn(format!("and {} more", counted(more, "file")));
        }
    };
    let used: Vec<_> = tool_files(merge.changed.iter().map(PathBuf::as_path)).collect();
    for (path, why) in used.iter().take(MAX_NAMED) {
        output.warn(format!("the agent changed {}: {why}", shown(path)));
    }
    more(used.len(), output);
    for Conflict { path, why, marked } in merge.conflicts.iter().take(MAX_NAMED) {
        let effect = if *marked { "gets conflict markers" } else { "stays as it is" };
        output.warn(format!("conflict in {}: {why}; your file {effect}", shown(path)));
    }
    more(merge.conflicts.len(), output);
    warn_left_out(left_out, "applied", output);
}

fn confirmed(folder: &Path, merge: &Merge, output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to apply the changes: there is no terminal")
            .about("--yes")
            .hint("`--dry-run` shows the changes; `--yes` applies them"));
    }
    let files = counted(merge.changed.len(), "file");
    let question = format!("Change {files} in {}?", one_line(&folder.display().to_string()));
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was changed")
}

fn conflicts(slug: &Slug, merge: &Merge) -> CliError {
    let files = counted(merge.conflicts.len(), "file");
    CliError::state(format!("cannot apply the changes of {slug}: conflicts in {files}; nothing was changed")).hint(format!(
        "`bottle apply {slug} --conflict-markers` writes them into the files; `bottle pull {slug}` makes a branch"
    ))
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

fn described(slug: &Slug, folder: &Path, merge: &Merge, applied: bool) -> json_schema::Applied {
    let text = |path: &PathBuf| path.display().to_string();
    json_schema::Applied {
        slug: slug.to_string(),
        folder: folder.display().to_string(),
        applied,
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
