//! `bottle fs patch`: applies a diff, or replaces a text in a file.

use std::ffi::OsString;

use bottle_host::Host;
use bottle_lib::report::{PatchedFile, PatchedFiles};
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{self, FileEvent, FilePath, FileRequest};

use super::{Client, shown};
use crate::cli::candidates;
use crate::cli::connect::unexpected_answer;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;

/// Apply a unified diff from standard input, or replace a text in a file
///
/// All changes are made, or none. A hunk has to match exactly, where it says or in one other place. The text of
/// `--search` has to occur exactly once. Every user of this machine can see it while the command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Patch {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The file in which `--search` is replaced, from the workspace on
    #[arg(requires = "search")]
    path: Option<OsString>,
    /// The text to replace
    #[arg(long, value_name = "TEXT", requires_all = ["path", "replace"], allow_hyphen_values = true)]
    search: Option<String>,
    /// Its replacement
    #[arg(long, value_name = "TEXT", requires = "search", allow_hyphen_values = true)]
    replace: Option<String>,
    /// Replace each occurrence of the text
    #[arg(long, requires = "search")]
    all: bool,
    /// Check only, and change no file
    #[arg(long)]
    check: bool,
}

impl Patch {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let client = Client::new(host, &self.slug);
        let check = self.check;
        let event = match (&self.path, &self.search, &self.replace) {
            (Some(path), Some(search), Some(replacement)) => {
                client.ask(FileRequest::Replace(files::Replace {
                    path: FilePath::from(path),
                    search: search.clone(),
                    replacement: replacement.clone(),
                    all: self.all,
                    check,
                }))
            }
            _ => client.ask_with_input(FileRequest::Patch { check }, output),
        };
        let FileEvent::Patched { files } = event? else { return Err(unexpected_answer()) };
        if output.json {
            let files = files.into_iter().map(PatchedFile::from).collect();
            output.print_json(&PatchedFiles { files, applied: !check })?;
            return Ok(exit::DONE);
        }
        let line = |file: files::PatchedFile| {
            let path = shown(&file.path);
            format!("{} {path}", PatchedFile::from(file).change)
        };
        output.print(&files.into_iter().map(line).collect::<Vec<_>>().join("\n"))?;
        if check {
            output.note("the patch fits; no file was changed");
        }
        Ok(exit::DONE)
    }
}
