//! A test that cannot run here says so.

use std::fmt::Display;
use std::io::Write;

/// Says why `test` is skipped, on the real standard error: a test runner shows what a passing test
/// prints to nobody, and a skip that nobody sees is a test that nobody runs.
pub fn aloud(test: &str, why: &dyn Display) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
