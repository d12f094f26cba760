//! Tests homes and directories in unusual places or states. The command either reports the problem before it uses the
//! home or directory, or works.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::{Outcome, Program};
use bottle_test_support::skip;

use crate::home::{home, run, snapshot, transcripts};

/// The commands that a user tries first. `init` also writes files.
const TRIED: [&[&str]; 5] =
    [&["list"], &["list", "agents"], &["start", "hi", "-q"], &["init"], &["cleanup", "--yes"]];

#[test]
fn reports_a_home_that_is_a_file() -> Result<()> {
    let mut home = TestHome::new()?;
    std::fs::remove_dir_all(home.bottle_home())?;
    home.write("home/.bottle", "a user's file")?;
    let mut text = transcripts(&home, &TRIED)?;
    text +=
        &transcripts(&home, &[&["exec", "one", "--", "echo"], &["list", "--json"], &["help", "exit-code"]])?;
    home.env("BOTTLE_HOME", home.bottle_home().join("below"));
    text += &transcripts(&home, &[&["list"], &["start", "shell", "-q"]])?;
    assert_eq!(std::fs::read_to_string(home.bottle_home())?, "a user's file");
    snapshot!(text);
    Ok(())
}

#[test]
fn reports_a_home_of_another_user() -> Result<()> {
    if !rustix::process::getuid().is_root() {
        skip::aloud("reports_a_home_of_another_user", &"only root can give a directory away");
        return Ok(());
    }
    let home = home()?;
    std::os::unix::fs::chown(home.bottle_home(), Some(4_000_000), None)?;
    let text = transcripts(&home, &TRIED)?;
    assert!(!home.bottle_home().join("state").exists());
    snapshot!(text);
    Ok(())
}

/// Runs `bottle` with only these environment variables.
fn with_only(home: &TestHome, variables: &[(&str, &str)], arguments: &[&str]) -> Result<Outcome> {
    let mut program = Program::bottle()?;
    program.arguments(arguments.iter().copied()).directory(home.project());
    for (name, value) in variables {
        program.env(name, value);
    }
    program.run()
}

#[test]
fn falls_back_to_the_users_home_without_an_absolute_home() -> Result<()> {
    let home = home()?;
    let here = home.bottle_home();
    let here = here.to_str().context("text")?;
    for variables in [&[("BOTTLE_HOME", here)][..], &[("HOME", "relative"), ("BOTTLE_HOME", here)]] {
        let listed = with_only(&home, variables, &["list", "agents"])?.expect_code(0);
        assert!(listed.stdout.contains("hi\tyours"), "{variables:?}: {}", listed.transcript());
    }
    Ok(())
}

#[test]
fn a_user_without_an_account_must_set_home() -> Result<()> {
    let test = "a_user_without_an_account_must_set_home";
    if !rustix::process::getuid().is_root() {
        skip::aloud(test, &"only root can become another user");
        return Ok(());
    }
    let mut program = Program::at("/usr/bin/setpriv".as_ref());
    program.arguments(["--reuid=3999999", "--regid=3999999", "--clear-groups"]).directory("/");
    program.arguments([Program::bottle()?.path().as_os_str(), "list".as_ref()]);
    let outcome = program.run()?;
    if outcome.code == 126 || outcome.stderr.contains("setpriv") {
        skip::aloud(test, &"the program lies where another user may not go");
        return Ok(());
    }
    snapshot!(outcome.transcript());
    Ok(())
}

#[test]
fn reports_a_removed_working_directory_and_help_works_without() -> Result<()> {
    let home = home()?;
    let gone = home.project().join("gone");
    let mut text = String::new();
    for arguments in
        [&["list"][..], &["start", "hi", "-q"], &["exec", "one", "--", "echo"], &["help", "exit-code"]]
    {
        std::fs::create_dir(&gone)?;
        let mut shell = Program::at("/bin/sh".as_ref());
        shell.arguments(["-c", "rmdir ../gone && exec \"$0\" \"$@\""]).directory(&gone);
        shell.arguments([Program::bottle()?.path()]).arguments(arguments.iter().copied());
        shell
            .env("HOME", home.home())
            .env("BOTTLE_HOME", home.bottle_home())
            .env("XDG_RUNTIME_DIR", home.runtime());
        text += &format!("$ bottle {}\n{}\n", arguments.join(" "), shell.run()?.transcript());
    }
    assert!(!home.bottle_home().join("state").exists());
    snapshot!(home.scrub()?.apply(&text));
    Ok(())
}

/// Starts, uses and stops a bottle with `$BOTTLE_HOME` at `place`.
fn lives(home: &TestHome, place: &Path) -> Result<Vec<Outcome>> {
    copy(&home.bottle_home(), place)?;
    let commands: [&[&str]; 7] = [
        &["start", "hi", "-q"],
        &["start", "nap", "--detach", "--label", "one", "-q"],
        &["exec", "one", "--", "echo", "there"],
        &["commit", "one", "-q"],
        &["stop", "one", "--time", "0", "-q"],
        &["snapshots", "rm", "one", "-q"],
        &["cleanup", "--yes"],
    ];
    let mut outcomes = Vec::new();
    for command in commands {
        let mut program = home.program(command.iter().copied())?;
        outcomes.push(program.env("BOTTLE_HOME", place).run()?);
    }
    Ok(outcomes)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for directory in ["agents", "bottles"] {
        std::fs::create_dir_all(to.join(directory))?;
        for entry in std::fs::read_dir(from.join(directory))? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(directory).join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[test]
fn any_home_path_works_with_a_runtime_directory() -> Result<()> {
    let home = home()?;
    let names = [
        OsString::from("d".repeat(200)),
        "two words and 'quotes' \"$(touch gone-wrong)\"".into(),
        "дом 日本 🏠 שלום".into(),
        "a\nline".into(),
        "-dash".into(),
    ];
    for name in names {
        let place = home.outside("places").join(&name).join(".bottle");
        for outcome in lives(&home, &place).with_context(|| format!("{name:?}"))? {
            assert_eq!(outcome.code, 0, "{name:?}: {}", outcome.transcript());
        }
        assert_eq!(std::fs::read_dir(place.join("state"))?.count(), 0, "{name:?}");
    }
    assert!(!home.project().join("gone-wrong").exists());
    Ok(())
}

#[test]
fn reports_a_home_path_too_long_for_sockets() -> Result<()> {
    let mut home = home()?;
    let place = home.outside(&"d".repeat(200));
    copy(&home.bottle_home(), &place)?;
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    home.env("BOTTLE_HOME", &place).env("XDG_RUNTIME_DIR", "");
    let text = transcripts(&home, &[&["list"], &["start", "hi", "-q"], &["exec", "one", "--", "echo"]])?;
    assert!(!place.join("state").exists() && !place.join("run").exists());
    let _ = run(&home, &["start", "hi", "--dry-run"])?.expect_code(0);
    snapshot!(text.replace(&"d".repeat(200), "[200 BYTES]"));
    Ok(())
}

#[test]
fn reports_a_path_that_is_not_utf8() -> Result<()> {
    let mut home = home()?;
    let no_text = home.outside("").join(OsString::from_vec(b"no\xfftext".to_vec()));
    std::fs::create_dir(&no_text)?;
    let mut start = home.program(["start", "hi", "-q"])?;
    let here = start.directory(&no_text).run()?;
    home.env("BOTTLE_HOME", &no_text);
    let text = format!("from such a directory\n{}\n", here.transcript());
    let text = text + &transcripts(&home, &[&["list"], &["start", "shell", "-q"]])?;
    assert_eq!(std::fs::read_dir(&no_text)?.count(), 0);
    snapshot!(home.scrub()?.apply(&text));
    Ok(())
}

#[test]
fn reports_another_runtime_directory_at_once() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let other = home.outside("other");
    std::fs::DirBuilder::new().mode(0o700).create(&other)?;
    for arguments in [
        &["exec", "one", "--", "echo", "hi"][..],
        &["attach", "one"],
        &["logs", "one"],
        &["stop", "one"],
        &["cp", "one:x", "x"],
    ] {
        let begun = Instant::now();
        let mut program = home.program(arguments.iter().copied())?;
        let outcome = program.env("XDG_RUNTIME_DIR", &other).run()?;
        // Commands wait half a minute for a keeper that is still starting, but not for one that listens
        // elsewhere.
        assert!(begun.elapsed() < Duration::from_secs(15), "{arguments:?}: {:?}", begun.elapsed());
        let said = outcome.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        let there = format!("it listens in {}", home.runtime().display());
        assert!(said.contains(&there) && said.contains("XDG_RUNTIME_DIR"), "{}", outcome.transcript());
        assert!(said.contains(&format!("not in {}", other.display())), "{}", outcome.transcript());
    }
    // The commands did not affect the bottle.
    let listed = run(&home, &["exec", "one", "--", "echo", "hi"])?.expect_code(0);
    assert_eq!(listed.stdout, "hi\n");
    Ok(())
}
