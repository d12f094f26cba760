//! An answer that is scanned as it streams.
//!
//! ```text
//! upstream ─► pieces ─► text (decoded) ─► scan ─► release ─► bottle
//!                                                    │
//!                   whole lines at once; the rest after HOLD, or when two TAILs have come
//! ```
//! When a byte is released depends on line ends, lengths and time alone, never on what a scan made of it so far:
//! otherwise the time at which it arrives would tell how much of a secret it is. What was released stays in view,
//! so that a secret is found however it is cut. One that is whole before it is released is masked; one that is
//! completed by what comes later ends the stream. Text is scanned when some of it is about to be released: an answer in
//! single bytes costs a scan for each millisecond or line, not for each byte.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bottle_scan::{Finding, Scanner, Severity};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::body::{Body, BodyError};
use super::inbound::{is_echo, without_secrets};
use crate::inspect::{Coding, Decoding};
use crate::report::Reporter;
use crate::report::record::Asked;

/// Bytes of released text that stay in view; no phrase is longer.
const VIEW: u64 = 2 << 10;
/// Bytes behind the last line end that wait, while more comes.
const TAIL: u64 = 2 << 10;
/// How long they wait at most. The segments of an answer that was written at once arrive within it.
const HOLD: Duration = Duration::from_millis(10);
/// Pieces that come within this time are released together.
const TOGETHER: Duration = Duration::from_millis(1);
/// Coded bytes that may wait for their decoder: zstd's keeps a window of 8 MiB of text back.
const MOST_WAITING: usize = 16 << 20;
/// Bytes of text that are scanned at a time at most; one coded piece may decode to many thousand times its length.
const SCANNED_AT_ONCE: u64 = 16 << 10;
/// Findings that are reported for one answer.
const NOTICES: usize = 16;

/// What is wanted of an answer, and where findings are reported.
pub(super) struct Judge {
    pub(super) asked: Asked,
    pub(super) scanner: Arc<Scanner>,
    /// Finds the credential of this exchange; none when nothing was injected, or nobody wants it found.
    pub(super) credential: Option<Arc<Scanner>>,
    pub(super) provider: bool,
    pub(super) reporter: Arc<Reporter>,
    pub(super) noticed: usize,
}

impl Judge {
    /// Reports findings that are no secrets.
    pub(super) fn notice(&mut self, found: &[Finding]) {
        for finding in found.iter().filter(|finding| finding.secret.is_none()) {
            self.noticed += 1;
            if self.noticed <= NOTICES {
                let words = format!("{} in the answer", finding.preview);
                self.reporter.noticed(&self.asked, "noticed", &words);
            }
        }
    }

    /// The first finding that denies the answer, other than a secret.
    pub(super) fn stops<'f>(&self, found: &'f [Finding]) -> Option<&'f Finding> {
        let blocks = |finding: &&Finding| finding.severity == Severity::Block && finding.secret.is_none();
        found.iter().find(blocks).filter(|_| !self.provider)
    }

    /// Whether there is something that a scan may keep from the bottle.
    fn holds(&self) -> bool {
        self.credential.is_some() || !self.provider
    }

    fn cut(&self, preview: &str) -> BodyError {
        let words = format!("cut: {preview} in the answer");
        self.reporter.noticed(&self.asked, "cut", &words);
        "the answer was cut".into()
    }
}

/// The text of an answer as far as it is in view: the end of what was released, and what waits. Nothing can be masked in
/// a coded body, so that of its text only what later scans look at is kept.
struct Window {
    judge: Judge,
    coded: bool,
    /// Place in the text of the first byte in view.
    base: u64,
    /// As upstream sent it.
    came: Vec<u8>,
    /// As it is released: the same, with secrets masked. Empty where the body is coded.
    goes: Vec<u8>,
    /// Place behind the last line end.
    line: u64,
    /// Place behind the last scanned byte.
    scanned: u64,
    /// Place behind the last released byte.
    released: u64,
}

impl Window {
    fn new(judge: Judge, coded: bool) -> Self {
        let (came, goes) = (Vec::new(), Vec::new());
        Self { judge, coded, base: 0, came, goes, line: 0, scanned: 0, released: 0 }
    }

    /// Place behind all that came.
    fn end(&self) -> u64 {
        self.base + self.came.len() as u64
    }

    fn index(&self, place: u64) -> usize {
        usize::try_from(place.saturating_sub(self.base)).map_or(self.came.len(), |at| at.min(self.came.len()))
    }

    /// Takes the next text in.
    fn push(&mut self, text: &[u8]) -> Result<(), BodyError> {
        if let Some(at) = memchr::memrchr(b'\n', text) {
            self.line = self.end() + at as u64 + 1;
        }
        self.came.extend_from_slice(text);
        if !self.coded {
            self.goes.extend_from_slice(text);
        }
        if self.end() - self.scanned < SCANNED_AT_ONCE {
            return Ok(());
        }
        self.scan()
    }

    /// Scans what was not scanned yet, together with the end of what was.
    fn scan(&mut self) -> Result<(), BodyError> {
        let from = self.index(self.scanned.saturating_sub(VIEW));
        let seen = (self.index(self.scanned) - from) as u64;
        let mut found = self.judge.scanner.scan(&self.came[from..]).findings;
        found.retain(|finding| finding.span.end > seen);
        self.scanned = self.end();
        self.judge.notice(&found);
        if let Some(finding) = self.judge.stops(&found) {
            return Err(self.judge.cut(&finding.preview));
        }
        found.retain(is_echo);
        for finding in &found {
            let span = finding.span.within(self.came.len() - from);
            if self.coded || !self.mask(from + span.start..from + span.end) {
                return Err(self.judge.cut(&finding.preview));
            }
        }
        if !found.is_empty() {
            let words = "the route's credential in the answer";
            self.judge.reporter.noticed(&self.judge.asked, "redacted", words);
        }
        self.forget();
        Ok(())
    }

    /// Masks what waits of a secret; false when some of the rest was released as it came.
    fn mask(&mut self, secret: Range<usize>) -> bool {
        let out = self.index(self.released).clamp(secret.start, secret.end);
        let plain = |at: usize| self.came[at].is_ascii_alphanumeric() && self.came[at] == self.goes[at];
        if (secret.start..out).any(plain) {
            return false;
        }
        mask(&mut self.goes[out..secret.end]);
        true
    }

    /// Place before which everything is released: the last line end, or the tail when more than two of it wait.
    fn line_end(&self) -> u64 {
        if !self.judge.holds() {
            return self.end();
        }
        let line = self.line.max(self.released);
        if self.end() - line > 2 * TAIL { self.end() - TAIL } else { line }
    }

    /// Everything before `place` that was not released yet, as it goes; nothing where the body is coded.
    fn release(&mut self, place: u64) -> Result<Bytes, BodyError> {
        if place > self.scanned && self.judge.holds() {
            self.scan()?;
        }
        let piece = match self.coded {
            true => Bytes::new(),
            false => Bytes::copy_from_slice(&self.goes[self.index(self.released)..self.index(place)]),
        };
        self.released = self.released.max(place);
        self.forget();
        Ok(piece)
    }

    /// Drops what no later scan or release looks at.
    fn forget(&mut self) {
        let needed = if self.coded { self.scanned } else { self.scanned.min(self.released) };
        let unneeded = self.index(needed.saturating_sub(VIEW));
        self.came.drain(..unneeded);
        self.goes.drain(..unneeded.min(self.goes.len()));
        self.base += unneeded as u64;
    }
}

/// Pieces of the body that came within [`TOGETHER`] and wait.
struct Piece {
    /// Place in the text behind all that it decodes to.
    end: u64,
    /// When it is released at the latest.
    due: Instant,
    /// What goes out in its place where the body is coded: it itself.
    coded: BytesMut,
}

/// A body that is scanned as it streams.
pub(super) struct StreamingScan {
    window: Window,
    body: Option<Body>,
    /// Read already.
    next: Option<Result<Frame<Bytes>, BodyError>>,
    decoding: Option<Decoding>,
    /// In the order in which they came, which is that of their places and times.
    waiting: VecDeque<Piece>,
    timer: Pin<Box<Sleep>>,
    /// Passed on when everything before it was.
    last: Option<Result<Frame<Bytes>, BodyError>>,
}

impl StreamingScan {
    /// Begins with what of the body was read already: `beginning`, and the frame behind it.
    pub(super) fn new(
        judge: Judge,
        beginning: BytesMut,
        next: Option<Result<Frame<Bytes>, BodyError>>,
        body: Body,
        codings: &[Coding],
    ) -> Self {
        // The beginning is scanned like any other piece.
        let first = (!beginning.is_empty()).then(|| Ok(Frame::data(beginning.freeze())));
        let (next, last) = if first.is_some() { (first, next) } else { (next, None) };
        Self {
            window: Window::new(judge, !codings.is_empty()),
            // A frame that is not data was its last.
            body: last.is_none().then_some(body),
            next,
            decoding: (!codings.is_empty()).then(|| Decoding::new(codings)),
            waiting: VecDeque::new(),
            timer: Box::pin(tokio::time::sleep(HOLD)),
            last,
        }
    }

    /// Takes a piece and returns what may go out now.
    fn take(&mut self, piece: Bytes) -> Result<Option<Bytes>, BodyError> {
        let Some(decoding) = &mut self.decoding else {
            self.window.push(&piece)?;
            self.wait(self.window.end(), Bytes::new());
            return self.release();
        };
        let mut bad = None;
        let decoded = decoding.feed(&piece, &mut |text| {
            bad = self.window.push(text).err();
            bad.is_none()
        });
        if let Some(error) = bad {
            return Err(error);
        }
        decoded?;
        let end = self.window.end().saturating_add(decoding.behind());
        self.wait(end, piece);
        if self.waiting_bytes() > MOST_WAITING as u64 {
            return Err(self.window.judge.cut("more than can be decoded as it comes"));
        }
        self.release()
    }

    /// A piece whose text ends at `end` waits from now on.
    fn wait(&mut self, end: u64, coded: Bytes) {
        let due = Instant::now() + HOLD;
        match self.waiting.back_mut() {
            Some(last) if due.duration_since(last.due) < TOGETHER => {
                last.end = end;
                last.coded.extend_from_slice(&coded);
            }
            _ => self.waiting.push_back(Piece { end, due, coded: coded.into() }),
        }
    }

    /// Place behind the text of a piece, as far as it is known by now.
    fn end_of(&self, piece: &Piece) -> u64 {
        let decoded = self.decoding.as_ref().is_none_or(|decoding| decoding.behind() == 0);
        if decoded { piece.end.min(self.window.end()) } else { piece.end }
    }

    /// What may go out now: whole lines, and what has waited for its time.
    fn release(&mut self) -> Result<Option<Bytes>, BodyError> {
        let now = Instant::now();
        let in_time = self.waiting.iter().take_while(|piece| piece.due <= now);
        let in_time = in_time.map(|piece| self.end_of(piece)).filter(|end| *end <= self.window.end()).last();
        self.release_to(self.window.line_end().max(in_time.unwrap_or(0)))
    }

    fn release_to(&mut self, place: u64) -> Result<Option<Bytes>, BodyError> {
        let text = self.window.release(place)?;
        let mut coded = BytesMut::new();
        while self.waiting.front().is_some_and(|piece| self.end_of(piece) <= place) {
            coded.extend(self.waiting.pop_front().map(|piece| piece.coded.freeze()));
        }
        let piece = if self.decoding.is_some() { coded.freeze() } else { text };
        Ok((!piece.is_empty()).then_some(piece))
    }

    /// When the next piece goes out though nothing more comes; none while its text is still in the decoder.
    fn due(&self) -> Option<Instant> {
        let first = self.waiting.front()?;
        (self.end_of(first) <= self.window.end()).then_some(first.due)
    }

    /// All of the body came: the rest of it.
    fn rest(&mut self) -> Result<Option<Bytes>, BodyError> {
        if self.decoding.as_ref().is_some_and(|decoding| decoding.behind() > 0) {
            return Err("the answer broke off".into());
        }
        self.window.scan()?;
        self.release_to(self.window.end())
    }

    /// The last frame: trailers lose secrets as headers do.
    fn end(&mut self) -> Option<Result<Frame<Bytes>, BodyError>> {
        let frame = self.last.take()?;
        Some(frame.map(|frame| match frame.into_trailers() {
            Ok(trailers) => {
                let credential = self.window.judge.credential.as_ref();
                let clean = credential.and_then(|credential| without_secrets(&trailers, credential));
                Frame::trailers(clean.unwrap_or(trailers))
            }
            Err(frame) => frame,
        }))
    }

    fn broken(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        (self.body, self.next, self.last) = (None, None, None);
        self.waiting.clear();
        self.window.released = self.window.end();
        Poll::Ready(Some(Err(error)))
    }

    /// Bytes that came and did not go out yet.
    fn waiting_bytes(&self) -> u64 {
        match self.decoding {
            Some(_) => self.waiting.iter().map(|piece| piece.coded.len() as u64).sum(),
            None => self.window.end() - self.window.released,
        }
    }
}

impl HttpBody for StreamingScan {
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
                Poll::Pending => {
                    let Some(due) = this.due() else { return Poll::Pending };
                    if this.timer.deadline() != due {
                        this.timer.as_mut().reset(due);
                    }
                    ready!(this.timer.as_mut().poll(cx));
                    this.release()
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
        self.waiting_bytes() == 0
            && self.next.is_none()
            && self.last.is_none()
            && self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        if self.last.is_some() {
            // Trailers or an error follow, which a length would hide.
            return SizeHint::default();
        }
        // Masks are as long as what they hide: a length that upstream named stays true.
        let waiting = self.waiting_bytes() + self.next.as_ref().map_or(0, data_length);
        let rest = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + waiting);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + waiting);
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
