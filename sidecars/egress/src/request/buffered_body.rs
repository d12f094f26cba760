//! Buffers a complete request body and scans it while it arrives, so that the verdict comes before any byte is sent.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bottle_policy::decide::Reason;
use bottle_scan::Scanner;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::body::{Body, BodyError, BrokenBody, PollFrame};
use super::credentials::CredentialRewrite;
use super::request_body::RequestBody;
use crate::egress::Egress;
use crate::inspect::head::{Head, OutgoingHead};
use crate::inspect::spool::{Spool, SpoolError, SpoolReader, Spools};
use crate::inspect::{BodyFindings, BodyScan, Coding, MAX_REWRITTEN, Unreadable, decoded, request_codings};

/// A request body as received.
pub(super) struct BufferedBody {
    spool: Spool,
    codings: Vec<Coding>,
    trailers: Option<HeaderMap>,
}

/// Why a body cannot be scanned and therefore must not be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum BufferError {
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("its body cannot be read")]
    Unreadable(#[from] Unreadable),
    #[error("its body ended early")]
    Truncated,
}

impl BufferError {
    /// The reason that the denial states.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Spool(_) => Reason::BodyTooLarge,
            Self::Unreadable(_) | Self::Truncated => Reason::StructureRefused,
        }
    }
}

impl BufferedBody {
    /// Reads `body` completely. Reports findings in the trailers as findings in packed files, because the proxy can
    /// redact neither trailers nor packed files. Without a scanner, there are no findings.
    pub(super) async fn read(
        egress: &Egress,
        scanner: Option<&Arc<Scanner>>,
        headers: &HeaderMap,
        mut body: RequestBody,
    ) -> Result<(Self, BodyFindings), BufferError> {
        if let Some(length) =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
        {
            egress.spools.check_length(length)?;
        }
        let codings = request_codings(headers)?;
        let mut scan =
            scanner.map(|scanner| BodyScan::new(scanner, &codings, headers, &egress.decoded_memory));
        let mut spool = egress.spools.spool();
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            match frame.map_err(|_| BufferError::Truncated)?.into_data() {
                Ok(data) => {
                    scan.as_mut().map_or(Ok(()), |scan| scan.feed(&data))?;
                    spool.push(&data).await?;
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let mut findings = scan.map_or_else(|| Ok(BodyFindings::default()), BodyScan::finish)?;
        if let (Some(trailers), Some(scanner)) = (&trailers, scanner) {
            let outgoing =
                OutgoingHead { host: "", path: "", query: None, headers: trailers, is_sent: &|_| true };
            findings.packed.extend(Head::new(&outgoing).scan(Some(scanner)));
        }
        Ok((Self { spool, codings, trailers }, findings))
    }

    /// Buffers `text`, which has no coding. A long text goes to the disk, because the texts of all requests together
    /// could be as long as all bodies on disk.
    ///
    /// # Errors
    /// [`BufferError::Spool`] if it cannot be buffered.
    pub(super) async fn of_text(spools: &Spools, text: &[u8]) -> Result<Self, BufferError> {
        let mut spool = spools.spool();
        spool.push(text).await?;
        Ok(Self { spool, codings: Vec::new(), trailers: None })
    }

    pub(super) fn codings(&self) -> &[Coding] {
        &self.codings
    }

    /// Returns the complete body as received, if it is short enough to be redacted.
    pub(super) async fn whole(&self) -> Option<Vec<u8>> {
        self.spool.whole(MAX_REWRITTEN).await.ok().flatten()
    }

    /// Returns the decoded body, if it is short enough to be held in memory.
    pub(super) async fn text(&self) -> Option<Vec<u8>> {
        decoded(&self.whole().await?, &self.codings).ok()
    }

    /// Returns the decoded body, without a copy if the body is in memory and has no content coding.
    pub(super) async fn decoded(&self) -> Option<Cow<'_, [u8]>> {
        if !self.codings.is_empty() {
            return self.text().await.map(Cow::Owned);
        }
        match self.spool.in_memory() {
            Some(text) => Some(Cow::Borrowed(text)),
            None => self.whole().await.map(Cow::Owned),
        }
    }

    /// Returns the body to send upstream.
    pub(super) fn into_body(self, rewrite: CredentialRewrite) -> Body {
        let remaining = self.spool.length();
        let mut trailers = self.trailers;
        if let Some(trailers) = &mut trailers {
            rewrite.trailers(trailers);
        }
        ReleasedBody { reader: self.spool.read(), trailers, remaining }.boxed_unsync()
    }
}

/// A buffered body that is being sent.
struct ReleasedBody {
    reader: SpoolReader,
    trailers: Option<HeaderMap>,
    remaining: u64,
}

impl HttpBody for ReleasedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame {
        let this = &mut *self;
        if let Some(blocks) = &mut this.reader.blocks {
            match ready!(blocks.poll_recv(cx)) {
                Some(block) => {
                    let block = block?;
                    this.remaining -= this.remaining.min(block.len() as u64);
                    return Poll::Ready(Some(Ok(Frame::data(block))));
                }
                None => this.reader.blocks = None,
            }
        }
        if let Some(last) = this.reader.last.take().filter(|last| !last.is_empty()) {
            if this.remaining != last.len() as u64 {
                // The stream of blocks ended early because of a read error.
                return Poll::Ready(Some(Err(BrokenBody::Incomplete.into())));
            }
            this.remaining = 0;
            return Poll::Ready(Some(Ok(Frame::data(last))));
        }
        if this.remaining > 0 {
            return Poll::Ready(Some(Err(BrokenBody::Incomplete.into())));
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0 && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // If there are trailers, the length is reported as unknown, because hyper sends no trailers after a body of
        // known length.
        if self.trailers.is_some() { SizeHint::default() } else { SizeHint::with_exact(self.remaining) }
    }
}
