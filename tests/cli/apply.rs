//! Tests `apply`, on the Linux backend, because the fake backend has no git.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{run, snapshot, transcripts};
use crate::pull::{inside, with_a_copy};

const APPLY: [&str; 3] = ["apply", "one", "--yes"];

fn read(home: &TestHome, path: &str) -> Result<String> {
    Ok(fs::read_to_string(home.project().join(path))?)
}

/// All files of the project except its git directory, for a comparison.
fn files(home: &TestHome) -> Result<String> {
    home.git(&["add", "-A", "-N"])?;
    home.git(&["diff", "--no-renames", "HEAD"])
}

#[test]
fn lays_all_changes_onto_the_users_files() -> Result<()> {
    let Some(home) = with_a_copy("lays_all_changes_onto_the_users_files")? else { return Ok(()) };
    let mut text = transcripts(&home, &[&APPLY])?;
    inside(
        &home,
        "echo two >>code; git commit -qam more; printf 'a\\0b' >binary; chmod +x binary; ln -s code link; \
         mkdir -p d/e; \
         echo new >d/e/'f g'; echo evil >.envrc; mkdir ignored; touch ignored/x; echo ignored >.gitignore",
    )?;
    text += &transcripts(
        &home,
        &[&["apply", "one"], &["apply", "one", "--dry-run"], &["apply", "one", "--json"], &APPLY, &APPLY],
    )?;
    home.git(&["add", "-A"])?;
    text += &home.git(&["ls-files", "-s"])?;
    assert_eq!(home.git(&["log", "--format=%s", "--all"])?, "begin\n", "no commit was made");
    // A change that the user reverted is applied again.
    home.git(&["checkout", "-q", "HEAD", "--", "code"])?;
    let again = run(&home, &APPLY)?.expect_code(0);
    assert_eq!((again.stdout.as_str(), read(&home, "code")?.as_str()), ("code\n", "one\ntwo\n"));
    home.git(&["add", "-A"])?;
    // The user commits the changes, and the agent changes the same lines again.
    home.git(&["commit", "-qm", "mine"])?;
    inside(
        &home,
        "git rm -qr --cached . >/dev/null; rm code; mkdir code; echo three >code/file; rm -r d; echo flat >d",
    )?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    text += &transcripts(&home, &[&["apply", "one", "--yes", "--json"]])?;
    assert_eq!((read(&home, "code/file")?, read(&home, "d")?), ("three\n".to_owned(), "flat\n".to_owned()));
    snapshot!(text);
    Ok(())
}

/// A conflict changes nothing, unless the user asks for conflict markers. Other changes of the user are merged.
#[test]
fn changes_nothing_if_a_file_has_a_conflict() -> Result<()> {
    let Some(home) = with_a_copy("changes_nothing_if_a_file_has_a_conflict")? else { return Ok(()) };
    let long: String = (1..20).map(|number| format!("{number}\n")).collect();
    home.write("project/long", &long)?;
    home.write("project/gone", "gone\n")?;
    home.git(&["add", "-A"])?;
    home.git(&["commit", "-qm", "second"])?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
    let _ = run(&home, &["start", "work", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    inside(
        &home,
        "echo agent >>code; sed -i 's/^2$/two/' long; rm gone; echo agent >untracked; printf '\\0b' >binary",
    )?;
    home.write("project/long", &long.replace("18\n", "eighteen\n"))?;
    for (path, text) in
        [("code", "one\nmine\n"), ("gone", "changed\n"), ("untracked", "mine\n"), ("binary", "mine\0\n")]
    {
        home.write(&format!("project/{path}"), text)?;
    }
    let before = files(&home)?;
    let mut text = transcripts(&home, &[&APPLY, &["apply", "one", "--dry-run"]])?;
    assert_eq!(files(&home)?, before);
    text += &transcripts(&home, &[&["apply", "one", "--yes", "--conflict-markers"]])?;
    text += &read(&home, "code")?;
    assert_eq!(read(&home, "long")?, long.replace("18\n", "eighteen\n").replace("\n2\n", "\ntwo\n"));
    assert_eq!(
        (read(&home, "gone")?, read(&home, "binary")?),
        ("changed\n".to_owned(), "mine\0\n".to_owned())
    );
    snapshot!(text);
    Ok(())
}

/// Paths and links of the agent are not written outside of the directory or into a git directory, and links of the user
/// are not followed.
#[test]
fn writes_only_into_the_directory() -> Result<()> {
    let Some(home) = with_a_copy("writes_only_into_the_directory")? else { return Ok(()) };
    let mut text = String::new();
    for script in [
        "ln -s ../../outside link",
        "ln -s /etc/passwd link",
        "ln -s .git/config link",
        "mkdir -p 'git~1/hooks'; echo x >'git~1/hooks/post-checkout'",
    ] {
        inside(&home, &format!("git clean -qfd; echo good >good; {script}"))?;
        let outcome = run(&home, &APPLY)?.expect_code(1);
        text += &format!("{script}\n{}\n", outcome.stderr);
    }
    // For a committed link, the error suggests an ordinary pull.
    inside(&home, "git clean -qfd; ln -s /etc/passwd link; git add link; git commit -qm link")?;
    text += &format!("committed\n{}\n", run(&home, &APPLY)?.expect_code(1).stderr);
    inside(&home, "git reset -q --hard HEAD~")?;
    assert_eq!(files(&home)?, "");
    // The agent's own git directories are not applied.
    inside(&home, "git clean -qfd; mkdir -p sub/.git; echo x >sub/.git/config; echo good >sub/good")?;
    let _ = run(&home, &APPLY)?.expect_code(0);
    assert!(home.project().join("sub/good").exists() && !home.project().join("sub/.git").exists());
    // A link in the user's directory is not followed.
    fs::remove_dir_all(home.project().join("sub"))?;
    let outside = home.outside("outside");
    fs::create_dir_all(&outside)?;
    symlink(&outside, home.project().join("sub"))?;
    text += &transcripts(&home, &[&APPLY])?;
    assert!(fs::read_dir(&outside)?.next().is_none());
    snapshot!(text);
    Ok(())
}

#[test]
fn asks_before_it_changes_files() -> Result<()> {
    let Some(home) = with_a_copy("asks_before_it_changes_files")? else { return Ok(()) };
    inside(&home, "echo two >>code")?;
    for (key, expected) in [("n\r", "one\n"), ("y\r", "one\ntwo\n")] {
        let mut pty = home.on_terminal(&["apply", "one"], 24, 100)?;
        pty.wait_for("Change 1 file in ")?;
        assert!(pty.screen().contains("code | 1 +"), "{}", pty.screen());
        pty.type_keys(key)?;
        assert_eq!(pty.wait_exit()?, 0, "{}", pty.screen());
        assert_eq!(read(&home, "code")?, expected);
    }
    Ok(())
}
