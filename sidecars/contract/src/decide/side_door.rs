//! Step 4, on the forge of a repository of the git gate: what would write to a repository beside the gate.
//!
//! The paths are those of GitHub's, Gitea's (and Forgejo's) and GitLab's APIs, wherever below a host they begin.
//! They are told by their words rather than by each forge's exact routes: a path of the one that means nothing to the
//! other is refused there too, which costs nobody anything. Issues, comments and reviews are none of them.

use std::borrow::Cow;

use super::git::loosest;
use super::matching::{self, Methods};
use crate::canonical::Path;
use crate::route::{PathMatch, Route};

/// Below `repos/OWNER/NAME` (GitHub, Gitea) and `repositories/ID` (GitHub).
const OF_REPOSITORY: [&str; 20] = [
    "branch_protections",
    "branches",
    "contents",
    "diffpatch",
    "forks",
    "generate",
    "git",
    "hooks",
    "import",
    "keys",
    "merge-upstream",
    "merges",
    "mirror-sync",
    "push_mirrors",
    "push_mirrors-sync",
    "releases",
    "rulesets",
    "tags",
    "transfer",
    "wiki",
];

/// Below `repos/OWNER/NAME/pulls/N`.
const OF_PULL: [&str; 3] = ["merge", "update", "update-branch"];

/// Anywhere below `projects/ID` (GitLab): an id may be a path, whose slashes not every server sees.
const OF_PROJECT: [&str; 13] = [
    "deploy_keys",
    "fork",
    "hooks",
    "import",
    "merge",
    "packages",
    "protected_branches",
    "rebase",
    "releases",
    "remote_mirrors",
    "repository",
    "snippets",
    "wikis",
];

/// Whether the request would write there and no entry of the route's `matches` says so in as many words: one that
/// names its method, and its path or the beginning of it as far as the word that tells what is written.
pub(super) fn refuses(
    route: &Route,
    methods: &Methods<'_>,
    path: &Path<'_>,
    headers: &http::HeaderMap,
) -> bool {
    if methods.only_read() {
        return false;
    }
    // With several readings it counts when any of them does.
    let readings = match path.ambiguous {
        None => [Cow::Borrowed(path.text.as_ref()), Cow::Borrowed("")],
        Some(_) => [Cow::Borrowed(path.text.as_ref()), Cow::Owned(loosest(&path.text))],
    };
    let Some(word) = readings.iter().find_map(|path| written(path)) else { return false };
    !route.matches.iter().any(|entry| {
        let says = |condition: &&PathMatch| condition.matches(&path.text) && is_spelled_out(condition, &word);
        !entry.methods.is_empty()
            && entry.paths.iter().any(|condition| says(&condition))
            && matching::satisfies(entry, methods, &path.text, headers)
    })
}

/// The word of a path that tells what of a repository is written by it.
fn written(path: &str) -> Option<String> {
    let path = path.to_ascii_lowercase();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if segments.last() == Some(&"graphql") {
        // Only the body tells a question from a change.
        return Some("graphql".to_owned());
    }
    let found = segments.iter().enumerate().find_map(|(at, word)| {
        let rest = &segments[at + 1..];
        match *word {
            "repos" => below(word, rest.get(2..)?),
            "repositories" => below(word, rest.get(1..)?),
            "projects" => match rest.get(1..)? {
                [] => Some(*word),
                rest => rest.iter().copied().find(|word| OF_PROJECT.contains(word)),
            },
            _ => None,
        }
    });
    found.map(str::to_owned)
}

/// Below one repository; the repository itself, which can be renamed and deleted, counts.
fn below<'p>(itself: &'p str, rest: &[&'p str]) -> Option<&'p str> {
    match rest {
        [] => Some(itself),
        ["pulls", _, what, ..] => OF_PULL.contains(what).then_some(*what),
        [what, ..] => OF_REPOSITORY.contains(what).then_some(*what),
    }
}

/// Whether a condition that fits says what is written, and not only where.
fn is_spelled_out(condition: &PathMatch, word: &str) -> bool {
    match condition {
        PathMatch::Exact(_) => true,
        PathMatch::Prefix(prefix) => written(prefix).as_deref() == Some(word),
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
    fn what_writes_to_a_repository_is_told_from_what_does_not() {
        for (path, word) in [
            // GitHub.
            ("/repos/o/r/contents/src/a.rs", "contents"),
            ("/api/v3/repos/o/r/git/refs", "git"),
            ("/repos/o/r/merges", "merges"),
            ("/repos/o/r/pulls/7/merge", "merge"),
            ("/repos/o/r/pulls/7/update-branch", "update-branch"),
            ("/repos/o/r/releases/1/assets", "releases"),
            ("/repositories/4711/contents/a", "contents"),
            ("/repos/o/r", "repos"),
            ("/repos/o/contents", "repos"),
            ("/graphql", "graphql"),
            ("/api/graphql", "graphql"),
            // Gitea.
            ("/gitea/api/v1/repos/o/r/contents", "contents"),
            ("/api/v1/repos/o/r/branches", "branches"),
            ("/api/v1/repos/o/r/diffpatch", "diffpatch"),
            ("/api/v1/repos/o/r/wiki/new", "wiki"),
            // GitLab.
            ("/api/v4/projects/1/repository/commits", "repository"),
            ("/api/v4/projects/team%2Ftool/repository/files/a", "repository"),
            ("/api/v4/projects/1/merge_requests/2/merge", "merge"),
            ("/api/v4/projects/1", "projects"),
            ("/API/V4/Projects/1/Releases", "releases"),
            // Neither.
            ("/repos/o/r/issues", ""),
            ("/repos/o/r/issues/1/comments", ""),
            ("/repos/o/r/pulls", ""),
            ("/repos/o/r/pulls/7/reviews", ""),
            ("/repos/o", ""),
            ("/api/v4/projects/1/issues", ""),
            ("/api/v4/projects/1/merge_requests", ""),
            ("/api/v4/projects", ""),
            ("/user/repos", ""),
            ("/", ""),
        ] {
            assert_eq!(written(path).unwrap_or_default(), word, "{path}");
        }
    }
}
