//! A fake git forge: the API for deploy keys of Gitea or GitHub over TLS, and an OpenSSH server that accepts
//! the registered keys.
//!
//! ```text
//! /api/v1/repos/OWNER/NAME/keys[/ID]  Gitea   ┐             ┌► authorized_keys ─► sshd ─► git
//! /repos/OWNER/NAME/keys[/ID]         GitHub  ┴─► keys ─────┘    (where there is one)
//! ```
//! The server validates requests as the real forges do, and records violations. It can inject faults: error
//! responses, requests without a response, and connections that are closed after the request was processed.
//!
//! [`ToolApi`] is a separate server: the API for pull requests of GitHub or GitLab.

mod github_api;
mod gitlab_api;
mod repository;
mod ssh;
mod tool_api;

pub use ssh::GitHost;
pub use tool_api::{PullRequest, ToolApi};

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::authority::{Alpn, Authority, Leaf};
use crate::body::{Body, whole};
use crate::server::{Answer, Server, handler};

/// The token that the server accepts.
pub const TOKEN: &str = "forge-token-4711-not-anybodys";

/// The only repository of the server.
pub const REPOSITORY: &str = "team/tool";

/// The number of keys on a page of the list. The number is smaller than the number that clients request, as an
/// administrator of a forge can configure it.
const PAGE: usize = 2;

/// The forge whose API the server imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Gitea and Forgejo.
    Gitea,
    /// GitHub.
    Github,
}

/// A fault in the response to a call.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// The server does not process the request, and responds with this status, these headers and this
    /// message.
    Status(u16, Vec<(&'static str, &'static str)>, &'static str),
    /// The server neither processes the request nor responds.
    Hangs,
    /// The server processes the request but does not respond.
    HangsAfter,
    /// The server processes the request, and closes the connection without a response.
    ClosesAfter,
}

/// A registered key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The id of the key.
    pub id: u64,
    /// The title of the key.
    pub title: String,
    /// The public key.
    pub key: String,
    /// Whether the key allows only fetches.
    pub read_only: bool,
}

/// A running fake forge.
pub struct Forge {
    server: Server,
    dialect: Dialect,
    state: Arc<State>,
}

struct State {
    dialect: Dialect,
    authorized: Option<Authorized>,
    inner: Mutex<Inner>,
}

/// The `authorized_keys` file of the OpenSSH server, and the command for its keys.
struct Authorized {
    file: PathBuf,
    serve: PathBuf,
}

#[derive(Default)]
struct Inner {
    keys: Vec<Key>,
    made: u64,
    calls: Vec<String>,
    faults: Vec<String>,
    troubles: Vec<(Method, Trouble)>,
}

impl Forge {
    /// Starts a forge without a git server.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen.
    pub fn start(dialect: Dialect, authority: &Authority) -> Result<Self> {
        Self::with(dialect, authority, None)
    }

    /// Starts a forge whose registered keys give access to the git server `host`.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen.
    pub fn before(dialect: Dialect, authority: &Authority, host: &GitHost) -> Result<Self> {
        let authorized = Authorized { file: host.authorized(), serve: host.serve() };
        Self::with(dialect, authority, Some(authorized))
    }

    fn with(dialect: Dialect, authority: &Authority, authorized: Option<Authorized>) -> Result<Self> {
        let tls = authority.server_config(&["127.0.0.1", "localhost"], Leaf::Valid, Alpn::Both)?;
        let state = Arc::new(State { dialect, authorized, inner: Mutex::default() });
        let server = Server::start(0, Some(tls), handler(state.clone(), answer))?;
        Ok(Self { server, dialect, state })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the value for `api_url` in a manifest.
    #[must_use]
    pub fn api(&self) -> String {
        let base = format!("https://127.0.0.1:{}", self.address().port());
        match self.dialect {
            Dialect::Gitea => format!("{base}/api/v1"),
            Dialect::Github => base,
        }
    }

    /// Returns the registered keys.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.state.lock().keys.clone()
    }

    /// Registers a key of another user.
    pub fn add(&self, title: &str, key: &str) {
        self.state.add(title, key, true);
    }

    /// Returns all calls so far, as `METHOD PATH`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    /// Returns the violations of the real API in the requests so far.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.state.lock().faults.clone()
    }

    /// Injects this fault into the next call with this method.
    pub fn next(&self, method: Method, trouble: Trouble) {
        self.state.lock().troubles.push((method, trouble));
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, title: &str, key: &str, read_only: bool) -> u64 {
        let mut inner = self.lock();
        inner.made += 1;
        // The ids have gaps, so that an index in a list cannot be mistaken for an id.
        let id = 1000 + 7 * inner.made;
        inner.keys.push(Key { id, title: title.to_owned(), key: key.to_owned(), read_only });
        self.let_in(&inner.keys);
        id
    }

    fn let_in(&self, keys: &[Key]) {
        let Some(Authorized { file, serve }) = &self.authorized else { return };
        let lines = keys.iter().map(|key| {
            let rights = if key.read_only { "read" } else { "write" };
            format!("command=\"{} {rights}\",restrict {}\n", serve.display(), key.key)
        });
        write(file, &lines.collect::<String>());
    }

    /// Records violations that the real API would refuse or not understand.
    fn judge(&self, method: &Method, headers: &HeaderMap) {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut wanted = vec![("user-agent", "bottle/")];
        match self.dialect {
            Dialect::Gitea => wanted.push(("accept", "application/json")),
            Dialect::Github => {
                wanted.extend([
                    ("accept", "application/vnd.github+json"),
                    ("x-github-api-version", "2022-11-28"),
                ]);
            }
        }
        if method == Method::POST {
            wanted.push(("content-type", "application/json"));
        }
        let faults = wanted.iter().filter(|(name, value)| !header(name).starts_with(value));
        self.lock().faults.extend(faults.map(|(name, _)| format!("{method}: {name}: {}", header(name))));
    }

    fn trusts(&self, headers: &HeaderMap) -> bool {
        let given = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let scheme = match self.dialect {
            Dialect::Gitea => "token",
            Dialect::Github => "Bearer",
        };
        given == format!("{scheme} {TOKEN}")
    }

    fn trouble(&self, method: &Method) -> Option<Trouble> {
        let mut inner = self.lock();
        let at = inner.troubles.iter().position(|(of, _)| of == method)?;
        Some(inner.troubles.remove(at).1)
    }

    /// Carries out a request, and returns the response.
    fn serve(&self, method: &Method, path: &str, query: &str, body: &[u8]) -> (StatusCode, Value) {
        let base = match self.dialect {
            Dialect::Gitea => format!("/api/v1/repos/{REPOSITORY}/keys"),
            Dialect::Github => format!("/repos/{REPOSITORY}/keys"),
        };
        let message = |text: &str| json!({"message": text, "documentation_url": "https://docs.example.com"});
        let Some(rest) = path.strip_prefix(&base) else {
            return (StatusCode::NOT_FOUND, message("Not Found"));
        };
        let id = rest.strip_prefix('/').and_then(|id| id.parse::<u64>().ok());
        match (method, id) {
            (&Method::GET, None) => (StatusCode::OK, self.list(query)),
            (&Method::POST, None) => self.register(body),
            (&Method::DELETE, Some(id)) => {
                let mut inner = self.lock();
                let before = inner.keys.len();
                inner.keys.retain(|key| key.id != id);
                self.let_in(&inner.keys);
                match inner.keys.len() < before {
                    true => (StatusCode::NO_CONTENT, Value::Null),
                    false => (StatusCode::NOT_FOUND, message("Not Found")),
                }
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, message("Method Not Allowed")),
        }
    }

    fn list(&self, query: &str) -> Value {
        let page = query.split('&').find_map(|pair| pair.strip_prefix("page=")?.parse::<usize>().ok());
        let keys = self.lock().keys.clone();
        let page = keys.iter().skip((page.unwrap_or(1).max(1) - 1) * PAGE).take(PAGE);
        // The key gets a comment, because a real forge returns the comment that a client sent.
        let shown = |key: &Key| json!({"id": key.id, "key": format!("{} somebody", key.key), "title": key.title, "read_only": key.read_only});
        page.map(shown).collect()
    }

    fn register(&self, body: &[u8]) -> (StatusCode, Value) {
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return (StatusCode::BAD_REQUEST, json!({"message": "Problems parsing JSON"}));
        };
        let (Some(title), Some(key), Some(read_only)) =
            (body["title"].as_str(), body["key"].as_str(), body["read_only"].as_bool())
        else {
            self.lock().faults.push(format!("POST: {body}"));
            return (
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({"message": "title, key or read_only is missing"}),
            );
        };
        let taken = |same: &dyn Fn(&Key) -> bool| self.lock().keys.iter().any(same);
        // In Gitea, titles of keys are unique. In GitHub, they are not.
        if self.dialect == Dialect::Gitea && taken(&|known| known.title == title) {
            return (StatusCode::UNPROCESSABLE_ENTITY, json!({"message": "Key title has been used"}));
        }
        if taken(&|known| known.key == key) {
            let errors =
                json!([{"resource": "PublicKey", "field": "key", "message": "key is already in use"}]);
            return (
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({"message": "Validation Failed", "errors": errors}),
            );
        }
        let is_ed25519 =
            key.strip_prefix("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI").is_some_and(|rest| rest.len() == 43);
        if !is_ed25519 {
            self.lock().faults.push(format!("POST: no key: {key}"));
            return (StatusCode::UNPROCESSABLE_ENTITY, json!({"message": "key is invalid"}));
        }
        let id = self.add(title, key, read_only);
        (
            StatusCode::CREATED,
            json!({"id": id, "key_id": 1, "title": title, "key": key, "read_only": read_only}),
        )
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    let (method, path) = (head.method, head.uri.path().to_owned());
    state.lock().calls.push(format!("{method} {path}"));
    state.judge(&method, &head.headers);
    let trouble = state.trouble(&method);
    match &trouble {
        Some(Trouble::Status(status, headers, message)) => {
            let body = json!({"message": message});
            return Some(response(StatusCode::from_u16(*status).ok()?, headers, &body));
        }
        Some(Trouble::Hangs) => std::future::pending().await,
        _ => {}
    }
    let (status, answer) = match state.trusts(&head.headers) {
        true => state.serve(&method, &path, head.uri.query().unwrap_or_default(), &body),
        false => (StatusCode::UNAUTHORIZED, json!({"message": "invalid username, password or token"})),
    };
    match trouble {
        Some(Trouble::HangsAfter) => std::future::pending().await,
        Some(Trouble::ClosesAfter) => None,
        _ => Some(response(status, &[], &answer)),
    }
}

fn response(status: StatusCode, headers: &[(&'static str, &'static str)], body: &Value) -> Response<Body> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let mut response = Response::new(whole(text));
    *response.status_mut() = status;
    for (name, value) in headers {
        response.headers_mut().insert(*name, http::HeaderValue::from_static(value));
    }
    response
}

/// Replaces the file atomically, because sshd may read it at any time.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    // If a handler panics, its message is printed and its client gets no response.
    assert!(written.is_ok(), "the forge cannot write {}: {written:?}", path.display());
}
