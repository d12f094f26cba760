//! Caches the fact that a sandbox worked on this machine, because the trial sandbox is the slowest check before a
//! launch.
//!
//! A cached result is valid only for the same boot, program file, kernel settings and namespaces. If another change of
//! the machine makes sandboxes fail, the launch fails with the error that the trial sandbox would have reported.

use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use bottle_host::Host;
use sha2::{Digest, Sha256};

use super::check;

/// The name of the cache file. The file is next to the runtime directories of the bottles, whose names are slugs. The
/// file's name begins with a dot, because no slug does.
const NAME: &str = ".linux-worked";

/// The namespaces of this process that affect whether a sandbox can be created.
const NAMESPACES: [&str; 4] = ["user", "mnt", "net", "cgroup"];

/// The cached check result of one home.
pub(super) struct CheckCache {
    path: PathBuf,
    fingerprint: Option<String>,
}

impl CheckCache {
    pub(super) fn new(host: &Host) -> Self {
        Self { path: host.runtime.join(NAME), fingerprint: fingerprint(&host.program) }
    }

    /// Whether a sandbox worked earlier with the current fingerprint.
    pub(super) fn is_current(&self) -> bool {
        let stored = fs::read_link(&self.path).ok();
        self.fingerprint.as_ref().is_some_and(|fingerprint| stored.as_deref() == Some(Path::new(fingerprint)))
    }

    /// Records that a sandbox worked. The directory of the cache file must exist. If the directory is not writable,
    /// nothing is recorded and the next start runs the trial sandbox again.
    ///
    /// The cache file is a symbolic link, and the text of its target is the fingerprint. The kernel creates a link
    /// atomically, so a crash leaves no partial cache file.
    pub(super) fn store(&self) {
        let Some(fingerprint) = self.fingerprint.as_ref().filter(|_| !self.is_current()) else { return };
        self.clear();
        match symlink(fingerprint, &self.path) {
            // Another start has already recorded a result.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => tracing::debug!("cannot cache the check in {}: {error}", self.path.display()),
            Ok(()) => {}
        }
    }

    pub(super) fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns a hash of everything that is known to affect whether a sandbox can be created. Returns `None` if an input of
/// the hash cannot be read.
fn fingerprint(program: &Path) -> Option<String> {
    let mut facts = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let program: Metadata = program.metadata().ok()?;
    let _ = write!(facts, "{:?} {:?} ", (program.dev(), program.ino(), program.size()), program.modified());
    for name in NAMESPACES {
        let link = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        let _ = write!(facts, "{} ", link.display());
    }
    // The AppArmor or SELinux label of this process, if any.
    let label = fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    let _ = write!(facts, "{} {label} {}", rustix::process::geteuid().as_raw(), check::facts());
    Some(hex::encode(Sha256::digest(facts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_check_is_valid_until_anything_changes() {
        let directory = tempfile::tempdir().expect("directory");
        let program = directory.path().join("program");
        fs::write(&program, "one").expect("program");
        let path = directory.path().join(NAME);
        let now = || CheckCache { path: path.clone(), fingerprint: fingerprint(&program) };
        assert!(!now().is_current(), "nothing is remembered at first");
        now().store();
        assert!(now().is_current());
        now().clear();
        symlink("something else", &path).expect("link");
        assert!(!now().is_current(), "another machine's");
        now().store();
        assert!(now().is_current());
        now().clear();
        fs::write(&path, "something else").expect("file");
        assert!(!now().is_current(), "no link");
        now().store();
        assert!(now().is_current());
        fs::write(&program, "two, which is longer").expect("program");
        assert!(!now().is_current(), "another program");
        now().store();
        now().clear();
        assert!(!now().is_current());
        fs::remove_file(&program).expect("gone");
        now().store();
        assert!(
            !now().is_current() && path.symlink_metadata().is_err(),
            "what cannot be known is not remembered"
        );
    }
}
