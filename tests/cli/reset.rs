//! Tests `bottle fs reset`. The fake backend has no git, so the tests need the Linux backend.

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};
use crate::pull::{LINUX, inside, with_a_copy};

/// Changes files in every way, with the repository of the bottle on another commit.
const CHANGES: &str = "git commit -q --allow-empty -m theirs; echo two >>code; chmod +x tool; rm gone; \
                       ln -sf /etc/passwd link; rm -r sub; echo x >sub; mkdir -p new/deep; echo y >new/deep/file; \
                       printf 'z' >\"$(printf 'odd\\377\\nname')\"; echo built >ignored";

/// The files of the workspace with their modes and contents.
const FILES: &str = "find . -path ./.git -prune -o ! -type d -printf '%M %p\\n' | LC_ALL=C sort; cat code; \
                     readlink link; git log -1 --format=%s";

fn with_files(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_a_copy(test)? else { return Ok(None) };
    let files = "echo gone >gone; echo run >tool; ln -s code link; mkdir -p sub; echo in >sub/file; \
                 echo ignored >.gitignore; git add -A; git commit -qm more";
    inside(&home, files)?;
    let _ = run(&home, &["pull", "one", "-q"])?.expect_code(0);
    home.git(&["merge", "-q", "bottle/one"])?;
    Ok(Some(home))
}

#[test]
fn puts_a_workspace_back_to_its_start() -> Result<()> {
    let Some(home) = with_files("puts_a_workspace_back_to_its_start")? else { return Ok(()) };
    let start = inside(&home, FILES)?;
    inside(&home, CHANGES)?;
    let changed = inside(&home, FILES)?;
    let mut text = transcripts(
        &home,
        &[
            &["fs", "reset", "one"],
            &["fs", "reset", "one", "--json"],
            &["fs", "reset", "one", "--dry-run"],
            &["fs", "reset", "one", "--dry-run", "--json", "code", "/workspace/new"],
            &["fs", "reset", "one", "../outside", "--yes"],
            &["fs", "reset", "one", "absent", "--yes"],
            // The link does not replace a directory, but the file `sub` does.
            &["fs", "reset", "one", "sub/file", "--yes"],
        ],
    )?;
    ensure!(inside(&home, FILES)? == changed, "nothing changed yet");
    text += &transcripts(
        &home,
        &[
            &["fs", "reset", "one", "new", "code", "--yes", "--json"],
            &["fs", "reset", "one", "--yes"],
            &["fs", "reset", "one", "--yes"],
            &["fs", "reset", "one", "--yes", "--json"],
        ],
    )?;
    let now = inside(&home, FILES)?;
    // The reset keeps the commits of the bottle and the ignored files.
    ensure!(now.replace("-rw-r--r-- ./ignored\n", "").replace("theirs", "more") == start, "{now}\n{start}");
    ensure!(inside(&home, "test ! -e new; cat ignored; cat code")? == "built\none\n");
    let base = home.git(&["rev-parse", "HEAD"])?;
    snapshot!(text.replace(base.trim(), "[BASE]").replace(&base[..12], "[BASE]"));
    Ok(())
}

/// The files of a bottle that ended are reset as well, and the user is asked first.
#[test]
fn asks_before_it_resets_kept_files() -> Result<()> {
    let Some(home) = with_files("asks_before_it_resets_kept_files")? else { return Ok(()) };
    inside(&home, CHANGES)?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    for (answer, code, left) in [("n", 0, "x\n"), ("\u{3}", 130, "x\n"), ("y", 0, "")] {
        let mut pty = home.on_terminal(&["fs", "reset", "one"], 24, 100)?;
        pty.wait_for("Reset 8 files of one? Their changes are lost. [y/N]")?;
        pty.type_keys(answer)?;
        if answer != "\u{3}" {
            pty.type_keys("\r")?;
        }
        ensure!(pty.wait_exit()? == code, "{answer:?}: {}", pty.screen());
        let read = run(&home, &["fs", "read", "one", "sub"])?;
        ensure!(read.stdout == left, "{answer:?}: {}{}", read.stdout, read.stderr);
    }
    let read = run(&home, &["fs", "read", "one", "sub/file"])?.expect_code(0);
    ensure!(read.stdout == "in\n", "{}", read.stdout);
    Ok(())
}

/// A directory in no commit has no known start, and a directory of a repository is compared with its part of the
/// commit.
#[test]
fn the_start_of_a_copied_directory_is_its_part_of_the_commit() -> Result<()> {
    let mut home = home()?;
    home.bottle("work", LINUX)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs("the_start_of_a_copied_directory_is_its_part_of_the_commit", "linux")? {
        return Ok(());
    }
    for file in ["top", "part/code", "fresh/code"] {
        home.write(&format!("project/{file}"), "one\n")?;
    }
    for arguments in [&["init", "-q"][..], &["add", "top", "part"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    for (directory, slug) in [("part", "one"), ("fresh", "two")] {
        let start = ["start", "work", "--cwd", "--detach", "--label", slug, "-q"];
        let _ = home.program(start)?.directory(home.project().join(directory)).run()?.expect_code(0);
        let change = "echo two >code; echo new >new";
        let _ = run(&home, &["exec", slug, "--", "sh", "-c", change])?.expect_code(0);
    }
    let mut text = transcripts(&home, &[&["diff", "one"], &["fs", "reset", "one", "--yes"]])?;
    text += &transcripts(&home, &[&["fs", "ls", "one"], &["fs", "reset", "two", "--yes"]])?;
    let _ = run(&home, &["exec", "two", "--", "git", "init", "-q"])?.expect_code(0);
    text += &transcripts(&home, &[&["fs", "reset", "two", "--yes"], &["fs", "ls", "two"]])?;
    snapshot!(text);
    Ok(())
}
