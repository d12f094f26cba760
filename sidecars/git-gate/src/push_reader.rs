//! Reads the objects of a push from its quarantine and the mirror.

use bottle_scan::Scanner;

use crate::git::{Git, ReservedFds};

/// The parameters for reading and scanning the objects of one push.
pub(crate) struct Reader<'a> {
    pub(crate) mirror: &'a Git,
    pub(crate) quarantine: &'a str,
    pub(crate) scanner: &'a Scanner,
    pub(crate) has_rules: bool,
    pub(crate) fds: &'a ReservedFds,
}

impl Reader<'_> {
    /// Returns a [`Git`] that sees the objects in this push's quarantine and in the mirror.
    pub(crate) fn with_quarantine(&self) -> Git {
        with_quarantine(self.mirror, self.quarantine)
    }
}

/// Returns a [`Git`] that sees the objects in a quarantine and in the mirror. The mirror is the alternate of the
/// quarantine.
pub(crate) fn with_quarantine(mirror: &Git, quarantine: &str) -> Git {
    let objects = mirror.mirror.join("objects");
    mirror.with_env([
        ("GIT_OBJECT_DIRECTORY".to_owned(), quarantine.to_owned()),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES".to_owned(), objects.to_string_lossy().into_owned()),
    ])
}
