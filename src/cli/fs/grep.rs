//! `bottle fs grep`: searches the lines of files.

use std::ffi::OsString;

use bottle_host::Host;
use bottle_lib::report::FileMatches;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{self, ENTRIES_MAX, FileEvent, FileRequest, LineMatch};

use super::{Client, Excludes, shown};
use crate::cli::candidates;
use crate::cli::connect::unexpected_answer;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};

/// Search the lines of files for a regular expression
///
/// Prints the path, the number and the text of each line. Binary files, symlinks and the .git directories are left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Grep {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The regular expression
    pattern: String,
    /// The directory or file, from the workspace on [default: the workspace]
    path: Option<OsString>,
    /// Search for the pattern as plain text
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Match letters in either case
    #[arg(short, long)]
    ignore_case: bool,
    /// Search only files that match a pattern of .gitignore
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    #[command(flatten)]
    excludes: Excludes,
    /// Stop after so many lines
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(ENTRIES_MAX)))]
    limit: u32,
}

impl Grep {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let request = files::Grep {
            scope: self.excludes.scope(self.path.as_ref()),
            pattern: self.pattern,
            literal: self.fixed_strings,
            ignore_case: self.ignore_case,
            include: self.include,
            limit: self.limit,
            redact: false,
        };
        let event = Client::new(host, &self.slug).ask(FileRequest::Grep(request))?;
        let FileEvent::Matches(found) = event else { return Err(unexpected_answer()) };
        if output.json {
            output.print_json(&FileMatches::from(found))?;
            return Ok(exit::DONE);
        }
        if !found.matches.is_empty() {
            output.print(&found.matches.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        }
        if let Some(why) = found.stopped {
            output.warn(format!("the search stopped, because {why}; search a smaller part"));
        }
        Ok(exit::DONE)
    }
}

fn line(found: &LineMatch) -> String {
    format!("{}:{}:{}", shown(&found.path), found.line, inert(&found.text))
}
