//! Tests pi in all three wire formats, with streams. pi reads certificates only from the variable
//! `NODE_EXTRA_CA_CERTS`.

use anyhow::Result;
use bottle_test_support::agents;

use super::scene::{Place, Scene, Setting, Template, agent};
use super::terminal::{self, Typed};

/// A wire format: pi's name of a provider that uses it, a model of this provider, the host and path of the
/// API, and how the key is sent.
struct Format {
    provider: &'static str,
    model: &'static str,
    host: &'static str,
    path: &'static str,
    auth: &'static str,
}

const MESSAGES: Format = Format {
    provider: "anthropic",
    model: "claude-sonnet-4-5",
    host: "api.anthropic.com",
    path: "/v1/messages",
    auth: "scheme: header, header: x-api-key",
};
const RESPONSES: Format = Format {
    provider: "openai",
    model: "gpt-5.1",
    host: "api.openai.com",
    path: "/v1/responses",
    auth: "scheme: Bearer",
};
const CHAT: Format = Format {
    provider: "openrouter",
    model: "openai/gpt-5.1",
    host: "openrouter.ai",
    path: "/api/v1/chat/completions",
    auth: "scheme: Bearer",
};

fn plays(test: &str, format: &Format, proxied: bool) -> Result<()> {
    let Some(pi) = agent(test, agents::pi())? else { return Ok(()) };
    let setting = Setting {
        command: &["pi", "-p", "--provider", format.provider, "--model", format.model, "{task}"],
        image: None,
        env: &[
            ("ANTHROPIC_API_KEY", "a-placeholder"),
            ("OPENAI_API_KEY", "a-placeholder"),
            ("OPENROUTER_API_KEY", "a-placeholder"),
            // Prevents pi from searching for a newer version, because the host of pi's releases has no route, and
            // `bottle` would report the denial.
            ("PI_OFFLINE", "1"),
        ],
        host: format.host,
        method: "POST",
        path: format.path,
        auth: format.auth,
        proxied,
    };
    let scene = Scene::new(&pi, "pi", &setting)?;
    let outcome = scene.bottle(&[
        "start",
        "pi",
        "--backend",
        "linux",
        "--yes",
        "--label",
        "pi",
        "-p",
        "Do the scripted task.",
    ])?;
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.stdout);
    scene.assert_played(0, format.host, proxied);
    scene.assert_counted("pi", format.host);
    assert!(scene.llm.seen().iter().all(|seen| seen.streamed), "pi streams");
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
fn streams_messages_through_the_proxy_variables() -> Result<()> {
    plays("pi messages", &MESSAGES, true)
}

#[test]
fn streams_messages_through_the_transparent_proxy() -> Result<()> {
    plays("pi messages transparent", &MESSAGES, false)
}

#[test]
fn streams_responses_through_the_proxy_variables() -> Result<()> {
    plays("pi responses", &RESPONSES, true)
}

#[test]
fn streams_chat_completions_through_the_transparent_proxy() -> Result<()> {
    plays("pi chat transparent", &CHAT, false)
}

pub(crate) const TEMPLATE: Template<'static> =
    Template { name: "pi", key: "sk-ant-api03-", login: "auth_token: LLM_KEY", arguments: &[] };

#[test]
fn the_template_does_a_task() -> Result<()> {
    let Some(pi) = agent("pi template", agents::pi())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(pi), &TEMPLATE)?;
    let outcome = scene.start_headless("pi")?;
    assert!(!outcome.stderr.contains("the proxy denied"), "{}", outcome.stderr);
    scene.assert_played(0, "api.anthropic.com", true);
    scene.assert_prompted(".pi/agent/skills");
    scene.assert_sent("x-api-key");
    scene.assert_counted("task", "api.anthropic.com");
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
fn the_template_continues_without_the_tokens_that_its_commands_print() -> Result<()> {
    let Some(pi) = agent("pi tokens", agents::pi())? else { return Ok(()) };
    let scene = Scene::of_tokens(&Place::Linux(pi), &TEMPLATE)?;
    scene.start_headless("pi")?;
    scene.assert_redacted();
    Ok(())
}

#[test]
fn the_template_starts_on_a_terminal_without_questions() -> Result<()> {
    let Some(pi) = agent("pi terminal", agents::pi())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(pi), &TEMPLATE)?;
    terminal::converse(&scene, "pi", &Typed { ready: &["pi v", "/workspace"], end: "\x04", choice: "keep" })?;
    scene.assert_played(0, "api.anthropic.com", true);
    scene.assert_key_not_on_disk();
    Ok(())
}

/// Tests that pi starts with the first model of the manifest, and that pi's key for the next model offers only the
/// other models of the manifest.
#[test]
fn the_template_offers_each_model_of_the_manifest() -> Result<()> {
    let Some(pi) = agent("pi models", agents::pi())? else { return Ok(()) };
    let mut scene = Scene::of_template(&Place::Linux(pi), &TEMPLATE)?;
    let manifest = std::fs::read_to_string(scene.home.bottle_home().join("bottles/pi.md"))?;
    let models = "settings: {models: [claude-sonnet-4-5, claude-haiku-4-5], ";
    scene.home.bottle("pi", &manifest.replace("settings: {", models))?;
    let mut pty = scene.home.on_terminal(&["start", "pi", "--yes", "--label", "models"], 40, 100)?;
    let next_model = "\x10";
    pty.wait_for("pi v")?;
    for model in ["claude-sonnet-4-5", "claude-haiku-4-5", "claude-sonnet-4-5"] {
        // The last line names the current model.
        pty.wait_until(model, |screen| {
            screen.trim_end().lines().next_back().is_some_and(|last| last.contains(model))
        })?;
        pty.type_keys(next_model)?;
    }
    pty.wait_until("the second model again", |screen| {
        screen.trim_end().lines().next_back().is_some_and(|last| last.contains("claude-haiku-4-5"))
    })?;
    pty.type_keys("\x04")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}
