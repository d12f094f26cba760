//! Forwards request bodies to git. Decodes gzip, and checks the head of a push.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::read::GzDecoder as GzReader;
use flate2::write::GzDecoder;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::Semaphore;

use crate::http::idle_timeout;
use crate::push_head::{Head, HeadError};

/// The maximum size of a gzip body after decoding, in bytes. A larger body is refused. git compresses fetch
/// negotiations and small pushes.
const MOST_DECODED: u64 = 256 << 20;

/// The maximum number of parts of a body that are read as its beginning.
const MOST_FRAMES: usize = 64;

/// Why a request body is not forwarded completely. Its `Display` text is a sentence for the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error("its gzip encoding is damaged; try again")]
    Gzip,
    #[error("it is too large when decoded; send it without gzip")]
    TooLarge,
    /// git closed its input, and reports the reason in its output.
    #[error("git closed its input")]
    Closed,
}

/// The beginning of a request body, as the client sent it and decoded.
#[derive(Default)]
pub(crate) struct Beginning {
    sent: Vec<Bytes>,
    pub(crate) decoded: Vec<u8>,
}

/// Reads a request body until `bytes` bytes are decoded, or to its end. What follows a damaged part of a gzip
/// body is not decoded.
pub(crate) async fn read_beginning(
    body: &mut Incoming,
    mut beginning: Beginning,
    gzip: bool,
    bytes: usize,
    permits: &Semaphore,
) -> Beginning {
    while beginning.decoded.len() < bytes && beginning.sent.len() < MOST_FRAMES {
        let Some(Some(Ok(frame))) = idle_timeout(permits, body.frame()).await else { break };
        let Ok(data) = frame.into_data() else { continue };
        beginning.sent.push(data);
        let sent = beginning.sent.concat();
        beginning.decoded.clear();
        let limit = u64::try_from(bytes).unwrap_or(u64::MAX);
        if gzip {
            // A cut or damaged body yields what precedes the damage.
            let _ = GzReader::new(&sent[..]).take(limit).read_to_end(&mut beginning.decoded);
        } else {
            beginning.decoded = sent;
        }
    }
    beginning
}

/// Forwards a request body to git's standard input, after its `beginning`. If this fails, the rest of the body
/// has been read and dropped.
///
/// # Errors
/// Fails with [`BodyError`], unless git closed its input.
pub(crate) async fn forward(
    beginning: Beginning,
    mut body: Incoming,
    stdin: ChildStdin,
    gzip: bool,
    is_push: bool,
    permits: &Semaphore,
) -> Result<(), BodyError> {
    let mut input = GitInput {
        stdin,
        decoder: gzip.then(|| GzDecoder::new(Vec::new())),
        decoded: 0,
        head: is_push.then(Head::default),
    };
    let mut beginning = beginning.sent.into_iter();
    loop {
        let data = match beginning.next() {
            Some(data) => data,
            None => match idle_timeout(permits, body.frame()).await {
                Some(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                _ => break,
            },
        };
        if let Err(error) = input.write(&data).await {
            drop(input);
            // The rest of the body is read, because a client that is still sending would not read the
            // response.
            while let Some(Some(Ok(_))) = idle_timeout(permits, body.frame()).await {}
            return unless_closed(error);
        }
    }
    input.finish().await.or_else(unless_closed)
}

fn unless_closed(error: BodyError) -> Result<(), BodyError> {
    if matches!(error, BodyError::Closed) { Ok(()) } else { Err(error) }
}

/// git's standard input, with the decoder and the checks that precede it.
struct GitInput {
    stdin: ChildStdin,
    decoder: Option<GzDecoder<Vec<u8>>>,
    decoded: u64,
    head: Option<Head>,
}

impl GitInput {
    async fn write(&mut self, data: &[u8]) -> Result<(), BodyError> {
        if self.decoder.is_none() {
            return self.write_decoded(data).await;
        }
        // The input is decoded in small chunks, because the decoded size can be a thousand times larger.
        for chunk in data.chunks(4096) {
            let decoded = match &mut self.decoder {
                Some(decoder) => {
                    decoder.write_all(chunk).map_err(|_| BodyError::Gzip)?;
                    std::mem::take(decoder.get_mut())
                }
                None => Vec::new(),
            };
            self.decoded += decoded.len() as u64;
            if self.decoded > MOST_DECODED {
                return Err(BodyError::TooLarge);
            }
            self.write_decoded(&decoded).await?;
        }
        Ok(())
    }

    async fn write_decoded(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        if let Some(head) = &mut self.head {
            head.feed(bytes)?;
        }
        self.stdin.write_all(bytes).await.map_err(|_| BodyError::Closed)
    }

    /// Writes the remaining output of the decoder, and closes git's input.
    async fn finish(&mut self) -> Result<(), BodyError> {
        if let Some(mut decoder) = self.decoder.take()
            && decoder.try_finish().is_ok()
        {
            self.write_decoded(&std::mem::take(decoder.get_mut())).await?;
        }
        self.stdin.shutdown().await.map_err(|_| BodyError::Closed)
    }
}
