//! `bottle fs rm`: removes a file, a symlink or a directory.

use bottle_host::Host;
use bottle_lib::report::RemovedFiles;
use bottle_protocol::session::files::{FileEvent, FilePath, FileRequest};

use super::{Client, Target};
use crate::cli::connect::unexpected_answer;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;

/// Remove a file or a symlink, or with --recursive a directory
///
/// The workspace itself is not removed.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    target: Target,
    /// Remove a directory with its contents
    #[arg(short, long)]
    recursive: bool,
}

impl Rm {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Target { slug, path } = &self.target;
        let request = FileRequest::Remove { path: FilePath::from(path), recursive: self.recursive };
        let FileEvent::Removed { entries } = Client::new(host, slug).ask(request)? else {
            return Err(unexpected_answer());
        };
        output.json_or(&RemovedFiles { entries }, || Ok(()))?;
        Ok(exit::DONE)
    }
}
