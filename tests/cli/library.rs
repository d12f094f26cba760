//! Tests the example of the library, which is a separate program.

use std::time::Duration;

use anyhow::{Context, Result};
use bottle_test_support::program::Program;
use bottle_test_support::skip;

use crate::home::{home, run};

#[test]
fn the_example_gives_a_bottle_a_task_and_pulls_its_work() -> Result<()> {
    let test = "the_example_gives_a_bottle_a_task_and_pulls_its_work";
    let mut home = home()?;
    if !home.runs_with_git(test, "linux")? {
        return Ok(());
    }
    let own = std::env::current_exe()?;
    let example = own.ancestors().nth(2).context("the build directory")?.join("examples/task");
    if !example.is_file() {
        skip::aloud(test, &"`cargo test --workspace` builds the example");
        return Ok(());
    }
    let provider = "agent_provider: {template: command, command: [sleep, '600']}";
    home.bottle("work", &format!("---\nbackend: linux\n{provider}\n---\n"))?;
    home.agent("work", "---\nbottle: work\n---\n")?;
    home.write("project/NOTES", "one\n")?;
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    let bottle = home.program([""; 0])?;
    let path = bottle.path().to_str().context("a path")?;
    let ran = Program::at(&example)
        .arguments([path, "work", "echo two >>NOTES; cat /proc/sys/kernel/ostype", "NOTES"])
        .directory(home.project())
        .env("HOME", home.home())
        .env("BOTTLE_HOME", home.bottle_home())
        .env("XDG_RUNTIME_DIR", home.runtime())
        .deadline(Duration::from_secs(120))
        .run()?
        .expect_code(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..3], ["exit 0: Linux", "NOTES: one", "two"], "{ran:?}");
    let branch = lines[3].split(':').next().unwrap_or_default();
    assert_eq!(lines[3], format!("{branch}: 1 commits"), "{ran:?}");
    assert_eq!(home.git(&["show", &format!("{branch}:NOTES")])?, "one\ntwo\n");
    // All work was pulled, so only the output of the agent is left.
    assert_eq!(run(&home, &["list", "--json"])?.json()?[0]["status"], "ended");
    Ok(())
}
