//! The JSON output of `bottle fs`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bottle_contract::session::files::FilePath;
use jiff::Timestamp;
use serde::Serialize;

use super::ComparedDirectory;

/// An entry of a workspace: the document that `bottle fs stat --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntry {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// `file`, `directory`, `symlink` or `other`.
    pub(crate) kind: &'static str,
    pub(crate) size_bytes: u64,
    /// The permission bits as octal digits.
    pub(crate) mode: String,
    pub(crate) modified: Option<Timestamp>,
    /// The number of its hard links.
    pub(crate) links: u64,
    /// The target of a symlink. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) target: Option<String>,
}

/// A path of a workspace.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntryPath {
    /// The path from the workspace on. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) path: String,
    /// The path, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_base64: Option<String>,
}

impl FileEntryPath {
    pub(crate) fn of(path: &FilePath) -> Self {
        let bytes = path.as_bytes();
        let path_base64 = std::str::from_utf8(bytes).is_err().then(|| STANDARD.encode(bytes));
        Self { path: String::from_utf8_lossy(bytes).into_owned(), path_base64 }
    }
}

/// The document that `bottle fs ls --json` and `bottle fs glob --json` print.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntries {
    pub(crate) entries: Vec<FileEntry>,
    /// The value of `--after` for the next part. `None` at the end.
    pub(crate) next: Option<String>,
    /// The number of directories that could not be read.
    pub(crate) unreadable: u64,
}

/// The document that `bottle fs read --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct FileContent {
    /// `None` if the part is not UTF-8.
    pub(crate) text: Option<String>,
    /// The part, if it is not UTF-8.
    pub(crate) base64: Option<String>,
    /// The position of the first byte.
    pub(crate) offset: u64,
    /// The position at which the next part begins.
    pub(crate) next: u64,
    pub(crate) size_bytes: u64,
}

/// The document that `bottle fs write --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct WrittenFile {
    pub(crate) size_bytes: u64,
    /// Whether the file did not exist before.
    pub(crate) created: bool,
}

/// The document that `bottle fs patch --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct PatchedFiles {
    pub(crate) files: Vec<PatchedFile>,
    /// Whether the files were written. False with `--check`.
    pub(crate) applied: bool,
}

/// A file of a patch.
#[derive(Debug, Serialize)]
pub(crate) struct PatchedFile {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// `created`, `changed` or `deleted`.
    pub(crate) change: &'static str,
    /// The number of hunks, or of replaced texts.
    pub(crate) places: u64,
}

/// The document that `bottle fs rm --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RemovedFiles {
    /// The number of entries, with those in directories.
    pub(crate) entries: u64,
}

/// The document that `bottle fs reset --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ResetFiles {
    pub(crate) slug: String,
    /// The commit to which the files were put back; absent if the workspace was empty at its start, and with
    /// `directories`.
    pub(crate) base: Option<String>,
    /// The directories of the workspace, if several directories were copied.
    #[serde(rename = "folders", skip_serializing_if = "Vec::is_empty")]
    pub(crate) directories: Vec<ComparedDirectory>,
    pub(crate) files: Vec<ResetFile>,
    /// Whether the files were changed. False with `--dry-run`.
    pub(crate) applied: bool,
}

/// A file that differs from the start.
#[derive(Debug, Serialize)]
pub(crate) struct ResetFile {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// `remove` for a file that was created since the start, otherwise `restore`.
    pub(crate) action: &'static str,
}

/// The document that `bottle fs import --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ImportedFiles {
    /// The number of entries of the archive.
    pub(crate) entries: u64,
}

/// The document that `bottle fs grep --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct FileMatches {
    pub(crate) matches: Vec<FileMatch>,
    /// The number of files that were searched.
    pub(crate) files: u64,
    /// The number of files and directories that were left out, because they are binary or cannot be read.
    pub(crate) skipped: u64,
    /// Why the search ended early. `None` if it did not.
    pub(crate) stopped: Option<String>,
}

/// A line that matches.
#[derive(Debug, Serialize)]
pub(crate) struct FileMatch {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// The number of the line, from 1.
    pub(crate) line: u64,
    /// The line, or a part of a long one around the match. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) text: String,
    /// Whether the line is longer than the text.
    pub(crate) cut: bool,
}
