//! Uses an agent at a terminal as a user does.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::pty::Pty;

use super::scene::Scene;

/// The time limit for the agent to be ready, and to do its task.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time limit for the agent to be ready if its image is built first.
const BUILT_WITHIN: Duration = Duration::from_secs(15 * 60);

/// The pause between a text and the key that sends it. Without a pause, agents treat both as pasted text.
const BREATH: Duration = Duration::from_millis(500);

/// The key that sends a line.
pub(crate) const ENTER: &str = "\r";

/// The user's input, and the texts that the screen must show before the input.
pub(crate) struct Typed<'a> {
    /// The texts that the screen shows, in this order, when the agent waits for a task. The agent must not ask anything
    /// before it shows them.
    pub(crate) ready: &'a [&'a str],
    /// The input that exits the agent: a line, or a key.
    pub(crate) end: &'a str,
    /// The user's answer to the question what `bottle` does with the work.
    pub(crate) choice: &'a str,
}

/// Starts the agent `name`, gives it a task, waits for its answer and exits the agent. Checks that `logs` shows the
/// conversation as text, and that the terminal is back in line mode.
pub(crate) fn converse(scene: &Scene, name: &str, typed: &Typed<'_>) -> Result<()> {
    let arguments = ["start", name, "--backend", scene.backend, "--yes", "--label", "on-a-terminal"];
    let mut pty = scene.home.on_terminal(&arguments, 40, 100)?;
    pty.patience(if scene.backend == "docker" { BUILT_WITHIN } else { PATIENCE });
    for words in typed.ready {
        pty.wait_for(words)?;
        pty.patience(PATIENCE);
    }
    let before = scene.llm.seen().len();
    enter(&mut pty, "Do the scripted task that was typed.", ENTER)?;
    pty.wait_for("The scripted task is done.")?;
    let asked = scene.llm.seen();
    ensure!(
        asked[before..].iter().any(|call| call.body.contains("task that was typed")),
        "what was typed did not reach the model"
    );
    let shown = scene.home.program(["logs", "on-a-terminal"])?.run()?.expect_code(0).stdout;
    for words in ["Do the scripted task that was typed.", "The scripted task is done."] {
        ensure!(shown.contains(words), "`logs` does not show {words:?}:\n{shown}");
    }
    ensure!(!shown.contains(['\u{1b}', '\r']), "`logs` shows control characters: {shown:?}");
    enter(&mut pty, typed.end, ENTER)?;
    // The script wrote a file that was not pulled, so `bottle` asks what to do with it.
    pty.wait_for("[keep/discard]")?;
    enter(&mut pty, typed.choice, ENTER)?;
    let code = pty.wait_exit()?;
    ensure!(code == 0, "it ended with {code}:\n{}", pty.screen());
    let end = Instant::now() + Duration::from_secs(60);
    while !pty.is_cooked()? {
        ensure!(Instant::now() < end, "the terminal is still raw:\n{}", pty.screen());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Starts a bottle with these arguments, confirms, waits until the agent is ready, and exits it without a
/// task.
pub(crate) fn look_in(scene: &Scene, arguments: &[&str], typed: &Typed<'_>) -> Result<()> {
    let mut pty = scene.home.on_terminal(arguments, 40, 100)?;
    pty.patience(BUILT_WITHIN);
    pty.wait_for("[y/N/e/?]")?;
    enter(&mut pty, "y", ENTER)?;
    for words in typed.ready {
        pty.wait_for(words)?;
        pty.patience(PATIENCE);
    }
    enter(&mut pty, typed.end, ENTER)?;
    let code = pty.wait_exit()?;
    ensure!(code == 0, "it ended with {code}:\n{}", pty.screen());
    Ok(())
}

/// Types a line and the keys that send it, or only a key. The pause begins when the screen shows the line. Otherwise, a
/// busy agent would read the line and the keys together.
pub(crate) fn enter(pty: &mut Pty, line: &str, submit: &str) -> Result<()> {
    pty.type_keys(line)?;
    if line.chars().all(char::is_control) {
        return Ok(());
    }
    pty.wait_for(line)?;
    std::thread::sleep(BREATH);
    pty.type_keys(submit)
}
