//! Measures a push of one commit through the git gate, in comparison with the same push directly to the
//! upstream.
//!
//! The upstream is an OpenSSH server on the loopback interface with two copies of a large repository. Each copy has its
//! own clone. Each round adds one commit to each clone. The git gate keeps its ssh connection to the upstream open for
//! a while. The push through the gate is therefore measured twice: without an open ssh connection, and with an open
//! one, as after a fetch. The goal is at most 50 ms more than the direct push.
//!
//! The benchmark then pushes a file of 200 MiB, and a zip file whose unpacked size exceeds the gate's limits. For each
//! push it prints the duration and the peak memory. The peak memory is printed for the gate alone (goal: 64 MiB), and
//! for the gate together with its git processes.
//!
//! Run the benchmark with `cargo bench -p bottle-git-gate --bench push`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints its measurements")]

#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../../../sidecars/git-gate/tests/gate/scene.rs"]
mod scene;

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Result;
use bottle_test_support::measure::{interleaved, peak, timed};
use bottle_test_support::sshd::{Sshd, run};

use scene::{Scene, until};

const ROUNDS: usize = 15;

/// A script that creates 5000 commits, 5000 files in 50 directories, and 500 branches.
const LARGE: &str = r#"
awk 'BEGIN { for (c = 1; c <= 5000; c++) {
    print "commit refs/heads/main\ncommitter A <a@example.com> " c " +0000\ndata 1\nx"
    for (i = 0; i < 4; i++) { f = (4 * c + i) % 5000; t = c "." i; print "M 100644 inline d" f % 50 "/f" f "\ndata " length(t) "\n" t }
} }' | git -C up.git fast-import --quiet --force
for n in $(seq 500); do echo create refs/heads/n$n main~$n; done | git -C up.git update-ref --stdin
"#;

/// A script that commits an incompressible file of 200 MiB in a clone.
const LARGE_FILE: &str = "head -c 209715200 /dev/urandom > large; git add .; git commit -qm large";

/// A script that commits a zip file in a clone. The zip file has a few megabytes and unpacks to 1500 MiB.
const BOMB: &str = "python3 -c 'import zipfile
with zipfile.ZipFile(\"bomb.zip\", \"w\", zipfile.ZIP_DEFLATED) as bomb, bomb.open(\"f\", \"w\", force_zip64=True) as file:
    for _ in range(1500): file.write(bytes(1 << 20))'; git add .; git commit -qm bomb";

fn main() -> Result<ExitCode> {
    // The benchmark starts its own program as the git gate, just as `bottle` starts its own program.
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
    let mut scene = Scene::new()?;
    scene.shell(LARGE)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(scene.open(|_| ()))?;
    let plain = scene.enable_plain_ssh()?.replace("/up.git", "/other.git");
    scene.shell(&format!(
        "git clone -q $GATE gated; cp -r up.git other.git; git clone -q other.git straight; \
         git -C straight remote set-url origin {plain}"
    ))?;
    let push = |clone: &str| -> Result<Duration> {
        scene.shell(&format!("cd {clone}; echo >> d1/f1; git commit -qam x"))?;
        timed(|| scene.shell(&format!("cd {clone}; git push -q origin HEAD:refs/heads/{clone}")))
    };
    let anew = || {
        for master in scene.masters()? {
            run(Command::new("kill").args(["-9", &master]))?;
        }
        until(|| scene.masters().is_ok_and(|masters| masters.is_empty()))?;
        push("gated")
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("straight", Box::new(|| push("straight"))),
            ("through the gate", Box::new(anew)),
            ("through the gate, again", Box::new(|| push("gated"))),
        ],
    )?;
    let straight = &samples[0];
    println!("{}", straight.line());
    for sample in &samples[1..] {
        let more = sample.median().as_secs_f64() - straight.median().as_secs_f64();
        println!(
            "{}: {:.2} x straight, {:+.0} ms (goal +50)",
            sample.line(),
            sample.ratio_to(straight),
            more * 1e3
        );
    }
    large(&scene)
}

fn large(scene: &Scene) -> Result<()> {
    let pid = scene.gate_pid()?;
    for clone in ["straight", "gated"] {
        scene.shell(&format!("cd {clone}; {LARGE_FILE}"))?;
    }
    let push =
        |clone: &str| timed(|| scene.shell(&format!("cd {clone}; git push -q origin HEAD:refs/heads/large")));
    let straight = push("straight")?;
    let (gated, most) = peak(pid, || push("gated"));
    report(scene, "a file of 200 MiB", gated?, most)?;
    println!("  straight: {:.1} s", straight.as_secs_f64());
    scene.shell(&format!("cd gated; {BOMB}"))?;
    let words = ["is too large to scan when unpacked"];
    let refused =
        || timed(|| scene.refused("cd gated; git push -q origin HEAD:refs/heads/bomb", &words).map(drop));
    let (refused, most) = peak(pid, refused);
    report(scene, "a zip of 1500 MiB, refused", refused?, most)
}

/// Prints the duration of the push and the gate's peak memory so far. `most` is the peak memory of the gate and its git
/// processes together, in bytes.
fn report(scene: &Scene, what: &str, took: Duration, most: u64) -> Result<()> {
    let status = fs::read_to_string(format!("/proc/{}/status", scene.gate_pid()?))?;
    let alone = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default().trim();
    println!(
        "{what}: {:.1} s; the gate held {alone} at most, with its gits {} MiB without mapped files",
        took.as_secs_f64(),
        most >> 20
    );
    Ok(())
}
