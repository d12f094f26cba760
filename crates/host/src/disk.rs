//! Gives hints for I/O errors in the directories of `bottle`. Removes the paths of temporary files, which users do not
//! know, from messages.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

/// Removes the path of the temporary file from an error. The `tempfile` crate appends this path to the message, but
/// users do not know the path.
#[must_use]
pub fn plain(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.rsplit_once(" at path \"") {
        Some((words, _)) => io::Error::new(error.kind(), words.to_owned()),
        None => error,
    }
}

/// Returns what the user can do about this error if a file or directory of `bottle` cannot be used.
#[must_use]
pub fn hint(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(Errno::NOLCK.raw_os_error()) {
        return NO_LOCKS;
    }
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space on that disk, or set BOTTLE_HOME to a directory on another disk"
        }
        ErrorKind::ReadOnlyFilesystem => "set BOTTLE_HOME to a directory on a writable disk",
        ErrorKind::PermissionDenied => "restore your permissions, or set BOTTLE_HOME to a directory of yours",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "a file is in the place of a directory: move it away, or set BOTTLE_HOME to another directory"
        }
        ErrorKind::Unsupported => NO_LOCKS,
        _ => "check the directory's permissions and the disk's free space",
    }
}

/// The hint for a disk without file locks. `bottle` needs locks to distinguish a running bottle from the
/// files of a bottle that has ended.
const NO_LOCKS: &str =
    "that disk has no file locks, like some network disks: set BOTTLE_HOME to a directory on another disk";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn removes_the_temporary_files_path() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("nowhere");
        let error = tempfile::NamedTempFile::new_in(&path).expect_err("no such directory");
        assert!(error.to_string().contains("at path"), "the path is in the message: {error}");
        let plain = plain(error);
        assert_eq!(plain.kind(), ErrorKind::NotFound);
        assert_eq!(plain.to_string(), "No such file or directory (os error 2)");
        let other = io::Error::other("our message");
        assert_eq!(super::plain(other).to_string(), "our message");
    }

    #[test]
    fn each_kind_of_error_has_its_hint() {
        let directory = tempfile::tempdir().expect("directory");
        std::fs::write(directory.path().join("file"), "").expect("written");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).expect("mode");
        let real =
            std::fs::create_dir(directory.path().join("file/below")).expect_err("a file is in the way");
        assert!(hint(&real).contains("in the place of a directory"));
        for (errno, words) in [
            (Errno::NOSPC, "free space"),
            (Errno::DQUOT, "free space"),
            (Errno::ROFS, "writable"),
            (Errno::ACCESS, "permissions"),
            (Errno::PERM, "permissions"),
            (Errno::NOLCK, "no file locks"),
            (Errno::OPNOTSUPP, "no file locks"),
            (Errno::NOSYS, "no file locks"),
            (Errno::IO, "check"),
        ] {
            let hint = hint(&errno.into());
            assert!(hint.contains(words), "{errno}: {hint}");
        }
    }
}
