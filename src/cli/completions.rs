//! Shell completion: the shell runs this program, which completes the names of agents, bottle manifests and
//! bottles.
//!
//! `bottle completions SHELL` prints a registration script. The script makes the shell run this program with
//! [`COMPLETE_VARIABLE`] set.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap_complete::env::{CompleteEnv, Shells};

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;

/// The environment variable through which a shell requests completions. Its value is the shell's name.
const COMPLETE_VARIABLE: &str = "BOTTLE_COMPLETE";

/// Print a script that completes bottle's commands and names in a shell
///
/// bash, in ~/.bashrc: `source <(bottle completions bash)`; zsh, in ~/.zshrc: `source <(bottle completions zsh)`;
/// fish, in ~/.config/fish/config.fish: `bottle completions fish | source`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell to print the script for
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(SHELLS))]
    shell: String,
}

/// The supported shells.
const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

impl Completions {
    pub(crate) fn run(self, output: &Output) -> Result<u8, CliError> {
        let shells = Shells::builtins();
        let Some(shell) = shells.completer(&self.shell) else {
            return Err(CliError::usage(format!("there are no completions for {}", self.shell)));
        };
        let mut text = Vec::new();
        shell
            .write_registration(COMPLETE_VARIABLE, "bottle", "bottle", "bottle", &mut text)
            .map_err(|error| CliError::cannot("write completions", error))?;
        output.print(&String::from_utf8_lossy(&text))?;
        Ok(exit::DONE)
    }
}

/// Answers a completion request from a shell for this command line. Returns `None` if there is no request.
pub(crate) fn complete(command: fn() -> clap::Command, arguments: &[OsString]) -> Option<ExitCode> {
    std::env::var_os(COMPLETE_VARIABLE).filter(|shell| !shell.is_empty() && shell != OsStr::new("0"))?;
    let here = std::env::current_dir().ok();
    let environment =
        CompleteEnv::with_factory(command).var(COMPLETE_VARIABLE).bin("bottle").completer("bottle");
    match environment.try_complete(arguments.iter().cloned(), here.as_deref()) {
        Ok(true) => Some(ExitCode::from(exit::DONE)),
        Ok(false) => None,
        // If the completion fails, it prints nothing, and the shell shows no candidates.
        Err(_) => Some(ExitCode::from(exit::FAILED)),
    }
}
