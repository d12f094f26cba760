//! The roles inside bottles and bundles, of which only the program for Linux has any.

use std::process::ExitCode;

/// Runs no role.
pub(crate) fn run() -> Option<ExitCode> {
    None
}
