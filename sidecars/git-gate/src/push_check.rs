//! Checks a push before git sees it: its size, the head, and the sizes in the pack.

use bottle_pack_check::{ObjectFormat, PackChecker, PackLimits};

use crate::body_error::BodyError;
use crate::push_head::Head;
use crate::push_limits::MOST_OBJECTS;
use crate::received::PushSpace;

/// The maximum size in bytes of an object that git holds in memory to unpack a delta. It exceeds the size that forges
/// accept for a file (100 MiB).
pub(crate) const MOST_BUFFERED: u64 = 128 << 20;

/// The limits of a pack. git streams complete files beyond eight megabytes (`core.bigFileThreshold` of the mirror).
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

    /// Checks the next chunk.
    ///
    /// # Errors
    /// Fails with [`BodyError::Unfinished`], [`BodyError::Head`] or [`BodyError::Pack`].
    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), BodyError> {
        self.space.take(chunk.len() as u64)?;
        let pack = self.head.feed(chunk)?;
        self.begun |= !pack.is_empty();
        Ok(self.pack.feed(pack)?)
    }

    /// The disk space of the push, which the push needs until git ends.
    pub(crate) fn into_space(self) -> PushSpace {
        self.space
    }

    /// Ends the body.
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
