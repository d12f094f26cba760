//! Tests `bottle discard`.

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};
use crate::resume::{committed_and_kept, kept};

#[test]
fn discards_the_kept_files_and_keeps_the_snapshot() -> Result<()> {
    let home = committed_and_kept("one")?;
    let mut text = transcripts(
        &home,
        &[
            &["discard", "one"],
            &["discard", "one", "--yes"],
            &["list"],
            &["discard", "one", "--yes"],
            &["resume", "one", "--detach", "-q"],
            &["exec", "one", "--", "cat", "note"],
            &["discard", "one", "--yes"],
            &["stop", "one", "--time", "0", "-q"],
            &["snapshots", "rm", "one"],
            &["discard", "one", "--yes", "--json"],
            &["list"],
        ],
    )?;
    text += &transcripts(&home, &[&["discard", "one", "--yes"], &["discard"], &["cleanup", "--dry-run"]])?;
    snapshot!(text);
    assert!(!home.bottle_home().join("state/one").exists());
    Ok(())
}

#[test]
fn a_user_is_asked_first() -> Result<()> {
    let home = kept("one")?;
    for (answer, stays) in [("n", true), ("\u{3}", true), ("y", false)] {
        let mut pty = home.on_terminal(&["discard", "one"], 24, 80)?;
        pty.wait_for("Delete one and all work in it that was not pulled or pushed? [y/N]")?;
        pty.type_keys(answer)?;
        if answer != "\u{3}" {
            pty.type_keys("\r")?;
        }
        pty.wait_exit()?;
        let listed = run(&home, &["list"])?.stdout;
        assert_eq!(listed.contains("kept"), stays, "{answer:?}: {listed}");
    }
    Ok(())
}

#[test]
fn a_failed_discard_can_be_repeated() -> Result<()> {
    let home = kept("one")?;
    let mut failing = home.program(["discard", "one", "--yes"])?;
    let failed = failing.env("BOTTLE_FAKE_FAIL", "remove").run()?.expect_code(1);
    assert!(failed.stderr.contains("`bottle discard one` continues"), "{}", failed.stderr);
    assert!(run(&home, &["list"])?.stdout.contains("kept"));
    let _ = run(&home, &["discard", "one", "--yes"])?.expect_code(0);
    assert_eq!(run(&home, &["list"])?.stdout, "");
    Ok(())
}

#[test]
fn discard_removes_everything_on_every_backend() -> Result<()> {
    for backend in ["linux", "docker"] {
        let mut home = TestHome::new()?;
        if !home.runs("discard_removes_everything_on_every_backend", backend)? {
            continue;
        }
        home.agent("nap", "---\nbottle: nap\n---\n")?;
        home.bottle(
            "nap",
            &format!("---\nbackend: {backend}\nagent_provider: {{template: command, command: [sleep, '600']}}\n---\n"),
        )?;
        let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
        let _ = run(&home, &["exec", "one", "--", "sh", "-c", "echo work >note"])?.expect_code(0);
        let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
        assert!(run(&home, &["list"])?.stdout.contains("kept"), "{backend}");
        let _ = run(&home, &["discard", "one", "--yes"])?.expect_code(0);
        assert_eq!(run(&home, &["list"])?.stdout, "", "{backend}");
        assert!(!home.bottle_home().join("state/one").exists(), "{backend}");
        let cleaned = run(&home, &["cleanup", "--dry-run", "--json"])?.json()?;
        assert_eq!(cleaned["removed"].as_array().map(Vec::len), Some(0), "{backend}: {cleaned}");
    }
    Ok(())
}

#[test]
fn several_bottles_are_stopped_and_committed_at_once() -> Result<()> {
    let home = home()?;
    for label in ["try-10", "try-2", "try-1"] {
        let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    }
    snapshot!(transcripts(
        &home,
        &[
            &["list"],
            &["commit", "try-1", "try-2", "-q"],
            &["stop", "try-1", "nobody", "try-10", "--time", "0"],
            &["stop", "try-2", "try-2", "--time", "0", "--json"],
            &["list"],
        ],
    )?);
    Ok(())
}

/// An unknown name is reported before the first bottle is deleted.
#[test]
fn several_bottles_are_discarded_together_or_not_at_all() -> Result<()> {
    let home = kept("one")?;
    let wrong = run(&home, &["discard", "one", "nobody", "--yes"])?.expect_code(2);
    assert!(wrong.stderr.contains("there is no bottle named nobody"), "{}", wrong.stderr);
    assert!(run(&home, &["list"])?.stdout.contains("kept"));
    let asked = run(&home, &["discard", "one", "one"])?.expect_code(2);
    assert!(asked.stderr.contains("`bottle discard one --yes` deletes it"), "{}", asked.stderr);
    let _ = run(&home, &["discard", "one", "one", "--yes"])?.expect_code(0);
    assert_eq!(run(&home, &["list"])?.stdout, "");
    Ok(())
}
