//! Attaches to the standard streams of a container, as one byte stream.
//!
//! The engine multiplexes standard output and standard error on one connection. Standard output carries the data that
//! pid 1 of the container sends to the keeper; standard error goes to a log of limited size. Closing the connection
//! does not close the container's standard input.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::query_parameters::AttachContainerOptionsBuilder;
use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::engine::{Engine, EngineError};

/// The maximum size in bytes of the log of a container's standard error. The rest of the output is discarded. The log
/// has space for many panic messages with stack traces.
const LOG_MAX: u64 = 1 << 20;

/// An open connection to the standard streams of a container.
pub(super) struct Attached {
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    /// Bytes that were received and have not been read yet.
    unread: Bytes,
    log: Option<PathBuf>,
}

/// Attaches to a running or newly created container. Appends the container's standard error to `log`.
///
/// # Errors
/// [`EngineError`] when the container does not exist.
pub(super) async fn attach(
    engine: &Engine,
    container: &str,
    log: Option<&Path>,
) -> Result<Attached, EngineError> {
    let options =
        AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).build();
    let AttachContainerResults { output, input } =
        engine.call(engine.docker().attach_container(container, Some(options))).await?;
    Ok(Attached { output, input, unread: Bytes::new(), log: log.map(Path::to_owned) })
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").finish_non_exhaustive()
    }
}

impl Attached {
    /// Returns the path of the log of the container's standard error, if there is a log.
    pub(super) fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// Appends standard error to the log, for diagnosis. Ignores a failure to write the log.
    fn log_stderr(&self, bytes: &[u8]) {
        let Some(path) = &self.log else { return };
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(options.append(true).create(true), 0o600);
        if let Ok(mut file) = options.open(path)
            && file.metadata().is_ok_and(|log| log.len() < LOG_MAX)
        {
            let _ = file.write_all(bytes);
        }
    }
}

impl AsyncRead for Attached {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match std::task::ready!(self.output.poll_next_unpin(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(LogOutput::StdOut { message } | LogOutput::Console { message })) => {
                    self.unread = message
                }
                Some(Ok(LogOutput::StdErr { message })) => self.log_stderr(&message),
                Some(Ok(LogOutput::StdIn { .. })) => {}
            }
        }
        let take = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..take]);
        self.unread.advance(take);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Attached {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn attached(pieces: Vec<LogOutput>, log: Option<PathBuf>) -> Attached {
        Attached {
            output: Box::pin(stream::iter(pieces.into_iter().map(Ok))),
            input: Box::pin(tokio::io::sink()),
            unread: Bytes::new(),
            log,
        }
    }

    #[tokio::test]
    async fn standard_output_is_the_stream_and_standard_error_goes_to_the_log() {
        let directory = tempfile::tempdir().expect("directory");
        let log = directory.path().join("guest.log");
        let out = |text: &'static str| LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) };
        let err = |text: &'static str| LogOutput::StdErr { message: Bytes::from_static(text.as_bytes()) };
        let pieces = vec![err("a warning\n"), out("one "), out(""), err("another\n"), out("two")];
        let mut read = String::new();
        attached(pieces, Some(log.clone())).read_to_string(&mut read).await.expect("read");
        assert_eq!(read, "one two");
        assert_eq!(std::fs::read_to_string(&log).expect("log"), "a warning\nanother\n");
    }

    #[tokio::test]
    async fn the_log_is_bounded() {
        let directory = tempfile::tempdir().expect("directory");
        let log = directory.path().join("guest.log");
        let piece = LogOutput::StdErr { message: vec![b'x'; 700 << 10].into() };
        let mut read = Vec::new();
        attached(vec![piece; 5], Some(log.clone())).read_to_end(&mut read).await.expect("read");
        assert_eq!(std::fs::metadata(&log).expect("log").len(), 1400 << 10);
    }
}
