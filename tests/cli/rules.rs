//! Tests `bottle rules`, and commands that are checked before they run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_command_policy::READ_ONLY_ENVIRONMENT;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::asking::running_bottle;
use crate::home::{home, run, snapshot, transcripts};

#[test]
fn shows_what_the_command_policy_decides() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/settings.yml", "commands: {allow: [{rule: command, prefix: [cargo, test]}]}\n")?;
    let mode = |mode, line| ["rules", "check", "--mode", mode, line];
    snapshot!(transcripts(
        &home,
        &[
            &["rules", "check", "make"],
            &mode("teenager", "ls -la | head -3"),
            &mode("teen", "cargo test -p x && make"),
            &mode("baby-sitter", "cargo test"),
            &mode("guard", "sudo rm -rf /"),
            &mode("teenager", "echo 'unfinished"),
            &mode("teenagr", "ls"),
            &["rules", "check", "--json", "rm -rf \"$X\"/"],
            &["rules", "list"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_checked_command_runs_only_if_the_policy_allows_it() -> Result<()> {
    let Some(home) = running_bottle("a checked command", "linux", &[])? else { return Ok(()) };
    home.write("home/.bottle/settings.yml", "commands: {mode: teenager}\n")?;
    let checked = |script: &str| run(&home, &["exec", "one", "--checked", "--", "sh", "-c", script]);
    let read = checked("cat $(ls) > /dev/null; ls")?.expect_code(125);
    // The output of a substitution is known only when the command runs.
    ensure!(read.transcript().contains("must be approved"), "{}", read.transcript());
    let _ = checked("ls > /dev/null && echo yes $((1 + 1)) \"$HOME\"")?.expect_code(0);
    for (script, says) in [("touch made", "(command)"), ("rm -rf /", "(delete-root)"), ("sudo ls", "(sudo)")]
    {
        let refused = checked(script)?.expect_code(125);
        ensure!(refused.transcript().contains(says), "{}", refused.transcript());
    }
    let started = run(&home, &["process", "start", "one", "--checked", "--", "touch", "made"])?;
    ensure!(started.expect_code(1).transcript().contains("(command)"), "the policy applies to processes");
    let mut shell = home.on_terminal(&["shell", "one", "--checked"], 24, 80)?;
    ensure!(shell.wait_exit()? == 2 && shell.screen().contains("is not checked"), "{}", shell.screen());
    let _ = run(&home, &["exec", "one", "--", "sh", "-c", "test ! -e made"])?.expect_code(0);
    home.write(
        "home/.bottle/settings.yml",
        "commands: {mode: teenager, allow: [{rule: command, prefix: [touch]}]}\n",
    )?;
    let _ = checked("touch made")?.expect_code(0);
    let _ = run(&home, &["exec", "one", "--", "test", "-e", "made"])?.expect_code(0);
    Ok(())
}

/// Runs a command with `--ask`, and answers the proposal with these arguments. Returns how the command ended.
fn asked(home: &TestHome, script: &str, answer: &[&str]) -> Result<Outcome> {
    let arguments = ["exec", "one", "--checked", "--ask", "--", "sh", "-c", script];
    std::thread::scope(|threads| {
        let asking = threads.spawn(|| run(home, &arguments));
        let end = Instant::now() + Duration::from_secs(60);
        let id = loop {
            let pending = run(home, &["supervise", "list", "--json"])?.expect_code(0).json()?;
            if let Some(id) = pending[0]["id"].as_str() {
                ensure!(pending[0]["tool"] == "command-allow", "{pending}");
                let listed = run(home, &["supervise", "list"])?.expect_code(0);
                ensure!(listed.stdout.contains(" runs "), "the list says what runs: {}", listed.stdout);
                break id.to_owned();
            }
            ensure!(!asking.is_finished() && Instant::now() < end, "nothing is asked");
        };
        let answer = [&["supervise", answer[0], id.as_str()], &answer[1..]].concat();
        let _ = run(home, &answer)?.expect_code(0);
        asking.join().map_err(|_| anyhow::anyhow!("the command's thread ended"))?
    })
}

#[test]
fn a_command_that_must_be_approved_waits_for_the_users_answer() -> Result<()> {
    let test = "a command that must be approved";
    let Some(home) = running_bottle(test, "linux", &[])? else { return Ok(()) };
    home.write("home/.bottle/settings.yml", "keep_days: 9\ncommands:\n  mode: teenager\n")?;
    let rejected = asked(&home, "touch first", &["reject", "--reason", "not now"])?.expect_code(125);
    ensure!(
        rejected.stderr.contains("was rejected by the user") && rejected.stderr.contains("not now"),
        "{}",
        rejected.stderr
    );
    let _ = asked(&home, "touch first", &["approve", "--scope", "once"])?.expect_code(0);
    // A one-time approval is used up, so the command asks again. Without `--ask`, it is refused immediately.
    let checked = |script: &str| run(&home, &["exec", "one", "--checked", "--", "sh", "-c", script]);
    let _ = checked("touch first")?.expect_code(125);
    let _ = asked(&home, "touch first && touch second", &["approve"])?.expect_code(0);
    let _ = checked("touch first second third")?.expect_code(0);
    let other = checked("touch fourth")?.expect_code(125);
    ensure!(other.stderr.contains("must be approved"), "{}", other.stderr);
    let _ = asked(&home, "mkdir kept", &["approve", "--scope", "save"])?.expect_code(0);
    let settings = std::fs::read_to_string(home.bottle_home().join("settings.yml"))?;
    ensure!(
        settings
            == "keep_days: 9\ncommands:\n  mode: teenager\n  allow:\n    - {rule: command, prefix: [\"mkdir\", \"kept\"]}\n",
        "{settings}"
    );
    let _ = checked("mkdir kept/below")?.expect_code(125);
    let _ = checked("mkdir kept more")?.expect_code(1);
    let floor = run(&home, &["exec", "one", "--checked", "--ask", "--", "rm", "-rf", "/"])?.expect_code(125);
    ensure!(floor.stderr.contains("is denied"), "{}", floor.stderr);
    let _ = run(&home, &["exec", "one", "--", "test", "-e", "third"])?.expect_code(0);
    let log = run(&home, &["audit", "show", "one"])?.expect_code(0);
    ensure!(log.stdout.matches("command-allow").count() == 4, "{}", log.stdout);
    let saved = run(&home, &["supervise", "list"])?.expect_code(0);
    ensure!(!saved.stdout.contains("command"), "{}", saved.stdout);
    Ok(())
}

/// Runs each line of its input with bash and prints the lines that fail because they write. `␤` is a line break.
const DRIVER: &str = r#"
set -e
cd /workspace
git init -q . && mkdir src a && printf 'hello\nworld\n' | tee README.md src/lib.rs b c x > /dev/null
git -c user.name=a -c user.email=a@b add . && git -c user.name=a -c user.email=a@b commit -qm first
# The home directory contains other file systems, which are read-only.
find /workspace "$HOME" /tmp -xdev -exec chmod a-w {} + 2> /dev/null || true
if (: > /workspace/control) 2> /dev/null || (: > /tmp/control) 2> /dev/null; then echo "writes are possible"; exit 1; fi
state() { find /workspace "$HOME" /tmp -xdev -printf '%p %m %s %T@ %C@ %i\n' 2> /dev/null | sort; }
before=$(state)
count=0
while IFS= read -r line; do
  said=$(timeout 20 bash -c "${line//␤/$'\n'}" 2>&1 > /dev/null < /dev/null) || true
  case $said in *'ermission denied'* | *'ead-only file system'*) echo "writes: $line: $said" ;; esac
  count=$((count + 1))
done
[[ $(state) == "$before" ]] || echo "the files changed"
echo "$count commands"
"#;

#[test]
fn what_is_proved_to_only_read_writes_nothing() -> Result<()> {
    let Some(home) = running_bottle("commands that only read", "linux", &[])? else { return Ok(()) };
    let table = include_str!("../../crates/command-policy/tests/commands.txt");
    let section =
        table.split("\n== ").find_map(|section| section.strip_prefix("read\n")).context("a section")?;
    let lines: Vec<&str> = section.lines().filter(|line| !line.is_empty()).collect();
    let mut command = vec!["exec", "one", "-i"];
    let variables: Vec<String> =
        READ_ONLY_ENVIRONMENT.iter().map(|(name, value)| format!("{name}={value}")).collect();
    command.extend(variables.iter().flat_map(|variable| ["--env", variable.as_str()]));
    command.extend(["--", "bash", "-c", DRIVER]);
    let outcome = home.program(command)?.input(lines.join("\n") + "\n").run()?.expect_code(0);
    ensure!(outcome.stdout == format!("{} commands\n", lines.len()), "{}", outcome.transcript());
    Ok(())
}
