//! The directories that several `--cwd` copy into a workspace.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A directory of the user that is copied into a folder of the workspace, beside others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFolder {
    /// The name of the folder in the workspace.
    pub name: String,
    /// The directory, or the repository that contains it if that is copied instead.
    pub path: PathBuf,
    /// Whether files that `.gitignore` excludes are copied too.
    #[serde(default)]
    pub all: bool,
}
