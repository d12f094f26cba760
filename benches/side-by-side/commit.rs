//! Measures a commit of a large home directory with 1 MiB of changes, and a resume from this commit. Compares them with
//! a full copy of the home directory.
//!
//! The home directory has 4000 files and 1 GiB. In each round, a file of 1 MiB is written before the
//! measurement. The goal for a commit is 100 ms. On a file system that cannot share blocks, a resume copies
//! all files, as `cp -a` does.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use bottle_test_support::measure::{interleaved, timed};

use crate::scene::Scene;

const ROUNDS: usize = 10;

/// A script that fills the home directory with 40 directories. Each directory has 100 files of 256 KiB.
const FILL: &str = "cd; for i in $(seq 40); do mkdir d$i; for j in $(seq 100); do \
    head -c 262144 /dev/urandom >d$i/f$j; done; done";

const CHANGE: &str = "head -c 1048576 /dev/urandom >~/changed";

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sleep", "36000"])?;
    scene.start_detached("frozen")?;
    let inside = |script: &str| scene.bottle(&["exec", "frozen", "--", "/bin/sh", "-c", script]);
    inside(FILL)?;
    let first = timed(|| scene.bottle(&["commit", "frozen", "-q"]))?;
    println!("the first commit, of all of it: {:.0} ms", first.as_secs_f64() * 1e3);

    let home = scene.bottle_home().join("state/frozen/agent/home");
    let copy = scene.bottle_home().join("copy");
    let whole = |from: &std::path::Path| -> Result<Duration> {
        let took = timed(|| {
            let copied = Command::new("cp").arg("-a").arg(from).arg(&copy).status()?;
            ensure!(copied.success(), "cp -a failed");
            Ok(())
        })?;
        std::fs::remove_dir_all(&copy)?;
        Ok(took)
    };
    let commit = || {
        inside(CHANGE)?;
        timed(|| scene.bottle(&["commit", "frozen", "-q"]))
    };
    let samples = interleaved(
        ROUNDS,
        vec![("commit, 1 MiB changed", Box::new(commit)), ("cp -a of the home", Box::new(|| whole(&home)))],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("commit / cp -a: {:.2}; goal of the commit 100 ms", samples[0].ratio_to(&samples[1]));

    let samples = interleaved(
        ROUNDS,
        vec![
            ("resume from the snapshot", Box::new(|| scene.back_from_snapshot("frozen"))),
            ("start with an empty home", Box::new(|| scene.one_more())),
            ("cp -a of the home", Box::new(|| whole(&home))),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    Ok(())
}
