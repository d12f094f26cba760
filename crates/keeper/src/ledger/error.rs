//! Errors of the ledger, with hints about what the user can do next.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the ledger cannot be used. The usage of a running bottle is never lost: it stays in `usage/`, and is ingested as
/// soon as the ledger can be used again.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}: {cause}", path.display())]
pub struct LedgerError {
    /// The operation that failed, for example `open`, `read` or `write`.
    pub verb: &'static str,
    /// The path of the file.
    pub path: PathBuf,
    /// The reason why the operation failed.
    pub cause: Cause,
}

/// The reason why an operation on the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A newer version of the program wrote the file.
    #[error("a newer version of bottle wrote it (schema {found}; this version knows {known})")]
    Newer {
        /// The schema of the file.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// The file is damaged or is not a database.
    #[error("the database is damaged")]
    Damaged(#[source] rusqlite::Error),
    /// The file or its directory cannot be written.
    #[error("it is read-only")]
    ReadOnly(#[source] rusqlite::Error),
    /// The disk is full.
    #[error("the disk is full")]
    Full(#[source] rusqlite::Error),
    /// Another process did not release its lock in time.
    #[error("another process has had it locked for too long")]
    Locked(#[source] rusqlite::Error),
    /// The file cannot be opened.
    #[error("the file cannot be opened")]
    Unopened(#[source] rusqlite::Error),
    /// Another error of the database.
    #[error(transparent)]
    Database(rusqlite::Error),
    /// A usage file cannot be read.
    #[error(transparent)]
    Usage(#[from] io::Error),
}

impl From<rusqlite::Error> for Cause {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly(error),
            Some(ErrorCode::DiskFull) => Self::Full(error),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked(error),
            Some(ErrorCode::CannotOpen) => Self::Unopened(error),
            _ => Self::Database(error),
        }
    }
}

impl LedgerError {
    pub(super) fn new(verb: &'static str, path: &Path, cause: impl Into<Cause>) -> Self {
        Self { verb, path: path.to_owned(), cause: cause.into() }
    }

    /// Creates the error for a database that could not be used because of an error outside of the database.
    pub fn failed(path: &Path, cause: std::io::Error) -> Self {
        Self::new("use", path, cause)
    }

    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> String {
        let path = self.path.display();
        match &self.cause {
            Cause::Newer { .. } => {
                "update bottle; nothing is lost, because the usage files keep all records".to_owned()
            }
            Cause::Damaged(_) => format!(
                "move {path} away; the next `bottle usage` makes it again from the usage files, \
                 without records older than `keep_days` and without top-ups"
            ),
            Cause::ReadOnly(_) => format!("make {path} and its directory writable for you"),
            Cause::Full(_) => "free some disk space, and try again".to_owned(),
            Cause::Locked(_) => {
                "try again; `fuser` or `lsof` shows the process that has the file open".to_owned()
            }
            Cause::Unopened(_) => {
                format!("{path} must be a file that you own, in a directory that you can write to")
            }
            Cause::Database(_) | Cause::Usage(_) => "bottles that run are not affected; try again".to_owned(),
        }
    }
}
