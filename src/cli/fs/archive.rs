//! `bottle fs export` and `bottle fs import`: write a directory or a file to a tar archive, and unpack a tar archive into
//! a directory.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use bottle_host::Host;
use bottle_lib::report::ImportedFiles;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{FileEvent, FileRequest};

use super::{Client, path_or_workspace};
use crate::cli::candidates;
use crate::cli::connect::unexpected_answer;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, write_failed};

/// Write the contents of a directory, or a file, to standard output as a tar archive
///
/// Only files, directories and symlinks are packed.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The directory or the file, from the workspace on [default: the workspace]
    path: Option<OsString>,
}

impl Export {
    pub(super) fn run(self, host: &Host, _output: &Output) -> Result<u8, CliError> {
        if io::stdout().is_terminal() {
            let error = CliError::usage("an archive cannot be written to a terminal");
            return Err(error.about("standard output").hint("redirect it to a file: `> FILE.tar`"));
        }
        let Self { slug, path } = &self;
        let request = FileRequest::Export { path: path_or_workspace(path.as_ref()) };
        let event = Client::new(host, slug).run(request, tokio::io::empty(), |bytes| {
            io::stdout().lock().write_all(&bytes).map_err(write_failed)
        })?;
        io::stdout().lock().flush().map_err(write_failed)?;
        match event {
            FileEvent::Exported => Ok(exit::DONE),
            _ => Err(unexpected_answer()),
        }
    }
}

/// Unpack a tar archive from standard input into a directory, which is created if it does not exist
///
/// The archive may be compressed with gzip. Files and symlinks are replaced, and directories are merged. A damaged or
/// truncated archive changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The directory, from the workspace on [default: the workspace]
    path: Option<OsString>,
}

impl Import {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Self { slug, path } = &self;
        let request = FileRequest::Import { path: path_or_workspace(path.as_ref()) };
        let event = Client::new(host, slug).ask_with_input(request, output)?;
        let FileEvent::Imported { entries } = event else { return Err(unexpected_answer()) };
        output.json_or(&ImportedFiles { entries }, || {
            let plural = if entries == 1 { "entry" } else { "entries" };
            output.note(format!("unpacked {entries} {plural}"));
            Ok(())
        })?;
        Ok(exit::DONE)
    }
}
