//! Measures `bottle start` until the agent's process runs, including the start of the bundle and the
//! isolation probe. The goals are 120 ms, and an eighth of the time of `docker run`, which starts no bundle
//! and probes nothing.
//!
//! The agent is `date`, which prints the time at which it runs. The duration is counted from the moment
//! before the command was started. In turns with it, the same `date` is measured without a bottle, as the
//! minimum, and in a container if a container engine is running.

use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::scene::Scene;
use anyhow::{Context, Result};
use bottle_test_support::engine;
use bottle_test_support::measure::{Contender, interleaved};

const ROUNDS: usize = 40;

/// The base image of bottles' images, which `docker run` uses too.
const BASE_IMAGE: &str = "debian:bookworm-slim";

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
    let contained = || -> Result<Duration> {
        let before = SystemTime::now();
        let output = Command::new("docker").args(["run", "--rm", BASE_IMAGE, "date", "+%s%N"]).output()?;
        since(before, &String::from_utf8(output.stdout)?)
    };
    let mut contenders: Vec<Contender> = vec![
        ("start to agent process", Box::new(bottled)),
        ("start to removed", Box::new(whole)),
        ("the same without a bottle", Box::new(bare)),
    ];
    match engine::here() {
        Ok(()) => contenders.push(("docker run to process", Box::new(contained))),
        Err(missing) => println!("skipped: docker run: {missing}"),
    }
    let samples = interleaved(ROUNDS, contenders)?;
    for sample in &samples {
        println!("{}", sample.line());
    }
    println!("goal: start to agent process, median, 120 ms");
    if let Some(docker) = samples.get(3) {
        println!("docker run / start, proof included: {:.1}", docker.ratio_to(&samples[0]));
    }
    Ok(())
}

/// The time from `before` to the time that an agent printed, in nanoseconds since the epoch.
pub(crate) fn since(before: SystemTime, printed: &str) -> Result<Duration> {
    let nanoseconds = printed.trim().parse().with_context(|| format!("the agent printed {printed:?}"))?;
    let ran = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    ran.duration_since(before).context("the clock went back")
}
