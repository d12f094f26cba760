//! `bottle fs reset`.

use std::ffi::OsString;
use std::path::PathBuf;

use bottle_channel::{Channel, Stream};
use bottle_contract::names::Slug;
use bottle_contract::session::files::{FileEvent, FilePath, FileRequest};
use bottle_contract::session::guest::{GuestEvent, GuestRequest};

use super::{json_path, shown};
use crate::archive;
use crate::backend::Access;
use crate::cli::apply::is_without_repository;
use crate::cli::completions;
use crate::cli::connect::{connect_or_open_files, guest_failure, keeper_lost, open_guest, unexpected_answer};
use crate::cli::diff::{compared, warn_left_out};
use crate::cli::error::{CliError, Kind, require_answer};
use crate::cli::exit;
use crate::cli::git::{Change, LeftOut, Root, Work};
use crate::cli::json_schema::{ComparedFolder, ResetFile, ResetFiles};
use crate::cli::live;
use crate::cli::output::{Output, counted};
use crate::cli::progress;
use crate::cli::pull::record;
use crate::cli::terminal::{self, TerminalUser};
use crate::host::Host;

/// The maximum number of files that the question lists. `--dry-run` lists all.
const MAX_LISTED: usize = 50;

/// The maximum number of paths in one request, and the maximum of their total bytes. As JSON, a byte of a path has at
/// most six, and a request at most 1 MiB.
const MAX_PATHS: usize = 1000;
const MAX_PATH_BYTES: usize = 128 << 10;

/// Put files of the workspace back to the state at its start
///
/// Restores what was changed or deleted since the commit with which `bottle diff` compares, and removes what was
/// created. Shows the files and asks first. Ignored files, and the commits, branches and index of the bottle's
/// repository, stay.
#[derive(Debug, clap::Args)]
pub(crate) struct Reset {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::with_files())]
    slug: Slug,
    /// Reset only these files and folders, from the workspace on [default: the workspace]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Reset without asking
    #[arg(short, long)]
    yes: bool,
    /// Show what would be reset, and change nothing
    #[arg(short = 'n', long, conflicts_with = "yes")]
    dry_run: bool,
}

/// The files of a workspace, or of a folder of it, that differ from the start.
struct Found<'a> {
    work: Work<'a>,
    changes: Vec<Change>,
    left_out: LeftOut,
}

impl Reset {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        self.reset(host, output).map_err(|error| error.about_if_unset(&self.slug))
    }

    fn reset(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let paths = self.paths.iter().map(in_workspace).collect::<Result<Vec<_>, _>>()?;
        if !self.yes && !self.dry_run && (!terminal::interactive() || output.json) {
            return Err(CliError::usage("cannot ask whether to reset files: there is no terminal")
                .about("--yes")
                .hint("`--dry-run` shows the files; `--yes` resets them"));
        }
        let finding = async |_| self.find(host, &paths, output).await;
        let found = progress::with_progress("comparing", "nothing was changed", output, finding);
        let mut found = crate::cli::block_on(found)?;
        select(&mut found, &paths, output);
        let changes: Vec<&Change> = found.iter().flat_map(|found| &found.changes).collect();
        let applies = !self.dry_run && !changes.is_empty();
        if !output.json {
            self.show(&found, &changes, output)?;
        }
        for Found { work, left_out, .. } in &found {
            warn_left_out(&work.root.name, left_out, "compared", output);
        }
        if applies {
            if !self.yes && !self.confirmed(changes.len())? {
                output.note("nothing was changed");
                return Ok(exit::DONE);
            }
            let left = format!("a part was reset; `bottle fs reset {}` continues", self.slug);
            let applying = async |_| self.apply(host, &found).await;
            crate::cli::block_on(progress::with_progress("resetting", &left, output, applying))?;
            output.note(format!("reset {}", counted(changes.len() as u64, "file")));
        }
        if output.json {
            let base = |work: &Work<'_>| work.base.commit.as_ref().map(|base| base.as_str().to_owned());
            let is_folder = |found: &&Found<'_>| found.work.root.is_folder();
            let folders = found
                .iter()
                .filter(is_folder)
                .map(|Found { work, .. }| ComparedFolder { name: work.root.name.clone(), base: base(work) });
            let folders: Vec<_> = folders.collect();
            let base = found.first().filter(|_| folders.is_empty()).and_then(|found| base(&found.work));
            let files = changes.iter().map(|change| ResetFile {
                path: json_path(&FilePath::from(change.path())),
                action: action(change),
            });
            let (slug, files) = (self.slug.to_string(), files.collect());
            output.print_json(&ResetFiles { slug, base, folders, files, applied: applies })?;
        }
        Ok(exit::DONE)
    }

    /// Finds the files that differ from the start, in the folders that contain these paths.
    async fn find<'a>(
        &self,
        host: &'a Host,
        paths: &[PathBuf],
        output: &Output,
    ) -> Result<Vec<Found<'a>>, CliError> {
        let record = record(host, &self.slug).await?;
        let instead =
            format!("`bottle diff {}` shows the changes; `git` in the directory puts files back", self.slug);
        live::require_copy(&record, &format!("reset {}", self.slug), instead)?;
        let channel = connect_or_open_files(host, &self.slug, Access::Read).await?;
        let mut all = Vec::new();
        for root in Root::of(host, &record, None)? {
            let is_named = |path: &PathBuf| path.starts_with(&root.name) || path.as_os_str().is_empty();
            if !paths.is_empty() && !paths.iter().any(is_named) {
                continue;
            }
            all.push(self.find_in(host, &root, &channel, output).await.map_err(|error| (root, error)));
        }
        compared(all, is_without_repository, output)
    }

    /// Finds the files that differ from the start in a workspace, or in a folder of it.
    async fn find_in<'a>(
        &self,
        host: &'a Host,
        root: &Root,
        channel: &Channel,
        output: &Output,
    ) -> Result<Found<'a>, CliError> {
        let work = Work::open(host, root.clone(), channel, output).await?;
        if root.is_copy && work.lacks_folder().await? {
            let slug = &self.slug;
            return Err(CliError::state(format!(
                "cannot reset {slug}: {} is in no commit, so its files at the start are unknown",
                root.directory.display()
            ))
            .hint(format!("`bottle diff {slug}` shows its files; `bottle fs rm {slug} PATH` removes one")));
        }
        let (changes, left_out) = work.changes(channel).await?;
        Ok(Found { work, changes, left_out })
    }

    fn show(&self, found: &[Found<'_>], changes: &[&Change], output: &Output) -> Result<(), CliError> {
        if changes.is_empty() {
            output.note("there is nothing to reset");
            return Ok(());
        }
        let all = self.yes || self.dry_run;
        let listed = if all { changes.len() } else { changes.len().min(MAX_LISTED) };
        let line = |change: &&Change| {
            let path = shown(&FilePath::from(change.path()));
            format!("{:7}  {path}", action(change))
        };
        output.print(&changes[..listed].iter().map(line).collect::<Vec<_>>().join("\n"))?;
        if listed < changes.len() {
            let more = counted((changes.len() - listed) as u64, "more file");
            output.note(format!("and {more}; `bottle fs reset {} --dry-run` lists all", self.slug));
        }
        for Found { work, changes, .. } in found.iter().filter(|_| !self.yes) {
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

    /// Removes the files that were created, and restores the others.
    async fn apply(&self, host: &Host, found: &[Found<'_>]) -> Result<(), CliError> {
        let channel = connect_or_open_files(host, &self.slug, Access::Write).await?;
        for Found { work, changes, .. } in found {
            self.apply_in(&channel, work, changes).await?;
        }
        Ok(())
    }

    async fn apply_in(&self, channel: &Channel, work: &Work<'_>, changes: &[Change]) -> Result<(), CliError> {
        // A new file can be in the place of a folder that is restored, so this comes first.
        for paths in parts(changes.iter().filter(|change| change.is_new())) {
            let stream = self.open(channel, FileRequest::RemoveFiles { paths }).await?;
            self.answer(stream).await?;
        }
        if changes.iter().any(|change| !change.is_new()) {
            let stream = self.open(channel, FileRequest::Import { path: FilePath::from(".") }).await?;
            let sent = archive::send(&stream, work.restoring(changes)).await;
            sent.map_err(|error| CliError::from_error(Kind::Failed, &error).hint(self.continues()))?;
            self.answer(stream).await?;
        }
        Ok(())
    }

    async fn open(&self, channel: &Channel, request: FileRequest) -> Result<Stream, CliError> {
        open_guest(channel, GuestRequest::Files(request)).await
    }

    async fn answer(&self, mut stream: Stream) -> Result<(), CliError> {
        match stream.receive::<GuestEvent>().await.map_err(keeper_lost)? {
            GuestEvent::Files(FileEvent::Removed { .. } | FileEvent::Imported { .. }) => Ok(()),
            GuestEvent::Failed(failure) => {
                let error = guest_failure(failure).exit(exit::FAILED);
                Err(CliError { message: format!("cannot reset all files: {}", error.message), ..error }
                    .hint(format!("`bottle fs reset {}` resets the whole workspace", self.slug)))
            }
            _ => Err(unexpected_answer()),
        }
    }

    fn continues(&self) -> String {
        format!("`bottle fs reset {}` continues", self.slug)
    }
}

fn action(change: &Change) -> &'static str {
    if change.is_new() { "remove" } else { "restore" }
}

/// Checks a path of the command line. Returns it relative to the workspace.
fn in_workspace(path: &OsString) -> Result<PathBuf, CliError> {
    FilePath::from(path).in_workspace().ok_or_else(|| {
        CliError::usage(format!("cannot reset {path:?}: it is outside the workspace"))
            .about("PATH")
            .hint("write it from the workspace on, or with `/workspace`")
    })
}

/// Selects the changes in these paths; without paths, all. Warns about a path without a change, which can be
/// misspelled.
fn select(found: &mut [Found<'_>], paths: &[PathBuf], output: &Output) {
    if paths.is_empty() {
        return;
    }
    let has_changes = |path: &PathBuf| {
        found.iter().flat_map(|found| &found.changes).any(|change| change.path().starts_with(path))
    };
    for path in paths.iter().filter(|path| !has_changes(path)) {
        output.warn(format!("{} has no changes", shown(&FilePath::from(path))));
    }
    for Found { changes, .. } in found {
        changes.retain(|change| paths.iter().any(|path| change.path().starts_with(path)));
    }
}

/// Divides paths into requests.
fn parts<'a>(changes: impl Iterator<Item = &'a Change>) -> Vec<Vec<FilePath>> {
    let mut parts: Vec<Vec<FilePath>> = Vec::new();
    let mut bytes = 0;
    for change in changes {
        let path = FilePath::from(change.path());
        bytes += path.as_bytes().len();
        match parts.last_mut() {
            Some(part) if part.len() < MAX_PATHS && bytes <= MAX_PATH_BYTES => part.push(path),
            _ => {
                bytes = path.as_bytes().len();
                parts.push(vec![path]);
            }
        }
    }
    parts
}
