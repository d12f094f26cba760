//! Exit codes, for every command.
//!
//! Where an agent's or a command's own code is passed through (`start`, `attach`, `exec`), bottle uses the codes
//! from 125 on, as container engines do.

/// The command succeeded.
pub(crate) const DONE: u8 = 0;
/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage: flags, unknown names, missing values.
pub(crate) const USAGE: u8 = 2;
/// A manifest (or the settings) is wrong.
pub(crate) const MANIFEST: u8 = 3;
/// The backend is missing or refused.
pub(crate) const BACKEND: u8 = 4;
/// Isolation was not proven.
pub(crate) const ISOLATION: u8 = 5;
/// With passed-through codes: bottle itself failed.
pub(crate) const BOTTLE_FAILED: u8 = 125;
/// With passed-through codes: the program cannot run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// With passed-through codes: the program was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Interrupted.
pub(crate) const INTERRUPTED: u8 = 130;
/// The reader of standard output is gone: the code a shell reports after SIGPIPE.
pub(crate) const OUTPUT_CLOSED: u8 = 141;
