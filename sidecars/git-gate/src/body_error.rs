//! Defines the errors for a request body that is not read completely.

use std::io;

use bottle_pack_check::PackError;

use crate::agent_messages::DISK_FULL;
use crate::push_head::HeadError;

/// The maximum size of a body in bytes. A larger body is refused.
pub(crate) const MOST_BODY: u64 = 4 << 30;

/// The reason why a request body is not read completely. The `Display` text is a sentence for the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error("its pack cannot be unpacked: {}{}", .0, hint(.0))]
    Pack(#[from] PackError),
    #[error("its gzip encoding is damaged; try again")]
    Gzip,
    #[error("it is too large when decoded; send it without gzip")]
    TooLarge,
    #[error("it has more than {} GiB; push less at once", MOST_BODY >> 30)]
    TooLong,
    #[error("pushes that have not ended use all space of the git gate; push again when they have ended")]
    Unfinished,
    #[error("No space left on device: {DISK_FULL}")]
    DiskFull,
    #[error("the git gate cannot store it: {0}; notify the user")]
    Store(io::Error),
    /// git, which reads the body, closed its input before the end of the body. git reports the reason itself.
    #[error("git closed its input")]
    Closed,
}

/// Returns a hint about how the agent can change a pack that was refused. Returns an empty text if there is no hint.
fn hint(error: &PackError) -> &'static str {
    match error {
        PackError::Objects { .. } | PackError::Total { .. } => "; push less at once",
        PackError::Size { part, .. } if part.is_of_delta() => {
            "; push large files without deltas (`git -c core.bigFileThreshold=64m push`)"
        }
        _ => "",
    }
}

impl From<io::Error> for BodyError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Store(error),
        }
    }
}
