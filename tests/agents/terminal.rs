//! Uses an agent on a terminal like a user.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::pty::Pty;

use super::scene::Scene;

/// How long an agent may take to be there, and to do its task.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to be there when its image is built first.
const BUILT_WITHIN: Duration = Duration::from_secs(15 * 60);

/// Between a text and the key that sends it: agents take what comes at once for pasted.
const BREATH: Duration = Duration::from_millis(500);

/// What a user does.
pub(crate) struct Typed<'a> {
    /// What the screen shows when the agent waits for a task, and no question before that.
    pub(crate) ready: &'a [&'a str],
    /// What ends the agent: a line, or a key.
    pub(crate) end: &'a str,
    /// What becomes of the work.
    pub(crate) choice: &'a str,
}

/// Starts `name`, gives it a task, sees the answer and ends it. The terminal is the user's again.
pub(crate) fn converse(scene: &Scene, name: &str, typed: &Typed<'_>) -> Result<()> {
    let arguments = ["start", name, "--backend", scene.backend, "--yes", "--label", "on-a-terminal"];
    let mut pty = scene.home.on_terminal(&arguments, 40, 100)?;
    pty.patience(if scene.backend == "docker" { BUILT_WITHIN } else { PATIENCE });
    for words in typed.ready {
        pty.wait_for(words)?;
        pty.patience(PATIENCE);
    }
    let before = scene.llm.seen().len();
    enter(&mut pty, "Do the scripted task that was typed.")?;
    pty.wait_for("The scripted task is done.")?;
    let asked = scene.llm.seen();
    ensure!(
        asked[before..].iter().any(|call| call.body.contains("task that was typed")),
        "what was typed did not reach the model"
    );
    enter(&mut pty, typed.end)?;
    // The script wrote a file, and nothing pulled it.
    pty.wait_for("[keep/pull/discard]")?;
    enter(&mut pty, typed.choice)?;
    let code = pty.wait_exit()?;
    ensure!(code == 0, "it ended with {code}:\n{}", pty.screen());
    let end = Instant::now() + Duration::from_secs(60);
    while !pty.is_cooked()? {
        ensure!(Instant::now() < end, "the terminal is still raw:\n{}", pty.screen());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Starts it with these arguments, confirms, waits until it is ready, and ends it without a task.
pub(crate) fn look_in(scene: &Scene, arguments: &[&str], typed: &Typed<'_>) -> Result<()> {
    let mut pty = scene.home.on_terminal(arguments, 40, 100)?;
    pty.patience(BUILT_WITHIN);
    pty.wait_for("[y/N/e/?]")?;
    enter(&mut pty, "y")?;
    for words in typed.ready {
        pty.wait_for(words)?;
        pty.patience(PATIENCE);
    }
    enter(&mut pty, typed.end)?;
    let code = pty.wait_exit()?;
    ensure!(code == 0, "it ended with {code}:\n{}", pty.screen());
    Ok(())
}

fn enter(pty: &mut Pty, line: &str) -> Result<()> {
    pty.type_keys(line)?;
    std::thread::sleep(BREATH);
    if line.chars().all(char::is_control) { Ok(()) } else { pty.type_keys("\r") }
}
