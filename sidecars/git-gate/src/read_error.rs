//! Defines the errors for a push that cannot be scanned.

use std::io;

use bottle_scan::{Finding, Report, Severity};

use crate::git::GitError;
use crate::push_limits::{LONGEST_PATH, MOST_ENTRIES, MOST_GITLINKS, MOST_OBJECTS, MOST_PATH_BYTES};

/// The reason why a push cannot be scanned. The `Display` text is a part of a sentence for the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// git failed, or its output is incomplete.
    #[error("cannot {0}")]
    Output(&'static str),
    #[error("cannot read {0} again")]
    Again(String),
    #[error("scanning the push takes too long; push less at once")]
    Timeout,
    #[error("the push contains more than {MOST_OBJECTS} objects; push less at once")]
    Objects,
    #[error("the push contains an object of unknown type")]
    UnknownType,
    #[error(
        "the push contains objects that none of its refs reaches, such as {0}; push without them (`git gc` and push \
         again)"
    )]
    Unreachable(String),
    #[error("{0} is too large for a commit, tag or tree")]
    TooLarge(String),
    #[error("{0} is too large to scan when unpacked")]
    Bomb(String),
    #[error(
        "{0} is a Git LFS pointer, which the git gate does not support; commit the file itself, or leave it out"
    )]
    LfsPointer(String),
    #[error("{0} contains too much that looks like a secret; leave it out")]
    Findings(String),
    #[error("it has too many files that hold secrets by their name")]
    SecretFiles,
    #[error("too many names of its files look like secrets")]
    FlaggedNames,
    #[error("its commits change more than {MOST_ENTRIES} files; push less at once")]
    Entries,
    #[error("it has more than {MOST_GITLINKS} different entries of submodules; push less at once")]
    Gitlinks,
    #[error("it has a path of more than {LONGEST_PATH} bytes; make it shorter")]
    LongPath,
    #[error("the paths of its files have more than {MOST_PATH_BYTES} bytes; push less at once")]
    PathBytes,
    #[error("it has the same files under too many paths; push less at once")]
    Paths,
    #[error(
        "the entry {path} of a directory has the mode {mode:?}, which git does not write; check it out, and commit it \
         again"
    )]
    Mode { mode: String, path: String },
    #[error(
        "a path in {0} contains a carriage return, which clones of older versions of git obey; remove it"
    )]
    StrayReturn(String),
    #[error(
        "{0} says that its text is in the encoding {1:?}, which the git gate does not read; commit in UTF-8 (`git config \
         --unset i18n.commitEncoding`)"
    )]
    Encoding(String, String),
}

impl ReadError {
    /// Returns the error for an entry with an unknown mode.
    pub(crate) fn mode(mode: &[u8], path: &[u8]) -> Self {
        let mode = String::from_utf8_lossy(mode).into_owned();
        Self::Mode { mode, path: display_path(path, "without a name") }
    }
}

/// Returns the findings in `report` that block a push. An incomplete report is an error, unless it contains a known
/// secret, because a known secret blocks the push anyway.
pub(crate) fn blocking(report: Report, what: &str) -> Result<Vec<Finding>, ReadError> {
    if report.more && report.findings.iter().all(|finding| finding.secret.is_none()) {
        return Err(ReadError::Findings(what.to_owned()));
    }
    let mut findings = report.findings;
    findings.retain(|finding| finding.severity == Severity::Block);
    Ok(findings)
}

/// Returns a path in a form that is safe for a terminal. Returns the object id if the path is empty.
pub(crate) fn display_path(path: &[u8], id: &str) -> String {
    if path.is_empty() {
        return format!("the object {id}");
    }
    bottle_text::terminal::inert(&String::from_utf8_lossy(path).replace(['\n', '\t'], "?"))
}
