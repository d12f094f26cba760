//! Defines limits on the content of a push.

use std::time::Duration;

/// The maximum number of objects in one push. A push with more objects is refused.
pub(crate) const MOST_OBJECTS: u32 = 1_000_000;

/// The maximum number of entries that the commits of one push add. A push with more entries is refused. This limit is
/// separate from the limit on objects, because nested trees that are used several times have more paths than objects.
pub(crate) const MOST_ENTRIES: usize = 4_000_000;

/// The maximum length in bytes of a path. A push with a longer path is refused: Linux cannot open such a path, and
/// git's fsck warns about such names.
pub(crate) const LONGEST_PATH: usize = 4096;

/// The maximum total length in bytes of all paths that the gate keeps in memory for one push. A push with longer paths
/// is refused.
pub(crate) const MOST_PATH_BYTES: usize = 128 << 20;

/// The maximum number of submodule entries with different names or commits in one push. A push with more entries is
/// refused.
pub(crate) const MOST_GITLINKS: usize = 1 << 18;

/// The maximum number of files and directories in one push with a name that matches a rule. A push with more of them is
/// refused.
pub(crate) const MOST_NAMED: usize = 10_000;

/// The time limit for one git command that lists the objects of a push. When the limit is reached, the push is refused.
pub(crate) const LISTED_WITHIN: Duration = Duration::from_secs(300);
