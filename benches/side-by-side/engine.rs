//! Bottles on a container engine against what the engine itself takes, in turn.
//!
//! - a start, to the agent's process, against the least that anybody could do one after the other: two networks
//!   and two containers of the same images. Goal: 0.75 ×
//! - fifty bottles, one after the other: the last ten against the first ten. Goal: within 20 %
//! - a commit and a resume from it, against the engine's commit and a container of that image. Goal: 1.2 ×
//!
//! `BOTTLE_BENCH_COUNT` asks for another number than fifty; `BOTTLE_TEST_PROGRAM` for a program that is built
//! already, `dist/bottle` first of all.

use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use bottle_test_support::engine;
use bottle_test_support::measure::{Contender, Sample, interleaved, timed};

use crate::scene::Scene;
use crate::start::since;

const ROUNDS: usize = 12;

pub(crate) fn run() -> Result<()> {
    if let Err(missing) = engine::here() {
        println!("skipped: {missing}");
        return Ok(());
    }
    start()?;
    one_after_the_other()?;
    commit_and_resume()
}

fn start() -> Result<()> {
    let scene = Scene::on("docker", &["date", "+%s%N"])?;
    // Builds what is not there yet.
    scene.start()?;
    let (agent, guards) = (image_of("bottle-agent")?, image_of("bottle-sidecars")?);
    let bottled = || -> Result<Duration> {
        let before = SystemTime::now();
        since(before, &scene.start()?.stdout)
    };
    let round = Cell::new(0);
    let floor = || -> Result<Duration> {
        round.set(round.get() + 1);
        let name = |what: &str| format!("{}-floor-{}-{what}", scene.label(), round.get());
        let (inner, outer) = (name("inner"), name("outer"));
        let started = Instant::now();
        docker(&["network", "create", "--internal", &inner])?;
        docker(&["network", "create", &outer])?;
        let guard = sleeper(&guards, &["--network", &outer])?;
        let guest = sleeper(&agent, &["--network", &inner])?;
        let took = started.elapsed();
        docker(&["rm", "--force", &guard, &guest])?;
        docker(&["network", "rm", &inner, &outer])?;
        Ok(took)
    };
    let contenders: Vec<Contender<'_>> =
        vec![("start to agent process", Box::new(bottled)), ("two networks, two runs", Box::new(floor))];
    let samples = interleaved(ROUNDS, contenders)?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("start / floor: {:.2}; goal 0.75", samples[0].ratio_to(&samples[1]));
    Ok(())
}

fn one_after_the_other() -> Result<()> {
    let count = std::env::var("BOTTLE_BENCH_COUNT").ok().and_then(|n| n.parse().ok()).unwrap_or(50);
    let scene = Scene::on("docker", &["true"])?;
    let rounds = (0..count).map(|_| Ok(scene.start()?.took)).collect::<Result<Vec<_>>>()?;
    let part = |name: &str, rounds: &[Duration]| Sample { name: name.to_owned(), rounds: rounds.to_vec() };
    let ten = rounds.len().min(10);
    let (first, last) = (part("the first ten", &rounds[..ten]), part("the last ten", &rounds[count - ten..]));
    println!("{}\n{}\n{}", part("started and ended", &rounds).line(), first.line(), last.line());
    println!("last / first: {:.2}; goal 0.8 to 1.2", last.ratio_to(&first));
    Ok(())
}

fn commit_and_resume() -> Result<()> {
    let scene = Scene::on("docker", &["sleep", "36000"])?;
    scene.start_detached("frozen")?;
    let container = format!("bottle-{}-agent-frozen", scene.label());
    let change = || {
        let change = "head -c 1048576 /dev/urandom >~/changed";
        scene.bottle(&["exec", "frozen", "--", "/bin/sh", "-c", change])
    };
    let ours = || {
        change()?;
        timed(|| scene.bottle(&["commit", "frozen", "-q"]))
    };
    let image = format!("{}-floor:committed", scene.label());
    let engines = || {
        change()?;
        timed(|| docker(&["commit", &container, &image]))
    };
    let samples = interleaved(
        ROUNDS,
        vec![("commit, 1 MiB changed", Box::new(ours)), ("docker commit", Box::new(engines))],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("commit / docker commit: {:.2}; goal 1.2", samples[0].ratio_to(&samples[1]));

    let back = || {
        scene.bottle(&["stop", "frozen", "--time", "0"])?;
        timed(|| scene.bottle(&["resume", "frozen", "--snapshot", "--yes", "--detach", "-q"]))
    };
    let plain = Cell::new(0);
    let start = || {
        plain.set(plain.get() + 1);
        let label = format!("plain-{}", plain.get());
        let took = timed(|| scene.start_detached(&label))?;
        scene.bottle(&["stop", &label, "--time", "0"])?;
        Ok(took)
    };
    let run = |image: &str| {
        let started = Instant::now();
        let container = sleeper(image, &[])?;
        let took = started.elapsed();
        docker(&["rm", "--force", &container])?;
        Ok(took)
    };
    let base = image_of("bottle-agent")?;
    let samples = interleaved(
        ROUNDS,
        vec![
            ("resume from the snapshot", Box::new(back)),
            ("start of a new one", Box::new(start)),
            ("docker run of the snapshot", Box::new(|| run(&image))),
            ("docker run of the image", Box::new(|| run(&base))),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    // A bottle is two containers and two networks whatever it stands on, so each is held to its own.
    println!(
        "resume / start: {:.2}; goal 1.2 (the engine's own: {:.2})",
        samples[0].ratio_to(&samples[1]),
        samples[2].ratio_to(&samples[3])
    );
    docker(&["image", "rm", "--force", &image]).map(drop)
}

/// A container of this image that does nothing; its id.
fn sleeper(image: &str, options: &[&str]) -> Result<String> {
    let command = ["--entrypoint", "/bin/sleep", image, "100"];
    docker(&[&["run", "--detach"], options, &command].concat())
}

/// The newest image of this repository.
fn image_of(repository: &str) -> Result<String> {
    let listed = docker(&["images", "--quiet", repository])?;
    let first = listed.lines().next().context("there is no such image")?;
    Ok(first.to_owned())
}

fn docker(arguments: &[&str]) -> Result<String> {
    let output = Command::new("docker").args(arguments).output()?;
    ensure!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
