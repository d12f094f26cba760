//! `bottle man`: writes manual pages that contain the texts of `--help`.

use std::path::PathBuf;

use super::error::CliError;
use super::exit;
use super::output::Output;
use crate::host::Host;

/// Write manual pages to a folder, one for each command
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// The folder, for example `~/.local/share/man/man1`; created if missing
    folder: PathBuf,
}

impl Man {
    /// Writes the pages of this command line.
    pub(crate) fn run(
        self,
        mut command: clap::Command,
        host: &Host,
        output: &Output,
    ) -> Result<u8, CliError> {
        let folder = host.cwd.join(self.folder);
        command.build();
        std::fs::create_dir_all(&folder)
            .and_then(|()| clap_mangen::generate_to(command, &folder))
            .map_err(|error| CliError::path("write into", &folder, error))?;
        output.note(format!("wrote manual pages to {}; `man bottle` opens the first", folder.display()));
        Ok(exit::DONE)
    }
}
