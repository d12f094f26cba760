//! Step 4, on the forge of a repository of the git gate: what could write beside the gate.
//!
//! Forges have hundreds of ways to change a repository, or who and what may: new ones come with every release. So
//! every write to such a host is refused but a few that are known to leave both alone: issues, comments, reviews, and
//! pull requests as far as they are not merged. Paths are those of the APIs of GitHub, Gitea (and Forgejo), GitLab and
//! Bitbucket, wherever below a host they begin.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::git::Readings;
use super::matching::{self, Methods};
use crate::canonical::{self, Ambiguous, Path};
use crate::route::{PathMatch, Route};

/// What is written below a repository with any method: nothing of them is in its files or its settings.
const HARMLESS: [&str; 4] = ["comments", "issues", "labels", "milestones"];

/// Pull requests, as each forge calls them.
const PULLS: [&str; 4] = ["merge_requests", "pull-requests", "pullrequests", "pulls"];

/// Below one pull request: what is said of it.
const OF_PULL: [&str; 18] = [
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

/// Whose things are not one repository's: `orgs/NAME/members`. The number is how many segments name it.
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

/// Words below a GitLab project that are no part of a project's own path: such a path would be another one's to a
/// server that decodes its slashes first.
const OF_PROJECT: [&str; 26] = [
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

/// Whether the request could write there and no entry of the route's `matches` says so in as many words: one that
/// names its method, and its path or the beginning of it as far as the word that tells what is written.
pub(super) fn refuses(route: &Route, methods: &Methods<'_>, path: &Path<'_>, headers: &HeaderMap) -> bool {
    let Some(word) = word(methods, path, headers) else { return false };
    !route.matches.iter().any(|entry| {
        let says = |condition: &&PathMatch| condition.matches(&path.text) && is_spelled_out(condition, &word);
        !entry.methods.is_empty()
            && entry.paths.iter().any(|condition| says(&condition))
            && matching::satisfies(entry, methods, &path.text, headers)
    })
}

/// What the request would write; none when it writes nothing, or only what may be written.
fn word(methods: &Methods<'_>, path: &Path<'_>, headers: &HeaderMap) -> Option<String> {
    let readings = readings(path);
    let mut words = readings.iter().filter_map(|segments| written(segments));
    if methods.only_read() {
        // A question of GraphQL may be a change, whatever the method: only query or body tell.
        return words.find(|word| word == GRAPHQL);
    }
    if path.ambiguous.is_none() && readings.iter().all(|segments| is_fetch(methods, segments, headers)) {
        return None;
    }
    words.next()
}

const GRAPHQL: &str = "graphql";

/// The segments of a path in every way that it may be read.
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
    let [dropped, resolved] = Readings::of(path).segments;
    vec![segments(&path.text), dropped, resolved]
}

fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|segment| !segment.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// The path of a GitLab project whose id is its name (`projects/team%2Ftool/issues`), which has one meaning: with a
/// number in its place. None when the slashes could be meant for something else.
fn with_project_named(path: &str) -> Option<Vec<String>> {
    let mut segments = segments(path);
    let at = segments.iter().position(|word| word == "projects")? + 1;
    let name = segments.get_mut(at)?;
    let plain = |word: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !word.is_empty() && word.chars().all(fits) && !word.ends_with('.') && !OF_PROJECT.contains(&word)
    };
    if !name.split("%2f").all(plain) {
        return None;
    }
    "1".clone_into(name);
    canonical::path(&format!("/{}", segments.join("/"))).ambiguous.is_none().then_some(segments)
}

/// The word of a path that tells what is written by it; none when that is harmless.
fn written(segments: &[String]) -> Option<String> {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if segments.last() == Some(&GRAPHQL) {
        return Some(GRAPHQL.to_owned());
    }
    let word = match below_repository(&segments) {
        // Azure DevOps merges a pull request by changing it.
        Some((_, below)) if is_harmless(below) && !segments.contains(&"_apis") => return None,
        Some((itself, [])) => itself,
        Some((_, [pulls, _, what, ..])) if PULLS.contains(pulls) => what,
        Some((_, [what, ..])) => what,
        // Text to HTML, and nothing is kept.
        None if matches!(api(&segments), ["markdown"] | ["markdown", "raw"] | ["markup"]) => return None,
        None => elsewhere(&segments),
    };
    Some(word.to_owned())
}

/// The word that leads to a repository, and the segments below it.
fn below_repository<'s, 'p>(segments: &'s [&'p str]) -> Option<(&'p str, &'s [&'p str])> {
    segments.iter().enumerate().find_map(|(at, word)| {
        let rest = segments.get(at + 1..)?;
        let named_by = match *word {
            // Bitbucket Server: projects/KEY/repos/NAME.
            "projects" if rest.get(1) == Some(&"repos") => 3,
            "projects" => 1,
            "repos" => 2,
            // GitHub by number, Bitbucket by workspace and name, which may be digits too.
            "repositories"
                if !is_bitbucket(segments) && rest.first()?.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                1
            }
            "repositories" => 2,
            _ => return None,
        };
        Some((*word, rest.get(named_by..)?))
    })
}

/// Whether it is a path of Bitbucket's own API.
fn is_bitbucket(segments: &[&str]) -> bool {
    segments.iter().any(|word| matches!(*word, "1.0" | "2.0"))
}

fn is_harmless(below: &[&str]) -> bool {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match below {
        [what, ..] if HARMLESS.contains(what) => true,
        [pulls] | [pulls, "comments", ..] if PULLS.contains(pulls) => true,
        [pulls, pull] if PULLS.contains(pulls) => number(pull),
        [pulls, pull, what, ..] if PULLS.contains(pulls) => number(pull) && OF_PULL.contains(what),
        ["commit" | "commits", _, "comments", ..] => true,
        ["repository", "commits", _, "comments" | "discussions", ..] => true,
        _ => false,
    }
}

/// Of a path to no repository that is known: what is changed of a user or an organisation, or the last word that is no
/// number or name of a thing.
fn elsewhere<'p>(segments: &[&'p str]) -> &'p str {
    let scoped = match api(segments) {
        [scope, rest @ ..] => {
            let named_by = SCOPES.iter().find(|(name, _)| name == scope).map(|(_, named_by)| *named_by);
            named_by.and_then(|named_by| rest.get(named_by).copied())
        }
        [] => None,
    };
    let last = || segments.iter().rev().find(|word| !word.contains(|c: char| c.is_ascii_digit()));
    scoped.or_else(|| last().copied()).unwrap_or("/")
}

/// What follows the beginning of an API (`api/v4`, `2.0`, `rest/api/latest`).
fn api<'s, 'p>(segments: &'s [&'p str]) -> &'s [&'p str] {
    let version = |word: &&str| word.contains(|c: char| c.is_ascii_digit()) || *word == "latest";
    match segments.iter().position(|word| *word == "api") {
        Some(at) if segments.get(at + 1).is_some_and(version) => segments.get(at + 2..).unwrap_or_default(),
        _ => match segments {
            ["1.0" | "2.0", rest @ ..] => rest,
            all => all,
        },
    }
}

/// Whether it is a clone or fetch (or a question of LFS, which asks where files are), in git's own words: writes by
/// method alone.
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
    // A file of that name can be written too, by an API or the forge's own pages.
    let others =
        |word: &&str| matches!(*word, "-" | "api" | "rest") || (word.starts_with('_') && *word != "_git");
    methods.all_of(&["POST"])
        && kinds.peek().is_some()
        && kinds.all(is_kind)
        && !segments.iter().any(others)
        && below_repository(&segments).is_none_or(|(_, below)| below.len() < 2)
}

/// Whether a condition that fits says what is written, and not only where.
fn is_spelled_out(condition: &PathMatch, word: &str) -> bool {
    match condition {
        PathMatch::Exact(_) => true,
        PathMatch::Prefix(prefix) => written(&segments(prefix)).as_deref() == Some(word),
        PathMatch::Regex(pattern) => {
            let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            pattern.as_str().to_ascii_lowercase().split(|c| !is_of_word(c)).any(|part| part == word)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_beside_the_gate_is_told_from_what_does_not() {
        for (path, word) in [
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
            // A forge's own pages, and files behind WebDAV.
            ("/o/r/settings", "settings"),
            ("/o/r/_edit/main/a", "a"),
            ("/o/r.git/objects/ab/cdef", "cdef"),
            ("/repos/o", "o"),
            ("/", "/"),
            // What may be written.
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
            let words: Vec<String> = readings(&path).iter().filter_map(|path| written(path)).collect();
            assert_eq!(words.first().map_or("", String::as_str), word, "{path:?}: {words:?}");
        }
    }
}
