//! Tests that `diff`, `apply` and `pull` get the work out of a bottle, for each kind of repository: while the bottle
//! runs and after its end, committed and not.

use anyhow::{Error, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::repository_kinds::{Case, KINDS, each, work};

use crate::home::home;

/// The number of bottles that are tested at the same time.
const THREADS: usize = 3;

/// A home with an agent `work` on the backend `linux` that runs this command. `None` if the test is skipped.
fn home_of(test: &str, command: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    let bottle = format!(
        "---\nbackend: linux\nagent_provider: {{template: command, command: [/bin/sh, -c, \"{command}\"]}}\n---\n"
    );
    home.bottle("work", &bottle)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs_with_git(test, "linux")? {
        return Ok(None);
    }
    Ok(Some(home))
}

#[test]
fn work_comes_out_of_every_kind_of_repository() -> Result<()> {
    let test = "work_comes_out_of_every_kind_of_repository";
    let Some(home) = home_of(test, "sleep 600")? else { return Ok(()) };
    each(KINDS.len() * 2, THREADS, |number| {
        let commits = number.is_multiple_of(2);
        comes_out_of(&Case::new(&home, &KINDS[number / 2], commits)?, commits)
    })
}

/// Tests each kind of repository together with another repository, a directory without a repository, and the main
/// worktree of a worktree.
#[test]
fn work_comes_out_of_every_directory_of_a_workspace() -> Result<()> {
    let test = "work_comes_out_of_every_directory_of_a_workspace";
    let Some(home) = home_of(test, "sleep 600")? else { return Ok(()) };
    // The kinds alternate between work with commits and without, and a worktree is tested with commits too.
    let commits = |(number, kind)| (kind, usize::is_multiple_of(number, 2));
    let mut cases: Vec<_> = KINDS.iter().enumerate().map(commits).collect();
    cases.extend(KINDS.iter().filter(|kind| kind.0 == "worktree").map(|kind| (kind, true)));
    each(cases.len(), THREADS, |number| {
        let (kind, commits) = cases[number];
        comes_out_of_directories(&Case::new(&home, kind, commits)?, commits)
    })
}

/// Takes the work out of a bottle with copies of several directories: first while the bottle runs, and then more work
/// after its end.
fn comes_out_of_directories(case: &Case<'_>, commits: bool) -> Result<()> {
    let slug = case.slug.as_str();
    let (flags, repositories) = case.beside()?;
    let mut start = vec!["start", "work", "--detach", "--label", slug, "-q"];
    let confirms = case.confirms();
    start.extend(flags.iter().chain(&confirms).map(String::as_str));
    let _ = case.bottle(&start)?;
    let does = |line: &str| {
        for name in &repositories {
            let directory = format!("/workspace/{name}");
            let script = work(line, commits);
            let _ = case.bottle(&["exec", slug, "--workdir", &directory, "--", "/bin/sh", "-ec", &script])?;
        }
        Ok::<_, Error>(())
    };
    does("two")?;
    case.comes_out_of_directories(&repositories, &["two"])?;
    does("three")?;
    let _ = case.bottle(&["stop", slug, "--time", "0", "-q"])?;
    case.comes_out_of_directories(&repositories, &["two", "three"])?;
    let _ = case.bottle(&["discard", slug, "--yes", "-q"])?;
    Ok(())
}

/// `diff` waits for the end of a bottle that is being torn down.
#[test]
fn work_comes_out_of_a_bottle_that_ends_meanwhile() -> Result<()> {
    let test = "work_comes_out_of_a_bottle_that_ends_meanwhile";
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let Some(home) = home_of(test, stubborn)? else { return Ok(()) };
    let case = Case::new(&home, &KINDS[0], false)?;
    let slug = case.slug.as_str();
    let _ = case.bottle(&["start", "work", "--cwd", "--detach", "--label", slug, "-q"])?;
    let _ = case.bottle(&["exec", slug, "--", "/bin/sh", "-ec", &work("two", false)])?;
    let mut stop = home.program(["stop", slug, "--time", "3", "-q"])?.command().spawn()?;
    let is_ending = || Ok::<_, Error>(case.bottle(&["list", "--json"])?.stdout.contains("\"ending\""));
    while !is_ending()? {
        ensure!(stop.try_wait()?.is_none(), "the bottle ended before it could be looked at");
    }
    case.comes_out(&["two"])?;
    ensure!(stop.wait()?.success(), "the bottle was not stopped");
    let _ = case.bottle(&["discard", slug, "--yes", "-q"])?;
    Ok(())
}

/// Takes the work out of a bottle with a copy of the repository: first while the bottle runs, and then more work after
/// its end.
fn comes_out_of(case: &Case<'_>, commits: bool) -> Result<()> {
    let slug = case.slug.as_str();
    let does = |line: &str| case.bottle(&["exec", slug, "--", "/bin/sh", "-ec", &work(line, commits)]);
    let confirms = case.confirms();
    let mut start = vec!["start", "work", "--cwd", "--detach", "--label", slug, "-q"];
    start.extend(confirms.as_deref());
    let _ = case.bottle(&start)?;
    let _ = does("two")?;
    case.comes_out(&["two"])?;
    let _ = does("three")?;
    let _ = case.bottle(&["stop", slug, "--time", "0", "-q"])?;
    case.comes_out(&["two", "three"])?;
    let _ = case.bottle(&["discard", slug, "--yes", "-q"])?;
    Ok(())
}
