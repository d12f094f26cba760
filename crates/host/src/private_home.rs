//! Makes `$BOTTLE_HOME` private to its user, and refuses a location where another user could replace it.
//!
//! All files of this program are in `$BOTTLE_HOME` or in the runtime directory. The mode of these two directories
//! therefore decides who can read the files, whatever the umask was when the files were created. Commands do not change
//! their umask, because `pull`, `apply` and `cp` write the user's own files, to which the umask is meant to apply.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use super::process_host::{HostError, user_name};
use super::{Host, files};

/// Directories whose files decide what an agent may do. If other users could write to the home, the entries of these
/// directories are checked too.
const CONFIGURATION: [&str; 4] = ["agents", "bottles", "rules", "skills"];

/// The maximum number of entries that are checked in one directory. A typical home has tens of entries.
const MAX_ENTRIES: usize = 10_000;

/// The owner that a user namespace shows for files of unmapped users (`/proc/sys/kernel/overflowuid`). In a rootless
/// container, files of the machine's root, such as `/` and `/home`, have this owner.
const OVERFLOW_UID: u32 = 65534;

impl Host {
    /// Checks that the path of `$BOTTLE_HOME` is UTF-8, and that no other user can replace the directory. If the
    /// directory exists, also checks that it is a directory of this user, and makes it accessible only to this user.
    /// Returns a note if the directory's mode was changed.
    ///
    /// # Errors
    /// Returns [`HostError`] if one of these checks fails, or the mode cannot be changed.
    pub fn check_home(&self) -> Result<Option<String>, HostError> {
        let path = &self.home;
        if path.to_str().is_none() {
            return Err(HostError::HomeNotText(path.clone()));
        }
        check_parents(path)?;
        let failed = |source| HostError::Home { path: path.clone(), source };
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(failed)?,
        };
        if !found.is_dir() {
            return Err(HostError::HomeNotDirectory(path.clone()));
        }
        if !is_own(found.uid()) {
            return Err(HostError::HomeNotYours { path: path.clone(), owner: user_name(found.uid()) });
        }
        let others = found.mode() & 0o077;
        if others == 0 {
            return Ok(None);
        }
        // The mode is changed before the entries are checked, so that other users cannot add entries after the check.
        let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let directory = File::from(directory.map_err(|error| failed(error.into()))?);
        let closed = directory.set_permissions(Permissions::from_mode(0o700));
        if others & 0o022 != 0 {
            check_entries(path)?;
        }
        match closed {
            // Other users cannot write to a read-only file system, so its directories may stay accessible to them.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => return Ok(None),
            closed => closed.map_err(failed)?,
        }
        Ok(Some(format!("other users could access {}; its mode is 0700 now", path.display())))
    }
}

/// Refuses a path whose parents another user can write or replace. Write access of groups is ignored: in many
/// distributions, each user has a private group, which can write to the user's directories.
fn check_parents(path: &Path) -> Result<(), HostError> {
    for parent in path.ancestors().skip(1) {
        let Ok(found) = fs::metadata(parent) else { continue };
        let refused = |why: String| {
            let (path, parent) = (path.to_owned(), parent.to_owned());
            Err(HostError::HomeReplaceable { path, parent, why })
        };
        if !is_own(found.uid()) && !is_root(found.uid()) {
            return refused(format!("belongs to another user ({})", user_name(found.uid())));
        }
        if found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0 {
            return refused("is writable for every user".to_owned());
        }
    }
    Ok(())
}

/// Refuses a home if another user owns an entry of the home or of a directory in [`CONFIGURATION`]. Other users could
/// add entries while the home was writable for them, and the entries decide what agents may do.
fn check_entries(home: &Path) -> Result<(), HostError> {
    let directories = CONFIGURATION.map(|name| home.join(name));
    for directory in std::iter::once(home).chain(directories.iter().map(PathBuf::as_path)) {
        let failed = |source| HostError::Home { path: directory.to_owned(), source };
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(failed)?,
        };
        for (index, entry) in entries.enumerate() {
            let path = entry.map_err(failed)?.path();
            let uid = path.symlink_metadata().map_err(failed)?.uid();
            if index >= MAX_ENTRIES {
                return Err(failed(io::Error::other(format!("it has more than {MAX_ENTRIES} entries"))));
            }
            if !is_own(uid) && !is_root(uid) {
                return Err(HostError::HomeNotYours { path, owner: user_name(uid) });
            }
        }
    }
    Ok(())
}

/// Makes the runtime directory private, like [`files::private_directory`]. Returns [`HostError::RuntimeNotPrivate`] if
/// the path is not a directory, or if another user owns the directory.
pub(super) fn make_runtime(path: &Path) -> Result<(), HostError> {
    files::private_directory(path).map_err(|source| match fs::symlink_metadata(path) {
        Ok(found) if !found.is_dir() || !is_own(found.uid()) => HostError::RuntimeNotPrivate(path.to_owned()),
        _ => HostError::Runtime { path: path.to_owned(), source },
    })
}

fn is_own(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

/// Whether a user id belongs to root, either root on this machine or root as a user namespace shows it.
fn is_root(uid: u32) -> bool {
    uid == 0 || (uid == OVERFLOW_UID && is_in_user_namespace())
}

/// Whether this process is in a user namespace, in which user ids differ from the machine's.
fn is_in_user_namespace() -> bool {
    // The initial namespace maps all ids to themselves (user_namespaces(7)). macOS has no such file.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn a_home_that_others_can_access_is_made_private_with_one_note() {
        let top = tempfile::tempdir().expect("directory");
        let home = top.path().join("home");
        let host = Host::of_home(&home);
        assert_eq!(host.check_home().expect("it does not exist"), None);
        for mode in [0o755, 0o775, 0o777, 0o710] {
            fs::create_dir_all(home.join("agents")).expect("directory");
            set(&home, mode);
            assert!(
                host.check_home().expect("repaired").is_some_and(|note| note.contains("0700")),
                "{mode:o}"
            );
            assert_eq!(home.metadata().expect("there").mode() & 0o777, 0o700);
            assert_eq!(host.check_home().expect("private"), None);
        }
    }

    #[test]
    fn only_a_parent_that_every_user_can_write_is_refused() {
        let top = tempfile::tempdir().expect("directory");
        let parent = top.path().join("parent");
        fs::create_dir(&parent).expect("directory");
        let host = Host::of_home(&parent.join("home"));
        for (mode, is_refused) in
            [(0o777, true), (0o1777, false), (0o775, false), (0o755, false), (0o772, true)]
        {
            set(&parent, mode);
            let refused = matches!(host.check_home(), Err(HostError::HomeReplaceable { .. }));
            assert_eq!(refused, is_refused, "{mode:o}");
        }
    }

    /// The test needs root, because only root can create files of other users.
    #[test]
    fn what_another_user_put_into_a_writable_home_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return assert!(!is_own(0));
        }
        let top = tempfile::tempdir().expect("directory");
        let home = top.path().join("home");
        let planted = home.join("bottles/mine.md");
        fs::create_dir_all(home.join("bottles")).expect("directory");
        fs::write(&planted, "---\n---\n").expect("file");
        std::os::unix::fs::chown(&planted, Some(12345), None).expect("owner");
        set(&home, 0o777);
        let refused = Host::of_home(&home).check_home().expect_err("planted");
        assert!(matches!(&refused, HostError::HomeNotYours { path, .. } if *path == planted), "{refused}");
        std::os::unix::fs::chown(top.path(), Some(12345), None).expect("owner");
        let refused = Host::of_home(&home).check_home().expect_err("its parent");
        assert!(matches!(refused, HostError::HomeReplaceable { .. }), "{refused}");
    }
}
