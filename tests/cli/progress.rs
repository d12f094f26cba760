//! Tests the progress of long operations: it stays on one line of any width and is cleared at the end. Ctrl-C
//! prints what the interrupted operation leaves.

use std::time::{Duration, Instant};

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use rustix::process::{Signal, kill_process};

use crate::home::{home, keeper, run};

/// The sizes of terminals, in rows and columns.
const SIZES: [(u16, u16); 3] = [(24, 80), (10, 40), (4, 24)];

/// Waits for a progress text, checks that it is on one line, and presses Ctrl-C.
fn interrupt(pty: &mut Pty, words: &str) -> Result<()> {
    // Narrow terminals show only the beginning of the text.
    let words = &words[..words.len().min(16)];
    pty.wait_for(words)?;
    // Waits long enough for several redraws.
    std::thread::sleep(Duration::from_millis(400));
    let screen = pty.screen();
    assert_eq!(screen.matches(words).count(), 1, "it stays on its line:\n{screen}");
    assert!(pty.broken_lines().iter().all(|line| !line.contains(words)), "{:?}", pty.broken_lines());
    pty.type_keys("\x03")
}

/// Asserts that the screen does not contain the progress text `words`, and that `sentence` was printed, on
/// one or more lines.
#[track_caller]
fn assert_cleared_with(pty: &Pty, words: &str, sentence: &str) -> Result<()> {
    let screen = pty.last_screen()?;
    assert!(!screen.contains(words), "{screen}");
    assert!(pty.is_cooked()? && pty.left_on().is_empty(), "{screen}");
    let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
    let said: Vec<&str> = raw.split_whitespace().collect();
    assert!(said.join(" ").contains(sentence), "{raw:?}");
    Ok(())
}

#[test]
fn launch_progress_fits_its_line_and_ctrl_c_undoes_it() -> Result<()> {
    for (rows, columns) in SIZES {
        let mut home = home()?;
        home.env("BOTTLE_FAKE_FAIL", "start_guest:hang");
        let mut pty =
            home.on_terminal(&["start", "nap", "--cwd", "--yes", "--label", "one"], rows, columns)?;
        interrupt(&mut pty, "starting the sidecars")?;
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "starting the", "everything created so far was removed")?;
        assert_eq!(run(&home, &["list"])?.stdout, "");
    }
    Ok(())
}

#[test]
fn commit_progress_fits_its_line_and_the_commit_continues() -> Result<()> {
    for (rows, columns) in SIZES {
        let mut home = home()?;
        home.env("BOTTLE_FAKE_FAIL", "make_snapshot:hang");
        let _ = run(&home, &["start", "nap", "--detach", "--label", "one"])?.expect_code(0);
        let mut pty = home.on_terminal(&["commit", "one"], rows, columns)?;
        interrupt(&mut pty, "saving a snapshot")?;
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "saving a snapshot", "the snapshot is still being saved")?;
        kill_process(keeper(&home)?, Signal::KILL)?;
    }
    Ok(())
}

#[test]
fn an_interrupted_copy_out_leaves_no_local_files() -> Result<()> {
    for (rows, columns) in SIZES {
        let home = home()?;
        let _ = run(&home, &["start", "nap", "--detach", "--label", "one"])?.expect_code(0);
        let inside = run(&home, &["exec", "one", "--", "pwd"])?.expect_code(0).stdout;
        // The file is slow to transfer. A sparse file would be fast.
        std::fs::write(std::path::Path::new(inside.trim()).join("big"), vec![1; 3 * BIG])?;
        let mut pty = home.on_terminal(&["cp", "one:big", "out"], rows, columns)?;
        interrupt(&mut pty, "copying out")?;
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "copying out", "no local file was changed")?;
        let left: Vec<_> = std::fs::read_dir(home.project())?.collect::<Result<_, _>>()?;
        assert!(left.is_empty(), "{left:?}");
    }
    Ok(())
}

/// The size in bytes of a file that takes a noticeable time to copy.
const BIG: usize = 300 << 20;

/// Creates a file with allocated blocks. A file with holes would be copied fast, because holes are not
/// transferred.
fn big(home: &TestHome) -> Result<()> {
    Ok(std::fs::write(home.project().join("big"), vec![1; BIG])?)
}

#[test]
fn copy_in_shows_progress_and_what_ctrl_c_leaves() -> Result<()> {
    let home = home()?;
    big(&home)?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one"])?.expect_code(0);
    for (rows, columns) in SIZES {
        let mut pty = home.on_terminal(&["cp", "big", "one:big"], rows, columns)?;
        pty.wait_for("copying in: ")?;
        // The keeper is stopped, so that the copy does not end while the test checks the screen.
        kill_process(keeper(&home)?, Signal::STOP)?;
        let seen = pty.wait_until("a bar, or no room for one", |screen| columns < 40 || screen.contains('['));
        let seen = seen.and_then(|screen| interrupt(&mut pty, "copying in").map(|()| screen));
        let code = pty.wait_exit();
        kill_process(keeper(&home)?, Signal::CONT)?;
        let screen = seen?;
        assert_eq!(screen.contains(" of 300.00 MiB ["), columns >= 80, "{columns}:\n{screen}");
        assert_eq!(code?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "copying in", "files copied so far stay in the bottle")?;
    }
    Ok(())
}

#[test]
fn copying_the_directory_shows_bytes_and_ctrl_c_undoes_it() -> Result<()> {
    let home = home()?;
    big(&home)?;
    for (rows, columns) in SIZES {
        let arguments = ["start", "nap", "--cwd", "--yes", "--label", "one"];
        let mut pty = home.on_terminal(&arguments, rows, columns)?;
        let words = if columns < 40 { "copying the dir" } else { "copying the directory: " };
        let screen = pty
            .wait_until(words, |screen| screen.contains(words) && (columns < 40 || screen.contains("iB")))?;
        pty.type_keys("\x03")?;
        assert_eq!(screen.matches("copying").count(), 1, "{screen}");
        assert!(pty.broken_lines().iter().all(|line| !line.contains("copying")), "{screen}");
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "copying the", "everything created so far was removed")?;
        assert_eq!(run(&home, &["list"])?.stdout, "");
    }
    Ok(())
}

/// Starts a bottle `one` that hangs when it is removed.
fn bottle_that_hangs_at_its_end(home: &TestHome) -> Result<()> {
    let mut start = home.program(["start", "nap", "--detach", "--label", "one", "-q"])?;
    let _ = start.env("BOTTLE_FAKE_FAIL", "remove:hang").run()?.expect_code(0);
    Ok(())
}

#[test]
fn a_stop_continues_after_ctrl_c() -> Result<()> {
    for (rows, columns) in SIZES {
        let home = home()?;
        bottle_that_hangs_at_its_end(&home)?;
        let mut pty = home.on_terminal(&["stop", "one", "--time", "0"], rows, columns)?;
        interrupt(&mut pty, "stopping one; its agent")?;
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "its agent", "still ending; `bottle list` shows the state")?;
        let listed = run(&home, &["list"])?.stdout;
        assert!(listed.contains("\tending"), "{listed}");
        kill_process(keeper(&home)?, Signal::KILL)?;
    }
    Ok(())
}

#[test]
fn an_interrupted_cleanup_can_be_continued() -> Result<()> {
    for (rows, columns) in SIZES {
        let home = home()?;
        bottle_that_hangs_at_its_end(&home)?;
        let mut pty = home.on_terminal(&["cleanup", "--all", "--yes"], rows, columns)?;
        interrupt(&mut pty, "stopping one")?;
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        assert_cleared_with(&pty, "stopping", "not everything was removed; `bottle cleanup` continues")?;
        kill_process(keeper(&home)?, Signal::KILL)?;
        let _ = run(&home, &["cleanup", "--all", "--yes"])?.expect_code(0);
        assert_eq!(run(&home, &["list"])?.stdout, "");
    }
    Ok(())
}

#[test]
fn a_pipe_and_a_dumb_terminal_get_plain_lines() -> Result<()> {
    let home = home()?;
    let piped = run(&home, &["start", "hi"])?.expect_code(0).stderr;
    assert!(piped.lines().any(|line| line == "bottle: starting the agent"), "{piped}");
    assert!(!piped.contains(['\r', '\x1b']), "{piped:?}");
    let mut dumb = home.program(["start", "hi", "--yes"])?;
    dumb.env("TERM", "dumb");
    let mut pty = Pty::spawn(dumb.command(), 24, 80)?;
    assert_eq!(pty.wait_exit()?, 0);
    let screen = pty.last_screen()?;
    assert!(screen.lines().any(|line| line == "bottle: starting the agent"), "{screen}");
    Ok(())
}

#[test]
fn a_fast_operation_shows_no_progress() -> Result<()> {
    let home = home()?;
    let begun = Instant::now();
    let mut pty = home.on_terminal(&["cleanup", "--dry-run"], 24, 80)?;
    assert_eq!(pty.wait_exit()?, 0);
    let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
    // On a busy machine, the operation may have taken longer, and may then show progress.
    assert!(!raw.contains("searching") || begun.elapsed() > Duration::from_millis(300), "{raw:?}");
    Ok(())
}
