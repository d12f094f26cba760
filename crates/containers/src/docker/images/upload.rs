//! Streams an archive to the engine. If the files for the archive cannot be read, keeps the cause.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};

/// Why the files for an archive could not be read. The engine only sees that its input ended, so the engine's error
/// lacks the cause.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Option<String>>>);

impl Unread {
    /// Returns the archive that the closure writes, as a stream.
    pub(super) fn stream(
        &self,
        archive: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let unread = self.clone();
        bottle_archive::stream(archive).inspect_err(move |error| {
            *unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        })
    }

    /// Takes the cause out of this value, if reading failed.
    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
