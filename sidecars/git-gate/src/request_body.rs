//! Reads request bodies, and decodes gzip. Forwards each body to git, or to the file in which a push is stored.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::read::GzDecoder as GzReader;
use flate2::write::GzDecoder;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::body_error::{BodyError, MOST_BODY};
use crate::idle::idle_timeout;
use crate::push_check::PushCheck;

/// The maximum size of a gzip body after decoding, in bytes. A larger body is refused. git compresses fetch
/// negotiations and small pushes.
const MOST_DECODED: u64 = 256 << 20;

/// The maximum number of frames of a body that are read as its beginning.
const MOST_FRAMES: usize = 64;

/// The beginning of a request body, both encoded (as the client sent it) and decoded.
#[derive(Default)]
pub(crate) struct Beginning {
    sent: Vec<Bytes>,
    pub(crate) decoded: Vec<u8>,
}

/// Reads a request body until `bytes` bytes are decoded or the body ends. If a gzip body is damaged, only the data
/// before the damage is decoded.
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
            // A truncated or damaged body yields the bytes before the damage.
            let _ = GzReader::new(&sent[..]).take(limit).read_to_end(&mut beginning.decoded);
        } else {
            beginning.decoded = sent;
        }
    }
    beginning
}

/// Writes `beginning` and the rest of a request body to `output`. If `check` is set, each part of a push is checked
/// before it is written. If forwarding fails, the rest of the body is still read and dropped before the function
/// returns.
///
/// # Errors
/// Fails with [`BodyError`].
pub(crate) async fn forward(
    beginning: Beginning,
    mut body: Incoming,
    output: impl AsyncWrite + Unpin,
    gzip: bool,
    check: Option<&mut PushCheck>,
    permits: &Semaphore,
) -> Result<(), BodyError> {
    let mut input = Decoded { output, decoder: gzip.then(|| GzDecoder::new(Vec::new())), decoded: 0, check };
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
            return Err(error);
        }
    }
    input.finish().await
}

/// Decodes and checks a body, and writes the decoded data to `output`.
struct Decoded<'c, W> {
    output: W,
    decoder: Option<GzDecoder<Vec<u8>>>,
    decoded: u64,
    check: Option<&'c mut PushCheck>,
}

impl<W: AsyncWrite + Unpin> Decoded<'_, W> {
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
            if self.decoded + decoded.len() as u64 > MOST_DECODED {
                return Err(BodyError::TooLarge);
            }
            self.write_decoded(&decoded).await?;
        }
        Ok(())
    }

    async fn write_decoded(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        self.decoded += bytes.len() as u64;
        if self.decoded > MOST_BODY {
            return Err(BodyError::TooLong);
        }
        if let Some(check) = &mut self.check {
            check.feed(bytes)?;
        }
        Ok(self.output.write_all(bytes).await?)
    }

    /// Writes the remaining output of the decoder, and closes the output.
    async fn finish(&mut self) -> Result<(), BodyError> {
        if let Some(mut decoder) = self.decoder.take()
            && decoder.try_finish().is_ok()
        {
            self.write_decoded(&std::mem::take(decoder.get_mut())).await?;
        }
        if let Some(check) = &self.check {
            check.finish()?;
        }
        Ok(self.output.shutdown().await?)
    }
}
