//! Tests codex from its template, which uses the Responses format with streams after the proxy has refused a WebSocket.
//! The login is an API key, or the ChatGPT login of this machine. With a model provider that the user defines, codex
//! uses a WebSocket.

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bottle_test_support::agents::{self, Agent};
use serde_json::json;

use super::scene::{Place, Scene, Setting, Template, agent};
use super::terminal::{self, Typed};

/// Selects a model with which codex needs only its program. With other models, codex needs more files of its package,
/// which the tests do not install.
const MODEL: [&str; 2] = ["-m", "gpt-5.1-codex"];

pub(crate) const API_KEY: Template<'static> =
    Template { name: "codex", key: "", login: "auth_token: LLM_KEY", arguments: &MODEL };

/// The host of a user's own model provider.
pub(crate) const OWN_HOST: &str = "llm.example";

/// Creates a bottle in which codex reaches the model over a WebSocket. The bottle's route allows no other kind of
/// request.
pub(crate) fn over_a_websocket(codex: &Agent) -> Result<Scene> {
    let own = format!(
        "model_providers.own={{name=\"own\",base_url=\"https://{OWN_HOST}/v1\",env_key=\"OWN_KEY\",\
         wire_api=\"responses\",supports_websockets=true}}"
    );
    let command = [
        &["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"][..],
        &MODEL,
        &["-c", "model_provider=\"own\"", "-c", &own, "{task}"],
    ]
    .concat();
    let setting = Setting {
        command: &command,
        image: None,
        env: &[("OWN_KEY", "a-placeholder")],
        host: OWN_HOST,
        method: "GET",
        path: "/v1/responses",
        auth: "scheme: Bearer",
        proxied: true,
    };
    Scene::new(codex, "codex", &setting)
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_is_metered_over_a_websocket() -> Result<()> {
    let Some(codex) = agent("codex over a websocket", agents::codex())? else { return Ok(()) };
    let scene = over_a_websocket(&codex)?;
    let outcome = scene.start_headless("codex")?;
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.stdout);
    scene.assert_played(0, OWN_HOST, true);
    let calls = scene.llm.seen();
    assert!(
        calls.iter().filter(|call| call.step.is_some()).all(|call| call.protocol == "WebSocket"),
        "{calls:?}"
    );
    scene.assert_counted("task", OWN_HOST);
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_does_a_task_with_an_api_key() -> Result<()> {
    let Some(codex) = agent("codex headless", agents::codex())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(codex), &API_KEY)?;
    let outcome = scene.start_headless("codex")?;
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.stdout);
    // The user is not notified of the refused WebSocket, and codex makes no other request that the proxy
    // denies.
    assert!(!outcome.stderr.contains("the proxy denied"), "{}", outcome.stderr);
    scene.assert_played(0, "api.openai.com", true);
    scene.assert_prompted(".codex/skills");
    scene.assert_sent("authorization");
    scene.assert_counted("task", "api.openai.com");
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_does_a_task_with_the_login_of_this_machine() -> Result<()> {
    let Some(codex) = agent("codex login", agents::codex())? else { return Ok(()) };
    let claims = URL_SAFE_NO_PAD.encode(json!({"exp": 4_000_000_000u32}).to_string());
    let template = Template {
        key: &format!("e30.{claims}."),
        login: "forward_host_credentials: true",
        // The fake model cannot decompress request bodies.
        arguments: &[&MODEL[..], &["-c", "features.enable_request_compression=false"]].concat(),
        ..API_KEY
    };
    let mut scene = Scene::of_template(&Place::Linux(codex), &template)?;
    let login = tempfile::tempdir()?;
    let tokens = json!({"access_token": scene.llm.key(), "account_id": "account-1", "refresh_token": "none"});
    std::fs::write(login.path().join("auth.json"), json!({"tokens": tokens}).to_string())?;
    scene.home.env("CODEX_HOME", login.path());
    scene.start_headless("codex")?;
    scene.assert_played(0, "chatgpt.com", true);
    scene.assert_counted("task", "chatgpt.com");
    scene.assert_sent("authorization");
    let calls = scene.llm.seen();
    let account = |name: &str, value: &str| (name, value) == ("chatgpt-account-id", "account-1");
    assert!(calls.iter().all(|call| call.headers.iter().any(|(name, value)| account(name, value))));
    scene.assert_key_not_on_disk();
    Ok(())
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_starts_on_a_terminal_without_questions() -> Result<()> {
    let Some(codex) = agent("codex terminal", agents::codex())? else { return Ok(()) };
    let scene = Scene::of_template(&Place::Linux(codex), &API_KEY)?;
    let ready = &["YOLO mode", "Ask Codex to do anything"];
    terminal::converse(&scene, "codex", &Typed { ready, end: "/exit", choice: "keep" })?;
    scene.assert_played(0, "api.openai.com", true);
    scene.assert_key_not_on_disk();
    Ok(())
}
