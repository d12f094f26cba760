//! Tests that a bottle is never forgotten when a command uses another engine than the bottle, or when no engine
//! answers. The fake backend pretends to be on the engine that `BOTTLE_FAKE_ENGINE` names.

use std::fs;

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::home::{home, kill_keeper, snapshot};
use crate::resume::note;

/// Runs a command while this engine is selected.
fn run_on(engine: &str, home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.env("BOTTLE_FAKE_ENGINE", engine).run()
}

fn done_on(engine: &str, home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    Ok(run_on(engine, home, arguments)?.expect_code(0))
}

fn transcripts_on(engine: &str, home: &TestHome, commands: &[&[&str]]) -> Result<String> {
    let mut text = String::new();
    for arguments in commands {
        let outcome = run_on(engine, home, arguments)?;
        text += &format!("{engine}$ bottle {}\n{}\n", arguments.join(" "), outcome.transcript());
    }
    Ok(home.scrub()?.apply(&text))
}

/// Starts a bottle on the engine `a` and writes a file into it. The returned home selects the engine `a`.
fn running() -> Result<TestHome> {
    let mut home = home()?;
    home.env("BOTTLE_FAKE_ENGINE", "a");
    done_on("a", &home, &["start", "nap", "--detach", "--label", "one", "-q"])?;
    note(&home, "one", "kept\n")?;
    Ok(home)
}

/// Commands that need the files of the bottle `one`.
const ON_FILES: &[&[&str]] = &[
    &["resume", "one"],
    &["commit", "one"],
    &["exec", "one", "--", "cat", "note"],
    &["cp", "one:note", "copy"],
    &["discard", "one", "--yes"],
    &["list"],
    &["cleanup", "--yes"],
    &["cleanup", "--dry-run", "--json"],
];

#[test]
fn a_kept_bottle_is_found_only_on_its_own_engine() -> Result<()> {
    let home = running()?;
    done_on("a", &home, &["stop", "one", "--time", "0"])?;
    let mut text = transcripts_on("b", &home, ON_FILES)?;
    text += &transcripts_on("absent", &home, ON_FILES)?;
    // No file was lost.
    done_on("a", &home, &["resume", "one", "--detach", "-q"])?;
    let read = done_on("a", &home, &["exec", "one", "--", "cat", "note"])?;
    assert_eq!(read.stdout, "kept\n");
    snapshot!(text);
    Ok(())
}

#[test]
fn a_snapshot_is_found_only_on_its_own_engine() -> Result<()> {
    let home = running()?;
    done_on("a", &home, &["commit", "one", "-q"])?;
    done_on("a", &home, &["stop", "one", "--time", "0"])?;
    let commands: &[&[&str]] =
        &[&["snapshots"], &["resume", "one"], &["snapshots", "rm", "one"], &["cleanup", "--yes"]];
    let text = transcripts_on("b", &home, commands)? + &transcripts_on("absent", &home, commands)?;
    let listed = done_on("a", &home, &["snapshots", "--json"])?.json()?;
    assert_eq!((&listed[0]["status"], &listed[0]["engine"]), (&"ready".into(), &"fake:a".into()));
    done_on("a", &home, &["resume", "one", "--detach", "-q"])?;
    let read = done_on("a", &home, &["exec", "one", "--", "cat", "note"])?;
    assert_eq!(read.stdout, "kept\n");
    snapshot!(text);
    Ok(())
}

/// One message names all bottles of an engine, and a bottle on another engine is cleaned up.
#[test]
fn a_cleanup_names_the_engine_that_does_not_answer_and_its_bottles() -> Result<()> {
    let home = running()?;
    done_on("a", &home, &["start", "nap", "--detach", "--label", "two", "-q"])?;
    note(&home, "two", "kept\n")?;
    for slug in ["one", "two"] {
        done_on("a", &home, &["stop", slug, "--time", "0"])?;
    }
    fs::create_dir_all(home.bottle_home().join("state/.new-three-1"))?;
    let text = transcripts_on("absent", &home, &[&["cleanup", "--yes"]])?;
    for slug in ["one", "two"] {
        done_on("a", &home, &["resume", slug, "--detach", "-q"])?;
    }
    snapshot!(text);
    Ok(())
}

/// On another engine, a detached bottle whose keeper was killed seems to have ended.
#[test]
fn a_running_bottle_is_adopted_only_on_its_own_engine() -> Result<()> {
    let home = running()?;
    kill_keeper(&home, "one")?;
    let commands: &[&[&str]] = &[&["cleanup", "--yes"], &["resume", "one"]];
    let text = transcripts_on("b", &home, commands)? + &transcripts_on("absent", &home, commands)?;
    let read = done_on("a", &home, &["exec", "one", "--", "cat", "note"])?;
    assert_eq!(read.stdout, "kept\n");
    snapshot!(text);
    Ok(())
}

/// Removes the engine from the record, as an older version would have written it.
fn without_engine(home: &TestHome) -> Result<serde_json::Value> {
    let path = home.bottle_home().join("state/one/metadata.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    let engine = record.as_object_mut().context("a record")?.remove("engine");
    fs::write(&path, serde_json::to_vec(&record)?)?;
    engine.context("the record names the engine")
}

#[test]
fn an_old_record_is_used_on_the_engine_that_has_the_files() -> Result<()> {
    let home = running()?;
    done_on("a", &home, &["stop", "one", "--time", "0"])?;
    let engine = without_engine(&home)?;
    let text = transcripts_on("b", &home, &[&["resume", "one"], &["cleanup", "--yes"]])?;
    done_on("a", &home, &["resume", "one", "--detach", "-q"])?;
    let read = done_on("a", &home, &["exec", "one", "--", "cat", "note"])?;
    assert_eq!(read.stdout, "kept\n");
    assert_eq!(without_engine(&home)?, engine, "the new record names the engine");
    snapshot!(text);
    Ok(())
}

#[test]
fn a_bottle_whose_engine_does_not_exist_any_more_can_be_forgotten() -> Result<()> {
    let home = running()?;
    done_on("a", &home, &["stop", "one", "--time", "0"])?;
    let forget: &[&[&str]] = &[&["discard", "one", "--forget", "--yes"]];
    let mut text = transcripts_on("a", &home, forget)?;
    text += &transcripts_on("b", &home, &[forget[0], &["list"]])?;
    snapshot!(text);
    Ok(())
}
