//! Tests `logs` of agents that move the cursor.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{bottle, home, run};

/// The time limit for a background step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// The output of an agent that draws its input box again below each message.
const DRAWN: &str = r"one\r\n> x\r\e[Jtwo\r\n> y\e[1A\r\e[1;31m\e[Jthree\e[0m\n> z";

fn start(home: &mut TestHome, drawn: &str) -> Result<()> {
    let command = serde_json::json!(["printf", drawn]);
    home.bottle("draws", &bottle(&command.to_string()))?.agent("draws", "---\nbottle: draws\n---\n")?;
    let _ = run(home, &["start", "draws", "--detach", "--label", "one", "-y", "-q"])?.expect_code(0);
    let end = Instant::now() + PATIENCE;
    while !run(home, &["list"])?.stdout.contains("ended") {
        ensure!(Instant::now() < end, "the agent does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn shows_the_screen_of_an_ended_agent_and_its_bytes() -> Result<()> {
    let mut home = home()?;
    start(&mut home, DRAWN)?;
    let logs = |more: &[&str]| run(&home, &[&["logs", "one"], more].concat());
    assert_eq!(logs(&[])?.expect_code(0).stdout, "one\nthree\n> z\n");
    assert_eq!(logs(&["--tail", "2"])?.expect_code(0).stdout, "three\n> z\n");
    let raw = DRAWN.replace(r"\r", "\r").replace(r"\n", "\n").replace(r"\e", "\u{1b}");
    assert_eq!(logs(&["--raw"])?.expect_code(0).stdout, raw);
    let mut terminal = home.on_terminal(&["logs", "one", "--raw"], 24, 100)?;
    terminal.wait_for("cannot write the raw output to a terminal")?;
    assert_eq!(terminal.wait_exit()?, 2);
    assert!(logs(&["--raw", "--tail", "1"])?.expect_code(2).stderr.contains("--tail"));
    Ok(())
}

#[test]
fn a_running_agent_has_the_size_of_its_terminal() -> Result<()> {
    let mut home = home()?;
    if !home.runs("a_running_agent_has_the_size_of_its_terminal", "linux")? {
        return Ok(());
    }
    // The script prints a line of 30 columns, and then the last row of the screen.
    let script = "seq 1 9; printf '%030d%s' 7 more; printf '\\033[8;1H\\033[Jbottom'; sleep 600";
    let command = serde_json::json!(["sh", "-c", script]);
    let manifest =
        format!("---\nbackend: linux\nagent_provider: {{template: command, command: {command}}}\n---\n");
    home.bottle("draws", &manifest)?.agent("draws", "---\nbottle: draws\n---\n")?;
    let mut terminal = home.on_terminal(&["start", "draws", "--label", "one", "-y"], 8, 30)?;
    terminal.wait_for("bottom")?;
    let shown = run(&home, &["logs", "one"])?.expect_code(0).stdout;
    assert_eq!(shown, format!("1\n2\n3\n4\n5\n6\n7\n8\n9\n{:030}\nbottom\n", 7), "{shown}");
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    terminal.wait_exit()?;
    // The keeper has recorded the size of the terminal, so the logs are the same after the end of the bottle.
    let kept = run(&home, &["logs", "one"])?;
    if kept.code == 0 {
        assert_eq!(kept.stdout, shown);
    }
    Ok(())
}
