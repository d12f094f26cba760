//! Measures `bottle export` and `bottle import` in comparison with `tar` and `zstd -1` on the same files.
//!
//! The snapshot contains 1 GiB of files from `/usr/lib` and `/usr/share` of this machine. An export also scans the
//! content of the files, computes digests and flushes the archive to the disk. The goal for `bottle export` and for
//! `bottle import` is at least half the speed of the other tools.

use std::cell::Cell;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bottle_test_support::measure::{interleaved, timed};

use crate::scene::Scene;

const ROUNDS: usize = 3;

/// A script that copies up to 512 MiB of files from each of `/usr/lib` and `/usr/share` into the home directory.
const FILL: &str = "for from in /usr/lib /usr/share; do \
    find $from -xdev -type f -size -16M -printf '%s %p\\n' | awk '{ sum += $1; if (sum > 536870912) exit; \
    sub(/^[0-9]+ /, \"\"); print }' | tar -C / -cf - --verbatim-files-from -T - 2>/dev/null | tar -C ~ -xf -; done";

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sleep", "36000"])?;
    scene.start_detached("frozen")?;
    scene.bottle(&["exec", "frozen", "--", "/bin/sh", "-c", FILL])?;
    scene.bottle(&["commit", "frozen", "--as", "full", "-q"])?;
    scene.bottle(&["stop", "frozen", "--time", "0", "-q"])?;
    let snapshot = only_directory(&scene.bottle_home().join("snapshots/frozen"))?;
    let directory = |name: &str| scene.bottle_home().join(name).display().to_string();
    let (exported, packed, unpacked) = (directory("exported"), directory("packed"), directory("unpacked"));
    let accepted = accepted(&scene, &exported)?;

    let export = || {
        let command = ["export", "frozen@full", "-o", &exported, "--force", "-q"].into_iter();
        let command: Vec<&str> = command.chain(accepted.iter().map(String::as_str)).collect();
        timed(|| scene.bottle(&command))
    };
    let pack =
        || timed(|| shell(&format!("tar -C {} -cf - . | zstd -1 -q -f -o {packed}", snapshot.display())));
    let label = Cell::new(0);
    let import = || {
        label.set(label.get() + 1);
        let label = format!("back-{}", label.get());
        let took = timed(|| scene.bottle(&["import", &exported, "--label", &label, "--yes", "-q"]))?;
        scene.bottle(&["snapshots", "rm", &label, "-q"])?;
        Ok(took)
    };
    let unpack = || {
        fs::create_dir(&unpacked)?;
        let took = timed(|| shell(&format!("zstd -dcq {packed} | tar -C {unpacked} -xf -")))?;
        fs::remove_dir_all(&unpacked)?;
        Ok(took)
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("export", Box::new(export)),
            ("tar | zstd -1", Box::new(pack)),
            ("import", Box::new(import)),
            ("zstd -d | tar", Box::new(unpack)),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    let size = |path: &str| Ok::<u64, std::io::Error>(fs::metadata(path)?.len() >> 20);
    println!(
        "speed of export: {:.2} of tar | zstd -1, {} MiB against {} MiB; of import: {:.2}; goal 0.5",
        samples[1].ratio_to(&samples[0]),
        size(&exported)?,
        size(&packed)?,
        samples[3].ratio_to(&samples[2]),
    );
    Ok(())
}

/// Runs one export. Returns the `--accept` options for all findings that this export reports in the copied files.
fn accepted(scene: &Scene, file: &str) -> Result<Vec<String>> {
    let first = scene.any_outcome(&["export", "frozen@full", "-o", file])?;
    let words: Vec<&str> = first.stderr.split_whitespace().collect();
    let rules = words.windows(2).filter(|pair| pair[0].ends_with("--accept"));
    let options: Vec<String> =
        rules.flat_map(|pair| ["--accept".to_owned(), pair[1].trim_end_matches('`').to_owned()]).collect();
    ensure!(first.code == 0 || !options.is_empty(), "the export failed: {}", first.stderr);
    Ok(options)
}

/// Returns the directory of the only snapshot. Skips hidden directories, because an older snapshot that is being
/// removed has a hidden name.
fn only_directory(snapshots: &Path) -> Result<PathBuf> {
    let directories = fs::read_dir(snapshots)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
    let mut directories = directories.into_iter().filter(|path| path.is_dir() && !is_hidden(path));
    let found = directories.next().context("there is no snapshot")?;
    ensure!(directories.next().is_none(), "there is more than one snapshot");
    Ok(found)
}

fn shell(script: &str) -> Result<()> {
    let done = Command::new("sh").args(["-c", script]).status().context("sh")?;
    ensure!(done.success(), "{script:?} failed");
    Ok(())
}
