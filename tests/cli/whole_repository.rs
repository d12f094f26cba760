//! Tests `--cwd` in a directory of a repository that is copied as a whole.

use std::fs;

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::home::{home, run};

/// Returns a home whose project is a repository with the directory `sub`. If the backend is not available, reports that
/// the test is skipped and returns `None`.
fn with_a_repository(test: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    let agent =
        "agent_provider: {template: command, command: [sh, -c, 'pwd; git log --format=%s; exec sleep 600']}";
    home.bottle("works", &format!("---\nbackend: linux\n{agent}\n---\n"))?;
    home.agent("works", "---\nbottle: works\n---\n")?;
    fs::create_dir_all(home.project().join("sub/ignored"))?;
    fs::write(home.project().join("sub/code"), "one\n")?;
    fs::write(home.project().join("top"), "one\n")?;
    fs::write(home.project().join(".gitignore"), "ignored\n")?;
    home.git(&["init", "-q"])?;
    home.git(&["add", "-A"])?;
    home.git(&["commit", "-qm", "begin"])?;
    Ok(Some(home))
}

/// Runs a command in a directory of the project.
fn run_in(home: &TestHome, directory: &str, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.directory(home.project().join(directory)).run()
}

const START: [&str; 8] = ["start", "works", "--cwd", "--repository", "--detach", "--label", "one", "-y"];

#[test]
fn the_agent_starts_in_its_directory_and_work_comes_out_of_all() -> Result<()> {
    let test = "the_agent_starts_in_its_directory_and_work_comes_out_of_all";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let started = run_in(&home, "sub", &START)?.expect_code(0);
    assert!(!started.stderr.contains("only this directory"), "{}", started.stderr);
    let logs = || Ok::<_, anyhow::Error>(run(&home, &["logs", "one"])?.stdout);
    while !logs()?.contains("begin") {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(logs()?, "/workspace/sub\nbegin\n");
    let listed = run(&home, &["list", "--json"])?.json()?;
    assert_eq!(listed[0]["cwd"].as_str(), home.project().to_str());
    let script = "echo two >>code; echo two >>../top; echo new >new";
    let _ =
        run(&home, &["exec", "one", "--workdir", "/workspace/sub", "--", "sh", "-c", script])?.expect_code(0);
    let names = run_in(&home, "sub", &["diff", "one", "--name-only"])?.expect_code(0).stdout;
    assert_eq!(names, "sub/code\nsub/new\ntop\n");
    let _ = run_in(&home, "sub", &["apply", "one", "--yes"])?.expect_code(0);
    assert_eq!(fs::read_to_string(home.project().join("top"))?, "one\ntwo\n");
    assert_eq!(fs::read_to_string(home.project().join("sub/new"))?, "new\n");
    // A resumed agent starts in the directory `sub` again, or in the workspace if `sub` no longer exists.
    for (script, directory) in [(":", "/workspace/sub\n"), ("rm -r sub", "/workspace\n")] {
        let _ = run(&home, &["exec", "one", "--", "sh", "-c", script])?.expect_code(0);
        let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
        let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
        while !logs()?.contains("begin") {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(logs()?.starts_with(directory), "{}", logs()?);
    }
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

#[test]
fn only_the_directory_is_copied_unless_the_flag_or_the_user_says_so() -> Result<()> {
    let test = "only_the_directory_is_copied_unless_the_flag_or_the_user_says_so";
    let Some(home) = with_a_repository(test)? else { return Ok(()) };
    let without: Vec<&str> = START.into_iter().filter(|word| *word != "--repository").collect();
    let started = run_in(&home, "sub", &without)?.expect_code(0);
    assert!(started.stderr.contains("; `--repository` copies it"), "{}", started.stderr);
    assert_eq!(run(&home, &["exec", "one", "--", "ls"])?.stdout, "code\n");
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    // In the top directory of the repository, the directory and the repository are the same, so `bottle` says nothing
    // about the choice.
    let dry = run(&home, &["start", "works", "--cwd", "--repository", "--dry-run"])?.expect_code(0);
    assert!(
        !dry.stderr.contains("only this") && !dry.stdout.contains("the agent starts in"),
        "{}",
        dry.stdout
    );
    let dry = run_in(&home, "sub", &["start", "works", "--cwd", "--repository", "--dry-run"])?.expect_code(0);
    assert!(dry.stdout.contains("the agent starts in sub/"), "{}", dry.stdout);
    for (directory, why) in [("sub/ignored", ".gitignore excludes it"), ("../outside", "is in none")] {
        fs::create_dir_all(home.project().join(directory))?;
        let refused = run_in(&home, directory, &START)?.expect_code(2);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let mut command = home.program(["start", "works", "--cwd", "--label", "two"])?;
    command.directory(home.project().join("sub"));
    let mut terminal = bottle_test_support::pty::Pty::spawn(command.command(), 40, 100)?;
    terminal.wait_for("Copy the whole repository")?;
    terminal.type_keys("y\r")?;
    terminal.wait_for("starts in sub/")?;
    terminal.wait_for("Start works on linux?")?;
    terminal.type_keys("n\r")?;
    terminal.wait_for("nothing was started")?;
    terminal.wait_exit()?;
    Ok(())
}
