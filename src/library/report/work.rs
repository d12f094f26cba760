//! The JSON output of the commands that show and take an agent's work.

use serde::Serialize;

/// The document about a workspace, or an array of those about its directories.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum OneOrSeveral<T> {
    One(T),
    Several(Vec<T>),
}

/// The output of `bottle pull --json`. An array of these with `--all-forks`, and if several directories were copied.
#[derive(Debug, Serialize)]
pub(crate) struct Pulled {
    pub(crate) slug: String,
    /// The directory of the workspace; absent for the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The updated branch, without `refs/heads/`.
    pub(crate) branch: String,
    /// The branch's previous commit; absent when the branch is new.
    pub(crate) before: Option<String>,
    pub(crate) after: String,
    /// The commit of earlier uncommitted work that the branch no longer has; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replaced: Option<String>,
    /// The number of fetched commits that are not reachable from `HEAD`.
    pub(crate) commits: u64,
    /// The number of uncommitted files that the last commit of the branch contains, with `--uncommitted`.
    pub(crate) taken: usize,
    /// The number of uncommitted files in the bottle that were not pulled.
    pub(crate) uncommitted: usize,
    /// The number of branches in the bottle with commits that this repository does not have.
    pub(crate) elsewhere: usize,
    /// The submodules in which the bottle has work, with the result for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) submodules: Vec<Self>,
}

/// The output of `bottle diff --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) slug: String,
    /// The directories of the workspace that were compared, if several directories were copied. Paths in the texts
    /// begin with the directory.
    #[serde(rename = "folders", skip_serializing_if = "Vec::is_empty")]
    pub(crate) directories: Vec<ComparedDirectory>,
    /// The bottle that the workspace is compared with; absent when it is compared with a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) other: Option<String>,
    /// The base commit of the comparison; absent when there is none, and with `directories`.
    pub(crate) base: Option<String>,
    /// A patch from the base to the workspace, or from the workspace to the other bottle's one. With `--stat` or
    /// `--name-only`, the text that these flags show.
    pub(crate) diff: String,
    /// A unified diff from the base to the bottle's last commit, limited to files that differ between this
    /// commit and the workspace.
    pub(crate) committed: String,
    /// Whether the diff was truncated.
    pub(crate) cut: bool,
}

/// A directory of a workspace that was compared.
#[derive(Debug, Serialize)]
pub(crate) struct ComparedDirectory {
    pub(crate) name: String,
    /// The base commit of the comparison; absent when there is none.
    pub(crate) base: Option<String>,
}

/// The output of `bottle apply --json`. An array of these if several directories were copied.
#[derive(Debug, Serialize)]
pub(crate) struct Applied {
    pub(crate) slug: String,
    /// The directory of the workspace; absent for the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The directory whose files change.
    #[serde(rename = "folder")]
    pub(crate) directory: String,
    /// Whether the files were changed.
    pub(crate) applied: bool,
    /// The paths of the files that change, relative to the directory.
    pub(crate) changed: Vec<String>,
    /// Those of them that are deleted.
    pub(crate) deleted: Vec<String>,
    /// Those of them that both sides changed, without a conflict.
    pub(crate) merged: Vec<String>,
    /// The number of changed files of the bottle that the directory already has.
    pub(crate) already: usize,
    pub(crate) conflicts: Vec<Conflict>,
    /// Changed files that programs on this machine run or obey by themselves.
    pub(crate) used_by_tools: Vec<String>,
}

/// A file that `bottle apply` cannot merge.
#[derive(Debug, Serialize)]
pub(crate) struct Conflict {
    pub(crate) path: String,
    pub(crate) cause: &'static str,
    /// Whether the file now has conflict markers. Otherwise it is unchanged.
    pub(crate) markers: bool,
}
