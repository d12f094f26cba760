//! Tests `--cwd` in a directory whose `.git` names a git directory elsewhere.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home_on_linux, run};

/// A text in files of the user outside of the project.
const PRIVATE: &str = "private-of-the-user";

/// A home with private files of the user, some of them in a git directory, and with an agent on the backend `linux`.
fn with_private_files(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = home_on_linux(test)? else { return Ok(None) };
    fs::write(home.project().join("code"), "one\n")?;
    for file in ["home/.ssh/id", "home/HEAD", "victim/.git/description", "victim/.git/id_rsa"] {
        home.write(file, PRIVATE)?;
    }
    home.write("victim/.git/HEAD", "ref: refs/heads/main\n")?;
    for directory in ["objects", "refs/heads"] {
        fs::create_dir_all(home.outside("victim/.git").join(directory))?;
    }
    Ok(Some(home))
}

const START: [&str; 6] = ["start", "works", "--cwd", "--detach", "--label", "one"];

#[test]
fn a_name_of_a_project_leads_to_no_directory_of_the_user() -> Result<()> {
    let test = "a_name_of_a_project_leads_to_no_directory_of_the_user";
    let Some(home) = with_private_files(test)? else { return Ok(()) };
    let git = home.project().join(".git");
    let (user, victim) = (home.home(), home.outside("victim/.git"));
    home.write("project/g/HEAD", "ref: refs/heads/main\n")?;
    home.write("project/g/objects/x", "")?;
    home.write("project/g/refs/x", "")?;
    let forged = [
        ("gitdir: g\n".to_owned(), Some(user.display().to_string()), "commondir"),
        ("gitdir: g\n".to_owned(), Some(victim.display().to_string()), "commondir"),
        (format!("gitdir: {}\n", user.display()), None, "which is no git directory"),
        (format!("gitdir: {}\n", victim.display()), None, "add `--git-dir="),
        ("gitdir: ../victim/.git\n".to_owned(), None, "add `--git-dir="),
        ("gitdir: nowhere\n".to_owned(), None, "which is no directory"),
        ("gitdir g\n".to_owned(), None, "no file that names one"),
    ];
    for (text, common, why) in forged {
        fs::write(&git, &text)?;
        match common {
            Some(common) => fs::write(home.project().join("g/commondir"), common)?,
            None => drop(fs::remove_file(home.project().join("g/commondir"))),
        }
        for further in [&["--dry-run"][..], &["-y"]] {
            let refused = run(&home, &[&START, further].concat())?;
            assert!(refused.code != 0 && refused.stderr.contains(why), "{text}: {}", refused.transcript());
            assert!(!refused.transcript().contains(PRIVATE), "{}", refused.transcript());
        }
    }
    fs::remove_file(&git)?;
    for target in [&user, &victim] {
        symlink(target, &git)?;
        let refused = run(&home, &[&START, &["-y"][..]].concat())?;
        assert!(refused.code != 0, "{}", refused.transcript());
        fs::remove_file(&git)?;
    }
    Ok(())
}

#[test]
fn a_separate_git_directory_is_copied_once_it_is_confirmed() -> Result<()> {
    let test = "a_separate_git_directory_is_copied_once_it_is_confirmed";
    let Some(home) = with_private_files(test)? else { return Ok(()) };
    fs::write(home.project().join(".git"), "gitdir: ../victim/.git\n")?;
    let other = run(&home, &[&START, &["-y", "--git-dir=../home"][..]].concat())?.expect_code(2);
    assert!(other.stderr.contains("add `--git-dir="), "{}", other.stderr);
    let started = run(&home, &[&START, &["-y", "--git-dir=../victim/.git"][..]].concat())?.expect_code(0);
    let note =
        format!("copies the files of git from {}", home.outside("victim/.git").canonicalize()?.display());
    assert!(started.stderr.contains(&note), "{}", started.stderr);
    let listed = run(&home, &["exec", "one", "--", "ls", ".git"])?.expect_code(0);
    // The bottle gets only git's own files of the git directory.
    assert_eq!(listed.stdout, "HEAD\ndescription\nobjects\nrefs\n");
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let mut terminal = home.on_terminal(&["start", "works", "--cwd", "--label", "two"], 40, 120)?;
    terminal.wait_for("Copy git's files from there?")?;
    terminal.type_keys("n\r")?;
    terminal.wait_for("add `--git-dir=")?;
    terminal.wait_exit()?;
    let mut terminal = home.on_terminal(&["start", "works", "--cwd", "--label", "two"], 40, 120)?;
    terminal.wait_for("Copy git's files from there?")?;
    terminal.type_keys("y\r")?;
    terminal.wait_for("Start works on linux?")?;
    terminal.type_keys("n\r")?;
    terminal.wait_for("nothing was started")?;
    terminal.wait_exit()?;
    Ok(())
}

/// A project can name the objects of any repository of the user.
#[test]
fn borrowed_objects_are_copied_once_their_repository_is_confirmed() -> Result<()> {
    let test = "borrowed_objects_are_copied_once_their_repository_is_confirmed";
    let Some(home) = with_private_files(test)? else { return Ok(()) };
    home.write("victim/.git/objects/ab/0123456789abcdef0123456789abcdef012345", PRIVATE)?;
    for directory in ["objects/info", "refs"] {
        fs::create_dir_all(home.project().join(".git").join(directory))?;
    }
    fs::write(home.project().join(".git/HEAD"), "ref: refs/heads/main\n")?;
    let alternates = home.project().join(".git/objects/info/alternates");
    fs::write(&alternates, "../../../victim/.git/objects\n")?;
    let victim = home.outside("victim/.git").canonicalize()?;
    let hint = format!("add `--git-dir={}`", victim.display());
    let live = ["start", "works", "--cwd=live", "--detach", "--label", "one"];
    for start in [START, live] {
        for further in [&["--dry-run"][..], &["-y"], &["-y", "--git-dir=../home"]] {
            let refused = run(&home, &[&start, further].concat())?.expect_code(2);
            assert!(refused.stderr.contains(&hint), "{}", refused.transcript());
        }
    }
    // A path that is not in a git directory is refused, whatever the user answers.
    for forged in ["../../../home", "../../../victim/.git/refs"] {
        fs::write(&alternates, format!("{forged}\n"))?;
        let refused = run(&home, &[&START, &["-y", "--git-dir=../victim"][..]].concat())?.expect_code(2);
        assert!(
            refused.stderr.contains("is not the `objects` of a git directory"),
            "{}",
            refused.transcript()
        );
    }
    fs::write(&alternates, "../../../victim/.git/objects\n")?;
    let started = run(&home, &[&START, &["-y", "--git-dir=../victim"][..]].concat())?.expect_code(0);
    let note = format!("that are borrowed, from: {}/objects", victim.display());
    assert!(started.stderr.contains(&note), "{}", started.stderr);
    let inside = "cat /git-objects/ab/*; cat .git/objects/info/alternates; grep -r victim . || true";
    let listed = run(&home, &["exec", "one", "--", "sh", "-c", inside])?.expect_code(0);
    assert_eq!(listed.stdout, format!("{PRIVATE}/git-objects\n"));
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let mut terminal = home.on_terminal(&["start", "works", "--cwd", "--label", "two"], 40, 120)?;
    terminal.wait_for("Give the agent all objects")?;
    terminal.type_keys("n\r")?;
    terminal.wait_for("add `--git-dir=")?;
    terminal.wait_exit()?;
    Ok(())
}
