//! What a disk answered, in words for a user: why something could not be written, and what to do about it.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

/// The error without the name of a temporary file, which nobody but us has heard of. The crate that makes them
/// puts it behind the system's words, as text alone; also when one is written otherwise than as its file.
#[must_use]
pub fn plain(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.rsplit_once(" at path \"") {
        Some((words, _)) => io::Error::new(error.kind(), words.to_owned()),
        None => error,
    }
}

/// What the user does about a folder of bottle's that cannot be used, where the error says it.
#[must_use]
pub fn hint(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(Errno::NOLCK.raw_os_error()) {
        return NO_LOCKS;
    }
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space on that disk, or set BOTTLE_HOME to a folder on another"
        }
        ErrorKind::ReadOnlyFilesystem => "set BOTTLE_HOME to a folder on a disk that can be written",
        ErrorKind::PermissionDenied => "make it yours again, or set BOTTLE_HOME to a folder of yours",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "something else has the place of a folder: move it away, or set BOTTLE_HOME to another folder"
        }
        ErrorKind::Unsupported => NO_LOCKS,
        _ => "check the folder's permissions and the disk's free space",
    }
}

/// Locks tell a living bottle from what is left of one; without them there is no safe way to go on.
const NO_LOCKS: &str =
    "that disk has no file locks, as some on a network have none: set BOTTLE_HOME to a folder on another";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_temporary_files_name_is_nobodys_business() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("nowhere");
        let error = tempfile::NamedTempFile::new_in(&path).expect_err("no such folder");
        assert!(error.to_string().contains("at path"), "what this is for: {error}");
        let plain = plain(error);
        assert_eq!(plain.kind(), ErrorKind::NotFound);
        assert_eq!(plain.to_string(), "No such file or directory (os error 2)");
        let other = io::Error::other("words of ours");
        assert_eq!(super::plain(other).to_string(), "words of ours");
    }

    #[test]
    fn each_answer_of_a_disk_has_its_own_next_step() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join("file"), "").expect("written");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("mode");
        let real = std::fs::create_dir(folder.path().join("file/below")).expect_err("a file is in the way");
        assert!(hint(&real).contains("has the place of a folder"));
        for (errno, words) in [
            (Errno::NOSPC, "free space"),
            (Errno::DQUOT, "free space"),
            (Errno::ROFS, "can be written"),
            (Errno::ACCESS, "make it yours"),
            (Errno::PERM, "make it yours"),
            (Errno::NOLCK, "no file locks"),
            (Errno::OPNOTSUPP, "no file locks"),
            (Errno::NOSYS, "no file locks"),
            (Errno::IO, "check"),
        ] {
            let said = hint(&errno.into());
            assert!(said.contains(words), "{errno}: {said}");
        }
    }
}
