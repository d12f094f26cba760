//! Tests mini-swe-agent, which uses the Chat Completions format without streams. It takes certificates only
//! from the variable `REQUESTS_CA_BUNDLE`.

use anyhow::Result;
use bottle_test_support::agents;

use super::scene::{Scene, Setting, agent, without_proxies};

const HOST: &str = "openrouter.ai";
const ENV: [(&str, &str); 3] = [
    ("OPENROUTER_API_KEY", "a-placeholder"),
    ("MSWEA_CONFIGURED", "true"),
    ("MSWEA_COST_TRACKING", "ignore_errors"),
];
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

fn setting() -> Setting<'static> {
    Setting {
        command: &COMMAND,
        env: &ENV,
        host: HOST,
        method: "POST",
        path: "/api/v1/chat/completions",
        auth: "scheme: Bearer",
        proxied: true,
    }
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
