//! Measures `bottle start` until the agent's process runs, including the start of the bundle and the
//! isolation probe. The goals are 120 ms, and an eighth of the time of `docker run`, which starts no bundle
//! and probes nothing.
//!
//! The agent is `date`, which prints the current time. The measured duration begins before the command is started, and
//! ends at the time that `date` prints. The benchmark alternates this measurement with two others: `date` without a
//! bottle, as the minimum, and `date` in a container, if a container engine is running. Afterwards, each phase of a
//! start is measured.

use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::scene::Scene;
use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::engine;
use bottle_test_support::measure::{Contender, Sample, interleaved};

const ROUNDS: usize = 40;

/// The number of starts that measure the phases.
const PHASE_ROUNDS: usize = 15;

/// The image for `docker run`, which is also the base of the images of bottles.
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
        println!("docker run / start, proof included: {:.1}; goal 8", docker.ratio_to(&samples[0]));
        println!("ratio: docker run / start {:.2}", docker.ratio_to(&samples[0]));
    }
    phases()
}

/// Prints how long each phase of a start takes. The line `the rest` is the time outside of the phases, in which the
/// command resolves the manifests and starts the keeper.
fn phases() -> Result<()> {
    let scene = Scene::new(&["sleep", "3600"])?;
    let mut phases: Vec<Sample> = Vec::new();
    let mut rest = Vec::new();
    for round in 0..PHASE_ROUNDS {
        let label = format!("phased-{round}");
        let (took, log) = scene.start_logged(&label)?;
        scene.bottle(&["stop", &label, "--time", "0"])?;
        let spans = log.lines().filter_map(phase).collect::<Result<Vec<_>>>()?;
        ensure!(!spans.is_empty(), "the keeper logged no phase");
        rest.push(took.saturating_sub(spans.iter().map(|(_, open)| *open).sum()));
        for (name, open) in spans {
            match phases.iter_mut().find(|sample| sample.name == name) {
                Some(sample) => sample.rounds.push(open),
                None => phases.push(Sample { name: name.to_owned(), rounds: vec![open] }),
            }
        }
    }
    println!("a detached start by phase:");
    phases.push(Sample { name: "the rest".to_owned(), rounds: rest });
    phases.iter().for_each(|sample| println!("{}", sample.line()));
    Ok(())
}

/// Returns the name of a phase and how long its span was open, read from a line of the keeper's log.
fn phase(line: &str) -> Option<Result<(&str, Duration)>> {
    let (_, span) = line.split_once("launch_phase{phase=")?;
    let (_, times) = span.split_once(": close time.busy=")?;
    let name = span.split_whitespace().next()?;
    let (busy, idle) = times.split_once(" time.idle=")?;
    let open = duration(busy).and_then(|busy| Ok(busy + duration(idle)?));
    Some(open.map(|open| (name, open)))
}

/// Parses a duration as `tracing` prints it: a number with a unit.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let scale = match &text[digits.len()..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        unit => bail!("{text:?} has the unknown unit {unit:?}"),
    };
    Ok(Duration::from_secs_f64(digits.parse::<f64>()? * scale))
}

/// Returns the time from `before` to `printed`. The agent printed `printed` in nanoseconds since the epoch.
pub(crate) fn since(before: SystemTime, printed: &str) -> Result<Duration> {
    let nanoseconds = printed.trim().parse().with_context(|| format!("the agent printed {printed:?}"))?;
    let ran = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    ran.duration_since(before).context("the clock went back")
}
