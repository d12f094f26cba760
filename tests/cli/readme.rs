//! Types every command of the README's examples in their order, at a terminal and without one, and answers the
//! questions.
//!
//! The agents are test doubles on the user's search path that print that they ran. `tests/agents` tests the
//! real agents. Lines that need a container engine, or that run these tests, are skipped with a message.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use bottle_test_support::skip;

const README: &str = include_str!("../../README.md");

/// The ends of questions, and the keys that answer them.
const ANSWERS: &[(&str, &str)] = &[
    ("[y/N/e/?]", "y\r"),
    ("to be read from now on:", "a-key-for-this-test\r"),
    ("[keep/pull/discard]", "keep\r"),
    ("$", "exit\r"),
    ("q quits", "q"),
];

/// Returns the lines of the README's `sh` blocks, without comments at their ends.
fn lines() -> Vec<String> {
    let fences = README.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = fences.flat_map(str::lines).map(|line| line.split("  #").next().unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Returns the `bottle` commands in the README's sentences, in their order.
fn commands_in_sentences() -> Vec<String> {
    let words = README.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2));
    let mut commands: Vec<_> =
        words.filter(|words| words.starts_with("bottle ")).map(str::to_owned).collect();
    let mut seen = std::collections::HashSet::new();
    commands.retain(|command| seen.insert(command.clone()));
    commands
}

#[test]
fn the_readme_works_as_written_on_a_terminal() -> Result<()> {
    works_as_written("README's commands on a terminal", answer_questions)
}

#[test]
fn the_readme_works_as_written_without_a_terminal() -> Result<()> {
    works_as_written("README's commands without a terminal", run_on_pipes)
}

/// Runs the README's commands in their order. The placeholder NAME is the bottle that the first `start … --cwd` left.
/// The agent of this bottle made a commit and ended, so the bottle's files are kept.
fn works_as_written(test: &str, type_line: fn(&TestHome, &str) -> Result<(i32, String)>) -> Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    let program = home.program(["--version"])?.path().to_owned();
    let ours = program.parent().context("a directory")?.display().to_string();
    let theirs = home.home().join("bin");
    for agent in ["claude", "codex", "mini"] {
        let file = home.write(&format!("home/bin/{agent}"), &double(agent))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    home.env("PATH", format!("{ours}:{}:/usr/bin:/bin", theirs.display()));
    if !std::ptr::fn_addr_eq(type_line, answer_questions as fn(&TestHome, &str) -> Result<(i32, String)>) {
        // Without a terminal, no user can type the API keys.
        home.env("ANTHROPIC_API_KEY", "a-key").env("CODEX_API_KEY", "a-key");
    }
    home.write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.com\n")?;
    home.write("project/README", "A project.\n")?;
    shell(&home, "git init -q && git add -A && git commit -qm begin")?;
    let (all, sentences) = (lines(), commands_in_sentences());
    assert!(all.len() >= 12, "{all:?}");
    for expected in ["bottle supervise", "bottle help manifests", "bottle help", "bottle cleanup"] {
        assert!(sentences.iter().any(|command| command == expected), "{expected}: {sentences:?}");
    }
    let all = all.into_iter().chain(sentences);
    let mut kept: Option<String> = None;
    for line in all {
        if line.starts_with("cargo test") || line.contains("--backend docker") {
            let why = "this is what runs it, or `tests/agents` does, in the agent's own image";
            skip::aloud(test, &format!("{line}: {why}"));
            continue;
        }
        if line.starts_with("bottle dashboard") {
            let why = "it needs a terminal, or serves a browser until it is ended; `dashboard` and `web_dashboard` run it";
            skip::aloud(test, &format!("{line}: {why}"));
            continue;
        }
        let mut typed = line.replace("cargo run --", "bottle").replace('…', "a-key");
        if typed.contains("NAME") {
            typed = typed
                .replace("NAME", kept.as_ref().with_context(|| format!("no bottle is kept for {line}"))?);
        }
        let (code, screen) = type_line(&home, &typed)?;
        assert_eq!(code, 0, "{line}:\n{screen}");
        for agent in ["claude", "codex", "mini"] {
            if typed.contains(&format!("start {agent}")) {
                assert!(screen.contains(&format!("{agent} ran")), "{line}:\n{screen}");
            }
        }
        if kept.is_none() && typed.contains("--cwd") {
            let after = screen.split("`bottle resume ").nth(1).and_then(|rest| rest.split('`').next());
            kept = Some(after.with_context(|| format!("{line} kept nothing:\n{screen}"))?.to_owned());
        }
    }
    let branch = format!("bottle/{}", kept.context("a kept bottle")?);
    // The agent made a commit at its start and at its resume.
    let log = home.git(&["log", "--format=%an %s", &branch])?;
    assert_eq!(log, "Ada codex worked\nAda codex worked\nAda begin\n");
    Ok(())
}

/// An agent's test double. In a repository, it changes a file and commits the change.
fn double(agent: &str) -> String {
    format!(
        "#!/bin/sh\necho {agent} ran\n\
         if [ -d .git ]; then echo {agent} >>work; git add -A; git commit -qm '{agent} worked'; fi\n"
    )
}

/// Runs a line in a shell on pipes.
fn run_on_pipes(home: &TestHome, line: &str) -> Result<(i32, String)> {
    let output = shell_command(home, line)?.stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned()))
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
