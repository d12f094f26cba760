//! The roles inside bottles and bundles. Only the program for Linux has such roles.

use std::process::ExitCode;

/// Runs no role, because this program has none.
pub(crate) fn run() -> Option<ExitCode> {
    None
}
