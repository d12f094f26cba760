//! Tests `bottle prune`.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};
use crate::resume::kept;

/// Writes a file whose last change was this many days ago.
fn aged(home: &TestHome, path: &str, days: u64) -> Result<()> {
    aged_with(home, path, days, 100)
}

/// Like [`aged`], with a file of this size in bytes.
fn aged_with(home: &TestHome, path: &str, days: u64, bytes: usize) -> Result<()> {
    let path = home.bottle_home().join(path);
    fs::create_dir_all(path.parent().expect("a directory"))?;
    fs::write(&path, "x".repeat(bytes))?;
    let then = SystemTime::now() - Duration::from_secs(days * 86_400);
    File::open(&path)?.set_modified(then)?;
    // The age of conversations is the age of their directory.
    if path.starts_with(home.bottle_home().join("transcripts")) {
        File::open(path.parent().expect("a directory"))?.set_modified(then)?;
    }
    Ok(())
}

fn exists(home: &TestHome, path: &str) -> bool {
    Path::new(&home.bottle_home()).join(path).exists()
}

#[test]
fn removes_old_records_of_bottles_that_are_gone() -> Result<()> {
    let home = home()?;
    let old = [
        "transcripts/gone/20250101-000000/a.jsonl",
        "queue/gone/processed/1.json",
        "audit/gone.jsonl",
        "audit/heads/gone",
        "crashes/old.log",
    ];
    let new = ["transcripts/fresh/20260101-000000/a.jsonl", "audit/fresh.jsonl", "audit/heads/fresh"];
    old.iter().try_for_each(|path| aged(&home, path, 100))?;
    new.iter().try_for_each(|path| aged(&home, path, 10))?;
    let text =
        transcripts(&home, &[&["prune", "--dry-run"], &["prune"], &["prune", "--yes"], &["prune", "--yes"]])?;
    snapshot!(text);
    assert!(old.iter().all(|path| !exists(&home, path)) && !exists(&home, "transcripts/gone"));
    assert!(new.iter().all(|path| exists(&home, path)));
    let json = run(&home, &["prune", "--older-than", "5d", "--json", "--dry-run"])?.expect_code(0).stdout;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    assert_eq!(json["records"].as_array().map(Vec::len), Some(3), "{json}");
    Ok(())
}

#[test]
fn leaves_the_records_of_a_kept_bottle_and_names_it() -> Result<()> {
    let home = kept("one")?;
    aged(&home, "audit/one.jsonl", 100)?;
    aged(&home, "transcripts/one/20250101-000000/a.jsonl", 100)?;
    let pruned = run(&home, &["prune", "--yes"])?.expect_code(0);
    assert!(pruned.stderr.contains("left: the records of one, which run or are kept"), "{}", pruned.stderr);
    assert!(exists(&home, "audit/one.jsonl") && exists(&home, "transcripts/one/20250101-000000/a.jsonl"));
    Ok(())
}

#[test]
fn the_end_of_a_bottle_bounds_what_ended_bottles_left() -> Result<()> {
    let home = kept("one")?;
    home.write("home/.bottle/settings.yml", "keep_size: 1MiB\n")?;
    for (path, days) in [
        ("audit/one.jsonl", 100),
        ("transcripts/a/20250101-000000/a.jsonl", 40),
        ("audit/b.jsonl", 30),
        ("audit/heads/b", 30),
        ("transcripts/c/20260101-000000/a.jsonl", 20),
    ] {
        aged_with(&home, path, days, if path.contains("heads") { 100 } else { 600 << 10 })?;
    }
    let _ = run(&home, &["start", "hi", "--label", "new", "-q"])?.expect_code(0);
    let end = std::time::Instant::now() + Duration::from_secs(40);
    while exists(&home, "audit/b.jsonl") || exists(&home, "audit/heads/b") {
        anyhow::ensure!(std::time::Instant::now() < end, "the oldest records stay");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!exists(&home, "transcripts/a"), "the oldest went first");
    assert!(exists(&home, "transcripts/c/20260101-000000/a.jsonl"), "the rest fits");
    assert!(exists(&home, "audit/one.jsonl"), "the bottle is kept");
    Ok(())
}

/// A symlink that replaces a directory is not followed.
#[test]
fn a_symlink_leads_nowhere() -> Result<()> {
    let home = home()?;
    let outside = tempfile::tempdir()?;
    fs::write(outside.path().join("1.json"), "x")?;
    File::open(outside.path().join("1.json"))?.set_modified(SystemTime::UNIX_EPOCH)?;
    fs::create_dir_all(home.bottle_home().join("queue/gone"))?;
    std::os::unix::fs::symlink(outside.path(), home.bottle_home().join("queue/gone/processed"))?;
    let pruned = run(&home, &["prune", "--yes"])?.expect_code(1);
    assert!(pruned.stderr.contains("not a directory"), "{}", pruned.stderr);
    assert!(outside.path().join("1.json").exists());
    Ok(())
}
