//! The provider for Claude Code. Its behaviour was measured with version 2.1.328.

use std::collections::BTreeMap;

use bottle_policy::names::{PROMPT_FILE, SUPERVISE_HOST, WORKSPACE};
use bottle_policy::route::{HostPattern, Route};
use serde_json::json;

use super::config::ProviderConfig;
use super::{
    ArgvError, HomeFile, Login, Provider, Run, UnsupportedSetting, api, supervise_url, task_argument,
};

/// The host of Claude Code's model API.
const HOST: &str = "api.anthropic.com";

/// Claude Code identifies an approved key by the last 20 characters of the key.
const APPROVED_SUFFIX: usize = 20;

/// The provider for Claude Code.
pub(super) struct Claude;

impl Provider for Claude {
    /// The bottle is the sandbox, so Claude Code is started without its permission prompts.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let mut argv = vec!["claude".to_owned(), "--dangerously-skip-permissions".to_owned()];
        if run.has_prompt() {
            argv.extend(["--append-system-prompt-file".to_owned(), PROMPT_FILE.to_owned()]);
        }
        if run.resumed {
            argv.push("--continue".to_owned());
        }
        argv.extend(run.extra_arguments());
        if !run.terminal {
            argv.push("--print".to_owned());
        }
        if let Some(task) = run.task {
            // The task follows `--`, so that a task that begins with a dash is not parsed as an option.
            argv.extend(["--".to_owned(), task_argument(task)?]);
        }
        Ok(argv)
    }

    fn env(&self, _: &Run<'_>) -> BTreeMap<String, String> {
        let on = |name: &str| (name.to_owned(), "1".to_owned());
        [
            // These variables turn off telemetry, reports, updates and plugins, which the proxy would deny
            // anyway.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL",
            // As root, Claude Code skips its permission prompts only if this variable says that it runs in a
            // sandbox.
            "IS_SANDBOX",
        ]
        .map(on)
        .into()
    }

    fn files(&self, run: &Run<'_>) -> Vec<HomeFile> {
        let approved = &api::ANTHROPIC_KEY[api::ANTHROPIC_KEY.len() - APPROVED_SUFFIX..];
        let mut state = json!({
            "hasCompletedOnboarding": true,
            "customApiKeyResponses": {"approved": [approved], "rejected": []},
            "projects": {WORKSPACE: {"hasTrustDialogAccepted": true}},
        });
        if run.supervise {
            // The entry that `claude mcp add --scope user --transport http` would write. `alwaysLoad` adds
            // the server's few tools to the prompt. Otherwise, a model whose request was denied would not
            // search for these tools.
            state["mcpServers"] =
                json!({SUPERVISE_HOST: {"type": "http", "url": supervise_url(), "alwaysLoad": true}});
        }
        let settings = json!({
            "skipDangerousModePermissionPrompt": true,
            // The setting turns off a check in which Claude Code asks its API about every site. In a bottle, the proxy
            // decides which sites the agent may access.
            "skipWebFetchPreflight": true,
            "statusLine": {"type": "command", "command": status_line(run)},
        });
        vec![HomeFile::json(".claude.json", &state), HomeFile::json(".claude/settings.json", &settings)]
    }

    fn skills(&self) -> &'static str {
        ".claude/skills"
    }

    /// The directory contains one subdirectory for each working directory, with the conversations and the memory of
    /// this working directory.
    fn transcript(&self) -> &'static [&'static str] {
        &[".claude/projects"]
    }

    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, UnsupportedSetting> {
        let posts = ["/v1/messages", "/v1/messages/count_tokens"];
        // These requests read the settings and limits of the organisation that owns the key.
        let reads = ["/api/claude_code/settings", "/api/claude_code/policy_limits"];
        let matches = vec![api::request("POST", &posts), api::request("GET", &reads)];
        let host = HostPattern::Exact(HOST.to_owned());
        Ok(Some(api::route(host, matches, self.login(provider).as_ref())))
    }

    fn login(&self, provider: &ProviderConfig) -> Option<Login> {
        let question = "Anthropic API key, or the token from `claude setup-token`";
        Some(Login {
            source: api::token_or_prompt(provider, question),
            forms: api::anthropic("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
        })
    }
}

/// Returns the command for the status line, which prints the bottle's name in its colour.
fn status_line(run: &Run<'_>) -> String {
    let color = match run.color {
        Some("red") => 31,
        Some("green") => 32,
        Some("yellow") => 33,
        Some("blue") => 34,
        Some("magenta") => 35,
        _ => 36,
    };
    let text = format!("bottle {}", run.name.replace(char::is_control, " "));
    let text = shlex::try_quote(&text).map_or_else(|_| "bottle".to_owned(), Into::into);
    format!("printf '\\033[{color}m%s\\033[0m' {text}")
}
