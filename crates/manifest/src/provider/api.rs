//! Routes and credential forms of the model APIs.

use std::collections::BTreeMap;

use bottle_policy::credential::Scheme;
use bottle_policy::route::{Auth, AuthSource, HostPattern, PathMatch, RequestMatch, Route, WebSocket};

use super::config::ProviderConfig;
use super::{Login, LoginForm, LoginSource};

/// The placeholder for an Anthropic API key. The placeholder has the prefix of a key, because some programs check the
/// prefix. The placeholder is too short for the scanner to detect it as a key.
pub(super) const ANTHROPIC_KEY: &str = "sk-ant-api03-placeholder-the-proxy-adds-the-real-one";

/// The placeholder for the long-lived token of `claude setup-token`.
pub(super) const ANTHROPIC_OAUTH: &str = "sk-ant-oat01-placeholder-the-proxy-adds-the-real-one";

/// The placeholder for an OpenAI key, and for keys without a fixed form.
pub(super) const OPENAI_KEY: &str = "sk-placeholder-the-proxy-adds-the-real-one";

/// The prefix of an Anthropic token that is not an API key.
const ANTHROPIC_OAUTH_PREFIX: &str = "sk-ant-oat";

/// Returns the two credential forms of Anthropic's API. The agent reads each of them from a different
/// variable.
pub(super) fn anthropic(key: &str, oauth: &str) -> Vec<LoginForm> {
    let form = |prefix: &str, scheme, header: &str, variable: &str, placeholder: &str| LoginForm {
        prefix: prefix.to_owned(),
        scheme,
        header: header.to_owned(),
        env: BTreeMap::from([(variable.to_owned(), placeholder.to_owned())]),
    };
    vec![
        form(ANTHROPIC_OAUTH_PREFIX, Scheme::Bearer, "authorization", oauth, ANTHROPIC_OAUTH),
        form("", Scheme::Header, "x-api-key", key, ANTHROPIC_KEY),
    ]
}

/// Returns the form with the header `Authorization: Bearer`.
pub(super) fn bearer(env: BTreeMap<String, String>) -> Vec<LoginForm> {
    let (scheme, header) = (Scheme::Bearer, "authorization".to_owned());
    vec![LoginForm { prefix: String::new(), scheme, header, env }]
}

/// Returns the source of the login: `auth_token` if it is set, otherwise a prompt.
pub(super) fn token_or_prompt(provider: &ProviderConfig, question: &'static str) -> LoginSource {
    match &provider.auth_token {
        Some(token) => LoginSource::Token(token.value.clone()),
        None => LoginSource::Prompt(question),
    }
}

/// Creates a provider route.
pub(super) fn route(host: HostPattern, matches: Vec<RequestMatch>, login: Option<&Login>) -> Route {
    Route {
        matches,
        // Only Codex tries to open a WebSocket. If the WebSocket is refused, Codex uses ordinary requests without
        // delay.
        websocket: WebSocket::Refuse,
        provider: true,
        auth: login.and_then(auth),
        ..Route::to(host)
    }
}

fn auth(login: &Login) -> Option<Auth> {
    let form = login.forms.last()?;
    let source = AuthSource::Reference(login.source.describe());
    Some(Auth { scheme: form.scheme, header: form.header.clone(), source })
}

impl LoginSource {
    /// Describes the source of the login, for routes without a secret reference in the manifest.
    fn describe(&self) -> String {
        match self {
            Self::Token(reference) => reference.to_string(),
            Self::Prompt(_) => "asked on the terminal".to_owned(),
            Self::CodexHost => "codex's own login".to_owned(),
        }
    }
}

/// Returns a matcher for requests with this method to one of these paths.
pub(super) fn request(method: &str, paths: &[&str]) -> RequestMatch {
    let exact = |path: &&str| PathMatch::Exact((*path).to_owned());
    RequestMatch {
        methods: vec![method.to_owned()],
        paths: paths.iter().map(exact).collect(),
        headers: vec![],
    }
}
