//! From `bottle start` to the agent's process, the bundle included. Goal: 60 ms.
//!
//! The agent is `date`, which prints when it ran; the time is counted from the moment before the
//! command was started. The same `date` without a bottle is measured in turn with it, as the floor.

use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::scene::Scene;
use anyhow::{Context, Result};
use bottle_test_support::measure::interleaved;

const ROUNDS: usize = 40;

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["date", "+%s%N"])?;
    let bottled = || -> Result<Duration> {
        let before = SystemTime::now();
        since(before, &scene.start()?.stdout)
    };
    let whole = || Ok(scene.start()?.took);
    let bare = || -> Result<Duration> {
        let before = SystemTime::now();
        let output = Command::new("date").arg("+%s%N").output()?;
        since(before, &String::from_utf8(output.stdout)?)
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("start to agent process", Box::new(bottled)),
            ("start to removed", Box::new(whole)),
            ("the same without a bottle", Box::new(bare)),
        ],
    )?;
    for sample in &samples {
        println!("{}", sample.line());
    }
    println!("goal: start to agent process, median, 60 ms");
    Ok(())
}

/// From `before` to the nanoseconds since the epoch that an agent printed.
pub(crate) fn since(before: SystemTime, printed: &str) -> Result<Duration> {
    let nanoseconds = printed.trim().parse().with_context(|| format!("the agent printed {printed:?}"))?;
    let ran = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    ran.duration_since(before).context("the clock went back")
}
