//! Tests every exit code in `docs/exit-codes.md`, each with a command that exits with it.

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{bottle, home, run};

const PAGE: &str = include_str!("../../docs/exit-codes.md");

/// Returns the exit codes in the tables of the page.
fn documented() -> BTreeSet<i32> {
    let cells = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(' '));
    cells.filter_map(|(code, _)| code.parse().ok()).collect()
}

/// Returns a home in which a command can exit with every code, except the codes that need another backend.
fn home_of_all() -> Result<TestHome> {
    let mut home = home()?;
    home.env("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    home.bottle("wrong", "---\negres: {}\n---\n")?;
    home.bottle("missing", &bottle("[no-such-program]"))?.agent("missing", "---\nbottle: missing\n---\n")?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "runs", "-q"])?.expect_code(0);
    Ok(home)
}

#[test]
fn a_command_ends_with_each_documented_exit_code() -> Result<()> {
    let home = home_of_all()?;
    let mut seen = BTreeSet::new();
    for (code, arguments) in [
        (0, &["list"][..]),
        (1, &["start", "hi", "--label", "runs"]),
        (2, &["commit", "runs", "--nonsense"]),
        (2, &["start", "nobody"]),
        (2, &["stop", "nobody"]),
        (3, &["start", "hi", "--bottle", "wrong"]),
        (4, &["start", "hi", "--backend", "docker"]),
        // The probe fails, because the fake backend isolates nothing.
        (5, &["probe", "runs"]),
        (7, &["start", "fail", "-q"]),
        (7, &["exec", "runs", "--", "exit", "7"]),
        (124, &["exec", "runs", "--timeout", "1", "--", "sleep", "60"]),
        (125, &["exec", "nobody", "--", "echo"]),
        (125, &["exec", "runs", "--env", "=x", "--", "echo"]),
        (127, &["exec", "runs", "--", "no-such-program"]),
        (4, &["start", "missing", "-q"]),
    ] {
        let outcome = run(&home, arguments)?;
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.transcript());
        if ![0, 5, 7].contains(&code) {
            assert!(!outcome.stderr.is_empty(), "{arguments:?} ends with {code} and says nothing");
        }
        seen.insert(code);
    }
    let mut pty = Pty::spawn(home.program(["stop"])?.command(), 24, 80)?;
    pty.wait_for("which bottle")?;
    pty.type_keys("\x03")?;
    seen.insert(pty.wait_exit()?);
    if let Some(code) = a_program_that_cannot_run()? {
        seen.insert(code);
    } else {
        seen.insert(126);
    }
    let lacking: Vec<_> = documented().difference(&seen).copied().collect();
    assert!(lacking.is_empty(), "the page has codes that nothing here ended with: {lacking:?}");
    Ok(())
}

/// Returns the exit code of `bottle exec` with a file that is not a program; `None` if the Linux backend is not
/// available. On the fake backend, bottles contain no such file.
fn a_program_that_cannot_run() -> Result<Option<i32>> {
    let mut home = home()?;
    let text = bottle("[sleep, \"600\"]").replace("backend: fake", "backend: linux");
    home.bottle("isolated", &text)?.agent("isolated", "---\nbottle: isolated\n---\n")?;
    if !home.runs("126, of a file that is no program", "linux")? {
        return Ok(None);
    }
    let _ = run(&home, &["start", "isolated", "--detach", "--yes", "--label", "one", "-q"])?.expect_code(0);
    home.write("project/file", "no program\n")?;
    let _ = run(&home, &["cp", "file", "one:file"])?.expect_code(0);
    let outcome = run(&home, &["exec", "one", "--", "./file"])?;
    assert!(outcome.stderr.starts_with("error: "), "{}", outcome.transcript());
    Ok(Some(outcome.code))
}

#[test]
fn a_signal_is_128_and_its_number() -> Result<()> {
    let home = home()?;
    for (signal, code) in [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::INT, 130)] {
        let mut command = home.program(["start", "nap", "-q"])?.command();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !run(&home, &["list"])?.stdout.contains("running") {
            anyhow::ensure!(std::time::Instant::now() < end, "it never ran");
        }
        let process = rustix::process::Pid::from_raw(i32::try_from(child.id())?).context("a process")?;
        rustix::process::kill_process(process, signal)?;
        assert_eq!(child.wait()?.code(), Some(code));
        let _ = run(&home, &["cleanup", "--all", "--yes", "-q"])?.expect_code(0);
    }
    Ok(())
}
