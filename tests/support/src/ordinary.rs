//! Runs a test suite again as a non-root user.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::program::{self, Program};
use crate::skip;

/// The user id with which tests run again. The user owns no files on the machine.
const ORDINARY: u32 = 64_242;

/// Runs the calling test program again as a non-root user, except tests whose names begin with `without`. The
/// calling test must pass a prefix of its own name, so that it does not run itself.
///
/// # Panics
/// Panics if one of the tests fails.
pub fn once_more(without: &str) {
    if !rustix::process::getuid().is_root() {
        skip::aloud("as a non-root user", &"these tests run as one already");
        return;
    }
    let home = tempfile::tempdir().expect("directory");
    std::os::unix::fs::chown(home.path(), Some(ORDINARY), Some(ORDINARY)).expect("given away");
    // The programs are copied, because the build directory may be accessible only to root.
    let [tests, bottle] = ["tests", "bottle"].map(|name| home.path().join(name));
    program::copy(&std::env::current_exe().expect("this program"), &tests).expect("copied");
    program::copy(Program::bottle().expect("built").path(), &bottle).expect("copied");
    let output = Command::new(tests)
        .env("BOTTLE_TEST_PROGRAM", bottle)
        .args(["--skip", without, "--test-threads", "2"])
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .uid(ORDINARY)
        .gid(ORDINARY)
        .output()
        .expect("the same tests");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
}
