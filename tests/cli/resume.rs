//! Tests `bottle resume` for kept bottles and for snapshots.

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{bottle, home, run, snapshot, transcripts};

/// Writes `text` into the file `note` in the workspace of a running bottle.
pub(crate) fn note(home: &TestHome, label: &str, text: &str) -> Result<()> {
    home.write("project/note", text)?;
    let _ = run(home, &["cp", "note", &format!("{label}:note")])?.expect_code(0);
    Ok(())
}

/// Returns a home with a kept bottle that has a file `note` in its workspace.
pub(crate) fn kept(label: &str) -> Result<TestHome> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    note(&home, label, "kept\n")?;
    let _ = run(&home, &["stop", label, "--time", "0"])?.expect_code(0);
    Ok(home)
}

/// Returns a home with a kept bottle that has a snapshot. The file `note` was changed after the
/// snapshot.
pub(crate) fn committed_and_kept(label: &str) -> Result<TestHome> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    note(&home, label, "committed\n")?;
    let _ = run(&home, &["commit", label, "-q"])?.expect_code(0);
    note(&home, label, "kept\n")?;
    let _ = run(&home, &["stop", label, "--time", "0"])?.expect_code(0);
    Ok(home)
}

#[test]
fn resumes_kept_files_and_reports_changed_manifests() -> Result<()> {
    let mut home = kept("one")?;
    let mut text = transcripts(
        &home,
        &[&["resume", "one", "--detach"], &["exec", "one", "--", "cat", "note"], &["resume", "one"]],
    )?;
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    home.bottle("nap", &bottle("[cat, note]"))?;
    home.agent("nap", "---\nbottle: nap\n---\nRead what is there.\n")?;
    text += &transcripts(&home, &[&["resume", "one"], &["list"], &["cleanup"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn returns_to_a_snapshot_on_request() -> Result<()> {
    let home = committed_and_kept("one")?;
    snapshot!(transcripts(
        &home,
        &[
            &["resume", "one", "--detach", "-q"],
            &["exec", "one", "--", "cat", "note"],
            &["stop", "one", "--time", "0"],
            &["resume", "one", "--detach", "--snapshot"],
            &["resume", "one", "--detach", "--snapshot", "--yes"],
            &["exec", "one", "--", "cat", "note"],
            &["stop", "one", "--time", "0"],
            &["snapshots"],
            &["resume", "one", "--detach"],
            &["exec", "one", "--", "cat", "note"],
            &["stop", "one", "--time", "0"],
            &["snapshots", "rm", "one"],
            &["resume", "one"],
        ],
    )?);
    Ok(())
}

#[test]
fn reports_a_deleted_snapshot_and_resumes_without() -> Result<()> {
    let mut home = home()?;
    home.bottle("read", &bottle("[cat, note]"))?.agent("read", "---\nbottle: read\n---\n")?;
    home.write("project/note", "from the project\n")?;
    let _ = run(&home, &["start", "nap", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["commit", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    std::fs::remove_dir_all(home.bottle_home().join("snapshots.fake/one"))?;
    snapshot!(transcripts(
        &home,
        &[
            &["snapshots"],
            &["resume", "one", "--detach"],
            &["exec", "one", "--", "cat", "note"],
            &["stop", "one", "--time", "0"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn explains_why_a_bottle_cannot_be_resumed() -> Result<()> {
    let mut home = kept("one")?;
    home.bottle("nope", "---\nbackend: fake\negres: {}\n---\n")?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "two", "-q"])?.expect_code(0);
    snapshot!(transcripts(
        &home,
        &[
            &["resume"],
            &["resume", "ones"],
            &["resume", "two"],
            &["resume", "one", "--snapshot"],
            &["resume", "one", "--bottle", "nope"],
            &["resume", "one", "--json", "--snapshot"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_failed_resume_keeps_the_kept_files() -> Result<()> {
    for step in ["prepare", "make_network", "start_bundle", "start_guest", "connect_guest"] {
        let home = committed_and_kept("one")?;
        for arguments in [&["resume", "one", "-q"][..], &["resume", "one", "-q", "--snapshot", "--yes"]] {
            let mut failing = home.program(arguments.iter().copied())?;
            let failed = failing.env("BOTTLE_FAKE_FAIL", step).run()?;
            assert_ne!(failed.code, 0, "{step}");
            let listed = run(&home, &["list"])?.stdout;
            assert!(listed.contains("kept"), "{step} {arguments:?}: {listed}");
        }
        // The second resume discarded the kept files. The snapshot still exists.
        let _ = run(&home, &["resume", "one", "--detach", "-q"])?.expect_code(0);
        let read = run(&home, &["exec", "one", "--", "cat", "note"])?.expect_code(0).stdout;
        assert!(read == "committed\n" || step == "prepare" && read == "kept\n", "{step}: {read}");
    }
    Ok(())
}

#[test]
fn resume_shows_changed_manifests_and_asks() -> Result<()> {
    let mut home = kept("one")?;
    home.bottle("nap", &bottle("[cat, note]"))?;
    let mut pty = home.on_terminal(&["resume", "one"], 30, 80)?;
    let screen = pty.wait_for("Resume one on fake? [y/N]")?;
    assert!(screen.contains("-") && screen.contains("sleep") && screen.contains("cat"), "{screen}");
    pty.type_keys("n\r")?;
    pty.wait_for("nothing was started")?;
    assert_eq!(pty.wait_exit()?, 0);
    let mut pty = home.on_terminal(&["resume", "one"], 30, 80)?;
    pty.wait_for("[y/N]")?;
    pty.type_keys("y\r")?;
    pty.wait_for("There is unsaved work in one.")?;
    pty.type_keys("\r")?;
    pty.wait_for("`bottle resume one` starts it again")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}
