//! An answer that is judged as it passes.
//!
//! Whole lines and events go at once, and so does all that came when nothing more does for a moment: only
//! what may be the beginning of a secret is kept back. What has gone out stays in view, so that what begins in
//! it and ends later is still noticed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bottle_scan::{Finding, Scanner, Severity};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;

use super::body::{Body, BodyError};
use super::inbound::{is_echo, without_secrets};
use crate::inspect::{Coding, Decoding};
use crate::report::Reporter;
use crate::report::record::Asked;

/// What has gone out and stays in view; no phrase is longer.
const VIEW: usize = 2 << 10;
/// What stays back of a text without line ends, while more comes.
const BACK: usize = 2 << 10;
/// The same with secrets that are long.
const MOST_BACK: usize = 64 << 10;
/// Silence after which nothing stays back but what may begin a secret.
const MOMENT: Duration = Duration::from_millis(20);
/// Findings that are told of for one answer.
const NOTICES: usize = 16;

/// What is wanted of an answer, and who is told.
pub(super) struct Judge {
    pub(super) asked: Asked,
    pub(super) scanner: Arc<Scanner>,
    pub(super) known: Arc<Scanner>,
    pub(super) provider: bool,
    pub(super) reporter: Arc<Reporter>,
    pub(super) noticed: usize,
}

impl Judge {
    /// Tells of what is no secret.
    pub(super) fn notice(&mut self, found: &[Finding]) {
        for finding in found.iter().filter(|finding| finding.secret.is_none()) {
            self.noticed += 1;
            if self.noticed <= NOTICES {
                let words = format!("{} in the answer", finding.preview);
                self.reporter.noticed(&self.asked, "noticed", &words);
            }
        }
    }

    /// The first finding for which the answer may not go on, other than a secret.
    pub(super) fn stops<'f>(&self, found: &'f [Finding]) -> Option<&'f Finding> {
        let blocks = |finding: &&Finding| finding.severity == Severity::Block && finding.secret.is_none();
        found.iter().find(blocks).filter(|_| !self.provider)
    }

    fn cut(&self, finding: &Finding) -> BodyError {
        let words = format!("cut: {} in the answer", finding.preview);
        self.reporter.noticed(&self.asked, "cut", &words);
        "the answer was cut".into()
    }
}

/// A body that is judged as it passes.
pub(super) struct Flowing {
    judge: Judge,
    body: Option<Body>,
    /// Read already.
    next: Option<Result<Frame<Bytes>, BodyError>>,
    coded: Option<Decoding>,
    /// The end of what has gone out, decoded.
    view: Vec<u8>,
    /// What has not gone out: as it came, which for a plain body is its text.
    held: BytesMut,
    moment: Option<Pin<Box<Sleep>>>,
    /// Told when everything before it has gone out.
    last: Option<Result<Frame<Bytes>, BodyError>>,
}

impl Flowing {
    pub(super) fn new(
        judge: Judge,
        beginning: BytesMut,
        next: Option<Result<Frame<Bytes>, BodyError>>,
        body: Body,
        codings: &[Coding],
    ) -> Self {
        let coded = (!codings.is_empty()).then(|| Decoding::new(codings));
        // The beginning is judged like any other piece.
        let first = (!beginning.is_empty()).then(|| Ok(Frame::data(beginning.freeze())));
        let (next, last) = if first.is_some() { (first, next) } else { (next, None) };
        let mut flowing = Self {
            judge,
            body: Some(body),
            next,
            coded,
            view: Vec::new(),
            held: BytesMut::new(),
            moment: None,
            last: None,
        };
        if let Some(last) = last {
            // The body ended with it.
            flowing.body = None;
            flowing.last = Some(last);
        }
        flowing
    }

    /// Takes a piece; what of it may go out now.
    fn take(&mut self, piece: Bytes) -> Result<Option<Bytes>, BodyError> {
        match &self.coded {
            Some(_) => self.take_coded(piece),
            None => {
                self.held.extend_from_slice(&piece);
                let line = memchr::memrchr(b'\n', &self.held).map_or(0, |at| at + 1);
                let back = BACK.max(self.judge.known.longest_secret().min(MOST_BACK));
                let point = line.max(self.held.len().saturating_sub(back));
                self.release(point)
            }
        }
    }

    /// Lets the first bytes of the held text go out.
    fn release(&mut self, point: usize) -> Result<Option<Bytes>, BodyError> {
        if point == 0 {
            return Ok(None);
        }
        let mut piece = self.held.split_to(point);
        for finding in self.look(&piece)? {
            let seen = self.view.len();
            let span = finding.span.within(seen + piece.len());
            if span.start < seen {
                // Its beginning is out already.
                return Err(self.judge.cut(&finding));
            }
            mask(&mut piece[span.start - seen..span.end - seen]);
        }
        self.saw(&piece);
        Ok(Some(piece.freeze()))
    }

    /// The secrets in `piece`, in the view and it together.
    fn look(&mut self, piece: &[u8]) -> Result<Vec<Finding>, BodyError> {
        let text = [&self.view[..], piece].concat();
        let mut found = self.judge.scanner.scan(&text).findings;
        found.retain(|finding| finding.span.end > self.view.len() as u64);
        self.judge.notice(&found);
        if let Some(finding) = self.judge.stops(&found) {
            return Err(self.judge.cut(finding));
        }
        found.retain(is_echo);
        if !found.is_empty() {
            let words = "a secret of this bottle in the answer";
            self.judge.reporter.noticed(&self.judge.asked, "redacted", words);
        }
        Ok(found)
    }

    fn saw(&mut self, piece: &[u8]) {
        self.view.extend_from_slice(piece);
        self.view.drain(..self.view.len().saturating_sub(VIEW));
    }

    /// A coded piece goes out as it came once its text was judged; nothing can be taken out of it.
    fn take_coded(&mut self, piece: Bytes) -> Result<Option<Bytes>, BodyError> {
        let Some(mut decoding) = self.coded.take() else { return Ok(None) };
        let mut bad = None;
        let decoded = decoding.feed(&piece, &mut |text| {
            match self.look(text) {
                Ok(found) => bad = found.first().map(|finding| self.judge.cut(finding)),
                Err(error) => bad = Some(error),
            }
            self.saw(text);
            bad.is_none()
        });
        self.coded = Some(decoding);
        if let Some(error) = bad {
            return Err(error);
        }
        decoded?;
        self.held.extend_from_slice(&piece);
        // Where the text may have begun a secret, the piece that holds its beginning waits for the next.
        if self.judge.known.begins_secret(&self.view) > 0 {
            return Ok(None);
        }
        Ok(Some(self.held.split().freeze()))
    }

    /// Nothing more came for a moment.
    fn after_a_moment(&mut self) -> Result<Option<Bytes>, BodyError> {
        if self.coded.is_some() {
            return Ok(None);
        }
        let back = self.judge.known.begins_secret(&self.held);
        self.release(self.held.len() - back)
    }

    /// All of it came.
    fn rest(&mut self) -> Result<Option<Bytes>, BodyError> {
        match &self.coded {
            Some(_) => Ok((!self.held.is_empty()).then(|| self.held.split().freeze())),
            None => self.release(self.held.len()),
        }
    }

    /// The last frame: trailers lose secrets as headers do.
    fn end(&mut self) -> Option<Result<Frame<Bytes>, BodyError>> {
        let frame = self.last.take()?;
        Some(frame.map(|frame| match frame.into_trailers() {
            Ok(trailers) => {
                Frame::trailers(without_secrets(&trailers, &self.judge.known).unwrap_or(trailers))
            }
            Err(frame) => frame,
        }))
    }

    fn broken(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        (self.body, self.next, self.last) = (None, None, None);
        self.held.clear();
        Poll::Ready(Some(Err(error)))
    }
}

impl HttpBody for Flowing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            let frame = match (this.next.take(), &mut this.body) {
                (Some(frame), _) => Poll::Ready(Some(frame)),
                (None, Some(body)) => Pin::new(body).poll_frame(cx),
                (None, None) => Poll::Ready(None),
            };
            let outcome = match frame {
                Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                    this.moment = None;
                    let Ok(piece) = frame.into_data() else { continue };
                    this.take(piece)
                }
                Poll::Ready(Some(other)) => {
                    (this.body, this.last) = (None, Some(other));
                    continue;
                }
                Poll::Ready(None) => {
                    this.body = None;
                    match this.rest() {
                        Ok(None) => return Poll::Ready(this.end()),
                        other => other,
                    }
                }
                Poll::Pending if this.held.is_empty() => return Poll::Pending,
                Poll::Pending => {
                    let moment = this.moment.get_or_insert_with(|| Box::pin(tokio::time::sleep(MOMENT)));
                    if !moment.is_elapsed() {
                        ready!(moment.as_mut().poll(cx));
                        match this.after_a_moment() {
                            // What is left waits for more, without another look.
                            Ok(None) => return Poll::Pending,
                            other => other,
                        }
                    } else {
                        return Poll::Pending;
                    }
                }
            };
            match outcome {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                Ok(None) => {}
                Err(error) => return this.broken(error),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty()
            && self.next.is_none()
            && self.last.is_none()
            && self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        if self.last.is_some() {
            // Trailers or an error follow, which a length would hide.
            return SizeHint::default();
        }
        // What is taken out is masked: a length that was told stays true.
        let held = self.held.len() as u64 + self.next.as_ref().map_or(0, data_length);
        let rest = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + held);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

fn data_length(frame: &Result<Frame<Bytes>, BodyError>) -> u64 {
    frame.as_ref().ok().and_then(|frame| Some(frame.data_ref()?.len() as u64)).unwrap_or(0)
}

/// Stars in place of a secret, as many bytes. What JSON is built of stays, so that it stays JSON.
fn mask(secret: &mut [u8]) {
    let mut escaped = false;
    for byte in secret {
        let built =
            !escaped && matches!(byte, b'"' | b',' | b':' | b'{' | b'}' | b'[' | b']' | b'\n' | b'\r');
        escaped = *byte == b'\\' && !escaped;
        if !built {
            *byte = b'*';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_json_is_json() {
        for (text, masked) in [
            (&b"real-value"[..], &b"**********"[..]),
            (br#"re\u0041l\"x"#, b"************"),
            (br#"real","b":"value"#, br#"****","*":"*****"#),
        ] {
            let mut text = text.to_vec();
            mask(&mut text);
            assert_eq!(text, masked);
        }
    }
}
