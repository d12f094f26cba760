//! The gate's reading of a push beside other scanners: time, memory, and what each finds and makes up.
//!
//! The history is made here, always the same: clean files of several kinds, two thirds of them new and a third that
//! change, and in it secrets of twelve families in seven places each, one to a file, and look-alikes. The gate reads it
//! as a push of all of it, by the same code; the others read the repository, or every file of it where they read
//! files only. Each has all cores to itself.
//!
//! `cargo bench -p bottle-git-gate --bench history`, or with `-- 1024` for so many MiB (64 otherwise). The others are
//! looked for in the folders that `BOTTLE_BENCH_SCANNERS` names, with `:` between them.
#![allow(missing_docs, clippy::print_stdout, reason = "a bench prints what it measured")]

mod clean;
mod dice;
mod history;
mod ours;
mod peers;
mod run;
mod score;
mod secrets;

/// The reader is the gate's own and no part of what it offers; so its files are built in here.
macro_rules! of_the_gate {
    ($($name:ident = $path:literal),+ $(,)?) => {
        $(
            #[allow(dead_code, unused_imports, unreachable_pub, reason = "the gate uses the rest of it")]
            #[path = $path]
            mod $name;
        )+
    };
}
of_the_gate!(
    blob = "../../src/blob.rs",
    tree_index = "../../src/tree_index.rs",
    findings = "../../src/findings.rs",
    new_objects = "../../src/new_objects.rs",
    git = "../../src/git.rs",
    names = "../../src/names.rs",
    packed = "../../src/packed.rs",
    read = "../../src/read.rs",
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

/// The word by which this program reads as the gate does.
const READ: &str = "__read";

/// A scanner that takes longer is ended.
const WITHIN: Duration = Duration::from_secs(600);

/// MiB, unless another number is asked for.
const SIZE: u64 = 64;

/// Findings of nothing that are shown of each.
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
    let folder = tempfile::tempdir()?;
    let history = History::make(folder.path(), mebibytes << 20)?;
    put(&format!(
        "{} MiB in {} files of {} commits, {} secrets and {} look-alikes",
        history.bytes >> 20,
        history.count,
        history.commits,
        history.labels.len(),
        history.look_alikes
    ));
    let output = folder.path().join("output");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(READ).arg(&history.repo);
    let ran = run(&mut command, &output, WITHIN)?;
    let ours = ran.took;
    ensure!(ran.ended, "the gate takes longer than {WITHIN:?}");
    let found = peers::read_ours(&fs::read_to_string(&output)?)
        .with_context(|| format!("the gate said {:?}", fs::read_to_string(&output).unwrap_or_default()))?;
    tell("the gate", &history, &ran, None, &Score::of(&history, found));
    let folders = std::env::var_os("BOTTLE_BENCH_SCANNERS").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).filter(|path| path.is_absolute()).collect();
    for peer in &PEERS {
        let Some(program) = peers::program(&folders, peer.name) else {
            put(&format!("\n{}: not here; BOTTLE_BENCH_SCANNERS names no folder that has it", peer.name));
            continue;
        };
        if let Err(error) = beside(peer, program, &history, &output, ours) {
            put(&format!("\n{}: {error:#}", peer.name));
        }
    }
    Ok(())
}

/// Another scanner's turn.
fn beside(peer: &Peer, program: PathBuf, history: &History, output: &Path, ours: Duration) -> Result<()> {
    let version = Command::new(&program).arg(peer.version).output()?;
    let version = String::from_utf8_lossy(&version.stdout);
    let version = version.split_whitespace().last().map(|version| format!(" {version}")).unwrap_or_default();
    let reads = if peer.files { ", files" } else { "" };
    let name = format!("{}{version}{reads}", peer.name);
    let ran = run(&mut (peer.command)(program, history), output, WITHIN)?;
    if !ran.ended {
        put(&format!(
            "\n{name}: ended after {} s, more than {:.0} times as long",
            ran.took.as_secs(),
            ratio(&ran, ours)
        ));
        return Ok(());
    }
    let said = String::from_utf8_lossy(&fs::read(output)?).into_owned();
    let found = (peer.read)(&said, history).context("what it said is of another form")?;
    tell(&name, history, &ran, Some(ratio(&ran, ours)), &Score::of(history, found));
    Ok(())
}

fn ratio(ran: &Ran, ours: Duration) -> f64 {
    ran.took.as_secs_f64() / ours.as_secs_f64()
}

fn tell(name: &str, history: &History, ran: &Ran, ratio: Option<f64>, score: &Score) {
    let times = ratio.map(|ratio| format!(" ({ratio:.1} x)")).unwrap_or_default();
    put(&format!(
        "\n{name}: {:.1} s{times}, {} MiB, recall {}/{}, precision {:.2} ({} made up)",
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
        families.map(|(at, family)| (family.name, score.of_those(history, |label| label.family == at)));
    let places =
        Place::ALL.map(|place| (place.name(), score.of_those(history, |label| label.place == place)));
    put(&format!("  {}", families.map(share).collect::<Vec<_>>().join("  ")));
    put(&format!("  {}", places.map(share).join("  ")));
    for wrong in score.wrong.iter().take(SHOWN) {
        let path = wrong.path.as_deref().unwrap_or("a message");
        put(&format!("  made up: {} in {path}, line {}", wrong.rule, wrong.line.unwrap_or(0)));
    }
}
