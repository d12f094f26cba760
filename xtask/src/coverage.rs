//! `cargo xtask coverage REPORT`: fails if the tests cover too few lines of security-critical code.
//!
//! REPORT is the output of `cargo llvm-cov report --json`. Unit tests inside a source file are included as lines of
//! this file.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The minimum percentage of covered lines for each part. If a part has a lower percentage, the command fails.
const BAR: f64 = 90.0;

/// The parts of the code in which a mistake could let data leave a bottle, with their files and directories.
const PARTS: [(&str, &[&str]); 6] = [
    ("decision", &["crates/policy/src/decide/", "crates/policy/src/canonical/", "crates/policy/src/route/"]),
    ("scan", &["crates/scan/src/"]),
    ("resolve", &["crates/manifest/src/resolve/"]),
    (
        "gate reading",
        &[
            "sidecars/git-gate/src/archives.rs",
            "sidecars/git-gate/src/blob_scan.rs",
            "sidecars/git-gate/src/new_objects.rs",
            "sidecars/git-gate/src/push_reader.rs",
            "sidecars/git-gate/src/push_scan.rs",
            "sidecars/git-gate/src/read_error.rs",
            "sidecars/git-gate/src/tree_index.rs",
        ],
    ),
    ("queue", &["sidecars/queue/src/", "crates/protocol/src/queue.rs"]),
    (
        "audit",
        &[
            "crates/protocol/src/audit.rs",
            "crates/instance/src/audit.rs",
            "crates/instance/src/audited_routes.rs",
        ],
    ),
];

#[derive(Deserialize)]
struct Report {
    data: Vec<Export>,
}

#[derive(Deserialize)]
struct Export {
    files: Vec<Covered>,
}

#[derive(Deserialize)]
struct Covered {
    filename: String,
    summary: Summary,
}

#[derive(Deserialize)]
struct Summary {
    lines: Lines,
}

#[derive(Deserialize, Clone, Copy)]
struct Lines {
    count: u64,
    covered: u64,
}

/// Prints the percentage of covered lines for each part. The error names the parts that are below the
/// minimum.
pub(crate) fn run(report: &str) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")?;
    let file = File::open(report).with_context(|| format!("cannot open {report}"))?;
    let report: Report =
        serde_json::from_reader(BufReader::new(file)).with_context(|| format!("cannot read {report}"))?;
    let files: Vec<(String, Lines)> = report
        .data
        .into_iter()
        .flat_map(|export| export.files)
        .filter_map(|file| {
            let path = Path::new(&file.filename).strip_prefix(root).ok()?;
            Some((path.to_str()?.to_owned(), file.summary.lines))
        })
        .collect();
    let low: Vec<&str> = PARTS
        .into_iter()
        .filter_map(|(part, paths)| (print_part(part, paths, &files) < BAR).then_some(part))
        .collect();
    ensure!(low.is_empty(), "tests cover less than {BAR} % of the lines of: {}", low.join(", "));
    Ok(())
}

/// Prints and returns the percentage of covered lines of a part. For a part without files, the percentage is
/// 0, because the paths of the part are then outdated.
fn print_part(part: &str, paths: &[&str], files: &[(String, Lines)]) -> f64 {
    let lines = || files.iter().filter(|(path, _)| is_within(path, paths)).map(|(_, lines)| lines);
    let count: u64 = lines().map(|lines| lines.count).sum();
    let covered: u64 = lines().map(|lines| lines.covered).sum();
    let percent = if count == 0 { 0.0 } else { covered as f64 * 100.0 / count as f64 };
    println!("{percent:5.1} %  {covered:>6} of {count:>6} lines  {part}");
    percent
}

fn is_within(path: &str, paths: &[&str]) -> bool {
    paths.iter().any(|part| if part.ends_with('/') { path.starts_with(part) } else { path == *part })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, count: u64, covered: u64) -> (String, Lines) {
        (path.to_owned(), Lines { count, covered })
    }

    #[test]
    fn counts_the_files_of_a_part_only() {
        let files =
            [file("a/one.rs", 80, 80), file("a/two.rs", 20, 0), file("b/one.rs", 100, 0), file("c.rs", 8, 2)];
        assert!((print_part("a", &["a/"], &files) - 80.0).abs() < 1e-9);
        assert!((print_part("c", &["c.rs"], &files) - 25.0).abs() < 1e-9);
        assert!(print_part("none", &["d/"], &files) < BAR);
    }

    #[test]
    fn every_path_of_a_part_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's root");
        for path in PARTS.iter().flat_map(|(_, paths)| *paths) {
            assert!(root.join(path).exists(), "{path}");
        }
    }
}
