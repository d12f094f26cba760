//! A fake of the part of GitHub's API that `gh` uses for pull requests, for one repository.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{REPOSITORY, TOKEN};
use crate::authority::{Alpn, Authority, Leaf};
use crate::body::whole;
use crate::server::{Answer, Server, handler};

/// A running fake of GitHub's API. Its repository is [`REPOSITORY`], and it accepts only [`TOKEN`].
pub struct GithubApi {
    server: Server,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Whether a client has created the pull request.
    created: AtomicBool,
    /// The branch of the pull request.
    head: Mutex<String>,
}

impl GithubApi {
    /// Starts the server with a certificate for `api.github.com`.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub fn start(authority: &Authority) -> Result<Self> {
        let state = Arc::<State>::default();
        let tls = authority.server_config(&["api.github.com"], Leaf::Valid, Alpn::Both)?;
        let server = Server::start(0, Some(tls), handler(Arc::clone(&state), respond))?;
        Ok(Self { server, state })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the branch for which a client created a pull request; none if no client created one.
    #[must_use]
    pub fn pull_request(&self) -> Option<String> {
        let created = self.state.created.load(Ordering::SeqCst);
        created.then(|| self.state.head.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

async fn respond(state: Arc<State>, request: Request<Incoming>) -> Answer {
    let authorized = request.headers().get("authorization").is_some_and(|value| {
        [format!("Bearer {TOKEN}"), format!("token {TOKEN}")].iter().any(|known| value == known)
    });
    let (head, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    let (status, answer) = match (authorized, &head.method, head.uri.path()) {
        (false, ..) => (StatusCode::UNAUTHORIZED, json!({"message": "Bad credentials"})),
        (true, &Method::POST, "/graphql") => {
            (StatusCode::OK, graphql(&state, &serde_json::from_slice(&body).ok()?))
        }
        _ => (StatusCode::NOT_FOUND, json!({"message": "Not Found"})),
    };
    let response =
        Response::builder().status(status).header("content-type", "application/json; charset=utf-8");
    response.body(whole(answer.to_string())).ok()
}

/// Answers a GraphQL request. The answer contains every field that `gh` may have selected.
fn graphql(state: &State, request: &Value) -> Value {
    let query = request["query"].as_str().unwrap_or_default();
    let (owner, name) = REPOSITORY.split_once('/').unwrap_or_default();
    let variables = &request["variables"];
    let url = format!("https://github.com/{REPOSITORY}/pull/7");
    if query.contains("createPullRequest") {
        let input = &variables["input"];
        *state.head.lock().unwrap_or_else(PoisonError::into_inner) =
            input["headRefName"].as_str().unwrap_or_default().to_owned();
        state.created.store(true, Ordering::SeqCst);
        return json!({"data": {"createPullRequest": {"pullRequest": {"id": "PR_7", "url": url}}}});
    }
    let asked = variables["repo"].as_str().or(variables["name"].as_str());
    if variables["owner"] != owner || asked != Some(name) {
        return json!({"errors": [{"type": "NOT_FOUND", "message": "Could not resolve to a Repository"}]});
    }
    if query.contains("pullRequests(") {
        let pull_request = json!({
            "number": 7, "title": "Change", "state": "OPEN", "url": url, "headRefName": "work",
            "headRepositoryOwner": {"id": "U_1", "login": owner}, "isCrossRepository": false, "isDraft": false,
            "createdAt": "2026-01-01T00:00:00Z",
        });
        let nodes: Vec<_> =
            state.created.load(Ordering::SeqCst).then_some(pull_request).into_iter().collect();
        let page = json!({"hasNextPage": false, "endCursor": ""});
        let list = json!({"totalCount": nodes.len(), "nodes": nodes, "pageInfo": page});
        return json!({"data": {"repository": {"pullRequests": list, "defaultBranchRef": {"name": "main"}}}});
    }
    json!({"data": {"repository": {
        "id": "R_1", "name": name, "owner": {"id": "U_1", "login": owner}, "description": "A tool for tests",
        "viewerPermission": "WRITE", "defaultBranchRef": {"name": "main"}, "hasIssuesEnabled": true,
        "hasWikiEnabled": false, "parent": null, "mergeCommitAllowed": true, "rebaseMergeAllowed": true,
        "squashMergeAllowed": true,
    }}})
}
