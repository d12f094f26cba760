//! The JSON output of `bottle fs`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bottle_protocol::session::files::{
    self, FileChange, FileEvent, FileInfo, FileKind, FilePath, LineMatch, Matches,
};
use jiff::Timestamp;
use serde::Serialize;

use super::ComparedDirectory;

/// The output document about the answer to one request.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum FileDocument {
    /// One entry.
    Entry(FileEntry),
    /// Several entries.
    Entries(FileEntries),
    /// A part of a file.
    Content(FileContent),
    /// Lines of a file.
    Lines(FileLines),
    /// A written file.
    Written(WrittenFile),
    /// The files that a patch changed.
    Patched(PatchedFiles),
    /// Removed entries.
    Removed(RemovedFiles),
    /// The entries of an unpacked archive.
    Imported(ImportedFiles),
    /// The lines of files that match a pattern.
    Matches(FileMatches),
}

impl FileDocument {
    /// Returns the document about an answer that is the only answer to its request. `check` says that the request
    /// changed no files. `None` for an answer that can have further answers or data.
    pub fn of(event: FileEvent, check: bool) -> Option<Self> {
        Some(match event {
            FileEvent::Entry(info) => Self::Entry(info.into()),
            FileEvent::Written { bytes, created } => {
                Self::Written(WrittenFile { size_bytes: bytes, created })
            }
            FileEvent::Patched { files } => {
                let files = files.into_iter().map(PatchedFile::from).collect();
                Self::Patched(PatchedFiles { files, applied: !check })
            }
            FileEvent::Removed { entries } => Self::Removed(RemovedFiles { entries }),
            FileEvent::Imported { entries } => Self::Imported(ImportedFiles { entries }),
            FileEvent::Matches(found) => Self::Matches(found.into()),
            FileEvent::Entries(_) | FileEvent::Read { .. } | FileEvent::Exported => return None,
        })
    }
}

/// An entry of a workspace: the document that `bottle fs stat --json` prints.
#[derive(Debug, Serialize)]
pub struct FileEntry {
    /// The path, relative to the workspace.
    #[serde(flatten)]
    pub path: FileEntryPath,
    /// `file`, `directory`, `symlink` or `other`.
    pub kind: &'static str,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The permission bits as octal digits.
    pub mode: String,
    /// The time of the entry's last change, if the file system stores it.
    pub modified: Option<Timestamp>,
    /// The number of the entry's hard links.
    pub links: u64,
    /// The target of a symlink. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub target: Option<String>,
}

/// A path of a workspace.
#[derive(Debug, Serialize)]
pub struct FileEntryPath {
    /// The path, relative to the workspace. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub path: String,
    /// The path in Base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
}

impl From<FileInfo> for FileEntry {
    fn from(info: FileInfo) -> Self {
        Self {
            path: FileEntryPath::of(&info.path),
            kind: match info.kind {
                FileKind::File => "file",
                FileKind::Directory => "directory",
                FileKind::Symlink => "symlink",
                FileKind::Other => "other",
            },
            size_bytes: info.size,
            mode: format!("{:04o}", info.mode),
            modified: info.modified,
            links: info.links,
            target: info.target.map(|target| FileEntryPath::of(&target).path),
        }
    }
}

impl FileEntryPath {
    /// Converts a path to text, and also to Base64 if the path is not UTF-8.
    pub fn of(path: &FilePath) -> Self {
        let bytes = path.as_bytes();
        let path_base64 = std::str::from_utf8(bytes).is_err().then(|| STANDARD.encode(bytes));
        Self { path: String::from_utf8_lossy(bytes).into_owned(), path_base64 }
    }
}

/// The document that `bottle fs ls --json` and `bottle fs glob --json` print.
#[derive(Debug, Serialize)]
pub struct FileEntries {
    /// The entries, sorted by path.
    pub entries: Vec<FileEntry>,
    /// The value of `--after` for the next part of the list. `None` after the last part.
    pub next: Option<String>,
    /// The number of directories that could not be read.
    pub unreadable: u64,
}

/// The document that `bottle fs read --json` prints.
#[derive(Debug, Serialize)]
pub struct FileContent {
    /// The part as text. `None` if the part is not UTF-8.
    pub text: Option<String>,
    /// The part in Base64, if it is not UTF-8.
    pub base64: Option<String>,
    /// The position of the part's first byte in the file.
    pub offset: u64,
    /// The position of the next part in the file.
    pub next: u64,
    /// The size of the whole file in bytes.
    pub size_bytes: u64,
}

/// Lines of a file, as the MCP tool `file_read` returns them.
#[derive(Debug, Serialize)]
pub struct FileLines {
    /// The lines, with their line breaks. U+FFFD replaces bytes that are not UTF-8.
    pub text: String,
    /// The number of the first line.
    pub line: u64,
    /// The number of the line after the last one. `None` at the end of the file.
    pub next_line: Option<u64>,
    /// Whether the end of a very long line was left out.
    pub truncated: bool,
    /// The size of the whole file in bytes.
    pub size_bytes: u64,
}

impl FileContent {
    /// Returns the document about the part of a file that begins at `offset`. `next` is the position after the part,
    /// and `size` is the size of the file. If the part ends inside a character, the bytes of this character are left
    /// for the next part.
    pub fn of(part: &[u8], offset: u64, next: u64, size: u64) -> Self {
        let cut = if next < size { incomplete(part) } else { 0 };
        let part = &part[..part.len() - cut];
        let text = std::str::from_utf8(part).ok().map(str::to_owned);
        let base64 = text.is_none().then(|| STANDARD.encode(part));
        Self { text, base64, offset, next: next.saturating_sub(cut as u64), size_bytes: size }
    }
}

/// The number of bytes of an incomplete character at the end of a text. Returns 0 if the text consists only of this
/// character, or if the bytes are not text.
fn incomplete(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            bytes.len() - error.valid_up_to()
        }
        _ => 0,
    }
}

/// The document that `bottle fs write --json` prints.
#[derive(Debug, Serialize)]
pub struct WrittenFile {
    /// The size of the file in bytes.
    pub size_bytes: u64,
    /// Whether the file did not exist before.
    pub created: bool,
}

/// The document that `bottle fs patch --json` prints.
#[derive(Debug, Serialize)]
pub struct PatchedFiles {
    /// The files in the order of the patch.
    pub files: Vec<PatchedFile>,
    /// Whether the files were written. False with `--check`.
    pub applied: bool,
}

/// A file of a patch.
#[derive(Debug, Serialize)]
pub struct PatchedFile {
    /// The path, relative to the workspace.
    #[serde(flatten)]
    pub path: FileEntryPath,
    /// `created`, `changed` or `deleted`.
    pub change: &'static str,
    /// The number of changes in the file: hunks of a patch, or replaced texts.
    pub places: u64,
}

impl From<files::PatchedFile> for PatchedFile {
    fn from(file: files::PatchedFile) -> Self {
        let change = match file.change {
            FileChange::Created => "created",
            FileChange::Changed => "changed",
            FileChange::Deleted => "deleted",
        };
        Self { path: FileEntryPath::of(&file.path), change, places: file.places }
    }
}

/// The document that `bottle fs rm --json` prints.
#[derive(Debug, Serialize)]
pub struct RemovedFiles {
    /// The number of removed entries, including the entries of directories.
    pub entries: u64,
}

/// The document that `bottle fs reset --json` prints.
#[derive(Debug, Serialize)]
pub struct ResetFiles {
    /// The slug of the bottle.
    pub slug: String,
    /// The commit to which the files were reset. Absent if the workspace was empty when the bottle was started, or if
    /// `directories` has entries.
    pub base: Option<String>,
    /// The directories of the workspace, if several directories were copied.
    #[serde(rename = "folders", skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<ComparedDirectory>,
    /// The files, sorted by path.
    pub files: Vec<ResetFile>,
    /// Whether the files were changed. False with `--dry-run`.
    pub applied: bool,
}

/// A file that differs from its state at the start of the bottle.
#[derive(Debug, Serialize)]
pub struct ResetFile {
    /// The path, relative to the workspace.
    #[serde(flatten)]
    pub path: FileEntryPath,
    /// `remove` for a file that was created since the start, otherwise `restore`.
    pub action: &'static str,
}

/// The document that `bottle fs import --json` prints.
#[derive(Debug, Serialize)]
pub struct ImportedFiles {
    /// The number of entries of the archive.
    pub entries: u64,
}

/// The document that `bottle fs grep --json` prints.
#[derive(Debug, Serialize)]
pub struct FileMatches {
    /// The matching lines, sorted by path and line.
    pub matches: Vec<FileMatch>,
    /// The number of files that were searched.
    pub files: u64,
    /// The number of files and directories that were left out, because they are binary or cannot be read.
    pub skipped: u64,
    /// Why the search ended early. `None` if the search was complete.
    pub stopped: Option<String>,
}

/// A line that matches the pattern.
#[derive(Debug, Serialize)]
pub struct FileMatch {
    /// The path, relative to the workspace.
    #[serde(flatten)]
    pub path: FileEntryPath,
    /// The number of the line, counted from 1.
    pub line: u64,
    /// The line, or the part of a long line around the match. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
    /// Whether the line is longer than the text.
    pub cut: bool,
}

impl From<Matches> for FileMatches {
    fn from(found: Matches) -> Self {
        let matches = found.matches.into_iter().map(FileMatch::from).collect();
        Self { matches, files: found.files, skipped: found.skipped, stopped: found.stopped }
    }
}

impl From<LineMatch> for FileMatch {
    fn from(LineMatch { path, line, text, cut }: LineMatch) -> Self {
        Self { path: FileEntryPath::of(&path), line, text, cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_with_a_whole_character() {
        for (bytes, cut) in [
            (&b"abc"[..], 0),
            (b"", 0),
            ("aü".as_bytes(), 0),
            (&"aü".as_bytes()[..2], 1),
            (&"a😀".as_bytes()[..4], 3),
            (&"😀".as_bytes()[..3], 0),
            (b"\xffabc", 0),
            (b"abc\xff", 0),
        ] {
            assert_eq!(incomplete(bytes), cut, "{bytes:?}");
        }
    }

    #[test]
    fn the_next_part_begins_with_the_character_that_was_cut_off() {
        let part = &"aü".as_bytes()[..2];
        let first = FileContent::of(part, 0, 2, 3);
        assert_eq!((first.text.as_deref(), first.next), (Some("a"), 1));
        // At the end of the file, no further bytes can complete the character, so the bytes are not text.
        let last = FileContent::of(part, 0, 2, 2);
        assert_eq!((last.text, last.next, last.base64.is_some()), (None, 2, true));
    }
}
