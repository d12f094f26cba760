//! The exit codes of all commands.
//!
//! `start`, `attach`, `resume` and `exec` return the exit code of a program in the bottle. Like container engines,
//! these commands report errors of `bottle` itself with codes from 125.

use super::error::Kind;

/// The command succeeded.
pub(crate) const DONE: u8 = 0;
/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage: flags, unknown names, missing values.
pub(crate) const USAGE: u8 = 2;
/// A manifest, `settings.yml` or a rules file has an error.
pub(crate) const MANIFEST: u8 = 3;
/// The backend, the container engine or the agent's program is missing or cannot be used.
pub(crate) const BACKEND: u8 = 4;
/// The isolation probe did not show that all its targets are blocked.
pub(crate) const ISOLATION: u8 = 5;
/// In commands that return a program's exit code: the program was ended because its time limit passed.
pub(crate) const TIMED_OUT: u8 = bottle_lib::exec::TIMED_OUT;
/// In commands that return a program's exit code: `bottle` itself failed.
pub(crate) const BOTTLE_FAILED: u8 = 125;
/// In commands that return a program's exit code: the program cannot run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// In commands that return a program's exit code: the program was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// The user or a signal interrupted the command.
pub(crate) const INTERRUPTED: u8 = 130;
/// The reader closed standard output. A shell reports the same code after SIGPIPE.
pub(crate) const OUTPUT_CLOSED: u8 = 141;

/// Returns the exit code for a failed launch. Scripts get [`NOT_FOUND`] or [`CANNOT_RUN`] if the agent's program is
/// missing or cannot run. On a terminal, the usual codes apply.
pub(crate) fn of_launch(kind: Kind, on_terminal: bool) -> u8 {
    match kind {
        Kind::ProgramMissing if !on_terminal => NOT_FOUND,
        Kind::ProgramRefused if !on_terminal => CANNOT_RUN,
        other => of(other),
    }
}

/// Returns the usual exit code for a kind of failure.
pub(crate) fn of(kind: Kind) -> u8 {
    match kind {
        Kind::Usage | Kind::Secret | Kind::NoSuchBottle => USAGE,
        Kind::Manifest | Kind::Settings | Kind::Rules => MANIFEST,
        Kind::Backend | Kind::EngineUnavailable | Kind::ProgramMissing | Kind::ProgramRefused => BACKEND,
        Kind::Isolation => ISOLATION,
        Kind::Interrupted => INTERRUPTED,
        Kind::State | Kind::NothingCommitted | Kind::Program | Kind::Failed => FAILED,
    }
}
