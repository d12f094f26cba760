//! The model APIs: which requests an agent needs of one, and how each is logged in to.

use std::collections::BTreeMap;

use bottle_contract::credential::Scheme;
use bottle_contract::route::{Auth, AuthSource, HostPattern, PathMatch, RequestMatch, Route, WebSocket};

use super::config::ProviderConfig;
use super::{Login, LoginForm, LoginSource};

/// What an agent holds in place of an API key of Anthropic's. Shaped like one for programs that look at
/// its beginning, and too short to be taken for one.
pub(super) const ANTHROPIC_KEY: &str = "sk-ant-api03-placeholder-the-proxy-adds-the-real-one";

/// The same for the long-lived login that `claude setup-token` prints.
pub(super) const ANTHROPIC_OAUTH: &str = "sk-ant-oat01-placeholder-the-proxy-adds-the-real-one";

/// The same for keys of OpenAI's, and whatever has no shape of its own.
pub(super) const OPENAI_KEY: &str = "sk-placeholder-the-proxy-adds-the-real-one";

/// What a login of Anthropic's begins with when it is no API key.
const ANTHROPIC_OAUTH_PREFIX: &str = "sk-ant-oat";

/// The two kinds of credential that Anthropic's API takes, the agent reading each from its own variable.
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

/// The one kind that goes as `Authorization: Bearer`.
pub(super) fn bearer(env: BTreeMap<String, String>) -> Vec<LoginForm> {
    let (scheme, header) = (Scheme::Bearer, "authorization".to_owned());
    vec![LoginForm { prefix: String::new(), scheme, header, env }]
}

/// `auth_token`, else a question.
pub(super) fn token_or(provider: &ProviderConfig, question: &'static str) -> LoginSource {
    match &provider.auth_token {
        Some(token) => LoginSource::Token(token.value.clone()),
        None => LoginSource::Asked(question),
    }
}

/// A provider's own route.
pub(super) fn route(host: HostPattern, matches: Vec<RequestMatch>, login: Option<&Login>) -> Route {
    Route {
        matches,
        // Codex tries one first and falls back at once on the answer; nobody else asks for any.
        websocket: WebSocket::Refuse,
        provider: true,
        auth: login.and_then(auth),
        ..Route::to(host)
    }
}

fn auth(login: &Login) -> Option<Auth> {
    let form = login.forms.last()?;
    let source = AuthSource::Reference(login.source.words());
    Some(Auth { scheme: form.scheme, header: form.header.clone(), source })
}

impl LoginSource {
    /// What stands for it where a manifest has a secret reference.
    fn words(&self) -> String {
        match self {
            Self::Token(reference) => reference.to_string(),
            Self::Asked(_) => "asked on the terminal".to_owned(),
            Self::CodexHost => "codex's own login".to_owned(),
        }
    }
}

/// A request to one of these paths.
pub(super) fn request(method: &str, paths: &[&str]) -> RequestMatch {
    let exact = |path: &&str| PathMatch::Exact((*path).to_owned());
    RequestMatch {
        methods: vec![method.to_owned()],
        paths: paths.iter().map(exact).collect(),
        headers: vec![],
    }
}
