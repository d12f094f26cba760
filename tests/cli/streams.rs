//! Nobody to ask, nobody who reads, nowhere to write: said in a sentence or quietly ended, and the state unharmed.

use std::process::{Output, Stdio};

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcript};

/// The command behind a redirection of the shell's.
fn behind(home: &TestHome, redirection: &str, arguments: &[&str]) -> Result<Output> {
    let program = home.program(arguments.iter().copied())?;
    let mut shell = std::process::Command::new("/bin/sh");
    let command = program.command();
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(home.project()).args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")]);
    Ok(shell.arg(program.path()).args(arguments).stdin(Stdio::null()).output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A home with a bottle that runs and one that was kept.
fn lived_in() -> Result<TestHome> {
    let home = home()?;
    for label in ["runs", "kept"] {
        let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    }
    let _ = run(&home, &["commit", "kept", "-q"])?.expect_code(0);
    let _ = run(&home, &["stop", "kept", "--time", "0", "-q"])?.expect_code(0);
    Ok(home)
}

/// Every command that asks when there is somebody.
const ASKING: [&[&str]; 9] = [
    &["start"],
    &["attach"],
    &["stop"],
    &["commit"],
    &["resume"],
    &["edit"],
    &["edit", "new-one"],
    &["exec", "-t", "runs", "--", "echo"],
    &["cleanup", "--all"],
];

#[test]
fn without_a_terminal_nothing_is_asked_and_the_way_to_say_it_is_named() -> Result<()> {
    let home = lived_in()?;
    let mut text = String::new();
    for arguments in ASKING {
        text += &transcript(&home, arguments)?;
        text += "\n";
        // With standard input closed, instead of empty, it is the same.
        let open = run(&home, arguments)?;
        let closed = behind(&home, "<&-", arguments)?;
        assert_eq!((closed.status.code(), said(&closed)), (Some(open.code), open.stderr), "{arguments:?}");
    }
    let listed = run(&home, &["list"])?.stdout;
    assert_eq!(listed.lines().count(), 2, "{listed}");
    snapshot!(text);
    Ok(())
}

/// Commands that print, with the code they have when they can.
const PRINTING: [&[&str]; 14] = [
    &["--help"],
    &["--version"],
    &["help", "manifests"],
    &["list"],
    &["list", "agents"],
    &["list", "agents", "--json"],
    &["info", "hi", "--explain"],
    &["settings"],
    &["doctor"],
    &["snapshots"],
    &["completions", "bash"],
    &["start", "hi", "--dry-run"],
    &["start", "hi", "-q"],
    &["exec", "runs", "--", "echo", "hi"],
];

#[test]
fn a_reader_that_goes_away_is_no_error_and_no_panic() -> Result<()> {
    let home = lived_in()?;
    for arguments in PRINTING.iter().chain(&[&["logs", "runs"][..]]) {
        let mut command = home.program(arguments.iter().copied())?.command();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let output = child.wait_with_output()?;
        assert!(matches!(output.status.code(), Some(0 | 141)), "{arguments:?}: {output:?}");
        assert!(!said(&output).contains("error") && !said(&output).contains("panicked"), "{}", said(&output));
    }
    // The bottle is not the reader's.
    assert!(run(&home, &["list"])?.stdout.contains("runs\truns (nap)\trunning"));
    Ok(())
}

#[test]
fn an_output_that_is_full_is_said() -> Result<()> {
    let home = lived_in()?;
    let mut text = String::new();
    for arguments in PRINTING {
        let output = behind(&home, ">/dev/full", arguments)?;
        let code = output.status.code().unwrap_or(-1);
        text += &format!("$ bottle {} >/dev/full\nexit {code}\n{}\n", arguments.join(" "), said(&output));
    }
    assert!(run(&home, &["list"])?.stdout.contains("runs\truns (nap)\trunning"));
    snapshot!(home.scrub()?.apply(&text));
    Ok(())
}

#[test]
fn streams_that_are_closed_change_no_answer() -> Result<()> {
    let home = lived_in()?;
    for (redirection, reads) in [("<&-", true), (">&-", false), ("2>&-", true), ("<&- >&- 2>&-", false)] {
        for arguments in PRINTING {
            let plain = run(&home, arguments)?;
            let output = behind(&home, redirection, arguments)?;
            assert_eq!(output.status.code(), Some(plain.code), "{arguments:?} {redirection}: {output:?}");
            if reads && !arguments.contains(&"doctor") {
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout),
                    plain.stdout,
                    "{arguments:?} {redirection}"
                );
            }
        }
        // What is started so lives on, and nothing of ours is opened in place of a stream.
        let label = ["start", "nap", "--detach", "--label", "closed", "-q"];
        assert_eq!(behind(&home, redirection, &label)?.status.code(), Some(0), "{redirection}");
        let echoed = run(&home, &["exec", "closed", "--", "echo", "there"])?.expect_code(0);
        assert_eq!(echoed.stdout, "there\n");
        assert_eq!(behind(&home, redirection, &["stop", "closed", "--time", "0"])?.status.code(), Some(0));
        let _ = run(&home, &["cleanup", "--yes", "-q"])?.expect_code(0);
    }
    Ok(())
}
