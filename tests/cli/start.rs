//! Tests running bottles: `start` without a terminal and detached, `exec`, `logs`, `cp`, `stop`, and their
//! exit codes.

use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bottle_test_support::home::TestHome;

use crate::home::{bottle, home, run, snapshot, transcript, transcripts};

/// The time limit for a background step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Starts a detached bottle whose agent sleeps.
fn detached(home: &TestHome, label: &str) -> Result<()> {
    let outcome = run(home, &["start", "nap", "--detach", "--label", label])?.expect_code(0);
    assert_eq!(outcome.stdout.trim(), label);
    Ok(())
}

/// Waits until the output of `bottle list` contains `wanted`.
fn until_listed(home: &TestHome, wanted: &str) -> Result<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let listed = run(home, &["list"])?.stdout;
        if listed.contains(wanted) {
            return Ok(listed);
        }
        if Instant::now() > end {
            bail!("{wanted:?} was never listed:\n{listed}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) -> Result<()> {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).context("signal the client")
}

#[test]
fn an_agent_on_pipes_has_plain_output_and_leaves_nothing() -> Result<()> {
    let home = home()?;
    snapshot!(transcripts(&home, &[&["start", "hi"], &["start", "hi", "-q", "--", "there"], &["list"]])?);
    Ok(())
}

#[test]
fn piped_input_reaches_the_agent() -> Result<()> {
    let home = home()?;
    let input = "line\n".repeat(100_000);
    let outcome = home.program(["start", "copy", "-q"])?.input(input.clone()).run()?.expect_code(0);
    assert_eq!(outcome.stdout.len(), input.len());
    assert!(outcome.stdout == input, "the bytes differ");
    assert_eq!(
        outcome.stderr,
        "bottle: weaker than usual: the fake backend does not isolate anything\n".repeat(0)
    );
    Ok(())
}

#[test]
fn a_long_output_is_complete() -> Result<()> {
    let mut home = home()?;
    home.bottle("spew", &bottle("[spew, \"8000000\"]"))?.agent("spew", "---\nbottle: spew\n---\n")?;
    let outcome = run(&home, &["start", "spew", "-q"])?.expect_code(0);
    assert_eq!(outcome.stdout.len(), 8_000_000);
    Ok(())
}

#[test]
fn start_exits_with_the_agents_code_or_a_documented_one() -> Result<()> {
    let mut home = home()?;
    home.bottle("absent", &bottle("[no-such-program]"))?.agent("absent", "---\nbottle: absent\n---\n")?;
    home.bottle("needy", "---\nbackend: fake\nenv: {TOKEN: $NOT_SET_HERE}\nagent_provider: {template: command, command: [env]}\n---\n")?;
    home.agent("needy", "---\nbottle: needy\n---\n")?;
    snapshot!(transcripts(
        &home,
        &[
            &["start", "fail", "-q"],
            &["start", "absent", "-q"],
            &["start", "needy"],
            &["start", "needy", "--json"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_launch_that_fails_at_any_step_is_undone() -> Result<()> {
    let mut text = String::new();
    for step in
        ["check", "prepare", "make_network", "start_bundle", "connect_bundle", "start_guest", "connect_guest"]
    {
        let mut home = home()?;
        home.env("BOTTLE_FAKE_FAIL", step);
        text +=
            &format!("failing at {step}: {}\n", transcript(&home, &["start", "hi", "-q", "--label", "one"])?);
        let listed = run(&home, &["list"])?.stdout;
        assert_eq!(listed, "", "left after {step}");
    }
    snapshot!(text);
    Ok(())
}

#[test]
fn a_detached_bottle_is_usable_until_it_is_stopped() -> Result<()> {
    let home = home()?;
    detached(&home, "one")?;
    snapshot!(transcripts(
        &home,
        &[
            &["list"],
            &["list", "--json"],
            &["start", "nap", "--label", "one"],
            &["exec", "one", "--", "echo", "beside"],
            &["exec", "one", "--env", "GREETING=hello", "--", "env", "GREETING"],
            &["exec", "one", "--", "exit", "7"],
            &["exec", "one", "--", "no-such-program"],
            &["exec", "one", "-t", "--", "tty-size"],
            &["exec", "one", "--env", "NOT_SET_HERE", "--", "env"],
            &["policy", "check", "GET", "https://example.com/", "--slug", "one"],
            &["policy", "check", "GET", "https://example.com/"],
            &["cleanup", "--dry-run"],
            &["stop", "one", "--time", "1"],
            &["stop", "one"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn exec_forwards_input_with_interactive() -> Result<()> {
    let home = home()?;
    detached(&home, "one")?;
    let with = home.program(["exec", "one", "-i", "--", "cat"])?.input("through").run()?.expect_code(0);
    assert_eq!(with.stdout, "through");
    let without = home.program(["exec", "one", "--", "cat"])?.input("not through").run()?.expect_code(0);
    assert_eq!(without.stdout, "");
    Ok(())
}

#[test]
fn copies_files_in_and_out() -> Result<()> {
    let home = home()?;
    detached(&home, "one")?;
    home.write("project/in/deep/file", "the words\n")?;
    let _ = run(&home, &["cp", "in", "one:"])?.expect_code(0);
    let _ = run(&home, &["cp", "in/deep/file", "one:in/copy"])?.expect_code(0);
    let read = run(&home, &["exec", "one", "--", "cat", "in/deep/file", "in/copy"])?.expect_code(0);
    assert_eq!(read.stdout, "the words\nthe words\n");
    let _ = run(&home, &["cp", "one:in", "out"])?.expect_code(0);
    assert_eq!(std::fs::read_to_string(home.project().join("out/deep/file"))?, "the words\n");
    assert_eq!(std::fs::read_to_string(home.project().join("out/copy"))?, "the words\n");
    snapshot!(transcripts(&home, &[&["cp", "one:absent", "x"], &["cp", "one:in", "no/such/place"]])?);
    Ok(())
}

#[test]
fn cwd_copies_the_working_directory() -> Result<()> {
    let mut home = home()?;
    home.bottle("read", &bottle("[cat, kept]"))?.agent("read", "---\nbottle: read\n---\n")?;
    home.write("project/kept", "kept\n")?;
    home.write("project/.gitignore", "left\n")?;
    home.write("project/left", "left\n")?;
    assert_eq!(run(&home, &["start", "read", "-q", "--cwd"])?.expect_code(0).stdout, "kept\n");
    assert_ne!(run(&home, &["start", "read", "-q"])?.code, 0);
    let _ = run(&home, &["cleanup", "--yes"])?;
    Ok(())
}

#[test]
fn logs_show_the_output_escaped() -> Result<()> {
    let mut home = home()?;
    home.bottle("loud", &bottle(r#"[printf, "\\e[31mred\\e[0m\\n\\e]0;title\\aplain\\nlast\\n"]"#))?;
    home.agent("loud", "---\nbottle: loud\n---\n")?;
    let _ = run(&home, &["start", "loud", "--detach", "--label", "one"])?.expect_code(0);
    until_listed(&home, "ended")?;
    snapshot!(transcripts(
        &home,
        &[
            &["logs", "one"],
            &["logs", "one", "--tail", "1"],
            &["logs", "one", "--egress"],
            &["attach", "one"]
        ],
    )?);
    Ok(())
}

#[test]
fn killing_the_client_ends_its_bottle() -> Result<()> {
    let home = home()?;
    let mut client =
        home.program(["start", "nap", "-q", "--label", "one"])?.command().stdin(Stdio::null()).spawn()?;
    until_listed(&home, "running")?;
    client.kill()?;
    client.wait()?;
    let end = Instant::now() + PATIENCE;
    while !run(&home, &["list"])?.stdout.is_empty() {
        if run(&home, &["list"])?.stdout.contains("ended") {
            break;
        }
        assert!(Instant::now() < end, "the bottle lives on: {}", run(&home, &["list"])?.stdout);
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn ctrl_c_reaches_the_agent_and_a_second_one_ends_the_bottle() -> Result<()> {
    let mut home = home()?;
    home.bottle("echo", &bottle("[cat]"))?;
    home.agent("echo", "---\nbottle: echo\n---\n")?;
    let mut client = home
        .program(["start", "echo", "--label", "one"])?
        .command()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // The list shows a bottle as running before its client knows that the launch is complete.
    let mut input = client.stdin.take().context("standard input")?;
    input.write_all(b"ready\n")?;
    let mut line = [0; 6];
    client.stdout.as_mut().context("standard output")?.read_exact(&mut line)?;
    assert_eq!(&line, b"ready\n");
    signal(&client, rustix::process::Signal::INT)?;
    let output = client.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("signal 2 forwarded to the program"), "{said}");
    Ok(())
}

#[test]
fn an_interrupted_launch_is_undone() -> Result<()> {
    let mut home = home()?;
    home.env("BOTTLE_FAKE_FAIL", "start_guest:hang");
    let client = home
        .program(["start", "nap", "--label", "one"])?
        .command()
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    until_listed(&home, "starting")?;
    std::thread::sleep(Duration::from_millis(300));
    signal(&client, rustix::process::Signal::INT)?;
    let output = client.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("everything created so far was removed"), "{said}");
    assert_eq!(run(&home, &["list"])?.stdout, "");
    Ok(())
}

#[test]
fn cleanup_all_stops_running_bottles() -> Result<()> {
    let home = home()?;
    detached(&home, "one")?;
    snapshot!(transcripts(
        &home,
        &[
            &["cleanup", "--all"],
            &["cleanup", "--all", "--dry-run"],
            &["cleanup", "--all", "--yes"],
            &["cleanup", "--all", "--yes"],
        ],
    )?);
    Ok(())
}
