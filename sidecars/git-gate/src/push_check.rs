//! Checks a push before git reads it: the total size, the head, and the sizes of the objects in the pack.

use bottle_pack_check::{ObjectFormat, PackChecker, PackLimits};

use crate::body_error::BodyError;
use crate::push_head::Head;
use crate::push_limits::MOST_OBJECTS;
use crate::received::PushSpace;

/// The maximum size in bytes of an object that git holds in memory to unpack a delta. The limit is higher than the
/// maximum size of a file that forges accept (100 MiB).
pub(crate) const MOST_BUFFERED: u64 = 128 << 20;

/// The limits of a pack. git streams files of more than eight megabytes that are not deltas (`core.bigFileThreshold` of
/// the mirror).
const LIMITS: PackLimits =
    PackLimits { objects: MOST_OBJECTS, blob: 4 << 30, buffered: MOST_BUFFERED, total: 32 << 30 };

/// Checks the body of a push in chunks.
pub(crate) struct PushCheck {
    space: PushSpace,
    head: Head,
    pack: PackChecker,
    /// Whether the pack has begun. A push that only deletes refs has no pack.
    begun: bool,
}

impl PushCheck {
    pub(crate) fn new(format: ObjectFormat, space: PushSpace) -> Self {
        Self { space, head: Head::default(), pack: PackChecker::new(LIMITS, format), begun: false }
    }

    /// Checks the next chunk of the body.
    ///
    /// # Errors
    /// Fails with [`BodyError::Unfinished`], [`BodyError::Head`] or [`BodyError::Pack`].
    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), BodyError> {
        self.space.take(chunk.len() as u64)?;
        let pack = self.head.feed(chunk)?;
        self.begun |= !pack.is_empty();
        Ok(self.pack.feed(pack)?)
    }

    /// Returns the disk space of the push. The push needs this space until git exits.
    pub(crate) fn into_space(self) -> PushSpace {
        self.space
    }

    /// Checks the end of the body.
    ///
    /// # Errors
    /// Fails with [`BodyError::Pack`] if the pack has begun and is incomplete.
    pub(crate) fn finish(&self) -> Result<(), BodyError> {
        if self.begun {
            self.pack.finish()?;
        }
        Ok(())
    }
}
