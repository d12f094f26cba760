//! Measures bottles on a container engine in comparison with operations of the engine itself. The measurements
//! alternate.
//!
//! - The time from the start of a bottle until its agent's process runs is compared with the time of the engine
//!   operations that every bottle needs. These operations are the creation of two networks and two containers, one
//!   after another, with the same images and restrictions. Goal: at most 0.75 times the duration, because a start
//!   performs these operations concurrently
//! - Fifty bottles are started one after another. The durations of the last ten starts are compared with the durations
//!   of the first ten. Goal: a difference of at most 20 %
//! - A commit is compared with the engine's commit of the same container. Goal: at most 1.2 times the duration
//! - A resume from a snapshot is compared with a start, which differs only in the image. The engine may need longer to
//!   run the snapshot's image, and this additional time is added to the time of the start. Goal: at most 1.2 times the
//!   sum
//!
//! `BOTTLE_BENCH_COUNT` sets the number of bottles that are started one after another. The default is fifty.
//! `BOTTLE_TEST_PROGRAM` sets the path of a program that is already built, such as `dist/bottle`.

use std::cell::{Cell, RefCell};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use bottle_test_support::engine;
use bottle_test_support::measure::{Contender, Sample, interleaved, timed};

use crate::scene::Scene;
use crate::start::since;

const ROUNDS: usize = 12;

/// The restrictions of a bottle's containers, as options of `docker run`. Restrictions without such an option are
/// omitted.
const HARDENED: [&str; 15] = [
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--pids-limit=512",
    "--memory=2g",
    "--memory-swap=2g",
    "--log-driver=none",
    "--ipc=private",
    "--ulimit=core=0",
    "--no-healthcheck",
    "--interactive",
    "--sysctl=net.ipv6.conf.all.disable_ipv6=1",
    "--sysctl=net.ipv6.conf.default.disable_ipv6=1",
    "--tmpfs=/tmp",
    "--tmpfs=/run",
    "--user=64242:64242",
];

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
    let sleeping = Scene::on("docker", &["sleep", "36000"])?;
    // The first start is not measured, because it builds the images that do not exist yet.
    sleeping.start_detached("first")?;
    let image = |part: &str| {
        let container = format!("bottle-{}-{part}-first", sleeping.label());
        docker(&["inspect", "--format", "{{.Image}}", &container])
    };
    let (agent, guards) = (image("agent")?, image("bundle")?);
    sleeping.bottle(&["stop", "first", "--time", "0"])?;
    let scene = Scene::on("docker", &["date", "+%s%N"])?;
    let bottled = || -> Result<Duration> {
        let before = SystemTime::now();
        since(before, &scene.start()?.stdout)
    };
    let round = Cell::new(0);
    let floor = || -> Result<Duration> {
        round.set(round.get() + 1);
        let name = |what: &str| format!("{}-floor-{}-{what}", scene.label(), round.get());
        let started = Instant::now();
        let inner = Own::network(&name("inner"), &["--internal"])?;
        let outer = Own::network(&name("outer"), &[])?;
        let _guard = Own::sleeper(&guards, &["--network", &outer.id, "--read-only"])?;
        let _guest = Own::sleeper(&agent, &["--network", &inner.id])?;
        Ok(started.elapsed())
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
    let base = docker(&["inspect", "--format", "{{.Image}}", &container])?;
    let change = || {
        let change = "head -c 1048576 /dev/urandom >~/changed";
        scene.bottle(&["exec", "frozen", "--", "/bin/sh", "-c", change])
    };
    let ours = || {
        change()?;
        timed(|| scene.bottle(&["commit", "frozen", "-q"]))
    };
    let last = RefCell::new(None);
    let engines = || {
        change()?;
        let started = Instant::now();
        let id = docker(&["commit", &container])?;
        let took = started.elapsed();
        last.replace(Some(Own { kind: "image", id }));
        Ok(took)
    };
    let samples = interleaved(
        ROUNDS,
        vec![("commit, 1 MiB changed", Box::new(ours)), ("docker commit", Box::new(engines))],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("commit / docker commit: {:.2}; goal 1.2", samples[0].ratio_to(&samples[1]));

    let run = |image: &str| {
        let started = Instant::now();
        let _container = Own::sleeper(image, &[])?;
        Ok(started.elapsed())
    };
    let image = last.take().context("nothing was committed")?;
    let samples = interleaved(
        ROUNDS,
        vec![
            ("resume from the snapshot", Box::new(|| scene.back_from_snapshot("frozen"))),
            ("start of a new one", Box::new(|| scene.one_more())),
            ("docker run of the snapshot", Box::new(|| run(&image.id))),
            ("docker run of the image", Box::new(|| run(&base))),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    // The engine may need longer to run the snapshot's image than to run the other image. The comparison adds this time
    // to the start.
    let [resume, start, of_snapshot, of_image] = &samples[..] else { return Ok(()) };
    let longer = of_snapshot.median().saturating_sub(of_image.median());
    let due = start.median() + longer;
    println!(
        "resume / (start + {:.0} ms that the engine takes longer): {:.2}; goal 1.2",
        longer.as_secs_f64() * 1000.0,
        resume.median().as_secs_f64() / due.as_secs_f64()
    );
    Ok(())
}

/// A resource of the container engine that one round of the benchmark uses. Dropping this value removes the resource.
struct Own {
    kind: &'static str,
    id: String,
}

impl Own {
    fn network(name: &str, options: &[&str]) -> Result<Self> {
        let id = docker(&[&["network", "create"], options, &[name]].concat())?;
        Ok(Self { kind: "network", id })
    }

    /// Starts an idle container of the given image.
    fn sleeper(image: &str, options: &[&str]) -> Result<Self> {
        let command = ["--entrypoint", "/bin/sleep", image, "100"];
        let id = docker(&[&["run", "--detach"], &HARDENED[..], options, &command].concat())?;
        Ok(Self { kind: "container", id })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let force: &[&str] = if self.kind == "network" { &[] } else { &["--force"] };
        let removed = docker(&[&[self.kind, "rm"], force, &[&self.id]].concat());
        if let Err(error) = removed {
            println!("left behind: {error:#}");
        }
    }
}

fn docker(arguments: &[&str]) -> Result<String> {
    let output = Command::new("docker").args(arguments).output()?;
    ensure!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
