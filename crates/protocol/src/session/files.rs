//! Messages about the files of the workspace.
//!
//! No request can reach a file outside the workspace: the guest opens every path beneath the workspace directory. The
//! size of every request and answer is bounded. A truncated answer reports that it is truncated, and where the next
//! answer continues.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use bottle_policy::names::WORKSPACE;

/// The maximum number of entries in one answer.
pub const ENTRIES_MAX: u32 = 5000;

/// The maximum number of bytes that one request reads from a file.
pub const READ_MAX: u64 = 1 << 30;

/// The maximum size of a file that a request writes, in bytes. [`FileRequest::Import`] has no such limit.
pub const WRITE_MAX: u64 = 256 << 20;

/// The maximum size of a unified diff, and of each text of [`Replace`], in bytes.
pub const PATCH_MAX: usize = 8 << 20;

/// The maximum size of a file that a patch changes, in bytes.
pub const PATCHED_FILE_MAX: u64 = 16 << 20;

/// The maximum number of files that one patch changes.
pub const PATCHED_FILES_MAX: usize = 500;

/// The maximum length of a pattern in bytes.
pub const PATTERN_MAX: usize = 4096;

/// The maximum number of patterns of one kind in a request.
pub const PATTERNS_MAX: usize = 64;

/// The maximum number of bytes of a line that `grep` returns.
pub const LINE_MAX: usize = 500;

/// A path in the workspace, which need not be UTF-8. A relative path starts at the workspace. An absolute path begins
/// with `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "EncodedPath", into = "EncodedPath")]
pub struct FilePath(PathBuf);

/// A path in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum EncodedPath {
    Text(String),
    /// A path that is not UTF-8.
    Bytes(Vec<u8>),
}

impl From<EncodedPath> for FilePath {
    fn from(encoded: EncodedPath) -> Self {
        Self(match encoded {
            EncodedPath::Text(text) => text.into(),
            EncodedPath::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

impl From<FilePath> for EncodedPath {
    fn from(path: FilePath) -> Self {
        let bytes = path.0.into_os_string().into_vec();
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl FilePath {
    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The path relative to the workspace. Each `..` is resolved lexically. The result is empty for the workspace
    /// itself, and `None` if the path is outside the workspace.
    #[must_use]
    pub fn in_workspace(&self) -> Option<PathBuf> {
        let inside = if self.0.is_absolute() { self.0.strip_prefix(WORKSPACE).ok()? } else { &self.0 };
        let mut found = PathBuf::new();
        for component in inside.components() {
            match component {
                Component::Normal(name) => found.push(name),
                Component::ParentDir if !found.pop() => return None,
                Component::ParentDir | Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        Some(found)
    }

    /// The bytes of the path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }
}

impl<P: AsRef<OsStr> + ?Sized> From<&P> for FilePath {
    fn from(path: &P) -> Self {
        Self(PathBuf::from(path.as_ref()))
    }
}

/// A request about files of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FileRequest {
    /// Lists a directory, sorted by name. For any other entry, the list contains only the entry itself. Returns
    /// [`FileEvent::Entries`].
    List(List),
    /// Describes one entry, without following it if it is a symlink. Returns [`FileEvent::Entry`].
    Stat {
        /// The entry.
        path: FilePath,
    },
    /// Sends a part of a regular file as data on `STDOUT`, and then [`FileEvent::Read`].
    Read(Read),
    /// Replaces a regular file, or creates it with its parents. The content follows as data on `STDIN`, until the
    /// stream ends. A reader sees either the complete old content or the complete new content. Returns
    /// [`FileEvent::Written`].
    Write(Write),
    /// Applies a unified diff, which follows as data on `STDIN`. If the guest cannot make one of the changes, it makes
    /// no change. Returns [`FileEvent::Patched`].
    Patch {
        /// If true, the guest checks that the change can be made, but does not make it.
        check: bool,
    },
    /// Replaces a text in a file. Returns [`FileEvent::Patched`].
    Replace(Replace),
    /// Removes a file, or with `recursive` a directory. For a symlink, removes the symlink and not its target. Returns
    /// [`FileEvent::Removed`].
    Remove {
        /// The entry.
        path: FilePath,
        /// Whether to remove a directory with its contents.
        recursive: bool,
    },
    /// Removes files and symlinks, and the directories that are empty afterwards. An entry that does not exist is
    /// skipped. Returns [`FileEvent::Removed`] with the number of files and symlinks. Stops at the first error.
    RemoveFiles {
        /// The files and symlinks.
        paths: Vec<FilePath>,
    },
    /// Sends the contents of a directory, or one regular file, as a tar stream on `STDOUT`. Returns
    /// [`FileEvent::Exported`].
    Export {
        /// The directory or the file.
        path: FilePath,
    },
    /// Unpacks a tar stream, which may be compressed with gzip, into a directory, which is created if it does not exist.
    /// The stream follows as data on `STDIN`, until the stream ends. The entries appear when the whole archive is
    /// unpacked, so a damaged or truncated archive changes nothing. Returns [`FileEvent::Imported`].
    Import {
        /// The directory.
        path: FilePath,
    },
    /// Lists the entries below a directory whose path matches a pattern. Returns [`FileEvent::Entries`].
    Glob(Glob),
    /// Searches lines of the files below a directory. Returns [`FileEvent::Matches`].
    Grep(Grep),
}

impl FileRequest {
    /// Whether the request can change a file.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Self::List(_)
            | Self::Stat { .. }
            | Self::Read(_)
            | Self::Export { .. }
            | Self::Glob(_)
            | Self::Grep(_) => false,
            Self::Write(_)
            | Self::Patch { .. }
            | Self::Replace(_)
            | Self::Remove { .. }
            | Self::RemoveFiles { .. }
            | Self::Import { .. } => true,
        }
    }
}

/// Options of [`FileRequest::List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The directory.
    pub path: FilePath,
    /// Whether to list the contents of subdirectories too. Each subdirectory directly precedes its contents. Symlinks
    /// are not followed.
    pub recursive: bool,
    /// If set, the list omits this entry and all entries before it.
    #[serde(default)]
    pub after: Option<FilePath>,
    /// The maximum number of entries, at most [`ENTRIES_MAX`].
    pub limit: u32,
}

/// Options of [`FileRequest::Read`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The file. The guest follows symlinks that point to a file of the workspace.
    pub path: FilePath,
    /// The position of the first byte.
    pub offset: u64,
    /// The maximum number of bytes, at most [`READ_MAX`].
    pub max: u64,
    /// Whether the values of the bottle's secret variables are redacted. Positions count the bytes of the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redact: bool,
}

/// Options of [`FileRequest::Write`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// The file.
    pub path: FilePath,
    /// Whether an existing file is an error.
    pub new: bool,
}

/// Options of [`FileRequest::Replace`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The file.
    pub path: FilePath,
    /// The text to replace. It must occur exactly once unless `all` is set.
    pub search: String,
    /// The text that replaces `search`.
    pub replacement: String,
    /// Whether to replace every occurrence if there are several.
    pub all: bool,
    /// If true, the guest checks that the change can be made, but does not make it.
    pub check: bool,
}

/// The part of the workspace that a search visits: the entries below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// The directory.
    pub path: FilePath,
    /// Patterns of entries that the search skips, including their contents. Like the lines of a `.gitignore`, a pattern
    /// without a slash applies to names in every directory.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether to search the `.git` directories too.
    #[serde(default)]
    pub git: bool,
}

/// Options of [`FileRequest::Glob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Glob {
    /// Where to search.
    pub scope: Scope,
    /// The pattern of paths. A pattern without a slash applies to names in every directory.
    pub pattern: String,
    /// If set, the list omits this entry and all entries before it.
    #[serde(default)]
    pub after: Option<FilePath>,
    /// The maximum number of entries, at most [`ENTRIES_MAX`].
    pub limit: u32,
}

/// Options of [`FileRequest::Grep`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grep {
    /// Where to search. The path may be a file.
    pub scope: Scope,
    /// A regular expression.
    pub pattern: String,
    /// Whether the pattern is plain text.
    #[serde(default)]
    pub literal: bool,
    /// Whether the search ignores the case of letters.
    #[serde(default)]
    pub ignore_case: bool,
    /// Patterns of files to search. If there is no pattern, the guest searches all files.
    #[serde(default)]
    pub include: Vec<String>,
    /// The maximum number of lines, at most [`ENTRIES_MAX`].
    pub limit: u32,
    /// Whether the values of the bottle's secret variables are redacted. The search then finds no part of a value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redact: bool,
}

/// The last message about a [`FileRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FileEvent {
    /// Entries, sorted by path.
    Entries(Entries),
    /// One entry.
    Entry(FileInfo),
    /// A part of a file was sent ([`FileRequest::Read`]).
    Read {
        /// The position after the last byte that was sent.
        next: u64,
        /// The size of the file in bytes.
        size: u64,
    },
    /// A file was written.
    Written {
        /// The size of the file in bytes.
        bytes: u64,
        /// Whether the file did not exist before the request.
        created: bool,
    },
    /// Files were changed or, if the request set `check`, could be changed.
    Patched {
        /// The files, in the order of the patch.
        files: Vec<PatchedFile>,
    },
    /// Entries were removed.
    Removed {
        /// The number of entries, including those in removed directories.
        entries: u64,
    },
    /// The complete directory was sent.
    Exported,
    /// An archive was unpacked.
    Imported {
        /// The number of entries in the archive.
        entries: u64,
    },
    /// The search found these lines ([`FileRequest::Grep`]).
    Matches(Matches),
}

/// A part of a list of entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entries {
    /// The entries.
    pub entries: Vec<FileInfo>,
    /// The value of `after` for the next part; `None` if this part is the last.
    pub next: Option<FilePath>,
    /// The number of directories that could not be read.
    pub unreadable: u64,
}

/// An entry of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileInfo {
    /// The path, relative to the workspace.
    pub path: FilePath,
    /// The kind of the entry.
    pub kind: FileKind,
    /// The size in bytes: 0 for a directory, and the length of the target for a symlink.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// The time of the entry's last change. `None` if the file system reports an invalid time.
    pub modified: Option<Timestamp>,
    /// The number of hard links to the entry.
    pub links: u64,
    /// The target of a symlink.
    pub target: Option<FilePath>,
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A device, a FIFO or a socket. The guest never opens an entry of this kind.
    Other,
}

/// A file that a patch changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchedFile {
    /// The path, relative to the workspace.
    pub path: FilePath,
    /// How the patch changes the file.
    pub change: FileChange,
    /// The number of places that were changed: hunks, or occurrences of a text.
    pub places: u64,
}

/// What a patch does to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileChange {
    /// The patch creates the file.
    Created,
    /// The patch changes the content of the file.
    Changed,
    /// The patch removes the file.
    Deleted,
}

/// The result of [`FileRequest::Grep`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matches {
    /// The lines, in the order of the paths.
    pub matches: Vec<LineMatch>,
    /// The number of files that were searched.
    pub files: u64,
    /// The number of files that were left out, because they are binary or cannot be read.
    pub skipped: u64,
    /// The bound that ended the search early, as a fragment of a sentence.
    pub stopped: Option<String>,
}

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineMatch {
    /// The file, relative to the workspace.
    pub path: FilePath,
    /// The number of the line, from 1.
    pub line: u64,
    /// The line, or with `cut` a part of at most [`LINE_MAX`] bytes around the match. Bytes that are not UTF-8 are
    /// replaced by U+FFFD.
    pub text: String,
    /// Whether the line is longer than the text.
    pub cut: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::guest::{GuestEvent, GuestRequest};

    #[test]
    fn paths_need_not_be_text() {
        for bytes in [&b"src/a\nb"[..], b"\xff/\xfe", b""] {
            let path = FilePath::from(OsStr::from_bytes(bytes));
            let json = serde_json::to_string(&path).expect("encoded");
            assert_eq!(serde_json::from_str::<FilePath>(&json).expect("decoded").as_bytes(), bytes, "{json}");
        }
    }

    #[test]
    fn paths_lead_into_the_workspace_or_nowhere() {
        for (path, inside) in [
            ("a/./b", Some("a/b")),
            ("", Some("")),
            ("/workspace", Some("")),
            ("/workspace/a/../b", Some("b")),
            ("a/../..", None),
            ("/workspaces/a", None),
            ("/etc/passwd", None),
            ("/workspace/../etc", None),
        ] {
            assert_eq!(FilePath::from(path).in_workspace().as_deref(), inside.map(Path::new), "{path}");
        }
    }

    #[test]
    fn requests_and_events_are_read_as_they_were_written() {
        let request = GuestRequest::Files(FileRequest::Stat { path: "a".into() });
        let json = serde_json::to_string(&request).expect("encoded");
        assert_eq!(json, r#"{"request":"files","operation":"stat","path":"a"}"#);
        assert_eq!(serde_json::from_str::<GuestRequest>(&json).expect("decoded"), request);
        let unknown = r#"{"request":"files","operation":"stat","path":"a","more":1}"#;
        assert!(serde_json::from_str::<GuestRequest>(unknown).is_err());
        let event = GuestEvent::Files(FileEvent::Entries(Entries::default()));
        let json = serde_json::to_string(&event).expect("encoded");
        assert_eq!(serde_json::from_str::<GuestEvent>(&json).expect("decoded"), event);
    }
}
