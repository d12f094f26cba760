//! Tests denials while an agent draws on the whole screen: `bottle` writes nothing into the drawing, and
//! still notifies the user.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use bottle_test_support::skip;

/// The agent: draws on every cell of an 80 × 24 screen, and sends two requests. It waits for a key before
/// each step.
const AGENT: &str = r#"
import os, sys, tty, urllib.request
tty.setraw(0)
def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()
def key():
    os.read(0, 1)
def draw():
    say("\x1b[?1049h\x1b[2J" + "".join(f"\x1b[{row};1H{row:02}" + "." * 78 for row in range(2, 25)))
draw()
say("\x1b[1;1Hdrawn")
key()
for path in ("one", "two"):
    try:
        urllib.request.urlopen(f"https://blocked.example/{path}")
    except Exception:
        pass
say("\x1b[1;1Hasked")
key()
draw()
say("\x1b[1;1Hagain")
key()
say("\x1b[?1049l")
"#;

/// Returns what the agent draws below the first line.
fn drawn() -> Vec<String> {
    (2..25).map(|row| format!("{row:02}{}", ".".repeat(78))).collect()
}

#[track_caller]
fn assert_untouched(screen: &str, word: &str) {
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines.first().map(|line| line.trim_end()), Some(word), "{screen}");
    assert_eq!(lines[1..], drawn(), "{screen}");
}

fn wait_for_title(pty: &Pty, title: &str) -> Result<()> {
    let title = format!("\x1b]0;{title}\x07");
    let end = Instant::now() + Duration::from_secs(60);
    while !String::from_utf8_lossy(&pty.raw()).contains(&title) {
        ensure!(Instant::now() < end, "{:?}", String::from_utf8_lossy(&pty.raw()));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Starts the agent on a terminal and waits until it has drawn. If the backend or Python is not available, reports that
/// the test is skipped and returns `None`.
fn full_screen(test: &str, home: &mut TestHome) -> Result<Option<Pty>> {
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    if !Path::new("/usr/bin/python3").exists() {
        skip::aloud(test, &"python3 is not here");
        return Ok(None);
    }
    let command = serde_json::json!(["/usr/bin/python3", "-c", AGENT]);
    let provider = format!("{{template: command, command: {command}}}");
    home.bottle("drawing", &format!("---\nbackend: linux\nagent_provider: {provider}\n---\n"))?;
    home.agent("drawing", "---\nbottle: drawing\n---\n")?;
    let pty = home.on_terminal(&["start", "drawing", "--label", "one", "--yes"], 24, 80)?;
    pty.wait_for("drawn")?;
    Ok(Some(pty))
}

#[test]
fn denials_show_in_the_title_and_the_summary_only() -> Result<()> {
    let mut home = TestHome::new()?;
    let Some(mut pty) = full_screen("denials_show_in_the_title_and_the_summary_only", &mut home)? else {
        return Ok(());
    };
    assert_untouched(&pty.screen(), "drawn");
    pty.type_keys("x")?;
    pty.wait_for("asked")?;
    wait_for_title(&pty, "one (drawing) - 2 denied, last GET https://blocked.example/two: host-not-allowed")?;
    // Waits long enough for any delayed write to the screen.
    std::thread::sleep(Duration::from_millis(500));
    assert_untouched(&pty.screen(), "asked");
    assert!(pty.left_on().contains(&"the alternate screen"));
    pty.type_keys("x")?;
    pty.wait_for("again")?;
    assert_untouched(&pty.screen(), "again");
    pty.type_keys("x")?;
    assert_eq!(pty.wait_exit()?, 0);
    let last = pty.last_screen()?;
    for path in ["one", "two"] {
        let line = format!("bottle: the proxy denied GET https://blocked.example/{path}");
        assert!(last.contains(&line), "{last}");
    }
    assert!(!last.contains("24...") && pty.is_cooked()? && pty.left_on().is_empty(), "{last}");
    Ok(())
}

#[test]
fn detaching_prints_the_denials_so_far() -> Result<()> {
    let mut home = TestHome::new()?;
    let Some(mut pty) = full_screen("detaching_prints_the_denials_so_far", &mut home)? else {
        return Ok(());
    };
    pty.type_keys("x")?;
    pty.wait_for("asked")?;
    wait_for_title(&pty, "one (drawing) - 2 denied, last GET https://blocked.example/two: host-not-allowed")?;
    pty.type_keys("\x1dd")?;
    assert_eq!(pty.wait_exit()?, 0);
    let last = pty.last_screen()?;
    for words in
        ["the proxy denied GET https://blocked.example/one", "blocked.example/two", "one keeps running"]
    {
        assert!(last.contains(words), "{words:?} is not on it:\n{last}");
    }
    assert!(pty.is_cooked()? && pty.left_on().is_empty(), "{last}");
    Ok(())
}
