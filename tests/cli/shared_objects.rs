//! Tests that a copied repository shares its objects with the user's repository, and does not depend on later changes
//! of the user's repository.

use std::fs;
use std::os::unix::fs::MetadataExt;

use std::time::Duration;

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::{engine, skip};

use crate::home::home;

/// The time limit for a command on a busy machine. An archive contains the whole image of the bottle, which an
/// unoptimized scanner and compressor read for several seconds of processor time.
const PATIENCE: Duration = Duration::from_secs(180);

fn run(home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.deadline(PATIENCE).run()
}

/// Runs a shell script in a bottle.
fn inside(home: &TestHome, slug: &str, script: &str) -> Result<String> {
    Ok(run(home, &["exec", slug, "--", "/bin/sh", "-ec", script])?.expect_code(0).stdout)
}

/// Returns a home with the agent `work` on this backend and a repository with the branches `main` and `side`. If the
/// backend is not available, reports that the test is skipped and returns `None`.
fn with_a_repository(test: &str, backend: &str) -> Result<Option<TestHome>> {
    if backend == "docker"
        && let Err(missing) = engine::on_this_kernel()
    {
        skip::aloud(test, &missing);
        return Ok(None);
    }
    let mut home = home()?;
    let provider = "{template: command, command: [sleep, '600']}";
    home.bottle("work", &format!("---\nbackend: {backend}\nagent_provider: {provider}\n---\n"))?;
    home.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs_with_git(test, backend)? {
        return Ok(None);
    }
    // An ignore file does not apply to the files of the repository itself.
    home.write("project/.gitignore", "side\n*.pack\n")?;
    home.write("project/code", "one\n")?;
    for arguments in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["commit", "-qm", "begin"],
        &["repack", "-qad"],
        &["checkout", "-qb", "side"],
        &["commit", "-q", "--allow-empty", "-m", "aside"],
        &["checkout", "-q", "main"],
    ] {
        home.git(arguments)?;
    }
    Ok(Some(home))
}

/// Like [`with_a_repository`], with a bottle `one` that has a copy of the repository.
fn with_a_copy(test: &str, backend: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_a_repository(test, backend)? else { return Ok(None) };
    let _ = run(&home, &["start", "work", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    Ok(Some(home))
}

/// Makes a fork `two` and a snapshot of the bottle `one`, and stops the bottle `one`.
fn fork_commit_and_stop(home: &TestHome) -> Result<()> {
    let _ = run(home, &["fork", "one", "--label", "two", "-y", "-q"])?.expect_code(0);
    let _ = run(home, &["commit", "one", "-q"])?.expect_code(0);
    let _ = run(home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

/// Checks that the repository in the bottle is complete, with both branches.
fn check(home: &TestHome, slug: &str) -> Result<()> {
    let whole = "git fsck --full --strict; git log -1 --format=%s main; git log -1 --format=%s side";
    let shown = inside(home, slug, whole)?;
    ensure!(shown == "begin\naside\n", "{slug}: {shown}");
    Ok(())
}

#[test]
fn shared_objects_survive_the_users_repository() -> Result<()> {
    objects_survive("linux")
}

#[test]
fn shared_objects_survive_the_users_repository_on_docker() -> Result<()> {
    objects_survive("docker")
}

fn objects_survive(backend: &str) -> Result<()> {
    let Some(home) = with_a_copy("shared_objects_survive_the_users_repository", backend)? else {
        return Ok(());
    };
    check(&home, "one")?;
    ensure!(inside(&home, "one", "cat .git/objects/info/alternates")? == "/git-objects\n");
    ensure!(inside(&home, "one", "find .git/objects -type f | wc -l")?.trim() == "1", "no object is copied");
    // The user removes a branch and every object that nothing uses any more.
    home.git(&["branch", "-qD", "side"])?;
    home.git(&["reflog", "expire", "--expire=now", "--all"])?;
    home.git(&["gc", "-q", "--prune=now"])?;
    ensure!(
        home.git(&["for-each-ref", "--format=%(refname)"])? == "refs/heads/main\n",
        "no reference is added"
    );
    check(&home, "one")?;
    // The bottle still has the objects, and its commits can be pulled.
    let commit =
        "echo two >>code; git -c user.name=A -c user.email=a@example.com commit -qam more; git gc -q";
    inside(&home, "one", commit)?;
    let _ = run(&home, &["pull", "one", "-q"])?.expect_code(0);
    ensure!(home.git(&["show", "bottle/one:code"])? == "one\ntwo\n");
    inside(&home, "one", "git reset -q --hard HEAD~1")?;
    // A fork and a snapshot are complete even if both the user's repository and the bottle no longer exist.
    fork_commit_and_stop(&home)?;
    fs::remove_dir_all(home.project().join(".git"))?;
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    check(&home, "one")?;
    check(&home, "two")?;
    Ok(())
}

#[test]
fn an_archive_contains_the_shared_objects() -> Result<()> {
    archive_is_whole("linux")
}

#[test]
fn an_archive_contains_the_shared_objects_on_docker() -> Result<()> {
    archive_is_whole("docker")
}

fn archive_is_whole(backend: &str) -> Result<()> {
    let Some(home) = with_a_copy("an_archive_contains_the_shared_objects", backend)? else { return Ok(()) };
    // The kept files of an ended bottle have the objects too.
    inside(&home, "one", "echo two >>code; git -c user.name=A -c user.email=a@example.com commit -qam more")?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["pull", "one", "-q"])?.expect_code(0);
    ensure!(home.git(&["show", "bottle/one:code"])? == "one\ntwo\n");
    inside(&home, "one", "git reset -q --hard HEAD~1")?;
    let _ = run(&home, &["export", "one", "-o", "one.bottle", "-q"])?.expect_code(0);
    let _ = run(&home, &["import", "one.bottle", "--label", "two", "--yes", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
    fs::remove_dir_all(home.project().join(".git"))?;
    let _ = run(&home, &["resume", "two", "--detach", "-y", "-q"])?.expect_code(0);
    check(&home, "two")?;
    Ok(())
}

#[test]
fn a_bottle_changes_no_object_of_the_user() -> Result<()> {
    objects_are_read_only("linux")
}

#[test]
fn a_bottle_changes_no_object_of_the_user_on_docker() -> Result<()> {
    objects_are_read_only("docker")
}

fn objects_are_read_only(backend: &str) -> Result<()> {
    let Some(home) = with_a_copy("a_bottle_changes_no_object_of_the_user", backend)? else { return Ok(()) };
    let objects = home.project().join(".git/objects");
    let facts = || -> Result<Vec<(u64, u32, u32, i64)>> {
        let mut found = Vec::new();
        for directory in fs::read_dir(&objects)? {
            for file in fs::read_dir(directory?.path())? {
                let file = file?.metadata()?;
                found.push((file.ino(), file.mode(), file.uid(), file.mtime_nsec()));
            }
        }
        found.sort_unstable();
        Ok(found)
    };
    let before = facts()?;
    let attack = "denied() { if \"$@\" 2>/dev/null; then echo \"worked: $*\"; exit 9; fi; }; \
        for file in $(find /git-objects -type f); do denied sh -c \"echo x >>$file\"; denied chmod 777 $file; \
        denied touch $file; denied rm -f $file; denied ln $file /workspace/link; done; \
        denied mkdir /git-objects/new; denied mv /git-objects /workspace/moved; denied umount /git-objects";
    inside(&home, "one", attack)?;
    let _ = run(&home, &["commit", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
    ensure!(facts()? == before, "{:?} {before:?}", facts()?);
    home.git(&["fsck", "--full", "--strict"])?;
    Ok(())
}

#[test]
fn each_of_several_repositories_shares_its_objects() -> Result<()> {
    several_share("linux")
}

#[test]
fn each_of_several_repositories_shares_its_objects_on_docker() -> Result<()> {
    several_share("docker")
}

/// A worktree has no objects of its own, and the bottle gets the objects of the worktree's repository.
fn several_share(backend: &str) -> Result<()> {
    let test = "each_of_several_repositories_shares_its_objects";
    let Some(home) = with_a_repository(test, backend)? else { return Ok(()) };
    home.git(&["worktree", "add", "-q", "../tree", "side"])?;
    home.git(&["init", "-q", "../pack"])?;
    home.git(&["-C", "../pack", "commit", "-q", "--allow-empty", "-m", "other"])?;
    let start = ["start", "work", "--cwd=../tree", "--cwd=../pack", "--detach", "--label", "one", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    let copied = "for name in tree pack; do cat $name/.git/objects/info/alternates; \
                  find $name/.git/objects -type f | wc -l; done";
    let found = inside(&home, "one", copied)?;
    ensure!(found == "/git-objects/repositories/tree\n1\n/git-objects/repositories/pack\n1\n", "{found}");
    let check = |slug: &str| -> Result<()> {
        let whole = "for name in tree pack; do git -C $name fsck --full --strict 2>&1; \
                     git -C $name log -1 --format=%s; done; git -C tree log -1 --format=%s main";
        let shown = inside(&home, slug, whole)?;
        ensure!(shown == "aside\nother\nbegin\n", "{slug}: {shown}");
        Ok(())
    };
    check("one")?;
    fork_commit_and_stop(&home)?;
    let _ = run(&home, &["export", "one", "-o", "one.bottle", "-q"])?.expect_code(0);
    let _ = run(&home, &["import", "one.bottle", "--label", "three", "--yes", "-q"])?.expect_code(0);
    for path in [home.project().join(".git"), home.project().join("../pack")] {
        fs::remove_dir_all(path)?;
    }
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    let _ = run(&home, &["resume", "three", "--detach", "-y", "-q"])?.expect_code(0);
    ["one", "two", "three"].into_iter().try_for_each(check)
}

#[test]
fn a_worktree_shares_the_objects_of_its_repository() -> Result<()> {
    let Some(home) = with_a_repository("a_worktree_shares_the_objects_of_its_repository", "linux")? else {
        return Ok(());
    };
    home.git(&["worktree", "add", "-q", "../tree", "side"])?;
    let start = ["start", "work", "--cwd=../tree", "--detach", "--label", "one", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    ensure!(inside(&home, "one", "find .git/objects -type f | wc -l")?.trim() == "1", "no object is copied");
    check(&home, "one")?;
    let commit = "echo two >>code; git -c user.name=A -c user.email=a@example.com commit -qam more";
    inside(&home, "one", commit)?;
    let mut pull = home.program(["pull", "one", "-q"])?;
    let _ = pull.directory(home.project().join("../tree")).deadline(PATIENCE).run()?.expect_code(0);
    ensure!(home.git(&["show", "bottle/one:code"])? == "one\ntwo\n");
    home.git(&["worktree", "remove", "--force", "../tree"])?;
    fs::remove_dir_all(home.project().join(".git"))?;
    inside(&home, "one", "git reset -q --hard HEAD~1")?;
    check(&home, "one")
}
