//! Codex. Facts measured with 0.169.0.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bottle_contract::names::{SUPERVISE_HOST, WORKSPACE};
use bottle_contract::route::{HostPattern, Route};
use serde_json::{Value, json};

use super::config::ProviderConfig;
use super::{ArgvError, HomeFile, Login, LoginSource, Provider, Run, Unfit, api, asks, task_argument};

/// The host of OpenAI's API, for keys.
const API_HOST: &str = "api.openai.com";

/// The host that a ChatGPT login is good for.
const CHATGPT_HOST: &str = "chatgpt.com";

/// What it reads its key from without a terminal; on one it wants it in its login's file.
const KEY_VARIABLE: &str = "CODEX_API_KEY";

/// Where its login lies.
const LOGIN_FILE: &str = ".codex/auth.json";

/// A time that every program has ahead of it: 2100-01-01, so that nothing inside tries to renew what is
/// renewed outside.
const FAR: (i64, &str) = (4_102_444_800, "2100-01-01T00:00:00Z");

/// Its settings. The daemon would outlive a run, and is refused where the program stands by itself; the
/// other features ask hosts that no bottle of codex's reaches.
const CONFIG: &str = r"check_for_update_on_startup = false

[analytics]
enabled = false

[features]
api_key_model_discovery = false
apps = false
daemon_auto_start = false
plugins = false
";

/// See the module.
pub(super) struct Codex;

impl Provider for Codex {
    /// The bottle is the sandbox: codex's own cannot start in it, and nobody is asked.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let words: &[&str] = match (run.terminal, run.resumed) {
            (true, false) => &["codex"],
            // What was done without a terminal counts as a conversation to go on with, too.
            (true, true) => &["codex", "resume", "--last", "--include-non-interactive"],
            (false, false) => &["codex", "exec", "--skip-git-repo-check"],
            (false, true) => &["codex", "exec", "resume", "--last", "--skip-git-repo-check"],
        };
        let mut argv: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        argv.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
        argv.extend(run.added());
        if let Some(task) = run.task {
            // Behind `--`, so that a task that begins with a dash is no option.
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
            // As `codex mcp add --url` writes it; a call waits for a user for 45 seconds.
            let server = format!("url = \"{}\"\ntool_timeout_sec = 60\n", asks());
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

    /// One file for each conversation, by day. The databases beside it are made again from these.
    fn transcript(&self) -> &'static [&'static str] {
        &[".codex/sessions"]
    }

    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, Unfit> {
        let (host, matches) = if forwards(provider) {
            let posts = ["/backend-api/codex/responses", "/backend-api/codex/responses/compact"];
            // Which of the account's places it is to talk to, and what is left of the account's allowance.
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
            false => api::token_or(provider, "OpenAI API key"),
        };
        Some(Login { source, forms: api::bearer(BTreeMap::new()) })
    }
}

fn forwards(provider: &ProviderConfig) -> bool {
    provider.forward_host_credentials.value
}

/// The login's file for a bottle whose real one is a ChatGPT login on the host: of the same shape, with
/// the account's id, which every request names beside its credential, and nothing else of the real one.
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
        "last_refresh": FAR.1,
    });
    HomeFile::json(LOGIN_FILE, &login)
}

/// The token in it, which is read and never checked inside.
#[must_use]
pub fn placeholder_token(account: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "email": "agent@bottle.invalid",
        "exp": FAR.0,
        "https://api.openai.com/auth": {
            "chatgpt_account_id": account,
            "chatgpt_plan_type": "unknown",
            "chatgpt_user_id": "agent",
        },
    });
    let signature = URL_SAFE_NO_PAD.encode("placeholder");
    format!("{}.{}.{signature}", part(&json!({"alg": "none", "typ": "JWT"})), part(&claims))
}
