//! The JSON output of the commands that show an agent's work or transfer it to the user.

use serde::Serialize;

/// The document about a workspace, or an array of documents about its directories.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum OneOrSeveral<T> {
    /// The workspace, or its only directory.
    One(T),
    /// Several directories.
    Several(Vec<T>),
}

/// The output of `bottle pull --json`. With `--all-forks`, or if several directories were copied, the output is an
/// array of these documents.
#[derive(Debug, Serialize)]
pub struct Pulled {
    /// The slug of the bottle.
    pub slug: String,
    /// The name of the directory in the workspace. Absent for the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The updated branch, without `refs/heads/`.
    pub branch: String,
    /// The branch's previous commit; absent when the branch is new.
    pub before: Option<String>,
    /// The branch's commit after the pull.
    pub after: String,
    /// The commit of earlier uncommitted work that the pull removed from the branch. Absent when the pull removed no
    /// commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// The number of fetched commits that are not reachable from `HEAD`.
    pub commits: u64,
    /// With `--uncommitted`: the number of uncommitted files that the last commit of the branch contains.
    pub taken: usize,
    /// The number of uncommitted files in the bottle that were not pulled.
    pub uncommitted: usize,
    /// The number of branches in the bottle with commits that the user's repository does not have.
    pub elsewhere: usize,
    /// The submodules in which the bottle has work, with the result for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<Self>,
}

/// The output of `bottle diff --json`.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// The slug of the bottle.
    pub slug: String,
    /// The directories of the workspace that were compared, if several directories were copied. Paths in `diff` and
    /// `committed` begin with the name of the directory.
    #[serde(rename = "folders", skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<ComparedDirectory>,
    /// The bottle with which the workspace is compared. Absent when the workspace is compared with a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// The base commit of the comparison. Absent when there is no base commit, and when `directories` has entries.
    pub base: Option<String>,
    /// A patch from the base to the workspace, or from the workspace to the other bottle's workspace. With `--stat` or
    /// `--name-only`, the text that these flags show.
    pub diff: String,
    /// A unified diff from the base to the bottle's last commit, limited to files that differ between this
    /// commit and the workspace.
    pub committed: String,
    /// Whether the diff was truncated.
    pub cut: bool,
}

/// A directory of a workspace that was compared.
#[derive(Debug, Serialize)]
pub struct ComparedDirectory {
    /// The name of the directory.
    pub name: String,
    /// The base commit of the comparison. Absent when there is no base commit.
    pub base: Option<String>,
}

/// The output of `bottle apply --json`. If several directories were copied, the output is an array of these documents.
#[derive(Debug, Serialize)]
pub struct Applied {
    /// The slug of the bottle.
    pub slug: String,
    /// The name of the directory in the workspace. Absent for the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The directory whose files change.
    #[serde(rename = "folder")]
    pub directory: String,
    /// Whether the files were changed.
    pub applied: bool,
    /// The paths of the files that change, relative to the directory.
    pub changed: Vec<String>,
    /// The changed paths that are deleted.
    pub deleted: Vec<String>,
    /// The paths that both the agent and the user changed, without a conflict.
    pub merged: Vec<String>,
    /// The number of changed files of the bottle that the directory already contains in the same version.
    pub already: usize,
    /// The files that cannot be merged.
    pub conflicts: Vec<Conflict>,
    /// Changed files that programs on this machine automatically run or take settings from.
    pub used_by_tools: Vec<String>,
}

/// A file that `bottle apply` cannot merge.
#[derive(Debug, Serialize)]
pub struct Conflict {
    /// The path, relative to the directory.
    pub path: String,
    /// Why the file cannot be merged.
    pub cause: &'static str,
    /// Whether the file now contains conflict markers. Otherwise the file is unchanged.
    pub markers: bool,
}
