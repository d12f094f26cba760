//! Shell completion: the shell runs this program, which completes the names of agents, bottle manifests and
//! bottles.
//!
//! `bottle completions SHELL` prints a registration script. The script makes the shell run this program with
//! [`COMPLETE_VARIABLE`] set.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate};

use super::args::Cli;
use super::choice;
use super::error::CliError;
use super::exit;
use super::output::Output;
use super::start::MODES;
use crate::host::Host;
use crate::instance::environments::Environments;
use crate::instance::{State, Store};
use crate::manifest::Kind;

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

/// Answers a completion request from a shell. Returns none if there is no request.
pub(crate) fn complete(arguments: &[OsString]) -> Option<ExitCode> {
    std::env::var_os(COMPLETE_VARIABLE).filter(|shell| !shell.is_empty() && shell != OsStr::new("0"))?;
    let here = std::env::current_dir().ok();
    let environment =
        CompleteEnv::with_factory(Cli::command).var(COMPLETE_VARIABLE).bin("bottle").completer("bottle");
    match environment.try_complete(arguments.iter().cloned(), here.as_deref()) {
        Ok(true) => Some(ExitCode::from(exit::DONE)),
        Ok(false) => None,
        // A failed completion prints nothing, and the shell then shows no candidates.
        Err(_) => Some(ExitCode::from(exit::FAILED)),
    }
}

/// The modes of `bottle start --cwd`.
pub(crate) fn cwd_modes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| MODES.into_iter().map(CompletionCandidate::new).collect())
}

/// Completes names of agents, and shows where each manifest comes from.
pub(crate) fn agents() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(&[Kind::Agent]))
}

/// Completes names of bottle manifests.
pub(crate) fn bottles() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(&[Kind::Bottle]))
}

/// Completes names of agents and bottle manifests.
pub(crate) fn manifests() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(&[Kind::Agent, Kind::Bottle]))
}

/// Completes slugs of running bottles.
pub(crate) fn running() -> ArgValueCandidates {
    ArgValueCandidates::new(|| slugs(super::select_bottle::is_running))
}

/// Completes slugs of bottles whose files a command can use.
pub(crate) fn with_files() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let preserved = |state: &State| matches!(state, State::Preserved(record) if record.kept);
        slugs(|state| super::select_bottle::is_running(state) || preserved(state))
    })
}

/// Completes slugs of preserved bottles.
pub(crate) fn preserved() -> ArgValueCandidates {
    ArgValueCandidates::new(|| slugs(|state| matches!(state, State::Preserved(_))))
}

/// Completes slugs of all bottles.
pub(crate) fn all_bottles() -> ArgValueCandidates {
    ArgValueCandidates::new(|| slugs(|_| true))
}

/// Completes ids of tasks that have a bottle.
pub(crate) fn tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Ok(host) = Host::of_this_process() else { return Vec::new() };
        let all = Environments::of(&host).and_then(|environments| environments.list()).unwrap_or_default();
        all.into_iter()
            .map(|found| CompletionCandidate::new(found.task).help(Some(found.slug.to_string().into())))
            .collect()
    })
}

/// Completes ids of pending proposals.
pub(crate) fn proposals() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Ok(host) = Host::of_this_process() else { return Vec::new() };
        let listing = bottle_queue::list(&host.home, jiff::Timestamp::now()).unwrap_or_default();
        let candidate = |pending: bottle_queue::Pending| {
            let help = format!("{} of {}", pending.proposal.tool.name(), pending.proposal.bottle_slug);
            CompletionCandidate::new(pending.proposal.id.to_string()).help(Some(help.into()))
        };
        listing.pending.into_iter().map(candidate).collect()
    })
}

fn named(kinds: &[Kind]) -> Vec<CompletionCandidate> {
    let Ok(host) = Host::of_this_process() else { return Vec::new() };
    let all = choice::manifests(&host);
    let entries =
        kinds.iter().flat_map(|kind| all.list(*kind).entries.into_iter().map(move |entry| (kind, entry)));
    let candidate = |(kind, entry): (&Kind, crate::manifest::Entry)| {
        CompletionCandidate::new(entry.name.to_string())
            .help(Some(format!("{kind}, {}", entry.source.place.word()).into()))
    };
    entries.map(candidate).collect()
}

fn slugs(wanted: impl Fn(&State) -> bool) -> Vec<CompletionCandidate> {
    let Ok(host) = Host::of_this_process() else { return Vec::new() };
    let listed = Store::of(&host).list().unwrap_or_default();
    let candidate = |listed: crate::instance::Listed| CompletionCandidate::new(listed.slug.to_string());
    listed.into_iter().filter(|listed| wanted(&listed.state)).map(candidate).collect()
}
