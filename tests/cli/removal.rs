//! Tests that the files of an ended bottle are removed in the background.

use std::fs::{self, File};

use anyhow::{Context, Result, ensure};

use crate::home::{home, kill_keeper, run};

const LINUX: &str =
    "---\nbackend: linux\nagent_provider: {template: command, command: [sleep, '600']}\n---\n";

/// A lock on the files simulates a removal that takes a long time.
#[test]
fn stop_does_not_wait_for_the_removal_of_the_files() -> Result<()> {
    let mut home = home()?;
    home.bottle("work", LINUX)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs("stop_does_not_wait_for_the_removal_of_the_files", "linux")? {
        return Ok(());
    }
    let start = ["start", "work", "--detach", "--label", "one", "-q"];
    let stop = ["stop", "one", "--time", "0", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    let lock = File::open(home.bottle_home().join("state/one/agent"))?;
    lock.lock()?;
    let _ = run(&home, &stop)?.expect_code(0);
    let removed = home.bottle_home().join("snapshots/one");
    let files = fs::read_dir(&removed)?.next().context("the files")??.path();
    ensure!(files.join("workspace").is_dir(), "{files:?}");
    ensure!(!home.bottle_home().join("state/one/agent").exists());
    // A cleanup leaves the files to the process that removes them, and the name of the bottle is free.
    let _ = run(&home, &["cleanup", "--yes"])?.expect_code(0);
    ensure!(files.exists(), "{files:?}");
    let _ = run(&home, &start)?.expect_code(0);
    let _ = run(&home, &["exec", "one", "--", "true"])?.expect_code(0);
    let _ = run(&home, &stop)?.expect_code(0);
    // When the removing process is killed, a cleanup finds the files.
    kill_keeper(&home, "one")?;
    drop(lock);
    let _ = run(&home, &["cleanup", "--yes"])?.expect_code(0);
    ensure!(!removed.exists(), "{removed:?}");
    Ok(())
}
