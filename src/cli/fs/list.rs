//! `bottle fs ls`, `stat` and `glob`: list a directory, describe an entry, and find entries by a pattern.

use std::ffi::OsString;

use bottle_host::Host;
use bottle_lib::report::FileEntry;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{self, FileEvent, FileInfo, FilePath, FileRequest, List};
use indicatif::BinaryBytes;

use super::{Client, Excludes, Target, path_or_workspace, shown};
use crate::cli::candidates;
use crate::cli::connect::unexpected_answer;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, counted};

/// The number of entries that `--json` lists if `--limit` is not given.
const JSON_LIMIT: u32 = 1000;

/// Show the entries of a directory, sorted by name
///
/// Symlinks are not followed. A file lists itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The directory, from the workspace on [default: the workspace]
    path: Option<OsString>,
    /// List directories below it too, each directly before its contents
    #[arg(short, long)]
    recursive: bool,
    /// Show the mode, the size and the time of the last change
    #[arg(short, long)]
    long: bool,
    #[command(flatten)]
    part: Part,
}

impl Ls {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Self { slug, path, recursive, long, part } = self;
        let path = path_or_workspace(path.as_ref());
        let request = |after, limit| FileRequest::List(List { path: path.clone(), recursive, after, limit });
        part.print(&Client::new(host, &slug), request, long, output)
    }
}

/// Find the entries whose path matches a pattern
///
/// `*` matches within a name, `**` across directories, and `{a,b}` either text. A pattern without a slash applies to
/// names in every directory, another one to paths from PATH on. The .git directories are left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Glob {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The pattern
    pattern: String,
    /// The directory, from the workspace on [default: the workspace]
    path: Option<OsString>,
    #[command(flatten)]
    excludes: Excludes,
    #[command(flatten)]
    part: Part,
}

impl Glob {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Self { slug, pattern, path, excludes, part } = self;
        let scope = excludes.scope(path.as_ref());
        let request = |after, limit| {
            let (scope, pattern) = (scope.clone(), pattern.clone());
            FileRequest::Glob(files::Glob { scope, pattern, after, limit })
        };
        part.print(&Client::new(host, &slug), request, false, output)
    }
}

/// The part of a list to show.
#[derive(Debug, clap::Args)]
struct Part {
    /// Begin behind this entry
    #[arg(long, value_name = "PATH")]
    after: Option<OsString>,
    /// Show at most so many entries [default with --json: 1000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl Part {
    /// Prints this part of the list. With `--json`, prints one document. Otherwise prints each response of the guest
    /// when it arrives.
    fn print(
        &self,
        client: &Client<'_>,
        request: impl Fn(Option<FilePath>, u32) -> FileRequest,
        long: bool,
        output: &Output,
    ) -> Result<u8, CliError> {
        let after = self.after.as_ref().map(FilePath::from);
        if output.json {
            output.print_json(&client.document(request(after, self.limit.unwrap_or(JSON_LIMIT)))?)?;
            return Ok(exit::DONE);
        }
        let limit = self.limit.unwrap_or(u32::MAX);
        let listed = client.list(request, after, limit, |entries| print_entries(&entries, long, output))?;
        if listed.unreadable > 0 {
            output.warn(format!("{} could not be read", counted(listed.unreadable, "directory")));
        }
        if let Some(next) = &listed.next {
            output.note(format!("there are more; `--after {}` continues", shown(next)));
        }
        Ok(exit::DONE)
    }
}

fn print_entries(entries: &[FileInfo], long: bool, output: &Output) -> Result<(), CliError> {
    if entries.is_empty() {
        return Ok(());
    }
    if long {
        let entries: Vec<FileEntry> = entries.iter().cloned().map(FileEntry::from).collect();
        return output.print_list(&entries, &["KIND", "MODE", "SIZE", "MODIFIED", "PATH"], 4, row);
    }
    let lines: Vec<String> = entries.iter().map(|entry| shown(&entry.path)).collect();
    output.print(&lines.join("\n"))
}

/// Show the kind, size, mode and time of an entry
///
/// A symlink is described itself, with its target.
#[derive(Debug, clap::Args)]
pub(crate) struct Stat {
    #[command(flatten)]
    target: Target,
}

impl Stat {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Target { slug, path } = self.target;
        let event = Client::new(host, &slug).ask(FileRequest::Stat { path: FilePath::from(&path) })?;
        let FileEvent::Entry(info) = event else { return Err(unexpected_answer()) };
        let entry = FileEntry::from(info);
        if output.json {
            output.print_json(&entry)?;
        } else {
            output.print_list(&[entry], &["KIND", "MODE", "SIZE", "MODIFIED", "PATH"], 4, row)?;
        }
        Ok(exit::DONE)
    }
}

fn row(entry: &FileEntry) -> Vec<String> {
    use crate::console::output::one_line;
    let name = match &entry.target {
        Some(target) => format!("{} -> {target}", entry.path.path),
        None => entry.path.path.clone(),
    };
    let modified = entry.modified.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    vec![
        entry.kind.to_owned(),
        entry.mode.clone(),
        BinaryBytes(entry.size_bytes).to_string(),
        modified.unwrap_or_default(),
        one_line(&name),
    ]
}
