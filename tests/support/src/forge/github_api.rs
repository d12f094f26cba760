//! The part of GitHub's API that `gh` uses for pull requests.

use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::repository::{PullRequest, Repository};
use super::{REPOSITORY, TOKEN};

/// Answers a request. Like GitHub, the fake reads the token from the header `Authorization`.
pub(super) fn respond(repository: &mut Repository, head: &Parts, body: &[u8]) -> (StatusCode, Value) {
    let authorized = head.headers.get("authorization").is_some_and(|value| {
        [format!("Bearer {TOKEN}"), format!("token {TOKEN}")].iter().any(|known| value == known)
    });
    match (authorized, &head.method, head.uri.path()) {
        (false, ..) => (StatusCode::UNAUTHORIZED, json!({"message": "Bad credentials"})),
        (true, &Method::POST, "/graphql") => match serde_json::from_slice(body) {
            Ok(request) => (StatusCode::OK, graphql(repository, &request)),
            Err(_) => (StatusCode::BAD_REQUEST, json!({"message": "Problems parsing JSON"})),
        },
        _ => (StatusCode::NOT_FOUND, json!({"message": "Not Found"})),
    }
}

/// Answers a GraphQL request. The answer contains every field that `gh` may have selected.
fn graphql(repository: &mut Repository, request: &Value) -> Value {
    let query = request["query"].as_str().unwrap_or_default();
    let (owner, name) = REPOSITORY.split_once('/').unwrap_or_default();
    let variables = &request["variables"];
    let url = format!("https://{}/{REPOSITORY}/pull/7", repository.host);
    if query.contains("createPullRequest") {
        let input = &variables["input"];
        let text = |key: &str| input[key].as_str().unwrap_or_default().to_owned();
        repository.pull_request =
            Some(PullRequest { title: text("title"), head: text("headRefName"), base: text("baseRefName") });
        return json!({"data": {"createPullRequest": {"pullRequest": {"id": "PR_7", "url": url}}}});
    }
    let asked = variables["repo"].as_str().or(variables["name"].as_str());
    if variables["owner"] != owner || asked != Some(name) {
        return json!({"errors": [{"type": "NOT_FOUND", "message": "Could not resolve to a Repository"}]});
    }
    if query.contains("pullRequests(") {
        let shown = |of: &PullRequest| {
            json!({
                "number": 7, "title": of.title, "state": "OPEN", "url": url, "headRefName": of.head,
                "headRepositoryOwner": {"id": "U_1", "login": owner}, "isCrossRepository": false,
                "isDraft": false, "createdAt": "2026-01-01T00:00:00Z",
            })
        };
        let nodes: Vec<_> = repository.pull_request.iter().map(shown).collect();
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
