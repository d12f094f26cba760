//! Tests `bottle prune`.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};
use crate::resuming::preserved;

/// Writes a file whose last change was this many days ago.
fn aged(home: &TestHome, path: &str, days: u64) -> Result<()> {
    let path = home.bottle_home().join(path);
    fs::create_dir_all(path.parent().expect("a folder"))?;
    fs::write(&path, "x".repeat(100))?;
    let then = SystemTime::now() - Duration::from_secs(days * 86_400);
    File::open(&path)?.set_modified(then)?;
    // The age of a folder with conversations is that of the folder.
    if path.starts_with(home.bottle_home().join("transcripts")) {
        File::open(path.parent().expect("a folder"))?.set_modified(then)?;
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
    let home = preserved("one")?;
    aged(&home, "audit/one.jsonl", 100)?;
    aged(&home, "transcripts/one/20250101-000000/a.jsonl", 100)?;
    let pruned = run(&home, &["prune", "--yes"])?.expect_code(0);
    assert!(pruned.stderr.contains("left: the records of one, which run or are kept"), "{}", pruned.stderr);
    assert!(exists(&home, "audit/one.jsonl") && exists(&home, "transcripts/one/20250101-000000/a.jsonl"));
    Ok(())
}

/// A symlink in the place of a folder is not followed.
#[test]
fn a_symlink_leads_nowhere() -> Result<()> {
    let home = home()?;
    let outside = tempfile::tempdir()?;
    fs::write(outside.path().join("1.json"), "x")?;
    File::open(outside.path().join("1.json"))?.set_modified(SystemTime::UNIX_EPOCH)?;
    fs::create_dir_all(home.bottle_home().join("queue/gone"))?;
    std::os::unix::fs::symlink(outside.path(), home.bottle_home().join("queue/gone/processed"))?;
    let pruned = run(&home, &["prune", "--yes"])?.expect_code(1);
    assert!(pruned.stderr.contains("not a folder"), "{}", pruned.stderr);
    assert!(outside.path().join("1.json").exists());
    Ok(())
}
