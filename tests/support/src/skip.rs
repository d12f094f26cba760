//! Reports skipped tests.

use std::fmt::Display;
use std::io::Write;

/// Prints why `test` is skipped to the real standard error, because a test runner hides the output of passing tests
/// and a hidden skip goes unnoticed.
pub fn aloud(test: &str, why: &dyn Display) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
