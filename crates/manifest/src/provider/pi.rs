//! The provider for Pi. Pi's behaviour is taken from its documentation and was measured with version 0.73.1.

use std::collections::BTreeMap;

use bottle_policy::names::{HTTP_PORT, PROMPT_FILE};
use bottle_policy::route::{PathMatch, Pattern, RequestMatch, Route};
use serde_json::{Map, Value, json};

use super::config::{ProviderConfig, ProviderSettings};
use super::endpoint::Endpoint;
use super::{ArgvError, HomeFile, Login, LoginForm, Provider, Run, UnsupportedSetting, api, task_argument};
use crate::origin::Traced;

/// The model provider that is used if the manifest does not name a model provider.
const DEFAULT: &str = "anthropic";

/// The environment variable from which pi reads the API key of a model provider that is not in [`KNOWN`]. The variable
/// contains a placeholder.
const KEY_VARIABLE: &str = "MODEL_API_KEY";

/// The model providers that pi knows by name: the URL and kind of their API, and the environment variable from
/// which pi reads the API key.
const KNOWN: [(&str, &str, Api, &str); 4] = [
    ("anthropic", "https://api.anthropic.com", Api::Messages, "ANTHROPIC_API_KEY"),
    ("openai", "https://api.openai.com/v1", Api::Responses, "OPENAI_API_KEY"),
    ("openrouter", "https://openrouter.ai/api/v1", Api::Chat, "OPENROUTER_API_KEY"),
    ("google", "https://generativelanguage.googleapis.com/v1beta", Api::Google, "GEMINI_API_KEY"),
];

/// The wire format of a model API, named as in pi's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Messages,
    Chat,
    Responses,
    Google,
}

const APIS: [(&str, Api); 4] = [
    ("anthropic-messages", Api::Messages),
    ("openai-completions", Api::Chat),
    ("openai-responses", Api::Responses),
    ("google-generative-ai", Api::Google),
];

/// The instructions that tell the agent how to make proposals.
const PROPOSAL_INSTRUCTIONS: &str = "\
This sandbox reaches only the hosts on its list. When a request is refused with 403, or you know that you will need
a host, ask for it with the command `bottle-ask` (`bottle-ask --help` shows how): a user decides, and what is
approved works at once.
";

/// The provider for Pi.
pub(super) struct Pi;

impl Provider for Pi {
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let model = Model::new(&run.provider.settings);
        let mut argv: Vec<String> = ["pi", "--provider", model.name].map(str::to_owned).into();
        if let Some(first) = run.provider.settings.models.value.first() {
            argv.extend(["--model".to_owned(), first.clone()]);
        }
        if run.has_prompt() {
            argv.extend(["--append-system-prompt".to_owned(), PROMPT_FILE.to_owned()]);
        }
        if run.resumed {
            argv.push("--continue".to_owned());
        }
        argv.extend(run.extra_arguments());
        if !run.terminal {
            argv.push("--print".to_owned());
        }
        if let Some(task) = run.task {
            let task = task_argument(task)?;
            // Pi does not support `--`. A leading space prevents pi from parsing the task as an option or a file.
            argv.push(if task.starts_with(['-', '@']) { format!(" {task}") } else { task });
        }
        Ok(argv)
    }

    fn env(&self, run: &Run<'_>) -> BTreeMap<String, String> {
        let settings = &run.provider.settings;
        let model = Model::new(settings);
        let on = |name: &str| (name.to_owned(), "1".to_owned());
        // The proxy would deny the downloads of pi's first run, so `PI_OFFLINE` turns them off. `NODE_NO_WARNINGS`
        // turns off Node's warnings about the proxy variables.
        let mut env: BTreeMap<String, String> = ["PI_OFFLINE", "NODE_NO_WARNINGS"].map(on).into();
        if settings.api_key.is_none() && self.login(run.provider).is_none() {
            env.insert(model.variable().to_owned(), api::OPENAI_KEY.to_owned());
        }
        env
    }

    fn files(&self, run: &Run<'_>) -> Vec<HomeFile> {
        let mut files = vec![HomeFile::json(".pi/agent/settings.json", &settings(&run.provider.settings))];
        if let Ok(endpoint) = Model::new(&run.provider.settings).endpoint() {
            files.push(HomeFile::json(".pi/agent/models.json", &models(&run.provider.settings, &endpoint)));
        }
        if run.supervise {
            // Pi does not support MCP, so pi gets instructions instead.
            files.push(HomeFile { path: ".pi/agent/AGENTS.md", content: PROPOSAL_INSTRUCTIONS.to_owned() });
        }
        files
    }

    fn skills(&self) -> &'static str {
        ".pi/agent/skills"
    }

    /// The directory contains one subdirectory for each working directory, with one file for each conversation.
    fn transcript(&self) -> &'static [&'static str] {
        &[".pi/agent/sessions"]
    }

    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, UnsupportedSetting> {
        let settings = &provider.settings;
        let model = Model::new(settings);
        let endpoint = model.endpoint().map_err(|why| model.base_url_error(provider, why))?;
        let kind = model.api().ok_or_else(|| unknown_api(provider))?;
        let login = self.login(provider);
        if endpoint.port == HTTP_PORT && login.is_some() {
            let why = "is plain HTTP, over which no key is sent; use https, or remove `auth_token`";
            return Err(model.base_url_error(provider, why.to_owned()));
        }
        if model.is_defined() && settings.models.value.is_empty() {
            let message = "`agent_provider.settings.models` is missing: pi does not know this API's models";
            let hint = "list the models' ids, for example `models: [llama3.1]`".to_owned();
            let origin = settings.base_url.as_ref().map_or(&provider.template.origin, |url| &url.origin);
            return Err(UnsupportedSetting { origin: origin.clone(), message: message.to_owned(), hint });
        }
        let matches = vec![kind.requests(&endpoint.path)];
        let mut route = api::route(endpoint.host, matches, login.as_ref());
        route.ports = vec![endpoint.port];
        route.connect_to = endpoint.connect_to;
        Ok(Some(route))
    }

    /// Pi has no login if `base_url` or `api_key` is set without `auth_token`, because a custom API may need no key.
    /// The known model providers all need an API key.
    fn login(&self, provider: &ProviderConfig) -> Option<Login> {
        let settings = &provider.settings;
        let model = Model::new(settings);
        if provider.auth_token.is_none() && (settings.base_url.is_some() || settings.api_key.is_some()) {
            return None;
        }
        let forms = model.api()?.forms(model.variable());
        Some(Login { source: api::token_or_prompt(provider, "API key of the model provider"), forms })
    }
}

/// The model provider that the settings describe.
struct Model<'a> {
    name: &'a str,
    settings: &'a ProviderSettings,
    known: Option<(&'static str, Api, &'static str)>,
}

impl<'a> Model<'a> {
    fn new(settings: &'a ProviderSettings) -> Self {
        let name = settings.provider.as_ref().map_or(DEFAULT, |name| name.value.as_str());
        let known = KNOWN.iter().find(|(known, ..)| *known == name);
        Self { name, settings, known: known.map(|&(_, url, api, variable)| (url, api, variable)) }
    }

    fn endpoint(&self) -> Result<Endpoint, String> {
        let url = self.settings.base_url.as_ref().map(|url| url.value.as_str());
        let url = url.or(self.known.map(|(url, ..)| url));
        Endpoint::parse(url.ok_or("is missing: this model provider has no default URL")?)
    }

    fn base_url_error(&self, provider: &ProviderConfig, why: String) -> UnsupportedSetting {
        let origin = |value: &Option<Traced<String>>| value.as_ref().map(|value| value.origin.clone());
        UnsupportedSetting {
            origin: origin(&self.settings.base_url)
                .or_else(|| origin(&self.settings.provider))
                .unwrap_or_else(|| provider.template.origin.clone()),
            message: format!("`agent_provider.settings.base_url` {why}"),
            hint:
                "for example `base_url: https://models.example.com/v1`, or `http://localhost:11434/v1` for \
                   a server on this machine"
                    .to_owned(),
        }
    }

    /// Returns the API kind from the settings. If the settings name no kind, returns the kind of the known model
    /// provider, or else [`Api::Chat`], which is the most common kind. Returns `None` if the settings name an unknown
    /// kind.
    fn api(&self) -> Option<Api> {
        match &self.settings.api {
            Some(named) => APIS.iter().find(|(name, _)| *name == named.value).map(|(_, api)| *api),
            None => Some(self.known.map_or(Api::Chat, |(_, api, _)| api)),
        }
    }

    /// Returns the environment variable that contains the placeholder for the API key.
    fn variable(&self) -> &'a str {
        let known = self.known.map_or(KEY_VARIABLE, |(.., variable)| variable);
        self.settings.api_key_env.as_ref().map_or(known, |name| name.value.as_str())
    }

    /// Whether `models.json` must define the models. For a known model provider, the data that is built into pi is
    /// better.
    fn is_defined(&self) -> bool {
        self.known.is_none() || compat(self.settings).is_some()
    }
}

fn unknown_api(provider: &ProviderConfig) -> UnsupportedSetting {
    let names: Vec<String> = APIS.iter().map(|(name, _)| format!("`{name}`")).collect();
    let named = provider.settings.api.as_ref();
    UnsupportedSetting {
        origin: named.map_or(&provider.template.origin, |api| &api.origin).clone(),
        message: "`agent_provider.settings.api` is not an API kind of pi".to_owned(),
        hint: format!("use one of {}", names.join(", ")),
    }
}

impl Api {
    /// Returns the requests that a conversation needs. `base` is the path of the API's URL.
    fn requests(self, base: &str) -> RequestMatch {
        let path = match self {
            Self::Messages => "/v1/messages",
            Self::Chat => "/chat/completions",
            Self::Responses => "/responses",
            Self::Google => return google(base),
        };
        api::request("POST", &[&format!("{base}{path}")])
    }

    fn forms(self, variable: &str) -> Vec<LoginForm> {
        let env = BTreeMap::from([(variable.to_owned(), api::OPENAI_KEY.to_owned())]);
        match self {
            // Pi distinguishes the two credential forms by the prefix of its API key.
            Self::Messages => api::anthropic(variable, variable),
            Self::Chat | Self::Responses => api::bearer(env),
            Self::Google => api::bearer(env)
                .into_iter()
                .map(|form| LoginForm {
                    scheme: bottle_policy::credential::Scheme::Header,
                    header: "x-goog-api-key".to_owned(),
                    ..form
                })
                .collect(),
        }
    }
}

/// In Google's API, the name of the model is part of the path, so the path condition is a regular expression.
fn google(base: &str) -> RequestMatch {
    let models = format!("{base}/models");
    let expression = format!("{}/[A-Za-z0-9._-]+:streamGenerateContent", regex_literal(&models));
    // If the pattern does not compile, only the path of the directory matches. The API returns nothing useful for this
    // path.
    let path = Pattern::new(&expression).map_or(PathMatch::Exact(models), PathMatch::Regex);
    RequestMatch { methods: vec!["POST".to_owned()], paths: vec![path], headers: Vec::new() }
}

/// Escapes a text for a regular expression.
fn regex_literal(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_');
    text.chars().map(|c| if plain(c) { c.to_string() } else { format!("\\{c}") }).collect()
}

/// Returns the content of `settings.json`. If the manifest lists several models, pi offers only these models when the
/// user presses the key that switches the model. Without the provider's name, pi would also offer models with the same
/// ids from other providers.
fn settings(settings: &ProviderSettings) -> Value {
    let mut all = json!({"enableInstallTelemetry": false, "collapseChangelog": true});
    let (provider, models) = (Model::new(settings).name, &settings.models.value);
    if models.len() > 1 {
        all["enabledModels"] = models.iter().map(|id| format!("{provider}/{id}")).collect();
    }
    all
}

/// Returns the content of `models.json`: the model provider, with the URL for use through the proxy.
fn models(settings: &ProviderSettings, endpoint: &Endpoint) -> Value {
    let model = Model::new(settings);
    let mut described = Map::new();
    described.insert("baseUrl".to_owned(), json!(endpoint.url));
    let key = settings.api_key.as_ref().map_or(model.variable(), |key| key.value.expose());
    described.insert("apiKey".to_owned(), json!(key));
    if model.is_defined() {
        let ids: Vec<Value> = settings.models.value.iter().map(|id| json!({"id": id})).collect();
        described.insert("models".to_owned(), json!(ids));
        let kind = APIS.iter().find(|(_, api)| model.api() == Some(*api));
        described.insert("api".to_owned(), json!(kind.map(|(name, _)| name)));
    }
    if let Some(compat) = compat(settings) {
        described.insert("compat".to_owned(), Value::Object(compat));
    }
    json!({"providers": {model.name: described}})
}

/// Returns the configured differences between the API and pi's expectations; `None` if no difference is configured.
fn compat(settings: &ProviderSettings) -> Option<Map<String, Value>> {
    let settings = [
        ("maxTokensField", settings.max_tokens_field.as_ref().map(|field| json!(field.value))),
        ("supportsDeveloperRole", settings.supports_developer_role.as_ref().map(|role| json!(role.value))),
        (
            "supportsReasoningEffort",
            settings.supports_reasoning_effort.as_ref().map(|effort| json!(effort.value)),
        ),
    ];
    let compat: Map<String, Value> =
        settings.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    (!compat.is_empty()).then_some(compat)
}
