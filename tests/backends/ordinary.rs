//! All promises once more as an ordinary user, when the tests run as root.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// A user that nothing belongs to.
const ORDINARY: u32 = 64_242;

#[test]
fn everything_holds_for_an_ordinary_user_too() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: these tests run as an ordinary user already");
        return;
    }
    let home = tempfile::tempdir().expect("folder");
    std::os::unix::fs::chown(home.path(), Some(ORDINARY), Some(ORDINARY)).expect("given away");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--skip", "ordinary::", "--test-threads", "2"])
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .uid(ORDINARY)
        .gid(ORDINARY)
        .output()
        .expect("the same tests");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
