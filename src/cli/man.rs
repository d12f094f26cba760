//! `bottle man`: writes manual pages that contain the texts of `--help`.

use std::path::PathBuf;

use bottle_host::Host;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;

/// Write manual pages to a directory, one for each command
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// The directory, for example `~/.local/share/man/man1`; created if missing
    directory: PathBuf,
}

impl Man {
    /// Writes the manual pages of `command` and its subcommands.
    pub(crate) fn run(
        self,
        mut command: clap::Command,
        host: &Host,
        output: &Output,
    ) -> Result<u8, CliError> {
        let directory = host.cwd.join(self.directory);
        command.build();
        std::fs::create_dir_all(&directory)
            .and_then(|()| clap_mangen::generate_to(command, &directory))
            .map_err(|error| CliError::path("write into", &directory, error))?;
        output.note(format!("wrote manual pages to {}; `man bottle` opens the first", directory.display()));
        Ok(exit::DONE)
    }
}
