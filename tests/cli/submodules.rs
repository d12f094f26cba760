//! Tests that `pull` gets the work in a submodule into the user's repository of the submodule, and into no other
//! repository.

use std::fs;

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::run;
use crate::pull::{inside, with_git};

/// Returns a home with a bottle `one` that has a copy of the user's project, which has the submodule `lib`. If the
/// backend or git is not available, reports that the test is skipped and returns `None`.
fn with_a_submodule(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_git(test)? else { return Ok(None) };
    let library = home.outside("library");
    fs::create_dir_all(&library)?;
    fs::write(library.join("code"), "one\n")?;
    let (library, allowed) = (library.display().to_string(), "protocol.file.allow=always");
    for arguments in [
        &["-C", &library, "init", "-q"][..],
        &["-C", &library, "add", "-A"],
        &["-C", &library, "commit", "-qm", "begin"],
        &["init", "-q"],
        &["-c", allowed, "submodule", "--quiet", "add", &library, "lib"],
        &["commit", "-qm", "begin"],
    ] {
        home.git(arguments)?;
    }
    let _ = run(&home, &["start", "work", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    Ok(Some(home))
}

/// Makes a commit in the submodule, and commits the submodule's new commit id in the workspace.
const COMMIT: &str = "cd lib; echo two >>code; git commit -qam inside; cd ..; git commit -qam outside";

#[test]
fn commits_and_files_in_a_submodule_are_pulled() -> Result<()> {
    let Some(home) = with_a_submodule("commits_and_files_in_a_submodule_are_pulled")? else { return Ok(()) };
    inside(&home, &format!("{COMMIT}; echo new >lib/new"))?;
    let pulled = run(&home, &["pull", "one", "--json"])?.expect_code(0);
    assert_eq!(pulled.json()?["submodules"][0]["name"], "lib", "{}", pulled.stdout);
    assert_eq!(pulled.json()?["submodules"][0]["uncommitted"], 1, "{}", pulled.stdout);
    let named = home.git(&["rev-parse", "bottle/one:lib"])?;
    assert_eq!(
        home.git(&["-C", "lib", "rev-parse", "bottle/one"])?,
        named,
        "the commit that the workspace names"
    );
    let pulled = run(&home, &["pull", "one", "--directory", "lib", "--uncommitted"])?.expect_code(0);
    assert_eq!(pulled.stdout, "lib: bottle/one\n", "{}", pulled.stderr);
    assert_eq!(home.git(&["-C", "lib", "show", "bottle/one:code", "bottle/one:new"])?, "one\ntwo\nnew\n");
    assert_eq!(home.git(&["-C", "lib", "status", "--porcelain"])?, "", "no file of the user changed");
    // A pull of the whole workspace is complete.
    let pulled = run(&home, &["pull", "one", "--uncommitted"])?.expect_code(0);
    assert_eq!(pulled.stdout, "bottle/one\nlib: bottle/one\n");
    assert!(!pulled.stderr.contains("warning"), "{}", pulled.stderr);
    let stopped = run(&home, &["stop", "one", "--time", "0", "--json"])?.expect_code(0).json()?;
    assert!(stopped["kept"].is_null(), "{stopped}");
    Ok(())
}

#[test]
fn a_submodule_without_work_keeps_no_bottle() -> Result<()> {
    let Some(home) = with_a_submodule("a_submodule_without_work_keeps_no_bottle")? else { return Ok(()) };
    inside(&home, "echo x >file; git add file; git commit -qm file")?;
    let pulled = run(&home, &["pull", "one"])?.expect_code(0);
    assert!(!pulled.stderr.contains("warning"), "{}", pulled.stderr);
    assert_eq!(home.git(&["-C", "lib", "for-each-ref", "refs/heads/bottle"])?, "");
    let stopped = run(&home, &["stop", "one", "--time", "0", "--json"])?.expect_code(0).json()?;
    assert!(stopped["kept"].is_null(), "{stopped}");
    Ok(())
}

/// The `.git` of a submodule can name any repository, and the agent can name any path as a submodule.
#[test]
fn no_other_repository_gets_the_commits_of_a_submodule() -> Result<()> {
    let test = "no_other_repository_gets_the_commits_of_a_submodule";
    let Some(home) = with_a_submodule(test)? else { return Ok(()) };
    let other = home.project().join("other");
    let (library, other) = (home.outside("library").display().to_string(), other.display().to_string());
    home.git(&["clone", "-q", &library, &other])?;
    inside(&home, &format!("git clone -q lib other; git add other; {}", COMMIT.replace("lib", "other")))?;
    inside(&home, COMMIT)?;
    fs::write(home.project().join("lib/.git"), "gitdir: ../other/.git\n")?;
    let pulled = run(&home, &["pull", "one"])?.expect_code(0);
    assert!(pulled.stderr.contains("lib was not pulled: it is a submodule"), "{}", pulled.stderr);
    assert_eq!(home.git(&["-C", &other, "for-each-ref", "refs/heads/bottle"])?, "");
    fs::write(home.project().join("lib/.git"), "gitdir: ../.git/modules/lib\n")?;
    let pulled = run(&home, &["pull", "one"])?.expect_code(0);
    assert_eq!(pulled.stdout, "bottle/one\nlib: bottle/one\n", "{}", pulled.stderr);
    assert_eq!(home.git(&["-C", &other, "for-each-ref", "refs/heads/bottle"])?, "");
    Ok(())
}
