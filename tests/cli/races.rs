//! Tests concurrent commands that use the same name: one succeeds, and the others fail.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::home::{bottle, home, run};

/// The number of bottles that are started at the same time with the same label.
const STARTS: usize = 3;

fn one_wins(backend: &str) -> Result<()> {
    let mut home = home()?;
    let text = bottle("[sleep, \"600\"]").replace("backend: fake", &format!("backend: {backend}"));
    home.bottle("one", &text)?.agent("one", "---\nbottle: one\n---\n")?;
    if backend != "fake" && !home.runs("two starts with one label", backend)? {
        return Ok(());
    }
    for round in 0..3 {
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            let mut command =
                home.program(["start", "one", "--detach", "--yes", "--label", "one", "-q"])?.command();
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            starts.push(command.spawn()?);
        }
        let mut won = 0;
        for start in starts {
            let output = start.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code().context("it exits")? {
                0 => won += 1,
                code => {
                    assert_eq!(code, 1, "{said}");
                    let why = ["one is taken: a bottle of that name runs", "a bottle named one is running"];
                    assert!(why.iter().any(|why| said.contains(why)), "round {round}: {said}");
                    assert!(said.contains("hint: choose another --label"), "round {round}: {said}");
                }
            }
        }
        assert_eq!(won, 1, "round {round}");
        let listed = run(&home, &["list"])?.expect_code(0).stdout;
        assert_eq!(listed.lines().count(), 1, "{listed}");
        // The bottle that was started is complete.
        let _ = run(&home, &["exec", "one", "--", "echo"])?.expect_code(0);
        let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
        let _ = run(&home, &["cleanup", "--yes", "-q"])?.expect_code(0);
        assert_eq!(std::fs::read_dir(home.bottle_home().join("state"))?.count(), 0, "round {round}");
    }
    Ok(())
}

#[test]
fn of_two_starts_with_the_same_label_one_wins() -> Result<()> {
    one_wins("fake")
}

#[test]
fn of_two_isolated_starts_with_the_same_label_one_wins() -> Result<()> {
    one_wins("linux")
}

/// Bottles end while `cleanup` searches. `cleanup` must not report resources that an ending bottle removes itself.
#[test]
fn a_cleanup_while_bottles_end_finds_nothing() -> Result<()> {
    let mut home = home()?;
    home.bottle("one", &bottle("[echo, hi]"))?.agent("one", "---\nbottle: one\n---\n")?;
    let mut searches = 0;
    for round in 0..12 {
        let mut command = home.program(["start", "one", "--yes", "-q"])?.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut start = command.spawn()?;
        // One more search begins after the client has exited, when its keeper may still run.
        let mut ended = false;
        while !ended {
            ended = start.try_wait()?.is_some();
            let found = run(&home, &["cleanup", "--dry-run", "--json"])?.expect_code(0).json()?;
            ensure!(found["removed"].as_array().is_some_and(Vec::is_empty), "round {round}: {found:#}");
            searches += 1;
        }
    }
    ensure!(searches > 12, "{searches} searches");
    Ok(())
}
