//! Types every command of the README's examples at a terminal, and answers the questions.
//!
//! The agents are test doubles on the user's search path that print that they ran. `tests/agents` tests the
//! real agents. Lines that need a container engine, or that run these tests, are skipped with a message.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use bottle_test_support::skip;

use crate::home::run;

const README: &str = include_str!("../../README.md");

/// The ends of questions, and the keys that answer them.
const ANSWERS: &[(&str, &str)] = &[
    ("[y/N/e/?]", "y\r"),
    ("to be read from now on:", "a-key-for-this-test\r"),
    ("[keep/pull/discard]", "keep\r"),
    ("$", "exit\r"),
    // The agent's output is answered with the keys that detach from the session.
    ("at work", "\x1dd"),
];

/// Returns the lines of the README's `sh` blocks, without comments at their ends.
fn lines() -> Vec<String> {
    let fences = README.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = fences.flat_map(str::lines).map(|line| line.split("  #").next().unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_readme_command_works() -> Result<()> {
    let test = "README's commands";
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    let program = home.program(["--version"])?.path().to_owned();
    let ours = program.parent().context("a folder")?.display().to_string();
    let theirs = home.home().join("bin");
    for agent in ["claude", "codex", "mini"] {
        let file = home.write(&format!("home/bin/{agent}"), &format!("#!/bin/sh\necho {agent} ran\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    home.env("PATH", format!("{ours}:{}:/usr/bin:/bin", theirs.display()));
    home.write("project/README", "A project.\n")?;
    shell(
        &home,
        "git init -q && git add -A && git -c user.name=A -c user.email=a@example.com commit -qm begin",
    )?;
    // The bottle to which lines with the placeholder NAME refer.
    home.bottle(
        "worker",
        "---\nagent_provider: {template: command, command: [sh, -c, 'echo at work; sleep 600']}\n---\n",
    )?;
    home.agent("worker", "---\nbottle: worker\n---\n")?;
    let named = run(&home, &["start", "worker", "--label", "name", "--detach", "--yes", "--cwd"])?;
    assert_eq!(named.code, 0, "{}", named.transcript());
    let all = lines();
    assert!(all.len() >= 12, "{all:?}");
    for line in all {
        if line.starts_with("cargo test") || line.contains("--backend docker") {
            let why = "this is what runs it, or `tests/agents` does, in the agent's own image";
            skip::aloud(test, &format!("{line}: {why}"));
            continue;
        }
        let typed = line.replace("NAME", "name").replace("cargo run --", "bottle").replace('…', "a-key");
        if typed.starts_with("bottle resume") {
            let stopped = run(&home, &["stop", "name"])?;
            assert_eq!(stopped.code, 0, "{}", stopped.transcript());
        }
        let (code, screen) = answer_questions(&home, &typed)?;
        assert_eq!(code, 0, "{line}:\n{screen}");
        for agent in ["claude", "codex", "mini"] {
            if typed.contains(&format!("start {agent}")) {
                assert!(screen.contains(&format!("{agent} ran")), "{line}:\n{screen}");
            }
        }
    }
    Ok(())
}

/// Types a line in a shell on a terminal, and answers questions until the shell exits.
fn answer_questions(home: &TestHome, line: &str) -> Result<(i32, String)> {
    let mut pty = Pty::spawn(shell_command(home, line)?, 24, 100)?;
    let end = Instant::now() + Duration::from_secs(60);
    let mut answer_questions = String::new();
    while pty.is_cooked().is_ok() {
        let screen = pty.screen();
        let last = screen.trim_end().rsplit('\n').next().unwrap_or_default().to_owned();
        let asked = ANSWERS.iter().find(|(words, _)| last.ends_with(words) && screen != answer_questions);
        if let Some((_, keys)) = asked {
            pty.type_keys(keys)?;
            answer_questions = screen;
        }
        if pty.has_ended() {
            break;
        }
        anyhow::ensure!(Instant::now() < end, "{line} did not end:\n{}", pty.screen());
        std::thread::sleep(Duration::from_millis(30));
    }
    Ok((pty.wait_exit()?, pty.last_screen()?))
}

fn shell_command(home: &TestHome, line: &str) -> Result<Command> {
    let environment = home.program(["--version"])?.command();
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(home.project()).args(["-c", line]);
    Ok(shell)
}

fn shell(home: &TestHome, line: &str) -> Result<()> {
    let output = shell_command(home, line)?.output()?;
    anyhow::ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
