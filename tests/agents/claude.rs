//! Tests Claude Code from its template, which uses the Messages format with streams. The login is an API key,
//! or a long-lived OAuth token.

use anyhow::Result;
use bottle_test_support::agents;

use super::scene::{Place, Scene, Template, agent};
use super::terminal::{self, Typed};

const HOST: &str = "api.anthropic.com";

pub(crate) const API_KEY: Template<'static> =
    Template { name: "claude", key: "sk-ant-api03-", login: "auth_token: LLM_KEY", arguments: &[] };

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_does_a_task_with_an_api_key() -> Result<()> {
    let Some(claude) = agent("claude headless", agents::claude())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(claude), &API_KEY)?;
    let outcome = scene.start_headless("claude")?;
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.stdout);
    scene.assert_played(0, HOST, true);
    scene.assert_prompted(".claude/skills");
    scene.assert_sent("x-api-key");
    scene.assert_counted("task", HOST);
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_does_a_task_with_the_long_lived_login() -> Result<()> {
    let Some(claude) = agent("claude oauth", agents::claude())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(claude), &Template { key: "sk-ant-oat01-", ..API_KEY })?;
    scene.start_headless("claude")?;
    scene.assert_played(0, HOST, true);
    scene.assert_sent("authorization");
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_continues_without_the_tokens_that_its_commands_print() -> Result<()> {
    let Some(claude) = agent("claude tokens", agents::claude())? else { return Ok(()) };
    let scene = Scene::of_tokens(&Place::Linux(claude), &API_KEY)?;
    let outcome = scene.start_headless("claude")?;
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.stdout);
    scene.assert_redacted();
    Ok(())
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_starts_on_a_terminal_without_questions() -> Result<()> {
    let Some(claude) = agent("claude terminal", agents::claude())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(claude), &API_KEY)?;
    // The screen shows the status line, and the text that Claude Code shows instead of questions about permissions.
    let ready = &["bottle on-a-terminal", "bypass permissions on"];
    terminal::converse(&scene, "claude", &Typed { ready, end: "/exit", choice: "keep" })?;
    scene.assert_played(0, HOST, true);
    scene.assert_key_not_on_disk();
    Ok(())
}
