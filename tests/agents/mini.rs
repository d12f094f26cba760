//! Tests mini-swe-agent, which uses the Chat Completions format without streams. mini-swe-agent reads certificates only
//! from the variable `REQUESTS_CA_BUNDLE`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bottle_test_support::agents::{self, Agent};
use bottle_test_support::engine::docker;
use bottle_test_support::small_root;

use super::scene::{Scene, Setting, agent, without_proxies};

const HOST: &str = "openrouter.ai";
const ENV: [(&str, &str); 3] = [
    ("OPENROUTER_API_KEY", "a-placeholder"),
    ("MSWEA_CONFIGURED", "true"),
    ("MSWEA_COST_TRACKING", "ignore_errors"),
];
/// The number of words of [`COMMAND`] before the task.
const WITHOUT_TASK: usize = 9;
const COMMAND: [&str; 11] = [
    "mini",
    "-m",
    "fake/model",
    "--model-class",
    "openrouter",
    "-y",
    "--exit-immediately",
    "-o",
    "/tmp/run.json",
    "-t",
    "{task}",
];

/// The setting of mini-swe-agent on a terminal, where the agent asks for its task.
pub(crate) fn on_a_terminal() -> Setting<'static> {
    Setting { command: &COMMAND[..WITHOUT_TASK], ..setting() }
}

pub(crate) fn setting() -> Setting<'static> {
    Setting {
        command: &COMMAND,
        env: &ENV,
        host: HOST,
        method: "POST",
        path: "/api/v1/chat/completions",
        auth: "scheme: Bearer",
        proxied: true,
        image: None,
    }
}

/// The directory of the Python packages of mini-swe-agent in an image.
const PACKAGES: &str = "/opt/mini";
const IN_IMAGE: [&str; 3] = ["python3", "-c", "from minisweagent.run.mini import app; app()"];

/// Runs `with` with the setting of mini-swe-agent in this image of the engine, which [`build_image`] built.
pub(crate) fn with_setting_in<T>(image: &str, with: impl FnOnce(&Setting<'_>) -> T) -> T {
    let command: Vec<&str> = IN_IMAGE.iter().chain(&COMMAND[1..]).copied().collect();
    // Without `PYTHONDONTWRITEBYTECODE`, Python would add its compiled modules to the image's files.
    let env = [&ENV[..], &[("PYTHONPATH", PACKAGES), ("PYTHONDONTWRITEBYTECODE", "1")]].concat();
    with(&Setting { command: &command, env: &env, image: Some(image), ..setting() })
}

/// Builds an image of the engine from programs of this machine and the installed agent.
pub(crate) fn build_image(mini: &Agent, image: &str, room: &Path) -> Result<()> {
    let root = room.join("root");
    small_root::make(&root)?;
    let library = mini.program.ancestors().nth(2).context("the agent has no directory")?.join("lib");
    let version = fs::read_dir(&library)?.next().context("the agent has no packages")??;
    let packages = version.path().join("site-packages");
    small_root::add_python_packages(&root, &packages, Path::new(PACKAGES))?;
    let archive = room.join("root.tar").display().to_string();
    let tar = Command::new("tar")
        .args(["-cf", &archive, "--owner=0", "--group=0", "-C"])
        .arg(&root)
        .arg(".")
        .status()?;
    ensure!(tar.success(), "tar failed");
    docker(&["import", &archive, image]).context("the engine does not import the image")?;
    Ok(())
}

#[test]
fn runs_headless_through_the_proxy_variables() -> Result<()> {
    let Some(mini) = agent("mini headless", agents::mini())? else { return Ok(()) };
    let scene = Scene::new(&mini, "mini", &setting())?;
    let outcome = scene.bottle(&[
        "start",
        "mini",
        "--backend",
        "linux",
        "--yes",
        "--label",
        "mini",
        "-p",
        "Do the scripted task.",
    ])?;
    assert!(outcome.stdout.contains("sum 42"), "the agent's own output: {}", outcome.stdout);
    scene.assert_played(0, HOST, true);
    scene.assert_counted("mini", HOST);
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
fn runs_detached_beside_a_second_agent_on_the_transparent_proxy() -> Result<()> {
    let Some(mini) = agent("mini detached", agents::mini())? else { return Ok(()) };
    let scene = Scene::new(&mini, "mini", &setting())?;
    scene.home.write("project/hold", "")?;
    scene.bottle(&[
        "start",
        "mini",
        "--backend",
        "linux",
        "--yes",
        "--detach",
        "--label",
        "held",
        "--cwd",
        "-p",
        "Do it.",
    ])?;
    // The command of the second step is running, and waits for the file `hold` to be removed.
    scene.wait_for_calls(2)?;
    let read = scene.bottle(&["exec", "held", "--", "cat", "proof.txt"])?;
    assert_eq!(read.stdout, "sum 42\n");
    let copy = scene.home.outside("copied.txt");
    scene.bottle(&["cp", "held:/workspace/proof.txt", &copy.display().to_string()])?;
    assert_eq!(std::fs::read_to_string(copy)?, "sum 42\n");

    let mut command: Vec<&str> = COMMAND[..COMMAND.len() - 1].to_vec();
    command.push("Do it too.");
    let exec = [vec!["exec", "held", "--"], without_proxies(&command)].concat();
    scene.bottle(&exec)?;
    scene.assert_played(2, HOST, false);

    scene.bottle(&["exec", "held", "--", "rm", "hold"])?;
    scene.wait_for_end()?;
    let steps = scene.llm.steps_served();
    assert_eq!(steps, [0, 1, 0, 1, 2, 3, 2, 3], "both agents played the whole script");
    scene.assert_counted("held", HOST);
    scene.assert_key_not_on_disk();
    Ok(())
}
