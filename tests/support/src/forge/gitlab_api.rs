//! The part of GitLab's REST API that `glab` uses for merge requests.

use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::repository::{PullRequest, Repository};
use super::{REPOSITORY, TOKEN};

/// Answers a request. Like GitLab, the fake reads a personal access token from the header `PRIVATE-TOKEN`.
pub(super) fn respond(repository: &mut Repository, head: &Parts, body: &[u8]) -> (StatusCode, Value) {
    if head.headers.get("private-token").is_none_or(|value| value != TOKEN) {
        return (StatusCode::UNAUTHORIZED, json!({"message": "401 Unauthorized"}));
    }
    let project = format!("/api/v4/projects/{}", REPOSITORY.replace('/', "%2F"));
    let host = &repository.host;
    match (&head.method, head.uri.path().strip_prefix(&project)) {
        (&Method::GET, Some("")) => (StatusCode::OK, shown_project(host)),
        (&Method::GET, Some("/merge_requests")) => {
            let list = repository.pull_request.iter().map(|of| shown_merge_request(host, of));
            (StatusCode::OK, list.collect())
        }
        (&Method::POST, Some("/merge_requests")) => {
            let Some(new) = merge_request(body) else {
                let error = "title, source_branch or target_branch is missing";
                return (StatusCode::BAD_REQUEST, json!({"error": error}));
            };
            (StatusCode::CREATED, shown_merge_request(host, repository.pull_request.insert(new)))
        }
        _ => (StatusCode::NOT_FOUND, json!({"message": "404 Not Found"})),
    }
}

fn merge_request(body: &[u8]) -> Option<PullRequest> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = |key: &str| body[key].as_str().map(str::to_owned);
    Some(PullRequest { title: text("title")?, head: text("source_branch")?, base: text("target_branch")? })
}

fn shown_project(host: &str) -> Value {
    json!({
        "id": 7, "name": "tool", "path_with_namespace": REPOSITORY, "name_with_namespace": "Team / Tool",
        "description": "A tool for tests", "default_branch": "main", "visibility": "private",
        "web_url": format!("https://{host}/{REPOSITORY}"), "merge_requests_enabled": true,
        "http_url_to_repo": format!("https://{host}/{REPOSITORY}.git"),
        "ssh_url_to_repo": format!("git@{host}:{REPOSITORY}.git"),
    })
}

fn shown_merge_request(host: &str, of: &PullRequest) -> Value {
    json!({
        "id": 70, "iid": 7, "project_id": 7, "title": of.title, "state": "opened",
        "source_branch": of.head, "target_branch": of.base, "author": {"id": 1, "username": "ann"},
        "references": {"short": "!7", "full": format!("{REPOSITORY}!7")},
        "web_url": format!("https://{host}/{REPOSITORY}/-/merge_requests/7"),
    })
}
