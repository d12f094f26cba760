//! Tests the author of the agent's commits.

use std::fs;

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run};

/// A bottle whose agent commits without any setup.
const COMMITS: &str = "backend: linux
agent_provider:
  template: command
  command: [sh, -ec, 'git init -q; git commit -q --allow-empty -m more; git log -1 --format=\"%an <%ae> %cn <%ce>\"']
";

/// Returns a home with the agents `work` and `coder`. The manifest of `coder` names an author.
fn with_agents(test: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    home.bottle("work", &format!("---\n{COMMITS}---\n"))?.agent("work", "---\nbottle: work\n---\n")?;
    let user = "git-gate: {user: {name: Coder, email: coder@example.com}}";
    home.agent("coder", &format!("---\nbottle: work\n{user}\n---\n"))?;
    if !home.runs_with_git(test, "linux")? {
        return Ok(None);
    }
    Ok(Some(home))
}

fn author(home: &TestHome, agent: &str, more: &[&str]) -> Result<String> {
    let arguments = [&["start", agent, "-p", "go", "--yes", "-q"], more].concat();
    Ok(run(home, &arguments)?.expect_code(0).stdout)
}

fn twice(identity: &str) -> String {
    format!("{identity} {identity}\n")
}

#[test]
fn every_agent_commits_without_setup() -> Result<()> {
    let Some(home) = with_agents("every_agent_commits_without_setup")? else { return Ok(()) };
    assert_eq!(author(&home, "work", &[])?, twice("work <work@bottle.invalid>"));
    assert_eq!(author(&home, "coder", &[])?, twice("Coder <coder@example.com>"));
    // The user's identity is used only in a copy of the user's directory.
    home.write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.com\n")?;
    assert_eq!(author(&home, "work", &[])?, twice("work <work@bottle.invalid>"));
    Ok(())
}

#[test]
fn a_copied_repository_brings_its_identity() -> Result<()> {
    let Some(home) = with_agents("a_copied_repository_brings_its_identity")? else { return Ok(()) };
    home.git(&["init", "-q"])?;
    assert_eq!(author(&home, "work", &["--cwd"])?, twice("work <work@bottle.invalid>"));
    home.write("home/.gitconfig", "[user]\n\tname = \"Ada \\\"L\\\" B\"\n\temail = ada@example.com\n")?;
    assert_eq!(author(&home, "work", &["--cwd"])?, twice("Ada \"L\" B <ada@example.com>"));
    home.git(&["config", "user.email", "ada@work.example"])?;
    assert_eq!(author(&home, "work", &["--cwd"])?, twice("Ada \"L\" B <ada@work.example>"));
    // A manifest takes precedence, also over the configuration that is copied with the repository.
    assert_eq!(author(&home, "coder", &["--cwd"])?, twice("Coder <coder@example.com>"));
    // One of the two fields, the name, is missing.
    fs::remove_file(home.home().join(".gitconfig"))?;
    assert_eq!(author(&home, "work", &["--cwd"])?, twice("work <ada@work.example>"));
    let shown = run(&home, &["start", "work", "--cwd", "--dry-run"])?.expect_code(0).stdout;
    let line = "as work <ada@work.example> (default name: your git has no `user.name` here)";
    assert!(shown.contains(line), "{shown}");
    Ok(())
}

#[test]
fn the_preflight_shows_the_author() -> Result<()> {
    let Some(home) = with_agents("the_preflight_shows_the_author")? else { return Ok(()) };
    home.git(&["init", "-q"])?;
    home.write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.com\n")?;
    let mut pty = home.on_terminal(&["start", "work", "--cwd"], 40, 100)?;
    pty.wait_for("[y/N/e/?]")?;
    assert!(pty.screen().contains("commits   as Ada <ada@example.com>"), "{}", pty.screen());
    pty.type_keys("n\r")?;
    pty.wait_exit()?;
    Ok(())
}
