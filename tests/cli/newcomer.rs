//! Tests the first session of a user who has only `bottle` and a repository: from the first command to pulled
//! work and a cleanup. `snapshots/` contains what the user types and sees.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use bottle_test_support::skip;

use crate::home::snapshot;

/// The keys that detach a user from a session.
const DETACH: &str = "\x1dd";

/// What the user typed, and what the screen showed.
struct Story<'a> {
    home: &'a TestHome,
    text: String,
}

impl Story<'_> {
    /// Runs a command on a terminal. Each step waits until the screen shows the first text, and then types
    /// the second.
    fn run(&mut self, arguments: &[&str], steps: &[(&str, &str)]) -> Result<i32> {
        self.text += &format!("$ bottle {}\n", arguments.join(" "));
        let mut pty = self.home.on_terminal(arguments, 24, 80)?;
        for (words, keys) in steps {
            pty.wait_for(words).with_context(|| format!("bottle {arguments:?}"))?;
            // A list covers the screen and disappears when the user has answered, so the list is recorded before the
            // answer.
            let screen = settled(&pty);
            if screen.contains("Esc cancels") && *keys == "\r" {
                self.text += &format!("{}\n\n", screen.trim_end());
            }
            pty.type_keys(keys)?;
        }
        let code = pty.wait_exit()?;
        let screen = pty.last_screen()?;
        self.text += &format!("{}\n\n", screen.trim_end());
        Ok(code)
    }
}

/// Returns the screen after it has stopped changing.
fn settled(pty: &Pty) -> String {
    loop {
        let before = pty.screen();
        std::thread::sleep(Duration::from_millis(100));
        let screen = pty.screen();
        if screen == before {
            return screen;
        }
    }
}

/// Returns a home whose project is a repository with one file. If the backend `linux` is not available, reports that
/// the test is skipped and returns `None`.
fn with_a_project(test: &str) -> Result<Option<TestHome>> {
    let home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    home.write("project/README", "A small project.\n")?;
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    Ok(Some(home))
}

#[test]
fn a_first_session_from_init_to_pull() -> Result<()> {
    let Some(home) = with_a_project("the newcomer's first hour")? else { return Ok(()) };
    let mut story = Story { home: &home, text: String::new() };
    let commit = |word: &str| {
        format!(
            "echo {word} >answer; git add -A; \
             git -c user.name=Agent -c user.email=agent@example.com commit -qm {word}; echo do''ne\r"
        )
    };
    let first = commit("hello");
    let code = story.run(
        &["start", "--cwd", "--backend", "linux"],
        &[
            ("Esc cancels", "shell"),
            ("> shell  1 of 7", "\r"),
            ("1 shell", "\r"),
            ("Its name, or Enter", "first\r"),
            ("The colour of its name?", "green\r"),
            ("[y/N/e/?]", "y\r"),
            ("$ ", &first),
            ("done", DETACH),
        ],
    )?;
    assert_eq!(code, 0, "{}", story.text);
    assert_eq!(story.run(&["list"], &[])?, 0);
    let attached = [("done", "tr a-z A-Z <answer\r"), ("HELLO", DETACH)];
    assert_eq!(story.run(&["attach", "first"], &attached)?, 0, "{}", story.text);
    assert_eq!(story.run(&["commit", "first"], &[])?, 0, "{}", story.text);
    assert_eq!(story.run(&["stop", "first"], &[])?, 0, "{}", story.text);
    let again = commit("goodbye");
    let resumed = [("$ ", &*again), ("done", "exit\r"), ("[keep/pull/discard]", "pull\r")];
    assert_eq!(story.run(&["resume", "first"], &resumed)?, 0, "{}", story.text);
    assert_eq!(home.git(&["show", "bottle/first:answer"])?, "goodbye\n");
    assert_eq!(story.run(&["snapshots", "rm", "first"], &[])?, 0, "{}", story.text);
    assert_eq!(story.run(&["cleanup"], &[])?, 0, "{}", story.text);
    let mut scrub = home.scrub()?;
    scrub.add(r"\d+(\.\d+)? (B|KiB|MiB)\b", "[SIZE]")?.add(r"\b[0-9a-f]{7,12}\b", "[COMMIT]")?;
    // On a slow machine, the activity of the agent may have changed when it is listed.
    scrub.add(r"(working|running|idle( <1 min)?) (\(detached\)) +", "[ACTIVITY] $3  ")?;
    scrub.add(r"STATUS +SERVICES", "STATUS  SERVICES")?;
    snapshot!(scrub.apply(&story.text));
    Ok(())
}

#[test]
fn a_session_in_the_directory_itself() -> Result<()> {
    let Some(home) = with_a_project("a session in the directory itself")? else { return Ok(()) };
    let mut story = Story { home: &home, text: String::new() };
    let work = "echo hello >answer; touch .envrc; git add -A; \
                git -c user.name=Agent -c user.email=agent@example.com commit -qm hello; echo do''ne\r";
    let steps = [("[y/N/e/?]", "y\r"), ("$ ", work), ("done", "exit\r"), ("[keep/pull/discard]", "keep\r")];
    let code =
        story.run(&["start", "shell", "--cwd=live", "--label", "notes", "--backend", "linux"], &steps)?;
    assert_eq!(code, 0, "{}", story.text);
    assert_eq!(std::fs::read_to_string(home.project().join("answer"))?, "hello\n");
    assert_eq!(story.run(&["pull", "notes"], &[])?, 0, "{}", story.text);
    assert_eq!(home.git(&["log", "--format=%s", "main..bottle/notes"])?, "hello\n");
    assert_eq!(story.run(&["discard", "notes"], &[("[y/N]", "y\r")])?, 0, "{}", story.text);
    assert_eq!(std::fs::read_to_string(home.project().join("answer"))?, "hello\n");
    let mut scrub = home.scrub()?;
    scrub.add(r"\d+(\.\d+)? (B|KiB|MiB)\b", "[SIZE]")?.add(r"\b[0-9a-f]{7,12}\b", "[COMMIT]")?;
    snapshot!(scrub.apply(&story.text));
    Ok(())
}

#[test]
fn the_title_shows_the_label_and_counts_denials() -> Result<()> {
    let home = TestHome::new()?;
    if !home.runs("the window's title", "linux")? {
        return Ok(());
    }
    if !std::path::Path::new("/usr/bin/python3").exists() {
        skip::aloud("the window's title", &"python3 is not here");
        return Ok(());
    }
    let arguments = ["start", "shell", "--label", "Night shift", "--color-label", "green", "--yes"];
    let mut pty = home.on_terminal(&arguments, 24, 80)?;
    pty.wait_for("$ ")?;
    pty.type_keys(
        "/usr/bin/python3 -c 'import urllib.request as u; u.urlopen(\"https://blocked.example/\")' 2>&1 | tail -1; echo do''ne\r",
    )?;
    let screen = pty.wait_for("done")?;
    assert!(screen.contains("403"), "{screen}");
    // The title of the terminal is not part of the screen.
    let end = Instant::now() + Duration::from_secs(60);
    while !String::from_utf8_lossy(&pty.raw())
        .contains("\x1b]0;Night shift (shell) - denied GET https://blocked.example/: host-not-allowed\x07")
    {
        assert!(Instant::now() < end, "{:?}", String::from_utf8_lossy(&pty.raw()));
        std::thread::sleep(Duration::from_millis(20));
    }
    pty.type_keys("exit\r")?;
    assert_eq!(pty.wait_exit()?, 0);
    let last = pty.last_screen()?;
    assert!(last.contains("the proxy denied GET https://blocked.example/"), "{last}");
    let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
    for (on, off) in [("\x1b]12;#5faf5f\x07", "\x1b]112\x07"), ("\x1b[22;0t", "\x1b[23;0t")] {
        let (on, off) = (raw.find(on), raw.rfind(off));
        assert!(on.is_some() && on < off, "{raw:?}");
    }
    Ok(())
}
