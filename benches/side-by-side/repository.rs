//! Measures a bottle with a copy of a large repository, in comparison with `cp -r`: its start, its first commit and its
//! stop.
//!
//! The repository has 20 000 files and 4 GiB, half of them in its history. The goals are a start in 2 s, which takes no
//! more space than the working tree, and a stop in 1 s. On a file system that cannot share blocks, a start copies the
//! working tree, and a first commit copies it once more.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use bottle_test_support::measure::{interleaved, timed};

use crate::scene::Scene;

const ROUNDS: usize = 3;

const FOLDERS: usize = 200;

const FILES: usize = 100;

/// The size of a file in bytes. Each file has two versions, and the working tree contains the second.
const SIZE: u64 = 68 << 10;

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sleep", "36000"])?;
    let project = scene.project();
    fill(&project)?;
    let (label, copy) = (Cell::new(0), scene.bottle_home().join("copy"));
    let slug = || format!("big-{}", label.get());
    let taken = Cell::new(0);
    let start = || {
        label.set(label.get() + 1);
        let took = timed(|| scene.start_with_copy(&slug()))?;
        taken.set(own_bytes(&scene.bottle_home().join("state").join(slug()))?);
        Ok(took)
    };
    let commit = || timed(|| scene.bottle(&["commit", &slug(), "-q"]));
    let stop = || {
        let took = timed(|| scene.bottle(&["stop", &slug(), "--time", "0", "-q"]))?;
        scene.bottle(&["snapshots", "rm", &slug(), "-q"])?;
        Ok(took)
    };
    let whole = || {
        let took = timed(|| {
            let copied = Command::new("cp").arg("-r").arg(&project).arg(&copy).status()?;
            ensure!(copied.success(), "cp -r failed");
            Ok(())
        })?;
        fs::remove_dir_all(&copy)?;
        Ok(took)
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("start --cwd", Box::new(start)),
            ("first commit", Box::new(commit)),
            ("stop", Box::new(stop)),
            ("cp -r", Box::new(whole)),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    let mebibytes = |bytes: u64| bytes >> 20;
    println!(
        "start / cp -r: {:.2}; the bottle takes {} MiB, the working tree {} MiB, the repository {} MiB",
        samples[0].ratio_to(&samples[3]),
        mebibytes(taken.get()),
        mebibytes(own_bytes(&project)?.saturating_sub(own_bytes(&project.join(".git"))?)),
        mebibytes(own_bytes(&project)?),
    );
    Ok(())
}

/// Creates the repository.
fn fill(project: &Path) -> Result<()> {
    let git = |arguments: &[&str]| -> Result<()> {
        let options = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "core.compression=0"];
        let done = Command::new("git").current_dir(project).args(options).args(arguments).status()?;
        ensure!(done.success(), "git {arguments:?} failed");
        Ok(())
    };
    git(&["init", "-q", "-b", "main"])?;
    let mut random = File::open("/dev/urandom")?;
    for version in ["first", "second"] {
        for folder in 0..FOLDERS {
            let folder = project.join(folder.to_string());
            fs::create_dir_all(&folder)?;
            for file in 0..FILES {
                io::copy(&mut (&mut random).take(SIZE), &mut File::create(folder.join(file.to_string()))?)?;
            }
        }
        git(&["add", "-A"])?;
        git(&["commit", "-qm", version])?;
    }
    git(&["-c", "pack.window=0", "repack", "-adq"])
}

/// The size in bytes of the files below a folder that no other folder shares.
fn own_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
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
