//! Measures interactive commands in comparison with commands of other tools. The goals are: `--help` 5 ms, `list`
//! 15 ms, `start --dry-run` 25 ms.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::scene::Scene;
use anyhow::Result;
use bottle_test_support::measure::{Contender, interleaved};

const ROUNDS: usize = 40;

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sh"])?;
    let repository = tempfile::tempdir()?;
    timed(Command::new("git").args(["init", "-q"]).current_dir(repository.path()))?;
    let ours = |arguments: &'static [&str]| Box::new(|| Ok(scene.bottle(arguments)?.took));
    let mut peers: Vec<Contender<'_>> = vec![
        ("bottle --help", ours(&["--help"])),
        ("bottle list", ours(&["list"])),
        ("bottle start --dry-run", ours(&["start", "bench", "--dry-run"])),
        ("git status", Box::new(|| timed(Command::new("git").arg("status").current_dir(repository.path())))),
    ];
    if timed(Command::new("docker").arg("ps")).is_ok() {
        peers.push(("docker ps", Box::new(|| timed(Command::new("docker").arg("ps")))));
    } else {
        println!("skipped: docker ps: no engine answers");
    }
    for sample in &interleaved(ROUNDS, peers)? {
        println!("{}", sample.line());
    }
    println!("goals: 5 ms, 15 ms, 25 ms");
    Ok(())
}

fn timed(command: &mut Command) -> Result<Duration> {
    let before = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "{command:?} ended with {status}");
    Ok(before.elapsed())
}
