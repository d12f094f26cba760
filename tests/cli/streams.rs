//! Tests commands without a terminal, without a reader, or without space for their output: they print a
//! one-line error or exit silently, and no state is damaged.

use std::process::{Output, Stdio};

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcript};

/// Runs the command in a shell, with this redirection.
fn with_redirection(home: &TestHome, redirection: &str, arguments: &[&str]) -> Result<Output> {
    let program = home.program(arguments.iter().copied())?;
    let mut shell = std::process::Command::new("/bin/sh");
    let command = program.command();
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(home.project()).args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")]);
    Ok(shell.arg(program.path()).args(arguments).stdin(Stdio::null()).output()?)
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a home with a running and a kept bottle.
fn used_home() -> Result<TestHome> {
    let home = home()?;
    for label in ["runs", "kept"] {
        let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    }
    let _ = run(&home, &["commit", "kept", "-q"])?.expect_code(0);
    let _ = run(&home, &["stop", "kept", "--time", "0", "-q"])?.expect_code(0);
    Ok(home)
}

/// Commands that ask the user if there is a terminal.
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
fn without_a_terminal_commands_name_the_missing_flag() -> Result<()> {
    let home = used_home()?;
    let mut text = String::new();
    for arguments in ASKING {
        text += &transcript(&home, arguments)?;
        text += "\n";
        // A closed standard input gives the same result as an empty one.
        let open = run(&home, arguments)?;
        let closed = with_redirection(&home, "<&-", arguments)?;
        assert_eq!(
            (closed.status.code(), stderr_of(&closed)),
            (Some(open.code), open.stderr),
            "{arguments:?}"
        );
    }
    let listed = run(&home, &["list"])?.stdout;
    assert_eq!(listed.lines().count(), 2, "{listed}");
    snapshot!(text);
    Ok(())
}

/// Commands that print to standard output.
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
fn a_closed_output_pipe_is_no_error() -> Result<()> {
    let home = used_home()?;
    for arguments in PRINTING.iter().chain(&[&["logs", "runs"][..]]) {
        let mut command = home.program(arguments.iter().copied())?.command();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let output = child.wait_with_output()?;
        assert!(matches!(output.status.code(), Some(0 | 141)), "{arguments:?}: {output:?}");
        assert!(
            !stderr_of(&output).contains("error") && !stderr_of(&output).contains("panicked"),
            "{}",
            stderr_of(&output)
        );
    }
    // The bottle is still running after the readers have exited.
    assert!(run(&home, &["list"])?.stdout.contains("runs\truns (nap)\trunning"));
    Ok(())
}

#[test]
fn reports_a_full_output_device() -> Result<()> {
    let home = used_home()?;
    let mut text = String::new();
    for arguments in PRINTING {
        let output = with_redirection(&home, ">/dev/full", arguments)?;
        let code = output.status.code().unwrap_or(-1);
        text +=
            &format!("$ bottle {} >/dev/full\nexit {code}\n{}\n", arguments.join(" "), stderr_of(&output));
    }
    assert!(run(&home, &["list"])?.stdout.contains("runs\truns (nap)\trunning"));
    snapshot!(home.scrub()?.apply(&text));
    Ok(())
}

#[test]
fn closed_standard_streams_change_no_result() -> Result<()> {
    let home = used_home()?;
    for (redirection, reads) in [("<&-", true), (">&-", false), ("2>&-", true), ("<&- >&- 2>&-", false)] {
        for arguments in PRINTING {
            let plain = run(&home, arguments)?;
            let output = with_redirection(&home, redirection, arguments)?;
            assert_eq!(output.status.code(), Some(plain.code), "{arguments:?} {redirection}: {output:?}");
            if reads && !arguments.contains(&"doctor") {
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout),
                    plain.stdout,
                    "{arguments:?} {redirection}"
                );
            }
        }
        // A bottle that is started with a closed stream keeps running, and no file gets the descriptor of the closed
        // stream.
        let label = ["start", "nap", "--detach", "--label", "closed", "-q"];
        assert_eq!(with_redirection(&home, redirection, &label)?.status.code(), Some(0), "{redirection}");
        let echoed = run(&home, &["exec", "closed", "--", "echo", "there"])?.expect_code(0);
        assert_eq!(echoed.stdout, "there\n");
        assert_eq!(
            with_redirection(&home, redirection, &["stop", "closed", "--time", "0"])?.status.code(),
            Some(0)
        );
        let _ = run(&home, &["cleanup", "--yes", "-q"])?.expect_code(0);
    }
    Ok(())
}
