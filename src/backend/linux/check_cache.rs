//! That a bottle was made here before: a trial takes longer than all else before a launch, and decides the same.
//!
//! What is remembered is of this boot, this program, these settings of the kernel and this surrounding. A machine
//! that has changed all the same fails in the launch, with the trial's own words.

use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::check;
use crate::host::Host;

/// Beside the bottles' own folders, and no name that a bottle could have.
const NAME: &str = ".linux-worked";

/// What surrounds a process and decides what it may make.
const SURROUNDING: [&str; 4] = ["user", "mnt", "net", "cgroup"];

/// See the module.
pub(super) struct CheckCache {
    path: PathBuf,
    here: Option<String>,
}

impl CheckCache {
    pub(super) fn on(host: &Host) -> Self {
        Self { path: host.runtime.join(NAME), here: here(&host.program) }
    }

    /// Whether it did, and nothing that is known to decide it has changed since.
    pub(super) fn did(&self) -> bool {
        let remembered = fs::read_link(&self.path).ok();
        self.here.as_ref().is_some_and(|here| remembered.as_deref() == Some(Path::new(here)))
    }

    /// Remembers that it did. The folder is there by then; where it cannot be written to, the next start tries.
    ///
    /// As what a link says, which leads nowhere: it is there in one step, and who is killed leaves nothing half
    /// written.
    pub(super) fn remember(&self) {
        let Some(here) = self.here.as_ref().filter(|_| !self.did()) else { return };
        self.forget();
        match symlink(here, &self.path) {
            // Another start was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => tracing::debug!("not remembered in {}: {error}", self.path.display()),
            Ok(()) => {}
        }
    }

    pub(super) fn forget(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// All that decides whether a sandbox can be made here; none where it cannot be read.
fn here(program: &Path) -> Option<String> {
    let mut known = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let program: Metadata = program.metadata().ok()?;
    let _ = write!(known, "{:?} {:?} ", (program.dev(), program.ino(), program.size()), program.modified());
    for name in SURROUNDING {
        let link = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        let _ = write!(known, "{} ", link.display());
    }
    // AppArmor's or SELinux's word for this process, where there is one.
    let label = fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    let _ = write!(known, "{} {label} {}", rustix::process::geteuid().as_raw(), check::facts());
    Some(hex::encode(Sha256::digest(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_worked_here_is_remembered_until_anything_changes() {
        let folder = tempfile::tempdir().expect("folder");
        let program = folder.path().join("program");
        fs::write(&program, "one").expect("program");
        let path = folder.path().join(NAME);
        let now = || CheckCache { path: path.clone(), here: here(&program) };
        assert!(!now().did(), "nothing is remembered at first");
        now().remember();
        assert!(now().did());
        now().forget();
        symlink("something else", &path).expect("link");
        assert!(!now().did(), "another machine's");
        now().remember();
        assert!(now().did());
        now().forget();
        fs::write(&path, "something else").expect("file");
        assert!(!now().did(), "no link");
        now().remember();
        assert!(now().did());
        fs::write(&program, "two, which is longer").expect("program");
        assert!(!now().did(), "another program");
        now().remember();
        now().forget();
        assert!(!now().did());
        fs::remove_file(&program).expect("gone");
        now().remember();
        assert!(!now().did() && path.symlink_metadata().is_err(), "what cannot be known is not remembered");
    }
}
