//! `bottle apply`: applies a bottle's changes to the user's files.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_instance::tool_files::tool_files;
use bottle_lib::connect::open_files;
use bottle_lib::text::shown;
use bottle_lib::work::{Conflict, Merged, Merges, Root, require_copy_to_apply};
use bottle_policy::names::Slug;

use super::candidates;
use super::confirm_repositories::confirm_repositories;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted, inert};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// The maximum number of paths that a warning names individually.
const MAX_NAMED: usize = 20;

/// Lay a bottle's changes onto your files, committed or not
///
/// Changes the directory that the bottle was started in with `--cwd`, otherwise the working directory. Shows the
/// changes and asks first. Merges three-way: changes of yours in other places of a file remain. If a file has a
/// conflict, nothing is changed. Files that the bottle was not given are never deleted or replaced. Your commits,
/// branches and the index do not change.
///
/// With several `--cwd`, changes each of them. If a file in one of them has a conflict, none is changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// Apply only the changes in this directory of the workspace
    #[arg(long, alias = "folder", value_name = "DIRECTORY")]
    directory: Option<String>,
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
    /// Apply even if more than a third of your tracked files would be deleted; without a repository, of the files that the
    /// bottle was given
    #[arg(long)]
    allow_deletions: bool,
}

impl Apply {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let applied = block_on(self.apply(host, output));
        applied.map_err(|error| error.about_if_unset(&self.slug))
    }

    async fn apply(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let (record, channel) = open_files(host, &self.slug, require_copy_to_apply).await?;
        let directory = self.directory.as_deref();
        let mut roots = Root::of(host, &record, directory)?;
        confirm_repositories(&mut roots, self.repository.as_deref(), None, output)?;
        let merging = async |_| {
            let (bottle, roots) = ((&record, &channel), (roots, directory.is_none()));
            let notify = |notice| output.notice(notice);
            Ok(Merges::of(host, bottle, roots, self.conflict_markers, &notify).await?)
        };
        let merges = progress::with_progress("comparing", "nothing was changed", output, merging).await?;
        merges.roots.iter().for_each(|merged| show(merged, output));
        output.warn_all(merges.beside.warning(&self.slug, "applied"));
        let refusal = merges.refusal(self.allow_deletions);
        let has_changes = merges.has_changes();
        let applies = !self.dry_run && refusal.is_none() && has_changes;
        let applied = applies && (self.yes || confirmed(&merges.roots, output)?);
        if applied {
            merges.apply(host, &|notice| output.notice(notice)).await?;
        }
        print(&merges, applied, output)?;
        if let Some(refusal) = refusal.filter(|_| !self.dry_run) {
            return Err(refusal.into());
        }
        if applied && merges.has_conflicts() {
            output.warn("files with conflicts need your decision");
            return Ok(exit::FAILED);
        }
        for Merged { directory, .. } in merges.roots.iter().filter(|merged| !merged.has_changes()) {
            output.note(format!("{} needs no change", directory.display()));
        }
        if has_changes && !applied {
            output.note("nothing was changed");
        }
        Ok(exit::DONE)
    }
}

/// Prints the paths of the changed files. If there are several directories, each path includes its directory.
fn print(merges: &Merges<'_>, applied: bool, output: &Output) -> Result<(), CliError> {
    if output.json {
        return output.print_json(&merges.document(applied));
    }
    let several = merges.roots.len() > 1;
    for Merged { directory, merge, .. } in merges.roots.iter().filter(|_| applied) {
        let path = |path: &PathBuf| if several { directory.join(path) } else { path.clone() };
        merge.changed.iter().try_for_each(|changed| output.print(&shown(&path(changed))))?;
    }
    Ok(())
}

/// Shows the changes before the user is asked to confirm them.
fn show(merged: &Merged<'_>, output: &Output) {
    let Merged { work, directory, merge, left_out } = merged;
    let label = work.root.label();
    let deleted = &merge.deletions.paths;
    if !deleted.is_empty() {
        let named: Vec<String> = deleted.iter().take(MAX_NAMED).map(|path| shown(path)).collect();
        let more = match deleted.len().checked_sub(MAX_NAMED) {
            Some(more @ 1..) => format!(" and {}", counted(more, "other file")),
            _ => String::new(),
        };
        output.warn(format!(
            "{label}{} would be deleted: {}{more}",
            counted(deleted.len(), "file"),
            named.join(", ")
        ));
    }
    if !output.json && !merge.changed.is_empty() {
        output.write_error_lines(&format!("changes in {}:", inert(&directory.display().to_string())));
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
    output.warn_all(left_out.warnings(&work.root.name, "applied"));
}

fn confirmed(all: &[Merged<'_>], output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to apply the changes: there is no terminal")
            .about("--yes")
            .hint("`--dry-run` shows the changes; `--yes` applies them"));
    }
    let in_each = |Merged { directory, merge, .. }: &Merged<'_>| {
        format!("{} in {}", counted(merge.changed.len(), "file"), shown(directory))
    };
    let changes: Vec<String> = all.iter().filter(|merged| merged.has_changes()).map(in_each).collect();
    let question = format!("Change {}?", changes.join(", and "));
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was changed")
}
