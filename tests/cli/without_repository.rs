//! Tests `diff`, `apply` and `fs reset` of bottles whose directory is in no git repository. The tests need the Linux
//! backend, because the fake backend has no git.

use std::fs;

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{run, snapshot, transcripts};
use crate::pull::{inside, with_git};

const START: [&str; 7] = ["start", "work", "--cwd", "--detach", "--label", "one", "-q"];
const NAMES: [&str; 3] = ["diff", "one", "--name-only"];
const APPLY: [&str; 3] = ["apply", "one", "--yes"];

/// The size of a file whose content is not copied into the record of the start.
const LARGE: usize = (1 << 20) + 1;

/// Lists the files of a directory with their types, permissions and contents.
const LIST: &str = "find . -name .git -prune -o ! -type d -printf '%p %y %m %l\\n' | LC_ALL=C sort; \
                    find . -name .git -prune -o -type f -exec sha256sum {} + | LC_ALL=C sort";

/// The changes that the agent makes.
const WORK: &str = "echo two >>code; chmod +x tool; echo added >added; rm gone; mv old sub/renamed; printf 'a\\0c' >binary; \
                    ln -sf tool link; mkdir target; echo built >target/out; echo more >>large; git init -q; git add -A; \
                    git commit -qm agent";

fn write(home: &TestHome, path: &str, content: &[u8]) -> Result<()> {
    let path = home.project().join(path);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    Ok(fs::write(path, content)?)
}

fn read(home: &TestHome, path: &str) -> Result<String> {
    Ok(fs::read_to_string(home.project().join(path))?)
}

/// A directory with files of every kind. `None` if the backend is not available, so that the test is skipped.
fn with_directory(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_git(test)? else { return Ok(None) };
    for (path, content) in [
        (".gitignore", &b"target/\n"[..]),
        ("code", b"one\nb\nc\nd\ne\n"),
        ("tool", b"tool\n"),
        ("gone", b"gone\n"),
        ("old", b"old\n"),
        ("binary", b"a\0b"),
        ("sub/file", b"file\n"),
        ("large", &vec![b'x'; LARGE]),
        ("other", &vec![b'y'; LARGE]),
    ] {
        write(&home, path, content)?;
    }
    std::os::unix::fs::symlink("code", home.project().join("link"))?;
    Ok(Some(home))
}

fn start(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_directory(test)? else { return Ok(None) };
    let _ = run(&home, &START)?.expect_code(0);
    Ok(Some(home))
}

fn listed(home: &TestHome) -> Result<String> {
    let mut list = std::process::Command::new("/bin/sh");
    let list = list.args(["-c", LIST]).current_dir(home.project()).output()?;
    Ok(String::from_utf8_lossy(&list.stdout).into_owned())
}

fn names(home: &TestHome) -> Result<String> {
    Ok(run(home, &NAMES)?.expect_code(0).stdout)
}

#[test]
fn shows_applies_and_resets_the_work() -> Result<()> {
    let Some(home) = start("shows_applies_and_resets_the_work")? else { return Ok(()) };
    let before = listed(&home)?;
    ensure!(inside(&home, LIST)? == before, "the bottle has the files");
    let mut text = transcripts(&home, &[&["diff", "one"]])?;
    inside(&home, WORK)?;
    text += &transcripts(
        &home,
        &[
            &["diff", "one", "--stat"],
            &["diff", "one", "--name-only", "--json"],
            &["pull", "one"],
            &["pull", "one", "--uncommitted"],
            &["fs", "reset", "one", "--dry-run"],
            &["apply", "one", "--dry-run", "--json"],
        ],
    )?;
    ensure!(listed(&home)? == before, "nothing was changed");
    text += &transcripts(&home, &[&APPLY])?;
    let work = inside(&home, &format!("rm -r target; {LIST}"))?;
    ensure!(listed(&home)? == work, "{}\n{work}", listed(&home)?);
    // The user's files now have the changes. The record of the start is unchanged.
    text += &transcripts(&home, &[&APPLY, &NAMES])?;
    inside(&home, "echo again >>large; echo again >>code")?;
    let again = run(&home, &APPLY)?.expect_code(0);
    ensure!(again.stdout == "code\nlarge\n" && read(&home, "large")?.ends_with("more\nagain\n"), "{again:?}");
    snapshot!(text);
    Ok(())
}

/// After the files are reset to the start, `apply` also resets the user's files.
#[test]
fn a_reset_is_applied_too() -> Result<()> {
    let Some(home) = start("a_reset_is_applied_too")? else { return Ok(()) };
    let before = listed(&home)?;
    inside(&home, &WORK.replace("echo more >>large", "rm -rf target"))?;
    for reset in [true, false] {
        let _ = run(&home, &APPLY)?.expect_code(0);
        ensure!((listed(&home)? == before) != reset, "{}", listed(&home)?);
        if reset {
            let _ = run(&home, &["fs", "reset", "one", "--yes"])?.expect_code(0);
            ensure!(inside(&home, LIST)? == before && names(&home)?.is_empty());
        }
    }
    Ok(())
}

/// The user's changes remain, and a file that both the user and the agent changed has a conflict. The record of the
/// start contains only the hash of a large file.
#[test]
fn merges_with_the_users_changes() -> Result<()> {
    let Some(home) = start("merges_with_the_users_changes")? else { return Ok(()) };
    inside(&home, "echo two >>code; echo agent >tool; echo agent >new; echo more >>large; rm gone")?;
    write(&home, "code", b"mine\nb\nc\nd\ne\n")?;
    write(&home, "other", b"the user's own large file\n")?;
    ensure!(names(&home)? == "code\ngone\nlarge\nnew\ntool\n");
    for (path, content) in [("tool", "mine\n"), ("new", "mine\n"), ("large", "mine\n"), ("gone", "mine\n")] {
        write(&home, path, content.as_bytes())?;
    }
    let before = listed(&home)?;
    let text = transcripts(&home, &[&["diff", "one", "--name-only"], &APPLY])?;
    ensure!(listed(&home)? == before, "a conflict changes nothing");
    let marked = run(&home, &["apply", "one", "--yes", "--conflict-markers"])?.expect_code(1);
    ensure!(read(&home, "code")? == "mine\nb\nc\nd\ne\ntwo\n", "{}", marked.transcript());
    ensure!(read(&home, "tool")?.starts_with("<<<<<<< yours\nmine\n"), "{}", read(&home, "tool")?);
    ensure!(
        ["gone", "large"].map(|path| read(&home, path).ok())
            == [Some("mine\n".into()), Some("mine\n".into())]
    );
    ensure!(read(&home, "other")? == "the user's own large file\n");
    snapshot!(text);
    Ok(())
}

#[test]
fn many_deletions_need_the_flag_and_nothing_that_was_not_given_is_deleted() -> Result<()> {
    let test = "many_deletions_need_the_flag_and_nothing_that_was_not_given_is_deleted";
    let Some(home) = with_directory(test)? else { return Ok(()) };
    write(&home, "target/mine", b"mine\n")?;
    let _ = run(&home, &START)?.expect_code(0);
    write(&home, "sub/mine", b"mine\n")?;
    inside(&home, "ls -A | grep -v '^.gitignore$' | xargs rm -r")?;
    let text = transcripts(&home, &[&APPLY])?;
    ensure!(home.project().join("code").exists());
    let _ = run(&home, &["apply", "one", "--yes", "--allow-deletions"])?.expect_code(0);
    let left = listed(&home)?;
    let left: Vec<&str> = left.lines().filter_map(|line| line.split(' ').next()).take(3).collect();
    ensure!(left == ["./.gitignore", "./sub/mine", "./target/mine"], "{left:?}");
    snapshot!(text);
    Ok(())
}

/// The record of the start is kept, forked and removed together with the bottle. A repository that the user creates has
/// no effect on the record.
#[test]
fn the_start_is_known_until_the_bottle_is_discarded() -> Result<()> {
    let Some(home) = start("the_start_is_known_until_the_bottle_is_discarded")? else { return Ok(()) };
    inside(&home, "echo two >>code")?;
    home.git(&["init", "-q"])?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    ensure!(names(&home)? == "code\n");
    let _ = run(&home, &["fork", "one", "--label", "two", "--detach", "-y", "-q"])?.expect_code(0);
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    inside(&home, "rm gone")?;
    ensure!(names(&home)? == "code\ngone\n");
    ensure!(run(&home, &["diff", "two", "--name-only"])?.expect_code(0).stdout == "code\n");
    // The comparison with the start does not need the user's directory.
    fs::rename(home.project().join("code"), home.project().join("moved"))?;
    ensure!(names(&home)? == "code\ngone\n");
    let record = home.bottle_home().join("state/one/given");
    ensure!(record.is_dir());
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?.expect_code(0);
    ensure!(!record.exists());
    Ok(())
}

/// Ignored files are a part of the start with `--cwd=all`.
#[test]
fn all_files_are_compared_with_all() -> Result<()> {
    let Some(home) = with_directory("all_files_are_compared_with_all")? else { return Ok(()) };
    write(&home, "target/mine", b"mine\n")?;
    let _ = run(&home, &["start", "work", "--cwd=all", "--detach", "--label", "one", "-q"])?.expect_code(0);
    inside(&home, "echo two >>target/mine; echo built >target/out")?;
    ensure!(names(&home)? == "target/mine\n");
    let _ = run(&home, &APPLY)?.expect_code(0);
    ensure!(read(&home, "target/mine")? == "mine\ntwo\n" && !home.project().join("target/out").exists());
    Ok(())
}

/// With `--cwd=live`, `diff` shows the changes in the directory since the start.
#[test]
fn shows_what_changed_in_the_directory_itself() -> Result<()> {
    let Some(home) = with_directory("shows_what_changed_in_the_directory_itself")? else { return Ok(()) };
    let _ = run(&home, &["start", "work", "--cwd=live", "--detach", "--label", "one", "-y", "-q"])?
        .expect_code(0);
    inside(
        &home,
        "echo two >>code; rm gone; echo more >>large; echo x >new; mkdir target; echo o >target/out",
    )?;
    snapshot!(transcripts(&home, &[&["diff", "one", "--stat"], &["pull", "one"], &APPLY])?);
    Ok(())
}
