//! Tests `bottle env`: the bottles of tasks.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use serde_json::Value;

use crate::home::{home, run, snapshot, transcripts};

/// The time limit of a call that waits until other bottles have started.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs `bottle env run` for these tasks at the same time. Returns what the commands printed.
fn all_at_once(home: &TestHome, tasks: &[String]) -> Result<Vec<String>> {
    std::thread::scope(|scope| {
        let call = |task: &String| -> Result<String> {
            let mut program = home.program(["env", "run", task, "-q", "--", "env", "BOTTLE"])?;
            Ok(program.deadline(PATIENCE).run()?.expect_code(0).stdout)
        };
        let calls: Vec<_> = tasks.iter().map(|task| scope.spawn(move || call(task))).collect();
        calls.into_iter().map(|call| call.join().ok().context("a call")?).collect()
    })
}

fn with_settings(settings: &str) -> Result<TestHome> {
    let home = home()?;
    home.write("home/.bottle/settings.yml", settings)?;
    Ok(home)
}

fn running(home: &TestHome) -> Result<usize> {
    let listed = run(home, &["list", "active", "--json"])?.expect_code(0).json()?;
    Ok(listed.as_array().map_or(0, Vec::len))
}

#[test]
fn each_task_has_one_bottle_under_any_concurrency() -> Result<()> {
    let home = with_settings("environments: {agent: nap}\n")?;
    let tasks: Vec<String> = (0..64).map(|task| format!("task-{task}")).collect();
    let slugs: HashSet<String> = all_at_once(&home, &tasks)?.into_iter().collect();
    ensure!(slugs.len() == 64 && running(&home)? == 64, "{slugs:?}");
    // The same task ids get the same bottles.
    let again: HashSet<String> = all_at_once(&home, &tasks[..8])?.into_iter().collect();
    ensure!(again.is_subset(&slugs) && again.len() == 8 && running(&home)? == 64, "{again:?}");
    Ok(())
}

#[test]
fn concurrent_calls_of_a_task_share_its_bottle() -> Result<()> {
    let home = with_settings("environments: {agent: nap}\n")?;
    let tasks = vec!["one".to_owned(); 24];
    let slugs: HashSet<String> = all_at_once(&home, &tasks)?.into_iter().collect();
    ensure!(slugs.len() == 1 && running(&home)? == 1, "{slugs:?}");
    Ok(())
}

#[test]
fn runs_lists_and_removes() -> Result<()> {
    let home = with_settings("environments: {tasks: {'py-*': {agent: nap}}}\n")?;
    let mut text = transcripts(
        &home,
        &[
            &["env", "ls"],
            &["env", "run", "../..", "--", "true"],
            &["env", "run", "new", "--agent", "absent", "--", "true"],
            &["env", "run", "new", "--", "true"],
            &["env", "run", "py-1", "--", "exit", "3"],
            &["env", "run", "py-1", "--", "echo", "again"],
            &["env", "run", "py-1", "--agent", "nap", "--", "no-such-program"],
            &["env", "run", "new", "--agent", "nap", "-q", "--", "true"],
            &["env", "rm", "absent", "--yes"],
            &["env", "rm", "py-1"],
        ],
    )?;
    let listed = run(&home, &["env", "ls", "--json"])?.expect_code(0).json()?;
    let tasks: Vec<&Value> =
        listed.as_array().context("a list")?.iter().map(|found| &found["task"]).collect();
    ensure!(tasks == ["new", "py-1"] && listed[0]["state"] == "running", "{listed}");
    ensure!(listed[0]["in_use"] == false, "{listed}");
    // A bottle that ended is resumed with its files.
    let slug = listed[0]["slug"].as_str().context("a slug")?;
    let _ = home.program(["fs", "write", slug, "note", "-q"])?.input("kept\n").run()?.expect_code(0);
    let _ = run(&home, &["stop", slug, "--time", "0", "-q"])?.expect_code(0);
    text += &transcripts(
        &home,
        &[
            &["env", "run", "new", "-q", "--", "cat", "note"],
            &["env", "rm", "py-1", "--yes", "--json"],
            &["env", "rm", "--all", "--yes"],
            &["env", "rm", "--all", "--yes", "--json"],
        ],
    )?;
    snapshot!(text);
    let left: Vec<_> = std::fs::read_dir(home.bottle_home().join("environments"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    ensure!(left.iter().all(|name| name.starts_with("start-") || name == "reaper"), "{left:?}");
    Ok(())
}

#[test]
fn an_agent_that_ends_at_once_is_named_as_the_reason() -> Result<()> {
    let home = with_settings("environments: {tasks: {'fail-*': {agent: fail}, 'hi-*': {agent: hi}}}\n")?;
    // The second use of a task resumes its bottle.
    for (task, code) in [("fail-1", 7), ("fail-2", 7), ("hi-1", 0), ("fail-1", 7)] {
        // The command fails before it begins, or ends with its bottle.
        let failed = run(&home, &["env", "run", task, "-q", "--", "sleep", "300"])?;
        let why = format!(" ended: its agent exited with code {code}");
        let is_said = failed.stderr.contains(&why) && failed.stderr.contains("runs as long as its agent");
        ensure!(failed.code >= 125 && is_said, "{task}: {} {}", failed.code, failed.stderr);
    }
    let listed = run(&home, &["env", "ls", "--json"])?.expect_code(0).json()?;
    let in_use = |found: &Value| found["in_use"] != false;
    ensure!(listed.as_array().is_some_and(|all| all.len() == 3 && !all.iter().any(in_use)), "{listed}");
    Ok(())
}

#[test]
fn an_idle_bottle_is_stopped_and_one_with_work_is_not() -> Result<()> {
    let home = with_settings("environments: {agent: nap, idle: 0}\n")?;
    for task in ["busy", "idle"] {
        let _ = run(&home, &["env", "run", task, "-q", "--", "true"])?.expect_code(0);
    }
    let listed = run(&home, &["env", "ls", "--json"])?.expect_code(0).json()?;
    let busy = listed[0]["slug"].as_str().context("a slug")?.to_owned();
    let idle = listed[1]["slug"].as_str().context("a slug")?.to_owned();
    // A file in the agent's home is not unsaved work, but the bottle of a task keeps the file.
    let own_home = run(&home, &["exec", &idle, "--", "env", "HOME"])?.expect_code(0).stdout;
    let note = format!("{}/note", own_home.trim_end());
    home.write("project/note", "kept\n")?;
    let _ = run(&home, &["cp", "note", &format!("{idle}:{note}")])?.expect_code(0);
    let _ = run(&home, &["process", "start", &busy, "-q", "--", "sleep", "600"])?.expect_code(0);
    // From now on, idle bottles are stopped. The bottle of the task `busy` already runs a process.
    home.write("home/.bottle/settings.yml", "environments: {agent: nap, idle: 2s}\n")?;
    let _ = run(&home, &["env", "run", "later", "-q", "--", "true"])?.expect_code(0);
    let state = |at: usize| -> Result<Value> {
        Ok(run(&home, &["env", "ls", "--json"])?.expect_code(0).json()?[at]["state"].clone())
    };
    let begun = Instant::now();
    while state(1)? != "kept" {
        ensure!(begun.elapsed() < Duration::from_secs(60), "the idle bottle still runs");
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_secs(4));
    ensure!(state(0)? == "running", "the bottle with work was stopped");
    // The process of the bottle has ended, so this bottle is idle too.
    let _ = run(&home, &["process", "kill", &busy, "p1", "-q"])?.expect_code(0);
    let begun = Instant::now();
    while state(0)? == "running" {
        ensure!(begun.elapsed() < Duration::from_secs(60), "the bottle without work still runs");
        std::thread::sleep(Duration::from_millis(200));
    }
    let read = run(&home, &["env", "run", "idle", "-q", "--", "cat", &note])?.expect_code(0);
    ensure!(read.stdout == "kept\n", "{}", read.stdout);
    Ok(())
}
