//! Measures two hundred concurrent bottles on one machine. Starts each bottle, runs a command in it, and stops it.
//!
//! `BOTTLE_BENCH_COUNT` sets the number of bottles. The default is 200.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::processes::{self, mib};
use crate::scene::Scene;
use anyhow::{Result, anyhow, ensure};
use bottle_test_support::measure::Sample;

/// The number of `bottle` commands that run concurrently.
const HANDS: usize = 8;

/// How long a keeper may take to exit after it has reported the end of its bottle. In this time, the keeper removes old
/// proposals and other old data.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn run() -> Result<()> {
    let count = std::env::var("BOTTLE_BENCH_COUNT").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let scene = Scene::new(&["sleep", "3600"])?;
    let label = |n: usize| format!("many-{n}");

    let started = Instant::now();
    let starts = each(count, "start, detached", &|n| Ok(scene.start_detached(&label(n))?.took))?;
    println!("{count} bottles running after {:.2} s", started.elapsed().as_secs_f64());
    println!("{}", starts.line());

    let active = scene.bottle(&["list", "active", "--json"])?.json()?;
    let running =
        active.as_array().into_iter().flatten().filter(|bottle| bottle["status"] == "running").count();
    ensure!(running == count, "{running} of {count} run");
    let execs = each(count, "exec in each", &|n| Ok(scene.bottle(&["exec", &label(n), "--", "true"])?.took))?;
    println!("{}", execs.line());
    let held = processes::of_home(&scene.label());
    let private: u64 = held.iter().map(|process| process.resident.saturating_sub(process.shared)).sum();
    println!(
        "{} processes of ours, {:.1} MiB private in all, {:.2} MiB a bottle",
        held.len(),
        mib(private),
        mib(private) / count as f64
    );

    let stopping = Instant::now();
    let stops = each(count, "stop", &|n| Ok(scene.bottle(&["stop", &label(n)])?.took))?;
    println!("{count} bottles stopped after {:.2} s", stopping.elapsed().as_secs_f64());
    println!("{}", stops.line());
    let stopped = Instant::now();
    let mut left = processes::of_home(&scene.label());
    while !left.is_empty() && stopped.elapsed() < ENDS_WITHIN {
        std::thread::sleep(Duration::from_millis(10));
        left = processes::of_home(&scene.label());
    }
    let roles: Vec<&str> = left.iter().map(|process| process.role.as_str()).collect();
    ensure!(left.is_empty(), "left after {ENDS_WITHIN:?}: {roles:?}");
    println!("no process of ours {:.2} s later", stopped.elapsed().as_secs_f64());
    Ok(())
}

/// Calls `run` with each number below `count`, in [`HANDS`] concurrent threads.
fn each(count: usize, name: &str, run: &(dyn Fn(usize) -> Result<Duration> + Sync)) -> Result<Sample> {
    let next = AtomicUsize::new(0);
    let hand = || -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                n if n < count => took.push(run(n)?),
                _ => return Ok(took),
            }
        }
    };
    let rounds = std::thread::scope(|scope| -> Result<Vec<Duration>> {
        let hands: Vec<_> = (0..HANDS).map(|_| scope.spawn(hand)).collect();
        let mut rounds = Vec::new();
        for hand in hands {
            rounds.extend(hand.join().map_err(|_| anyhow!("a hand panicked"))??);
        }
        Ok(rounds)
    })?;
    Ok(Sample { name: name.to_owned(), rounds })
}
