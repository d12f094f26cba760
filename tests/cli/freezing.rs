//! Snapshots: made, listed, removed, and what is said when there is nothing to make one of.

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{home, run, snapshot, transcript, transcripts};

/// A bottle that runs, with a file in its workspace.
fn running(label: &str) -> Result<TestHome> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    home.write("project/note", "remember\n")?;
    let _ = run(&home, &["cp", "note", &format!("{label}:note")])?.expect_code(0);
    Ok(home)
}

#[test]
fn a_snapshot_is_made_listed_replaced_and_removed() -> Result<()> {
    let home = running("one")?;
    snapshot!(transcripts(
        &home,
        &[
            &["snapshots"],
            &["commit", "one"],
            &["snapshots"],
            &["commit", "one", "--json"],
            &["list", "snapshots", "--json"],
            &["exec", "one", "--", "cat", "note"],
            &["snapshots", "rm", "one"],
            &["snapshots", "rm", "one"],
            &["list", "snapshots"],
            &["stop", "one", "--time", "0"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_bottle_with_a_snapshot_stays_when_it_ended_and_goes_with_its_snapshot() -> Result<()> {
    let mut home = home()?;
    home.without_cleanup();
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    snapshot!(transcripts(
        &home,
        &[
            &["commit", "one", "-q"],
            &["stop", "one", "--time", "0"],
            &["list"],
            &["commit", "one"],
            &["attach", "one"],
            &["start", "nap", "--label", "one"],
            &["cleanup", "--yes"],
            &["snapshots"],
            &["snapshots", "rm", "one"],
            &["list"],
            &["cleanup"],
        ],
    )?);
    assert_eq!(std::fs::read_dir(home.bottle_home().join("state"))?.count(), 0);
    assert_eq!(std::fs::read_dir(home.bottle_home().join("snapshots.fake"))?.count(), 0);
    Ok(())
}

#[test]
fn kept_work_is_committed_where_it_stands() -> Result<()> {
    let home = running("one")?;
    snapshot!(transcripts(
        &home,
        &[
            &["stop", "one", "--time", "0"],
            &["commit", "one"],
            &["snapshots"],
            &["snapshots", "rm", "one"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn what_cannot_be_committed_is_said_with_the_next_step() -> Result<()> {
    let home = home()?;
    let mut text =
        transcripts(&home, &[&["commit"], &["commit", "nobody"], &["commit", "nobody", "--json"]])?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    text += &transcripts(&home, &[&["commit"], &["snapshots", "rm", "nobody"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn a_commit_that_fails_leaves_the_snapshot_before_it() -> Result<()> {
    let mut text = String::new();
    for step in ["freeze", "frozen"] {
        let home = home()?;
        // The keeper has its environment from the command that starts it.
        let mut start = home.program(["start", "nap", "--detach", "--label", "one", "-q"])?;
        let _ = start.env("BOTTLE_FAKE_FAIL", step).run()?.expect_code(0);
        text +=
            &format!("failing at {step}: {}\n", transcripts(&home, &[&["commit", "one"], &["snapshots"]])?);
        text += &transcript(&home, &["cleanup", "--dry-run"])?;
    }
    snapshot!(text);
    Ok(())
}

#[test]
fn a_person_is_asked_which_bottle() -> Result<()> {
    let home = running("one")?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "two", "-q"])?.expect_code(0);
    let mut pty = Pty::spawn(home.program(["commit"])?.command(), 24, 80)?;
    pty.wait_for("Make a snapshot of which bottle? [1-2]")?;
    pty.type_keys("7\r")?;
    pty.wait_until("asked again", |screen| screen.matches("[1-2]").count() == 2)?;
    pty.type_keys("2\r")?;
    pty.wait_for("`bottle resume two` goes on from it")?;
    assert_eq!(pty.wait_exit()?, 0);
    let mut pty = Pty::spawn(home.program(["commit"])?.command(), 24, 80)?;
    pty.wait_for("[1-2]")?;
    pty.type_keys("\x1b")?;
    pty.wait_for("nothing was committed")?;
    assert_eq!(pty.wait_exit()?, 130);
    let listed = run(&home, &["snapshots"])?.stdout;
    assert!(listed.contains("two") && !listed.contains("one"), "{listed}");
    Ok(())
}

#[test]
fn a_state_that_cannot_be_read_is_an_error_and_not_an_empty_one() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/state", "no folder\n")?;
    snapshot!(transcripts(
        &home,
        &[&["cleanup"], &["cleanup", "--json"], &["list"], &["snapshots"], &["commit"]]
    )?);
    Ok(())
}
