//! Measures the start, the first commit and the stop of a bottle with a copy of a large repository. Also measures ten
//! of these bottles that start at the same time. Compares the bottle with `cp -r` of the repository, which is the
//! minimum that a sandbox with a copy costs. Also compares the bottle with `cp -r` of the working tree without `.git`,
//! and with a container on a bind mount of the repository. The bind mount copies nothing and protects nothing.
//!
//! The repository has 20 000 files and about 4 GiB, including its history. The goals are a start in 2 s and a stop in
//! 1 s. A started bottle should take no more disk space than the working tree. On a file system that cannot share
//! blocks, a start copies the working tree, and a first commit copies it once more. All earlier writes are flushed to
//! the disk before each measurement. The benchmark is slow on ext4 without a journal, because this file system avoids
//! the inodes of recently removed files.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use bottle_test_support::engine;
use bottle_test_support::measure::{Contender, interleaved, timed};

use crate::scene::Scene;

const ROUNDS: usize = 3;

const DIRECTORIES: usize = 200;

const FILES: usize = 100;

/// The size of a file in bytes. Each file has two versions in the history, and the working tree contains the second
/// version.
const SIZE: u64 = 68 << 10;

/// The number of bottles that start at the same time.
const AT_ONCE: usize = 10;

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sleep", "36000"])?;
    let project = scene.project();
    fill(&project)?;
    let (label, copy) = (Cell::new(0), scene.bottle_home().join("copy"));
    let slug = || format!("big-{}", label.get());
    let taken = Cell::new(0);
    let start = || {
        label.set(label.get() + 1);
        let took = timed_on_idle_disk(|| scene.start_with_copy(&slug()))?;
        taken.set(own_bytes(&scene.bottle_home().join("state").join(slug()))?);
        Ok(took)
    };
    let commit = || timed_on_idle_disk(|| scene.bottle(&["commit", &slug(), "-q"]));
    let stop = || {
        let took = timed(|| scene.bottle(&["stop", &slug(), "--time", "0", "-q"]))?;
        scene.bottle(&["snapshots", "rm", &slug(), "-q"])?;
        Ok(took)
    };
    let copied = |script: &str| {
        let took = timed_on_idle_disk(|| {
            let shell = ["-ec", script, "sh"];
            let copied = Command::new("/bin/sh").args(shell).arg(&copy).current_dir(&project).status()?;
            ensure!(copied.success(), "{script} failed");
            Ok(())
        })?;
        fs::remove_dir_all(&copy)?;
        Ok(took)
    };
    let mut contenders: Vec<Contender<'_>> = vec![
        ("start --cwd", Box::new(start)),
        ("first commit", Box::new(commit)),
        ("stop", Box::new(stop)),
        ("cp -r", Box::new(|| copied("cp -r . \"$1\""))),
        ("cp -r, working tree", Box::new(|| copied("mkdir \"$1\"; cp -r [0-9]* \"$1\""))),
    ];
    match engine::here() {
        Ok(()) => contenders.push(("docker run -v", Box::new(|| bind_mounted(&project)))),
        Err(why) => println!("skipped: docker run -v: {why}"),
    }
    let samples = interleaved(ROUNDS, contenders)?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    let mebibytes = |bytes: u64| bytes >> 20;
    println!(
        "start / cp -r: {:.2}, of the working tree: {:.2}; the bottle takes {} MiB, the working tree {} MiB, the repository {} MiB",
        samples[0].ratio_to(&samples[3]),
        samples[0].ratio_to(&samples[4]),
        mebibytes(taken.get()),
        mebibytes(own_bytes(&project)?.saturating_sub(own_bytes(&project.join(".git"))?)),
        mebibytes(own_bytes(&project)?),
    );
    at_once(&scene)
}

/// Flushes all earlier writes to the disk, and then measures how long `run` takes.
fn timed_on_idle_disk<T>(run: impl FnOnce() -> Result<T>) -> Result<Duration> {
    rustix::fs::sync();
    timed(run)
}

/// Starts [`AT_ONCE`] bottles with a copy of the repository at the same time, and stops them at the same time.
fn at_once(scene: &Scene) -> Result<()> {
    let slugs: Vec<String> = (0..AT_ONCE).map(|number| format!("one-of-many-{number}")).collect();
    let each = |run: &(dyn Fn(&str) -> Result<()> + Sync)| {
        timed(|| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = slugs.iter().map(|slug| scope.spawn(|| run(slug))).collect();
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
            })
        })
    };
    rustix::fs::sync();
    let start = each(&|slug| scene.start_with_copy(slug).map(drop))?;
    let stop = each(&|slug| scene.bottle(&["stop", slug, "--time", "0", "-q"]).map(drop))?;
    println!("{AT_ONCE} at once: start {:.2} s, stop {:.2} s", start.as_secs_f64(), stop.as_secs_f64());
    Ok(())
}

/// Measures a container on a bind mount of the repository.
fn bind_mounted(project: &Path) -> Result<Duration> {
    timed(|| {
        let mount = format!("{}:/workspace", project.display());
        let ran = Command::new("docker")
            .args(["run", "--rm", "--volume", &mount, engine::BASE_IMAGE, "true"])
            .status()?;
        ensure!(ran.success(), "docker run failed");
        Ok(())
    })
}

/// Creates the repository.
fn fill(project: &Path) -> Result<()> {
    let git = |arguments: &[&str]| -> Result<()> {
        // An automatic `git gc` would continue in the background during the measurements.
        let options = ["user.name=a", "user.email=a@example.com", "core.compression=0", "gc.auto=0"];
        let options = options.into_iter().flat_map(|option| ["-c", option]);
        let done = Command::new("git").current_dir(project).args(options).args(arguments).status()?;
        ensure!(done.success(), "git {arguments:?} failed");
        Ok(())
    };
    git(&["init", "-q", "-b", "main"])?;
    let mut random = File::open("/dev/urandom")?;
    for version in ["first", "second"] {
        for directory in 0..DIRECTORIES {
            let directory = project.join(directory.to_string());
            fs::create_dir_all(&directory)?;
            for file in 0..FILES {
                io::copy(
                    &mut (&mut random).take(SIZE),
                    &mut File::create(directory.join(file.to_string()))?,
                )?;
            }
        }
        git(&["add", "-A"])?;
        git(&["commit", "-qm", version])?;
    }
    git(&["-c", "pack.window=0", "repack", "-adq"])
}

/// Returns the size in bytes of the files below `directory`. Excludes files with more than one hard link, because other
/// directories share them.
fn own_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            bytes += own_bytes(&entry.path())?;
        } else if metadata.nlink() == 1 {
            bytes += metadata.blocks() * 512;
        }
    }
    Ok(bytes)
}
