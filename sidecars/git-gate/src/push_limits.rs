//! The limits on what a push contains.

use std::time::Duration;

/// The maximum number of objects in one push. A push with more is refused.
pub(crate) const MOST_OBJECTS: u32 = 1_000_000;

/// The maximum number of entries that the commits of one push add. A push with more is refused. Trees that contain one
/// another have more paths than objects.
pub(crate) const MOST_ENTRIES: usize = 4_000_000;

/// The maximum length in bytes of a path. A push with a longer path is refused, because Linux cannot open such a path,
/// and git's fsck warns about its names.
pub(crate) const LONGEST_PATH: usize = 4096;

/// The maximum number of bytes of all paths that are kept for one push. A push with more is refused.
pub(crate) const MOST_PATH_BYTES: usize = 128 << 20;

/// The maximum number of submodule entries with different names or commits in one push. A push with more is refused.
pub(crate) const MOST_GITLINKS: usize = 1 << 18;

/// The maximum number of files and directories in a push whose names match a rule. A push with more is refused.
pub(crate) const MOST_NAMED: usize = 10_000;

/// The time limit for one git command that lists the objects of a push. After it, the push is refused.
pub(crate) const LISTED_WITHIN: Duration = Duration::from_secs(300);
