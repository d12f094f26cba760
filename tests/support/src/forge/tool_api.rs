//! A fake of the part of a forge's API that its command-line program uses for pull requests, for one repository.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

pub use super::repository::PullRequest;
use super::repository::Repository;
use super::{github_api, gitlab_api};
use crate::authority::{Alpn, Authority, Leaf};
use crate::body::whole;
use crate::server::{Answer, Server, handler};

/// A running fake of a forge's API. Its repository is [`super::REPOSITORY`], and it accepts only
/// [`super::TOKEN`].
pub struct ToolApi {
    server: Server,
    state: Arc<State>,
}

/// Answers a request with this head and body.
type Respond = fn(&mut Repository, &Parts, &[u8]) -> (StatusCode, Value);

struct State {
    respond: Respond,
    repository: Mutex<Repository>,
}

impl State {
    fn repository(&self) -> MutexGuard<'_, Repository> {
        self.repository.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToolApi {
    /// Starts GitHub's API, as `gh` uses it, with a certificate for `api.github.com`.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub fn github(authority: &Authority) -> Result<Self> {
        Self::start(authority, "github.com", "api.github.com", github_api::respond)
    }

    /// Starts the API of a GitLab instance, as `glab` uses it, with a certificate for `host`.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub fn gitlab(authority: &Authority, host: &str) -> Result<Self> {
        Self::start(authority, host, host, gitlab_api::respond)
    }

    fn start(authority: &Authority, host: &str, api: &str, respond: Respond) -> Result<Self> {
        let repository = Mutex::new(Repository { host: host.to_owned(), pull_request: None });
        let state = Arc::new(State { respond, repository });
        let tls = authority.server_config(&[api], Leaf::Valid, Alpn::Both)?;
        let server = Server::start(0, Some(tls), handler(Arc::clone(&state), answer))?;
        Ok(Self { server, state })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the pull request that a client created; `None` if no client created a pull request.
    #[must_use]
    pub fn pull_request(&self) -> Option<PullRequest> {
        self.state.repository().pull_request.clone()
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    let (status, answer) = (state.respond)(&mut state.repository(), &head, &body);
    let response =
        Response::builder().status(status).header("content-type", "application/json; charset=utf-8");
    response.body(whole(answer.to_string())).ok()
}
