//! The provider for Codex. Its behaviour was measured with version 0.169.0.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bottle_policy::names::{SUPERVISE_HOST, WORKSPACE};
use bottle_policy::route::{HostPattern, Route};
use serde_json::{Value, json};

use super::config::ProviderConfig;
use super::{
    ArgvError, HomeFile, Login, LoginSource, Provider, Run, UnsupportedSetting, api, supervise_url,
    task_argument,
};

/// The host of codex's model API with an API key.
const API_HOST: &str = "api.openai.com";

/// The host of codex's model API with a ChatGPT login.
const CHATGPT_HOST: &str = "chatgpt.com";

/// The environment variable from which codex reads its API key if it has no terminal. On a terminal, codex reads
/// [`LOGIN_FILE`].
const KEY_VARIABLE: &str = "CODEX_API_KEY";

/// The file in which codex stores its login.
const LOGIN_FILE: &str = ".codex/auth.json";

/// A date in the far future, 2100-01-01, so that no program in the bottle tries to renew the login.
const FAR_FUTURE: (i64, &str) = (4_102_444_800, "2100-01-01T00:00:00Z");

/// The settings of codex. The daemon of codex is disabled because it would continue to run after the agent, and because
/// it does not work with a standalone binary. The other disabled features need hosts that the provider route does not
/// allow.
const CONFIG: &str = r"check_for_update_on_startup = false

[analytics]
enabled = false

[features]
api_key_model_discovery = false
apps = false
daemon_auto_start = false
plugins = false
";

/// The provider for Codex.
pub(super) struct Codex;

impl Provider for Codex {
    /// The bottle is the sandbox. Codex's own sandbox cannot start in a bottle, so it is disabled together
    /// with the approvals.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let words: &[&str] = match (run.terminal, run.resumed) {
            (true, false) => &["codex"],
            // `--include-non-interactive` includes conversations of runs without a terminal.
            (true, true) => &["codex", "resume", "--last", "--include-non-interactive"],
            (false, false) => &["codex", "exec", "--skip-git-repo-check"],
            (false, true) => &["codex", "exec", "resume", "--last", "--skip-git-repo-check"],
        };
        let mut argv: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        argv.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
        argv.extend(run.extra_arguments());
        if let Some(task) = run.task {
            // The task follows `--`, so that a task that begins with a dash is not parsed as an option.
            argv.extend(["--".to_owned(), task_argument(task)?]);
        }
        Ok(argv)
    }

    fn env(&self, run: &Run<'_>) -> BTreeMap<String, String> {
        let key = (KEY_VARIABLE.to_owned(), api::OPENAI_KEY.to_owned());
        (!forwards(run.provider)).then_some(key).into_iter().collect()
    }

    fn files(&self, run: &Run<'_>) -> Vec<HomeFile> {
        let mut config = format!("{CONFIG}\n[projects.\"{WORKSPACE}\"]\ntrust_level = \"trusted\"\n");
        if run.supervise {
            // The entry that `codex mcp add --url` would write. The timeout is 60 seconds, because by default a tool
            // call waits up to 45 seconds for the user.
            let server = format!("url = \"{}\"\ntool_timeout_sec = 60\n", supervise_url());
            config.push_str(&format!("\n[mcp_servers.{SUPERVISE_HOST}]\n{server}"));
        }
        let mut files = vec![HomeFile { path: ".codex/config.toml", content: config }];
        if run.has_prompt() {
            files.push(HomeFile { path: ".codex/AGENTS.md", content: run.prompt.to_owned() });
        }
        if !forwards(run.provider) {
            files.push(HomeFile::json(LOGIN_FILE, &json!({"OPENAI_API_KEY": api::OPENAI_KEY})));
        }
        files
    }

    fn skills(&self) -> &'static str {
        ".codex/skills"
    }

    /// The directory contains one file for each conversation, sorted into directories by day. Codex rebuilds its
    /// databases from these files.
    fn transcript(&self) -> &'static [&'static str] {
        &[".codex/sessions"]
    }

    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, UnsupportedSetting> {
        let (host, matches) = if forwards(provider) {
            let posts = ["/backend-api/codex/responses", "/backend-api/codex/responses/compact"];
            // These requests read the account's workspace and its remaining quota.
            let reads =
                ["/backend-api/codex/models", "/backend-api/wham/accounts/check", "/backend-api/wham/usage"];
            (CHATGPT_HOST, vec![api::request("POST", &posts), api::request("GET", &reads)])
        } else {
            let posts = ["/v1/responses", "/v1/responses/compact"];
            (API_HOST, vec![api::request("POST", &posts)])
        };
        Ok(Some(api::route(HostPattern::Exact(host.to_owned()), matches, self.login(provider).as_ref())))
    }

    fn login(&self, provider: &ProviderConfig) -> Option<Login> {
        let source = match forwards(provider) {
            true => LoginSource::CodexHost,
            false => api::token_or_prompt(provider, "OpenAI API key"),
        };
        Some(Login { source, forms: api::bearer(BTreeMap::new()) })
    }
}

fn forwards(provider: &ProviderConfig) -> bool {
    provider.forward_host_credentials.value
}

/// Creates a login file with placeholders for a ChatGPT login on the host. The file has the structure of the real login
/// file. It contains the account id of the real login, because this id is part of every request, and no other value of
/// the real login.
#[must_use]
pub fn placeholder_login(account: &str) -> HomeFile {
    let token = placeholder_token(account);
    let login = json!({
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": null,
        "tokens": {
            "id_token": token,
            "access_token": token,
            "refresh_token": "placeholder",
            "account_id": account,
        },
        "last_refresh": FAR_FUTURE.1,
    });
    HomeFile::json(LOGIN_FILE, &login)
}

/// Creates a placeholder for the token. Codex parses the token but does not verify its signature.
#[must_use]
pub fn placeholder_token(account: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "email": "agent@bottle.invalid",
        "exp": FAR_FUTURE.0,
        "https://api.openai.com/auth": {
            "chatgpt_account_id": account,
            "chatgpt_plan_type": "unknown",
            "chatgpt_user_id": "agent",
        },
    });
    let signature = URL_SAFE_NO_PAD.encode("placeholder");
    format!("{}.{}.{signature}", part(&json!({"alg": "none", "typ": "JWT"})), part(&claims))
}
