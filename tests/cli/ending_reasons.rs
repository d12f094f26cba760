//! Tests what `bottle` keeps when a bottle ends, and its message about build output, other ignored files and work.

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{bottle, home, run, snapshot, transcript};

/// Returns a home whose project is a repository that ignores a few files.
fn home_with_project() -> Result<TestHome> {
    let home = home()?;
    home.write("project/.gitignore", "target/\nnode_modules\n*.log\n.env\n")?;
    home.write("project/README", "read\n")?;
    home.write("project/src/main", "one\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    Ok(home)
}

/// Writes a file of the workspace.
fn write(home: &TestHome, path: &str) -> Result<()> {
    let _ = home.program(["fs", "write", "one", path, "-q"])?.input("new\n").run()?.expect_code(0);
    Ok(())
}

/// Starts a bottle with a copy of the project, writes and removes files, and stops it. Returns the messages of the
/// commands.
fn stopped_after(home: &TestHome, written: &[&str], removed: &[&str]) -> Result<String> {
    let start = ["start", "nap", "--cwd", "--yes", "--detach", "--label", "one", "-q"];
    let _ = run(home, &start)?.expect_code(0);
    written.iter().try_for_each(|path| write(home, path))?;
    for path in removed {
        let _ = run(home, &["fs", "rm", "one", path, "-q"])?.expect_code(0);
    }
    let mut text = transcript(home, &["stop", "one", "--time", "0"])?;
    text += &run(home, &["list"])?.stdout;
    let _ = run(home, &["discard", "one", "--yes", "-q"])?;
    Ok(text)
}

#[test]
fn only_what_no_tool_makes_again_keeps_a_bottle() -> Result<()> {
    let home = home_with_project()?;
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("a build", &["target/debug/made", "node_modules/x/y", "src/node_modules/z"], &[]),
        ("other ignored files", &["a.log", ".env", "src/b.log", "src/c.log"], &[]),
        ("a build and work", &["target/debug/made", "src/more"], &[]),
        ("a build and a file that is gone", &["target/debug/made"], &["README"]),
        ("rules of the agent", &[".gitignore", "src/dist/page"], &[]),
    ];
    let mut text = String::new();
    for (what, written, removed) in cases {
        text += &format!("## {what}\n{}\n", stopped_after(&home, written, removed)?);
    }
    snapshot!(text);
    Ok(())
}

fn attached(home: &mut TestHome, written: &str) -> Result<Pty> {
    home.bottle("ask", &bottle("[read-line]"))?;
    home.agent("ask", "---\nbottle: ask\n---\n")?;
    let mut pty = home.on_terminal(&["start", "ask", "--cwd", "--yes", "--label", "one"], 24, 200)?;
    pty.wait_for("? ")?;
    write(home, written)?;
    pty.type_keys("words\r")?;
    Ok(pty)
}

#[test]
fn a_build_is_not_asked_about() -> Result<()> {
    let mut home = home_with_project()?;
    let mut pty = attached(&mut home, "target/debug/made")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert!(!pty.screen().contains("keep"), "{}", pty.screen());
    assert_eq!(run(&home, &["list"])?.stdout, "");
    Ok(())
}

#[test]
fn an_ignored_file_is_named_and_no_pull_is_offered_for_it() -> Result<()> {
    for (keys, kept) in [("discard\r", false), ("\r", true)] {
        let mut home = home_with_project()?;
        let mut pty = attached(&mut home, "notes.log")?;
        pty.wait_for("one has 1 changed file that git ignores (notes.log). [keep/discard]")?;
        pty.type_keys(keys)?;
        assert_eq!(pty.wait_exit()?, 0);
        ensure!(run(&home, &["list"])?.stdout.contains("kept") == kept, "{}", pty.screen());
    }
    Ok(())
}
