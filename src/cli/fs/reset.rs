//! `bottle fs reset`: restores files of the workspace to their state at the start.

use std::ffi::OsString;
use std::path::PathBuf;

use bottle_backend::Access;
use bottle_host::Host;
use bottle_lib::connect::{connect_or_open_files, open_files};
use bottle_lib::work::{
    Change, Differences, Root, RootDifferences, in_workspace, require_copy_to_reset, retain_roots,
};
use bottle_policy::names::Slug;
use bottle_protocol::session::files::FilePath;

use super::shown;
use crate::cli::candidates;
use crate::cli::confirm_repositories::confirm_repositories;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// The maximum number of files that the question lists. `--dry-run` lists all.
const MAX_LISTED: usize = 50;

/// Put files of the workspace back to the state at its start
///
/// Restores what was changed or deleted since the commit, or the start, with which `bottle diff` compares, and removes what
/// was created. Shows the files and asks first. Ignored files, and the commits, branches and index of the bottle's
/// repository, stay.
#[derive(Debug, clap::Args)]
pub(crate) struct Reset {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// Reset only these files and directories, from the workspace on [default: the workspace]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Compare with this repository, instead of the one that was copied
    #[arg(long, value_name = "PATH")]
    repository: Option<PathBuf>,
    /// Reset without asking
    #[arg(short, long)]
    yes: bool,
    /// Show what would be reset, and change nothing
    #[arg(short = 'n', long, conflicts_with = "yes")]
    dry_run: bool,
}

impl Reset {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        self.reset(host, output).map_err(|error| error.about_if_unset(&self.slug))
    }

    fn reset(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let paths = self.paths.iter().map(|path| in_workspace(path)).collect::<Result<Vec<_>, _>>()?;
        if !self.yes && !self.dry_run && (!terminal::interactive() || output.json) {
            return Err(CliError::usage("cannot ask whether to reset files: there is no terminal")
                .about("--yes")
                .hint("`--dry-run` shows the files; `--yes` resets them"));
        }
        let finding = async |_| self.find(host, &paths, output).await;
        let found = progress::with_progress("comparing", "nothing was changed", output, finding);
        let mut found = block_on(found)?;
        for path in found.select(&paths) {
            output.warn(format!("{} has no changes", shown(&FilePath::from(path))));
        }
        let changes: Vec<&Change> = found.changes().collect();
        let applies = !self.dry_run && !changes.is_empty();
        if !output.json {
            self.show(&found, &changes, output)?;
        }
        for RootDifferences { work, left_out, .. } in &found.roots {
            output.warn_all(left_out.warnings(&work.root.name, "compared"));
        }
        if applies {
            if !self.yes && !self.confirmed(changes.len())? {
                output.note("nothing was changed");
                return Ok(exit::DONE);
            }
            let left = format!("a part was reset; `bottle fs reset {}` continues", self.slug);
            let applying = async |_| {
                let channel = connect_or_open_files(host, &self.slug, Access::Write).await?;
                Ok(found.reset(&channel).await?)
            };
            block_on(progress::with_progress("resetting", &left, output, applying))?;
            output.note(format!("reset {}", counted(changes.len() as u64, "file")));
        }
        if output.json {
            output.print_json(&found.document(applies))?;
        }
        Ok(exit::DONE)
    }

    /// Finds the files that differ from their state at the start. Searches only the copied directories that contain
    /// `paths`.
    async fn find<'a>(
        &self,
        host: &'a Host,
        paths: &[PathBuf],
        output: &Output,
    ) -> Result<Differences<'a>, CliError> {
        let (record, channel) = open_files(host, &self.slug, require_copy_to_reset).await?;
        let mut roots = Root::of(host, &record, None)?;
        retain_roots(&mut roots, paths);
        confirm_repositories(&mut roots, self.repository.as_deref(), None, output)?;
        let notify = |notice| output.notice(notice);
        Ok(Differences::find(host, &self.slug, &channel, roots, &notify).await?)
    }

    fn show(&self, found: &Differences<'_>, changes: &[&Change], output: &Output) -> Result<(), CliError> {
        if changes.is_empty() {
            output.note("there is nothing to reset");
            return Ok(());
        }
        let all = self.yes || self.dry_run;
        let listed = if all { changes.len() } else { changes.len().min(MAX_LISTED) };
        let line = |change: &&Change| {
            let path = shown(&FilePath::from(change.path()));
            format!("{:7}  {path}", change.action())
        };
        output.print(&changes[..listed].iter().map(line).collect::<Vec<_>>().join("\n"))?;
        if listed < changes.len() {
            let more = counted((changes.len() - listed) as u64, "more file");
            output.note(format!("and {more}; `bottle fs reset {} --dry-run` lists all", self.slug));
        }
        for RootDifferences { work, changes, .. } in found.roots.iter().filter(|_| !self.yes) {
            if let Some(commit) = work.base.commit.as_ref().filter(|_| !changes.is_empty()) {
                output.note(format!(
                    "{}the start is {}; `bottle diff {}` shows the changes",
                    work.root.label(),
                    commit.short(),
                    self.slug
                ));
            }
        }
        Ok(())
    }

    fn confirmed(&self, count: usize) -> Result<bool, CliError> {
        let files = counted(count as u64, "file");
        let question = format!("Reset {files} of {}? Their changes are lost.", self.slug);
        let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
        require_answer(asked, "nothing was changed")
    }
}
