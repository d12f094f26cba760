//! The repository of a fake API.

/// A pull request, which GitLab calls a merge request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// The title.
    pub title: String,
    /// The branch with the change.
    pub head: String,
    /// The branch that is to contain the change.
    pub base: String,
}

/// The repository of an API.
pub(super) struct Repository {
    /// The forge's host in URLs.
    pub(super) host: String,
    /// The only pull request. `None` until a client creates a pull request.
    pub(super) pull_request: Option<PullRequest>,
}
