//! Tests that git works in copies of repositories with a layout or settings that are valid only on this machine.

use std::process::Command;

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home_on_linux, run};

/// A home with an agent on the backend `linux`, and a project that this script makes in the directory of the project.
fn scene(test: &str, script: &str) -> Result<Option<TestHome>> {
    let Some(home) = home_on_linux(test)? else { return Ok(None) };
    on_host(&home, script)?;
    Ok(Some(home))
}

/// Runs a script in the directory of the project, with git on this machine.
fn on_host(home: &TestHome, script: &str) -> Result<String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-ec", script]).current_dir(home.project());
    shell.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        shell.env(format!("GIT_{role}_NAME"), "Ann").env(format!("GIT_{role}_EMAIL"), "ann@example.com");
    }
    let output = shell.output()?;
    ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a script of the agent in the bottle.
fn in_bottle(home: &TestHome, script: &str) -> Result<String> {
    Ok(run(home, &["exec", "one", "--", "/bin/sh", "-ec", script])?.expect_code(0).stdout)
}

/// Starts the bottle, and returns the messages of the start.
fn start(home: &TestHome, cwd: &str) -> Result<String> {
    let start = ["start", "works", cwd, "--detach", "--label", "one", "-y"];
    Ok(run(home, &start)?.expect_code(0).stderr)
}

fn stop(home: &TestHome) -> Result<()> {
    let _ = run(home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

#[test]
fn an_agent_commits_without_the_users_programs() -> Result<()> {
    let test = "an_agent_commits_without_the_users_programs";
    let script = "git init -q -b main .; touch .gitignore; echo '*.sealed filter=seal' >.gitattributes; \
                  git config filter.seal.clean 'tr a-z n-za-m'; git config filter.seal.smudge 'tr n-za-m a-z'; \
                  git config filter.seal.required true; echo open >x.sealed; echo one >code; touch -d '1 hour ago' *; \
                  git add -A; git commit -qm one; touch -d '1 minute ago' .git/index; \
                  git config commit.gpgsign true; git config gpg.program /none/gpg; git config tag.gpgsign true; \
                  git config core.hooksPath /none/hooks; git config core.editor /none/editor; \
                  git config core.fsmonitor /none/watch; git config credential.helper /none/helper; \
                  git config url.https://none.example/.insteadOf https://host.example/; \
                  git config remote.origin.url https://user:word@host.example/o/r.git; \
                  printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit";
    let Some(home) = scene(test, script)? else { return Ok(()) };
    let said = start(&home, "--cwd")?;
    let line = said.lines().find(|line| line.contains("leaves out these settings and hooks of git"));
    let line = line.unwrap_or_default();
    for name in ["filter.seal", "commit.gpgsign", "gpg.program", "core.hookspath", "more"] {
        ensure!(line.contains(name), "{said}");
    }
    assert_eq!(
        in_bottle(&home, "git status --porcelain; git remote get-url origin")?,
        "https://host.example/o/r.git\n"
    );
    in_bottle(&home, "echo two >>code; git commit -qam two; git tag -a -m v v1; git switch -qc next")?;
    assert_eq!(
        in_bottle(&home, "git show --stat --format=%s HEAD | head -1; git status --porcelain")?,
        "two\n"
    );
    assert_eq!(in_bottle(&home, "git diff --name-only HEAD~")?, "code\n", "the sealed file stays as it was");
    ensure!(!in_bottle(&home, "cat .git/config")?.contains("word"), "a password");
    let _ = run(&home, &["pull", "one"])?.expect_code(0);
    assert_eq!(on_host(&home, "git log --format=%s bottle/one")?, "two\none\n");
    stop(&home)
}

#[test]
fn a_bare_repository_beside_its_worktrees_works() -> Result<()> {
    let test = "a_bare_repository_beside_its_worktrees_works";
    let script = "git init -q -b main seed; cd seed; echo one >code; git add -A; git commit -qm one; cd ..; \
                  git clone -q --bare seed .bare; rm -rf seed; echo 'gitdir: ./.bare' >.git; \
                  git worktree add -q main main; git worktree add -q -b topic deep/topic; \
                  git worktree add -q -b elsewhere ../elsewhere";
    let Some(home) = scene(test, script)? else { return Ok(()) };
    let _ = start(&home, "--cwd")?;
    let listed = in_bottle(&home, "git worktree list --porcelain | grep -v HEAD")?;
    let wanted = "worktree /workspace\nbare\n\nworktree /workspace/main\nbranch refs/heads/main\n\n\
                  worktree /workspace/deep/topic\nbranch refs/heads/topic\n\n";
    let sorted = |text: &str| {
        let mut parts: Vec<_> = text.trim().split("\n\n").map(str::to_owned).collect();
        parts.sort();
        parts
    };
    assert_eq!(sorted(&listed), sorted(wanted));
    assert_eq!(
        in_bottle(&home, "cd main; git status --porcelain; cd ../deep/topic; git status --porcelain")?,
        ""
    );
    in_bottle(&home, "cd main; echo two >>code; git commit -qam two; git switch -q elsewhere")?;
    let places = in_bottle(&home, "grep -rlE '/tmp|/home/[^a]' .git --include=config --include=gitdir || :")?;
    assert_eq!(places, "", "no path of this machine");
    let _ = run(&home, &["pull", "one"])?.expect_code(0);
    assert_eq!(on_host(&home, "git -C main log --format=%s bottle/one")?, "two\none\n");
    stop(&home)
}

#[test]
fn worktrees_in_the_repository_work() -> Result<()> {
    let test = "worktrees_in_the_repository_work";
    let script = "git init -q -b main .; echo one >code; echo .hidden >.gitignore; git add -A; git commit -qm one; \
                  git worktree add -q -b inside trees/inside; git worktree add -q -b hidden .hidden; \
                  git worktree add -q -b elsewhere ../elsewhere";
    let Some(home) = scene(test, script)? else { return Ok(()) };
    let _ = start(&home, "--cwd")?;
    let names = in_bottle(&home, "ls .git/worktrees; cat .git/worktrees/inside/gitdir trees/inside/.git")?;
    assert_eq!(names, "inside\n/workspace/trees/inside/.git\ngitdir: ../../.git/worktrees/inside\n");
    in_bottle(&home, "cd trees/inside; git status --porcelain; echo two >>code; git commit -qam two")?;
    assert_eq!(in_bottle(&home, "git log --format=%s inside")?, "two\none\n");
    in_bottle(
        &home,
        "git switch -q elsewhere; git switch -q hidden; git switch -q main; ! git switch -q inside",
    )?;
    stop(&home)
}

#[test]
fn objects_that_are_a_link_to_no_repository_are_refused_before_the_start() -> Result<()> {
    let test = "objects_that_are_a_link_to_no_repository_are_refused_before_the_start";
    let script = "git init -q .; mv .git/objects ../objects; ln -s ../../objects .git/objects";
    let Some(home) = scene(test, script)? else { return Ok(()) };
    let refused =
        run(&home, &["start", "works", "--cwd", "--detach", "--label", "one", "-y"])?.expect_code(2);
    let cause = "objects is not the `objects` of a git directory";
    ensure!(refused.stderr.contains(cause), "{}", refused.stderr);
    ensure!(refused.stderr.contains("git clone"), "{}", refused.stderr);
    Ok(())
}

#[test]
fn a_git_that_does_not_know_the_format_is_an_error_of_the_start() -> Result<()> {
    let test = "a_git_that_does_not_know_the_format_is_an_error_of_the_start";
    let script = "git init -q --object-format=sha256 .; git commit -q --allow-empty -m one; mkdir bin; \
                  printf '#!/bin/sh\\necho fatal: unknown repository extension found: objectformat >&2; exit 128\\n' >bin/git; \
                  chmod +x bin/git";
    let Some(mut home) = scene(test, script)? else { return Ok(()) };
    let provider = "{template: command, command: [sleep, \"600\"]}";
    let manifest = format!(
        "---\nbackend: linux\nenv: {{PATH: '/workspace/bin:/usr/bin:/bin'}}\nagent_provider: {provider}\n---\n"
    );
    home.bottle("old", &manifest)?.agent("old", "---\nbottle: old\n---\n")?;
    let failed = run(&home, &["start", "old", "--cwd", "--detach", "--label", "two", "-y"])?;
    ensure!(failed.code != 0, "{}", failed.transcript());
    ensure!(failed.stderr.contains("git in the bottle cannot read the repository"), "{}", failed.stderr);
    ensure!(failed.stderr.contains("an image with git 2.29 or later"), "{}", failed.stderr);
    start(&home, "--cwd")?;
    stop(&home)
}
