//! Denies API writes that would bypass the git gate, on forges whose repositories are behind the gate. Part
//! of step 4 of [`decide`](super::decide()).
//!
//! Forges have hundreds of endpoints that change a repository, its settings or its members, and each release adds more.
//! The proxy therefore denies every write to such a host, except writes that are known to change neither a repository
//! nor its settings or members: issues, comments, reviews, and pull request actions other than merging. The known paths
//! are those of the APIs of GitHub, Gitea (and Forgejo), GitLab and Bitbucket, under any path prefix.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::git::Readings;
use super::matching::{self, Methods};
use crate::canonical::{self, Ambiguous, Path};
use crate::route::{PathMatch, Route};

/// Resources of a repository for which writes are allowed, because they contain neither files nor settings.
const WRITABLE: [&str; 4] = ["comments", "issues", "labels", "milestones"];

/// Pull requests, as each forge names them in paths.
const PULLS: [&str; 4] = ["merge_requests", "pull-requests", "pullrequests", "pulls"];

/// Resources of one pull request that belong to its discussion.
const PULL_DISCUSSION: [&str; 18] = [
    "approve",
    "award_emoji",
    "comments",
    "decline",
    "discussions",
    "draft_notes",
    "labels",
    "notes",
    "participants",
    "reactions",
    "request-changes",
    "requested_reviewers",
    "reviews",
    "subscribe",
    "tasks",
    "todo",
    "unapprove",
    "unsubscribe",
];

/// Scopes outside a single repository, for example `orgs/NAME/members`. The number is the count of path segments after
/// the scope that identify the scope's owner.
const SCOPES: [(&str, usize); 9] = [
    ("admin", 0),
    ("user", 0),
    ("enterprises", 1),
    ("groups", 1),
    ("organizations", 1),
    ("orgs", 1),
    ("teams", 1),
    ("users", 1),
    ("workspaces", 1),
];

/// Words that follow the project in paths of GitLab's API. An encoded project name must not contain such a
/// word, because a server that decodes slashes first would interpret the path as another endpoint.
const PROJECT_RESOURCES: [&str; 26] = [
    "-",
    "access_tokens",
    "deploy_keys",
    "deploy_tokens",
    "deployments",
    "environments",
    "fork",
    "hooks",
    "import",
    "integrations",
    "invitations",
    "jobs",
    "members",
    "merge",
    "merge_requests",
    "packages",
    "pipeline",
    "pipelines",
    "protected_branches",
    "protected_tags",
    "releases",
    "repository",
    "runners",
    "snippets",
    "variables",
    "wikis",
];

/// Whether the request may write to a repository, its settings or its members, and no entry of `matches` allows
/// that explicitly. An explicit entry contains the method, and a path that includes at least the word for the
/// written resource.
pub(super) fn denies(route: &Route, methods: &Methods<'_>, path: &Path<'_>, headers: &HeaderMap) -> bool {
    let Some(resource) = resource(methods, path, headers) else { return false };
    !route.matches.iter().any(|entry| {
        let matches_explicitly =
            |condition: &&PathMatch| condition.matches(&path.text) && names_resource(condition, &resource);
        !entry.methods.is_empty()
            && entry.paths.iter().any(|condition| matches_explicitly(&condition))
            && matching::entry_matches(entry, methods, &path.text, headers)
    })
}

/// Returns the resource that the request would write, or `None` if it writes nothing or only allowed
/// resources.
fn resource(methods: &Methods<'_>, path: &Path<'_>, headers: &HeaderMap) -> Option<String> {
    let readings = readings(path);
    let mut resources = readings.iter().filter_map(|segments| written_resource(segments));
    if methods.only_read() {
        // A GraphQL request with any method may be a mutation. Only the query or the body shows whether it is a
        // mutation.
        return resources.find(|word| word == GRAPHQL);
    }
    if path.ambiguous.is_none() && readings.iter().all(|segments| is_fetch(methods, segments, headers)) {
        return None;
    }
    resources.next()
}

const GRAPHQL: &str = "graphql";

/// Returns the segments of a path in every possible interpretation.
fn readings(path: &Path<'_>) -> Vec<Vec<String>> {
    match path.ambiguous {
        None => vec![segments(&path.text)],
        Some(Ambiguous::EncodedSlash) => match with_project_named(&path.text) {
            Some(named) => vec![named],
            None => every_reading(path),
        },
        Some(_) => every_reading(path),
    }
}

fn every_reading(path: &Path<'_>) -> Vec<Vec<String>> {
    let [dropped, resolved] = Readings::new(path).segments;
    vec![segments(&path.text), dropped, resolved]
}

fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|segment| !segment.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// Returns the segments of a GitLab path that identifies the project by name (`projects/team%2Ftool/issues`), with a
/// number instead of the name. Such a path has only one interpretation. Returns `None` if the encoded slashes may have
/// another meaning.
fn with_project_named(path: &str) -> Option<Vec<String>> {
    let mut segments = segments(path);
    let at = segments.iter().position(|segment| segment == "projects")? + 1;
    let name = segments.get_mut(at)?;
    let plain = |part: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty()
            && part.chars().all(fits)
            && !part.ends_with('.')
            && !PROJECT_RESOURCES.contains(&part)
    };
    if !name.split("%2f").all(plain) {
        return None;
    }
    "1".clone_into(name);
    canonical::path(&format!("/{}", segments.join("/"))).ambiguous.is_none().then_some(segments)
}

/// Returns the resource that would be written, as a word of the path, or `None` if the write changes neither a
/// repository nor its settings or members.
fn written_resource(segments: &[String]) -> Option<String> {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if segments.last() == Some(&GRAPHQL) {
        return Some(GRAPHQL.to_owned());
    }
    let resource = match below_repository(&segments) {
        // Azure DevOps merges a pull request when it is updated.
        Some((_, below)) if is_harmless(below) && !segments.contains(&"_apis") => return None,
        Some((itself, [])) => itself,
        Some((_, [pulls, _, what, ..])) if PULLS.contains(pulls) => what,
        Some((_, [what, ..])) => what,
        // These endpoints convert text to HTML and store nothing.
        None if matches!(without_api_prefix(&segments), ["markdown"] | ["markdown", "raw"] | ["markup"]) => {
            return None;
        }
        None => outside_repository(&segments),
    };
    Some(resource.to_owned())
}

/// Returns the word before the repository's name, and the segments after the name.
fn below_repository<'s, 'p>(segments: &'s [&'p str]) -> Option<(&'p str, &'s [&'p str])> {
    segments.iter().enumerate().find_map(|(at, segment)| {
        let rest = segments.get(at + 1..)?;
        let named_by = match *segment {
            // Bitbucket Server: projects/KEY/repos/NAME.
            "projects" if rest.get(1) == Some(&"repos") => 3,
            "projects" => 1,
            "repos" => 2,
            // GitHub identifies a repository by number, Bitbucket by workspace and name. A name on Bitbucket may also
            // consist of digits.
            "repositories"
                if !is_bitbucket(segments) && rest.first()?.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                1
            }
            "repositories" => 2,
            _ => return None,
        };
        Some((*segment, rest.get(named_by..)?))
    })
}

/// Whether the segments belong to a path of Bitbucket's API.
fn is_bitbucket(segments: &[&str]) -> bool {
    segments.iter().any(|segment| matches!(*segment, "1.0" | "2.0"))
}

fn is_harmless(below: &[&str]) -> bool {
    let number = |segment: &str| !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
    match below {
        [what, ..] if WRITABLE.contains(what) => true,
        [pulls] | [pulls, "comments", ..] if PULLS.contains(pulls) => true,
        [pulls, pull] if PULLS.contains(pulls) => number(pull),
        [pulls, pull, what, ..] if PULLS.contains(pulls) => number(pull) && PULL_DISCUSSION.contains(what),
        ["commit" | "commits", _, "comments", ..] => true,
        ["repository", "commits", _, "comments" | "discussions", ..] => true,
        _ => false,
    }
}

/// Returns the written resource of a path outside a known repository: the resource of a user or organisation,
/// or the last segment that is not an id.
fn outside_repository<'p>(segments: &[&'p str]) -> &'p str {
    let scoped = match without_api_prefix(segments) {
        [scope, rest @ ..] => {
            let named_by = SCOPES.iter().find(|(name, _)| name == scope).map(|(_, named_by)| *named_by);
            named_by.and_then(|named_by| rest.get(named_by).copied())
        }
        [] => None,
    };
    let last = || segments.iter().rev().find(|segment| !segment.contains(|c: char| c.is_ascii_digit()));
    scoped.or_else(|| last().copied()).unwrap_or("/")
}

/// Returns the segments after the prefix of the API (`api/v4`, `2.0`, `rest/api/latest`).
fn without_api_prefix<'s, 'p>(segments: &'s [&'p str]) -> &'s [&'p str] {
    let version = |segment: &&str| segment.contains(|c: char| c.is_ascii_digit()) || *segment == "latest";
    match segments.iter().position(|segment| *segment == "api") {
        Some(at) if segments.get(at + 1).is_some_and(version) => segments.get(at + 2..).unwrap_or_default(),
        _ => match segments {
            ["1.0" | "2.0", rest @ ..] => rest,
            all => all,
        },
    }
}

/// Whether the request is a clone or fetch in git's protocol, or an LFS batch request for download locations.
/// Both kinds of request use the method POST but write nothing.
fn is_fetch(methods: &Methods<'_>, segments: &[String], headers: &HeaderMap) -> bool {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let kind = match segments.as_slice() {
        [.., "git-upload-pack"] => "application/x-git-upload-pack-request",
        [.., "info", "lfs", "objects", "batch"] => "application/vnd.git-lfs+json",
        _ => return false,
    };
    let is_kind = |value: &http::HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
    };
    let mut kinds = headers.get_all(CONTENT_TYPE).iter().peekable();
    // A file path in a write request to the forge's API or web pages may end like the path of a fetch.
    let others = |segment: &&str| {
        matches!(*segment, "-" | "api" | "rest") || (segment.starts_with('_') && *segment != "_git")
    };
    methods.all_of(&["POST"])
        && kinds.peek().is_some()
        && kinds.all(is_kind)
        && !segments.iter().any(others)
        && below_repository(&segments).is_none_or(|(_, below)| below.len() < 2)
}

/// Whether a matching condition contains the word for the written resource, and not only the path before it.
fn names_resource(condition: &PathMatch, resource: &str) -> bool {
    match condition {
        PathMatch::Exact(_) => true,
        PathMatch::Prefix(prefix) => written_resource(&segments(prefix)).as_deref() == Some(resource),
        PathMatch::Regex(pattern) => {
            let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            pattern.as_str().to_ascii_lowercase().split(|c| !is_of_word(c)).any(|part| part == resource)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_writes_that_bypass_the_gate_from_harmless_ones() {
        for (path, resource) in [
            // GitHub.
            ("/repos/o/r/contents/src/a.rs", "contents"),
            ("/api/v3/repos/o/r/git/refs", "git"),
            ("/repos/o/r/merges", "merges"),
            ("/repos/o/r/pulls/7/merge", "merge"),
            ("/repos/o/r/pulls/7/update-branch", "update-branch"),
            ("/repos/o/r/pulls/7/codespaces", "codespaces"),
            ("/repos/o/r/releases/1/assets", "releases"),
            ("/repos/o/r/collaborators/mallory", "collaborators"),
            ("/repos/o/r/actions/runners/registration-token", "actions"),
            ("/repos/o/r/actions/workflows/1/dispatches", "actions"),
            ("/repos/o/r/actions/secrets/x", "actions"),
            ("/repos/o/r/dispatches", "dispatches"),
            ("/repos/o/r/statuses/abc", "statuses"),
            ("/repos/o/r/check-runs", "check-runs"),
            ("/repos/o/r/environments/e/secrets/s", "environments"),
            ("/repos/o/r/invented-tomorrow", "invented-tomorrow"),
            ("/repositories/4711/contents/a", "contents"),
            ("/repos/o/r", "repos"),
            ("/repos/o/contents", "repos"),
            ("/graphql", "graphql"),
            ("/api/graphql", "graphql"),
            ("/user/keys", "keys"),
            ("/user/keys/12", "keys"),
            ("/user/repos", "repos"),
            ("/orgs/o/members/mallory", "members"),
            ("/orgs/o/actions/runners/registration-token", "actions"),
            ("/app/installations/1/access_tokens", "access_tokens"),
            ("/gists", "gists"),
            // Gitea.
            ("/gitea/api/v1/repos/o/r/contents", "contents"),
            ("/api/v1/repos/o/r/branches", "branches"),
            ("/api/v1/repos/o/r/diffpatch", "diffpatch"),
            ("/api/v1/repos/o/r/wiki/new", "wiki"),
            ("/api/v1/users/me/tokens", "tokens"),
            ("/api/v1/admin/users", "users"),
            // GitLab.
            ("/api/v4/projects/1/repository/commits", "repository"),
            ("/api/v4/projects/team%2Ftool/repository/files/a", "repository"),
            ("/api/v4/projects/1/merge_requests/2/merge", "merge"),
            ("/api/v4/projects/1/merge_requests/2/rebase", "rebase"),
            ("/api/v4/projects/1", "projects"),
            ("/API/V4/Projects/1/Releases", "releases"),
            ("/api/v4/projects/1/members", "members"),
            ("/api/v4/projects/1/trigger/pipeline", "trigger"),
            ("/api/v4/projects/1/variables/a", "variables"),
            ("/api/v4/groups/1/access_tokens", "access_tokens"),
            ("/api/v4/projects", "projects"),
            ("/api/v4/runners", "runners"),
            ("/api/v4/projects/1%2Frepository%2Ffiles%2Fa/issues/5", "repository"),
            ("/api/v4/projects/team%2F..%2F1%2Fissues", "projects"),
            // Bitbucket.
            ("/2.0/repositories/w/r/src", "src"),
            ("/2.0/repositories/w/issues/src", "src"),
            ("/2.0/repositories/4711/issues/src", "src"),
            ("/o/p/_apis/git/repositories/4711/pullrequests/5", "pullrequests"),
            ("/2.0/repositories/w/r/pullrequests/3/merge", "merge"),
            ("/rest/api/1.0/projects/p/repos/r/browse/a", "browse"),
            ("/rest/api/latest/projects/p/repos/r/pull-requests/1/merge", "merge"),
            // Web pages of a forge, and files behind WebDAV.
            ("/o/r/settings", "settings"),
            ("/o/r/_edit/main/a", "a"),
            ("/o/r.git/objects/ab/cdef", "cdef"),
            ("/repos/o", "o"),
            ("/", "/"),
            // Allowed writes.
            ("/repos/o/r/issues", ""),
            ("/repos/o/r/issues/1/comments", ""),
            ("/repos/o/r/pulls", ""),
            ("/repos/o/r/pulls/7", ""),
            ("/repos/o/r/pulls/7/reviews", ""),
            ("/repos/o/r/pulls/comments/9/reactions", ""),
            ("/repos/o/r/labels", ""),
            ("/repos/o/r/commits/abc/comments", ""),
            ("/api/v1/repos/o/r/issues/1/labels", ""),
            ("/api/v4/projects/1/issues", ""),
            ("/api/v4/projects/team%2Ftool/issues/3/notes", ""),
            ("/api/v4/projects/1/merge_requests", ""),
            ("/api/v4/projects/1/merge_requests/2/notes", ""),
            ("/2.0/repositories/w/r/pullrequests/3/comments", ""),
            ("/rest/api/1.0/projects/p/repos/r/pull-requests/1/comments", ""),
            ("/api/v3/markdown", ""),
        ] {
            let path = canonical::path(path);
            let resources: Vec<String> =
                readings(&path).iter().filter_map(|path| written_resource(path)).collect();
            assert_eq!(resources.first().map_or("", String::as_str), resource, "{path:?}: {resources:?}");
        }
    }
}
