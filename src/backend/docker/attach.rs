//! A container's standard streams as one byte stream.
//!
//! The engine carries both outputs over one connection, each piece with a header that says which; standard
//! output is the channel, standard error goes to a log that has a bound. The connection ends nothing: a
//! container's input stays open when we go.

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

/// What is kept of a container's standard error: a panic with its trace, many times over.
const LOG_MAX: u64 = 1 << 20;

/// An open connection to a container's streams.
pub(super) struct Attached {
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    /// What came and was not read yet.
    rest: Bytes,
    log: Option<PathBuf>,
}

/// Attaches to a container, running or only made. Its standard error is appended to `log`.
///
/// # Errors
/// [`EngineError`] when there is no such container.
pub(super) async fn attach(
    engine: &Engine,
    container: &str,
    log: Option<&Path>,
) -> Result<Attached, EngineError> {
    let options =
        AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).build();
    let AttachContainerResults { output, input } =
        engine.ask(engine.docker().attach_container(container, Some(options))).await?;
    Ok(Attached { output, input, rest: Bytes::new(), log: log.map(Path::to_owned) })
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").finish_non_exhaustive()
    }
}

impl Attached {
    /// What a container says there is for whoever looks into a failure; a log that cannot be written stops
    /// nothing.
    fn note(&self, said: &[u8]) {
        let Some(path) = &self.log else { return };
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(options.append(true).create(true), 0o600);
        if let Ok(mut file) = options.open(path)
            && file.metadata().is_ok_and(|log| log.len() < LOG_MAX)
        {
            let _ = file.write_all(said);
        }
    }
}

impl AsyncRead for Attached {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match std::task::ready!(self.output.poll_next_unpin(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(LogOutput::StdOut { message } | LogOutput::Console { message })) => {
                    self.rest = message
                }
                Some(Ok(LogOutput::StdErr { message })) => self.note(&message),
                Some(Ok(LogOutput::StdIn { .. })) => {}
            }
        }
        let take = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..take]);
        self.rest.advance(take);
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

    fn saying(pieces: Vec<LogOutput>, log: Option<PathBuf>) -> Attached {
        Attached {
            output: Box::pin(stream::iter(pieces.into_iter().map(Ok))),
            input: Box::pin(tokio::io::sink()),
            rest: Bytes::new(),
            log,
        }
    }

    #[tokio::test]
    async fn output_is_the_stream_and_errors_go_to_the_log() {
        let folder = tempfile::tempdir().expect("folder");
        let log = folder.path().join("guest.log");
        let out = |text: &'static str| LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) };
        let err = |text: &'static str| LogOutput::StdErr { message: Bytes::from_static(text.as_bytes()) };
        let pieces = vec![err("a warning\n"), out("one "), out(""), err("another\n"), out("two")];
        let mut read = String::new();
        saying(pieces, Some(log.clone())).read_to_string(&mut read).await.expect("read");
        assert_eq!(read, "one two");
        assert_eq!(std::fs::read_to_string(&log).expect("log"), "a warning\nanother\n");
    }

    #[tokio::test]
    async fn a_log_has_a_bound() {
        let folder = tempfile::tempdir().expect("folder");
        let log = folder.path().join("guest.log");
        let piece = LogOutput::StdErr { message: vec![b'x'; 700 << 10].into() };
        let mut read = Vec::new();
        saying(vec![piece; 5], Some(log.clone())).read_to_end(&mut read).await.expect("read");
        assert_eq!(std::fs::metadata(&log).expect("log").len(), 1400 << 10);
    }
}
