//! Reports skipped tests.

use std::fmt::Display;
use std::io::Write;

/// Prints why `test` is skipped. Writes directly to standard error, because a test runner hides the output of
/// tests that pass, and a hidden message would not be noticed.
pub fn aloud(test: &str, why: &dyn Display) {
    // If standard error is closed, the message cannot be printed anywhere.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
