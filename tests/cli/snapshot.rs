//! Tests snapshots: they are saved, listed and removed, and errors are reported if there is nothing to save.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Program;
use bottle_test_support::skip;

use crate::home::{bottle, home, run, snapshot, transcript, transcripts};

/// Time limit for a commit to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a home with a running bottle that has a file in its workspace.
fn running(label: &str) -> Result<TestHome> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    home.write("project/note", "remember\n")?;
    let _ = run(&home, &["cp", "note", &format!("{label}:note")])?.expect_code(0);
    Ok(home)
}

#[test]
fn snapshots_are_saved_listed_replaced_and_removed() -> Result<()> {
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
fn named_snapshots_stay_until_they_are_removed() -> Result<()> {
    let home = running("one")?;
    home.write("project/later", "later\n")?;
    snapshot!(transcripts(
        &home,
        &[
            &["commit", "one", "--as", "good"],
            &["cp", "later", "one:note"],
            &["commit", "one"],
            &["commit", "one", "--as", "good"],
            &["commit", "one", "--as", "No/Name"],
            &["snapshots"],
            &["snapshots", "show", "one@good"],
            &["snapshots", "show", "one", "--json"],
            &["stop", "one", "--time", "0", "-q"],
            &["resume", "one", "--snapshot", "bad"],
            &["resume", "one", "--snapshot", "good", "--detach", "--yes", "-q"],
            &["exec", "one", "--", "cat", "note"],
            &["commit", "one", "--as", "branch", "--json"],
            // The new snapshot is based on the bottle's last snapshot, even if it replaces another snapshot.
            &["commit", "one", "-q"],
            &["commit", "one", "-q"],
            &["snapshots"],
            &["snapshots", "rm", "one@good"],
            &["snapshots", "rm", "one@good"],
            &["snapshots", "rm", "one@branch", "--all"],
            &["snapshots", "rm", "one"],
            &["snapshots", "rm", "one"],
            &["snapshots"],
            &["commit", "one", "-q"],
            &["snapshots", "rm", "one", "--all"],
            &["snapshots"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_bottle_starts_from_the_newest_snapshot_that_exists() -> Result<()> {
    let mut home = home()?;
    home.without_cleanup();
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    for arguments in [&["commit", "one", "-q", "--as", "old"][..], &["commit", "one", "-q"]] {
        let _ = run(&home, arguments)?.expect_code(0);
    }
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
    let directory = home.bottle_home().join("snapshots.fake/one");
    let mut stored: Vec<_> = std::fs::read_dir(&directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    stored.sort();
    std::fs::remove_dir_all(stored.last().context("two snapshots")?)?;
    snapshot!(transcripts(
        &home,
        &[
            &["resume", "one", "--detach", "--yes", "-q"],
            &["stop", "one", "--time", "0", "-q"],
            &["snapshots"],
            &["snapshots", "rm", "one"],
            &["list"],
            // When the last snapshot of a bottle without files is removed, the record of the bottle is removed too.
            &["snapshots", "rm", "one@old"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn an_ended_bottle_stays_as_long_as_its_snapshot() -> Result<()> {
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
fn commits_a_kept_bottle_in_place() -> Result<()> {
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
fn explains_why_a_bottle_cannot_be_committed() -> Result<()> {
    let home = home()?;
    let mut text =
        transcripts(&home, &[&["commit"], &["commit", "nobody"], &["commit", "nobody", "--json"]])?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    text += &transcripts(&home, &[&["commit"], &["snapshots", "rm", "nobody"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn a_failed_commit_keeps_the_previous_snapshot() -> Result<()> {
    let mut text = String::new();
    for step in ["make_snapshot", "snapshot_made"] {
        let home = home()?;
        // `BOTTLE_FAKE_FAIL` applies to the keeper, because it inherits the environment of the command that
        // starts it.
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
fn commit_asks_which_bottle() -> Result<()> {
    let home = running("one")?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "two", "-q"])?.expect_code(0);
    let mut pty = home.on_terminal(&["commit"], 24, 80)?;
    pty.wait_for("Make a snapshot of which bottle?")?;
    pty.type_keys("two\r")?;
    pty.wait_for("`bottle resume two` starts from it")?;
    assert_eq!(pty.wait_exit()?, 0);
    let mut pty = home.on_terminal(&["commit"], 24, 80)?;
    pty.wait_for("which bottle?")?;
    pty.type_keys("\x1b")?;
    pty.wait_for("nothing was done")?;
    assert_eq!(pty.wait_exit()?, 130);
    let listed = run(&home, &["snapshots"])?.stdout;
    assert!(listed.contains("two") && !listed.contains("one"), "{listed}");
    Ok(())
}

#[test]
fn an_unreadable_state_is_an_error() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/state", "no directory\n")?;
    snapshot!(transcripts(
        &home,
        &[&["cleanup"], &["cleanup", "--json"], &["list"], &["snapshots"], &["commit"]]
    )?);
    Ok(())
}

/// A script that mounts a disk of 48 MiB, which has space for two snapshots but not for a third.
const SMALL_DISK: &str = r#"
mount -t tmpfs -o size=48m,mode=755 none "$DISK" && mkdir -p "$BOTTLE_HOME" && cp -r "$MANIFESTS/." "$BOTTLE_HOME" || exit 99
"$BOTTLE" start big --label one --detach --yes -q
"$BOTTLE" exec one -- /bin/sh -c 'head -c 15000000 /dev/zero | tr "\0" x >~/keep'
"$BOTTLE" commit one -q >/dev/null && echo committed
"$BOTTLE" exec one -- /bin/sh -c 'head -c 10000000 /dev/zero | tr "\0" x >~/more'
"$BOTTLE" commit one
echo "exit $?"
ls -A "$BOTTLE_HOME/snapshots/one" | wc -l
"$BOTTLE" exec one -- /bin/sh -c 'rm ~/more; echo goes on'
"$BOTTLE" commit one -q >/dev/null && echo committed again
"$BOTTLE" stop one --time 0 -q
"$BOTTLE" cleanup --yes
"#;

#[test]
fn a_disk_that_fills_up_leaves_no_partial_snapshot() -> Result<()> {
    let mut home = home()?;
    let test = "a_disk_that_fills_up_leaves_no_partial_snapshot";
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    if !rustix::process::getuid().is_root() {
        skip::aloud(test, &"only root mounts a small disk");
        return Ok(());
    }
    let sleeper = bottle("[sleep, \"600\"]").replace("backend: fake", "backend: linux");
    home.bottle("big", &sleeper)?.agent("big", "---\nbottle: big\n---\n")?.without_cleanup();
    let disk = home.outside("disk");
    std::fs::create_dir(&disk)?;
    let mut script = Program::at("/usr/bin/unshare".as_ref());
    script.arguments(["--mount", "--propagation", "private", "/bin/sh", "-uc", SMALL_DISK]);
    script.env("DISK", &disk).env("BOTTLE_HOME", disk.join("home")).env("MANIFESTS", home.bottle_home());
    script
        .env("BOTTLE", Program::bottle()?.path())
        .env("XDG_RUNTIME_DIR", home.runtime())
        .env("HOME", home.home());
    let mut scrub = home.scrub()?;
    scrub.add("(?m)^ +", "")?;
    snapshot!(scrub.apply(&script.run()?.transcript()));
    Ok(())
}

/// While a snapshot is saved, `exec` says that it waits for a paused bottle, and `stop` says that it waits. Afterwards,
/// no operation is incomplete.
#[test]
fn exec_and_stop_report_that_they_wait_for_a_commit() -> Result<()> {
    let mut home = home()?;
    home.env("BOTTLE_FAKE_FAIL", "make_snapshot:wait");
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let spawned = |arguments: &[&str]| -> Result<Child> {
        let mut command = home.program(arguments.iter().copied())?.command();
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    };
    let commit = spawned(&["commit", "one", "--json"])?;
    let exec = &["exec", "one", "--", "echo", "hi"];
    let end = Instant::now() + PATIENCE;
    let waits = loop {
        let outcome = run(&home, exec)?.expect_code(0);
        if !outcome.stderr.is_empty() {
            break outcome;
        }
        anyhow::ensure!(Instant::now() < end, "the commit does not begin");
    };
    let mut text = home.scrub()?.apply(&waits.transcript());
    let mut stops = Vec::new();
    // The second `stop` arrives while the first `stop` waits.
    for _ in 0..2 {
        let mut stop = spawned(&["stop", "one", "--time", "0"])?;
        let mut stderr = BufReader::new(stop.stderr.take().context("its stderr")?);
        let mut line = String::new();
        stderr.read_line(&mut line)?;
        text += &line;
        stops.push((stop, stderr));
    }
    std::fs::write(home.bottle_home().join("fake-continue"), "")?;
    let committed = commit.wait_with_output()?;
    let committed: serde_json::Value = serde_json::from_slice(&committed.stdout)?;
    assert_eq!(committed["resume"], "bottle resume one");
    for (mut stop, mut stderr) in stops {
        assert!(stop.wait()?.success());
        stderr.read_to_string(&mut text)?;
    }
    text += &transcript(&home, &["snapshots"])?;
    snapshot!(text);
    Ok(())
}
