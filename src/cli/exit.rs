//! Exit codes: one table for every command.
//!
//! Where an agent's or a command's own code is passed through (`start`, `attach`, `exec`), the codes from
//! 125 on are ours and all others theirs, as engines do it.

/// Done.
pub(crate) const DONE: u8 = 0;
/// The program failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage: flags, names that do not exist, values that were not given.
pub(crate) const USAGE: u8 = 2;
/// A manifest (or the settings) is wrong.
pub(crate) const MANIFEST: u8 = 3;
/// The backend is missing or refused.
pub(crate) const BACKEND: u8 = 4;
/// Isolation could not be proven.
pub(crate) const ISOLATION: u8 = 5;
/// Where a code is passed through: bottle itself failed.
pub(crate) const BOTTLE_FAILED: u8 = 125;
/// Where a code is passed through: the program cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// Where a code is passed through: the program is not there.
pub(crate) const NOT_FOUND: u8 = 127;
/// Interrupted.
pub(crate) const INTERRUPTED: u8 = 130;
/// Nobody reads our output any more; what a shell reports of a program that SIGPIPE ended.
pub(crate) const OUTPUT_CLOSED: u8 = 141;
