//! Measures clones of an upstream with 40,000 branches at 40,000 different commits, and compares them with clones over
//! plain ssh.
//!
//! The upstream is an OpenSSH server on the loopback interface. The first clone through a new gate also fills the
//! mirror. The second clone uses the filled mirror. The goal is that the first clone takes at most 3 s.
//!
//! Run the benchmark with `cargo bench -p bottle-git-gate --bench refs`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints its measurements")]

#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../../tests/gate/scene.rs"]
mod scene;

use std::cell::RefCell;
use std::fs;
use std::process::ExitCode;

use anyhow::Result;
use bottle_test_support::measure::{interleaved, timed};
use bottle_test_support::sshd::Sshd;

use scene::Scene;

const ROUNDS: usize = 5;

fn main() -> Result<ExitCode> {
    // With this argument, the benchmark program itself runs as the gate. In the product, `bottle` runs as the gate in
    // the same way.
    if std::env::args().nth(1).as_deref() == Some("__git-gate") {
        return Ok(bottle_git_gate::run());
    }
    compare()?;
    Ok(ExitCode::SUCCESS)
}

fn compare() -> Result<()> {
    if let Some(why) = Sshd::missing() {
        println!("skipped: {why}");
        return Ok(());
    }
    let scene = RefCell::new(Scene::with("AcceptEnv GIT_PROTOCOL\n")?);
    let plain = {
        let scene = scene.borrow();
        scene.shell(&scene::many_commits(40_000))?;
        scene.enable_plain_ssh()?
    };
    let clone = |url: &str| {
        let script = format!("rm -rf clone.git; git clone -q --bare {url} clone.git");
        scene.borrow().shell(&script)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let first = || {
        let mut scene = scene.borrow_mut();
        drop(scene.gate.take());
        let _ = fs::remove_dir_all(scene.at("gate"));
        runtime.block_on(scene.open(|_| ()))?;
        drop(scene);
        timed(|| clone("$GATE"))
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("plain ssh", Box::new(|| timed(|| clone(&plain)))),
            ("first clone", Box::new(first)),
            ("second clone", Box::new(|| timed(|| clone("$GATE")))),
        ],
    )?;
    println!("{}", samples[0].line());
    for sample in &samples[1..] {
        println!("{}: {:.2} x plain ssh", sample.line(), sample.ratio_to(&samples[0]));
    }
    Ok(())
}
