//! Compares the gate's scan of a push with other secret scanners by time, memory, recall and false positives.
//!
//! The benchmark generates a deterministic history. The history contains clean files of several kinds. Two thirds of
//! the files in a commit are new, and one third is modified. The history also contains lines that look like secrets,
//! and secrets of twelve families at seven kinds of locations. Each file contains at most one secret. The gate scans
//! the history as one push. The other scanners read the repository. A scanner that supports only files reads all files
//! of all commits. Each scanner runs alone and may use all cores.
//!
//! Run the benchmark with `cargo bench -p bottle-git-gate --bench history`. Append `-- 1024` for a history of 1024 MiB
//! (default 64). `BOTTLE_BENCH_SCANNERS` lists the directories with the other scanners' programs, separated by `:`.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints its measurements")]

mod clean;
mod dice;
mod history;
mod ours;
mod peers;
mod run;
mod score;
mod secrets;

/// Compiles source files of the gate into the benchmark, because the scan is not part of the public API.
macro_rules! gate_modules {
    ($($name:ident = $path:literal),+ $(,)?) => {
        $(
            #[allow(dead_code, unused_imports, unreachable_pub, reason = "the gate uses the rest of it")]
            #[path = $path]
            mod $name;
        )+
    };
}
gate_modules!(
    archives = "../../src/archives.rs",
    blob_scan = "../../src/blob_scan.rs",
    content_checks = "../../src/content_checks.rs",
    encoding = "../../src/encoding.rs",
    excerpt = "../../src/excerpt.rs",
    tree_index = "../../src/tree_index.rs",
    findings = "../../src/findings.rs",
    new_entries = "../../src/new_entries.rs",
    new_objects = "../../src/new_objects.rs",
    new_paths = "../../src/new_paths.rs",
    git = "../../src/git.rs",
    push_limits = "../../src/push_limits.rs",
    push_reader = "../../src/push_reader.rs",
    push_scan = "../../src/push_scan.rs",
    read_error = "../../src/read_error.rs",
    refs = "../../src/refs.rs",
    upstream = "../../src/upstream.rs",
);

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use history::{History, Place};
use peers::{PEERS, Peer};
use run::{Ran, run};
use score::Score;
use secrets::FAMILIES;

/// The argument that makes this program run the gate's scan.
const READ: &str = "__read";

/// The time limit for one scanner. A scanner that takes longer is killed.
const WITHIN: Duration = Duration::from_secs(600);

/// The default size of the history, in MiB.
const SIZE: u64 = 64;

/// The maximum number of false positives that are printed for each scanner.
const SHOWN: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.as_slice() {
        [word, repo] if word == READ => ours::read_all(Path::new(repo)),
        _ => compare(arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(SIZE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            put(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn put(line: &str) {
    println!("{line}");
}

fn compare(mebibytes: u64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let history = History::make(directory.path(), mebibytes << 20)?;
    put(&format!(
        "{} MiB in {} files of {} commits, {} secrets and {} look-alikes",
        history.bytes >> 20,
        history.count,
        history.commits,
        history.labels.len(),
        history.look_alikes
    ));
    let output = directory.path().join("output");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(READ).arg(&history.repo);
    let ran = run(&mut command, &output, WITHIN)?;
    let ours = ran.took;
    ensure!(ran.ended, "the gate takes longer than {WITHIN:?}");
    let found = peers::read_ours(&fs::read_to_string(&output)?).with_context(|| {
        format!("cannot parse the gate's output {:?}", fs::read_to_string(&output).unwrap_or_default())
    })?;
    report("the gate", &history, &ran, None, &Score::new(&history, found));
    let directories = std::env::var_os("BOTTLE_BENCH_SCANNERS").unwrap_or_default();
    let directories: Vec<PathBuf> =
        std::env::split_paths(&directories).filter(|path| path.is_absolute()).collect();
    for peer in &PEERS {
        let Some(program) = peers::program(&directories, peer.name) else {
            put(&format!("\n{}: not installed in a directory of BOTTLE_BENCH_SCANNERS", peer.name));
            continue;
        };
        if let Err(error) = run_peer(peer, program, &history, &output, ours) {
            put(&format!("\n{}: {error:#}", peer.name));
        }
    }
    Ok(())
}

/// Runs and scores another scanner.
fn run_peer(peer: &Peer, program: PathBuf, history: &History, output: &Path, ours: Duration) -> Result<()> {
    let version = Command::new(&program).arg(peer.version).output()?;
    let version = String::from_utf8_lossy(&version.stdout);
    let version = version.split_whitespace().last().map(|version| format!(" {version}")).unwrap_or_default();
    let reads = if peer.files { ", files" } else { "" };
    let name = format!("{}{version}{reads}", peer.name);
    let ran = run(&mut (peer.command)(program, history), output, WITHIN)?;
    if !ran.ended {
        put(&format!(
            "\n{name}: killed after {} s, more than {:.0} times as long",
            ran.took.as_secs(),
            ratio(&ran, ours)
        ));
        return Ok(());
    }
    let output = String::from_utf8_lossy(&fs::read(output)?).into_owned();
    let found = (peer.read)(&output, history).context("cannot parse its output")?;
    report(&name, history, &ran, Some(ratio(&ran, ours)), &Score::new(history, found));
    Ok(())
}

fn ratio(ran: &Ran, ours: Duration) -> f64 {
    ran.took.as_secs_f64() / ours.as_secs_f64()
}

fn report(name: &str, history: &History, ran: &Ran, ratio: Option<f64>, score: &Score) {
    let times = ratio.map(|ratio| format!(" ({ratio:.1} x)")).unwrap_or_default();
    put(&format!(
        "\n{name}: {:.1} s{times}, {} MiB, recall {}/{}, precision {:.2} ({} false positives)",
        ran.took.as_secs_f64(),
        ran.memory >> 20,
        score.found(),
        history.labels.len(),
        score.precision(),
        score.wrong.len()
    ));
    let share = |(name, (found, all)): (&str, (usize, usize))| format!("{name} {found}/{all}");
    let families = FAMILIES.iter().enumerate();
    let families =
        families.map(|(at, family)| (family.name, score.recall(history, |label| label.family == at)));
    let places = Place::ALL.map(|place| (place.name(), score.recall(history, |label| label.place == place)));
    put(&format!("  {}", families.map(share).collect::<Vec<_>>().join("  ")));
    put(&format!("  {}", places.map(share).join("  ")));
    for wrong in score.wrong.iter().take(SHOWN) {
        let path = wrong.path.as_deref().unwrap_or("a message");
        put(&format!("  false positive: {} in {path}, line {}", wrong.rule, wrong.line.unwrap_or(0)));
    }
}
