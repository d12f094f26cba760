//! Scans a response while it streams.
//!
//! ```text
//! upstream ─► chunks ─► text (decoded) ─► scan ─► release ─► bottle
//!                                                    │
//!                complete lines immediately; the rest after MAX_DELAY, or when two TAILs are withheld
//! ```
//! The release time of a byte depends only on line ends, lengths and time, never on the state of a scan. Otherwise the
//! arrival time would reveal how much of a secret a byte completes. Released text stays in the scan window, so the scan
//! finds a secret that is split over any number of chunks. If a secret is complete before any of it is released, the
//! proxy masks the secret. If a part of the secret was already released, the proxy cuts the stream. The proxy scans
//! text only when some of it is about to be released. So a response that arrives in single bytes causes one scan for
//! each millisecond or line, not one for each byte.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bottle_policy::decide::{Reason, Refusal};
use bottle_scan::{Finding, Scanner, Severity};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::body::{Body, BodyError, BrokenBody, FrameResult, PollFrame};
use super::error_events::ErrorEvents;
use super::inbound::is_echo;
use super::marking::OnInjection;
use crate::inspect::decoded_memory::DecodedMemory;
use crate::inspect::head::{Head, OutgoingHead};
use crate::inspect::{Coding, Decoding};
use crate::report::Reporter;
use crate::report::record::RequestInfo;

/// How many bytes of released text stay in the scan window. No injection phrase is longer than this window.
const WINDOW: u64 = 2 << 10;
/// How many bytes after the last line end are withheld while more text arrives.
const TAIL: u64 = 2 << 10;
/// The longest delay of a byte. If a server writes a response in one call, all network segments of the response arrive
/// within this time.
const MAX_DELAY: Duration = Duration::from_millis(10);
/// Chunks that arrive within this time of each other are released together.
const COALESCE: Duration = Duration::from_millis(1);
/// The most encoded bytes that may wait until their text is decoded. If more bytes wait, the proxy cuts the response. A
/// zstd decoder withholds a window of 8 MiB of text.
const MAX_WITHHELD: usize = 16 << 20;
/// The maximum number of text bytes between two scans. One encoded chunk may decode to many thousand times its length.
const SCAN_CHUNK: u64 = 16 << 10;
/// Pieces with fewer bytes than this number are joined if they are released together.
const MAX_JOINED: usize = 1 << 10;
/// The most findings that are logged for one response. Further findings are not logged.
const MAX_REPORTED: usize = 16;

/// The scanners of a response, and the destination of its reports.
pub(super) struct ScanContext {
    pub(super) info: Arc<RequestInfo>,
    pub(super) scanner: Arc<Scanner>,
    /// Finds the injected credential. `None` if no credential was injected, or the route disables this detector.
    pub(super) credential: Option<Arc<Scanner>>,
    pub(super) on_injection: OnInjection,
    /// The format of the error event with which the proxy ends a stream of events. `None` if the response cannot end
    /// with such an event.
    pub(super) events: Option<ErrorEvents>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) reported: usize,
    /// The memory budget that the decoders' windows count towards.
    pub(super) memory: DecodedMemory,
}

impl ScanContext {
    /// Logs findings that are not secrets.
    pub(super) fn report(&mut self, found: &[Finding]) {
        for finding in found.iter().filter(|finding| finding.secret.is_none()) {
            self.reported += 1;
            if self.reported <= MAX_REPORTED {
                let words = format!("{} in the answer", finding.preview);
                self.reporter.report_finding(&self.info, "noticed", &words);
            }
        }
    }

    /// Logs that the credential was redacted. `found` describes its location.
    pub(super) fn report_redacted(&self, found: &str) {
        self.reporter.report_finding(&self.info, "redacted", found);
    }

    /// Returns `headers` without the credential, or `None` if the headers do not contain the credential.
    pub(super) fn redact_headers(&self, headers: &HeaderMap) -> Option<HeaderMap> {
        let credential = self.credential.as_ref()?;
        let outgoing = OutgoingHead { host: "", path: "", query: None, headers, is_sent: &|_| true };
        let head = Head::new(&outgoing);
        let found: Vec<Finding> = head.scan(Some(credential)).into_iter().filter(is_echo).collect();
        (!found.is_empty()).then(|| head.redact(&found, &outgoing).headers)
    }

    /// Returns the first prompt injection that is more than a warning.
    pub(super) fn injection<'f>(&self, found: &'f [Finding]) -> Option<&'f Finding> {
        let blocks = |finding: &&Finding| finding.severity == Severity::Block && finding.secret.is_none();
        found.iter().find(blocks)
    }

    /// Whether a scan may find text that the bottle must not receive.
    fn may_withhold(&self) -> bool {
        self.credential.is_some() || self.on_injection != OnInjection::Log
    }

    /// Reports that the response is cut because of a finding.
    fn cut(&self, reason: Reason, preview: &str) -> BodyError {
        let words = format!("cut: {preview} in the answer");
        self.reporter.report_finding(&self.info, "cut", &words);
        let host = &self.info.host;
        let refusal = match reason {
            Reason::SecretFound => Refusal::secret_in_answer(host, "it cannot be redacted"),
            reason => Refusal::later(reason, host, preview),
        };
        match &self.events {
            Some(events) => Box::new(CutWith(events.of(&refusal))),
            None => BrokenBody::Cut.into(),
        }
    }
}

/// The error that cuts a response: an event that states the reason.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut")]
struct CutWith(String);

/// The scan window over the text of a response: the end of the released text, and the withheld text. An encoded body
/// cannot be masked, so its window contains only the text that later scans need.
struct Window {
    context: ScanContext,
    coded: bool,
    /// Offset of the window's first byte in the text.
    base: u64,
    /// The text as upstream sent it. The proxy makes no other copy of the text.
    received: Vec<u8>,
    /// The withheld chunks, with secrets masked. Empty for an encoded body.
    output: VecDeque<Bytes>,
    /// The masked parts of the window, as offsets.
    masked: Vec<Range<u64>>,
    /// Offset after the last line end.
    line: u64,
    /// Offset after the last scanned byte.
    scanned: u64,
    /// Offset after the last released byte.
    released: u64,
    /// A note about an injection. It is sent before the text that is released next.
    note: Option<Bytes>,
    /// Whether the text has a note. A text has at most one note.
    noted: bool,
}

impl Window {
    fn new(context: ScanContext, coded: bool) -> Self {
        Self {
            context,
            coded,
            base: 0,
            received: Vec::new(),
            output: VecDeque::new(),
            masked: Vec::new(),
            line: 0,
            scanned: 0,
            released: 0,
            note: None,
            noted: false,
        }
    }

    /// Returns the offset after the last received byte.
    fn end(&self) -> u64 {
        self.base + self.received.len() as u64
    }

    fn index(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.base))
            .map_or(self.received.len(), |at| at.min(self.received.len()))
    }

    /// Appends a chunk to scan and to release later.
    fn push_chunk(&mut self, chunk: Bytes) -> Result<(), BodyError> {
        // Queues the chunk before the scan, because the scan may mask it.
        self.output.extend((!chunk.is_empty()).then(|| chunk.clone()));
        self.push(&chunk)
    }

    /// Appends text to scan.
    fn push(&mut self, text: &[u8]) -> Result<(), BodyError> {
        if let Some(at) = memchr::memrchr(b'\n', text) {
            self.line = self.end() + at as u64 + 1;
        }
        self.received.extend_from_slice(text);
        if self.end() - self.scanned < SCAN_CHUNK {
            return Ok(());
        }
        self.scan()
    }

    /// Scans the new text together with the end of the text that was already scanned.
    fn scan(&mut self) -> Result<(), BodyError> {
        let from = self.index(self.scanned.saturating_sub(WINDOW));
        let seen = (self.index(self.scanned) - from) as u64;
        let mut found = self.context.scanner.scan(&self.received[from..]).findings;
        found.retain(|finding| finding.span.end > seen);
        self.scanned = self.end();
        self.context.report(&found);
        if let Some(finding) = self.context.injection(&found) {
            match self.context.on_injection {
                OnInjection::Block => return Err(self.context.cut(Reason::InjectionFound, &finding.preview)),
                OnInjection::Mark(markup) if !self.noted => {
                    self.note = Some(markup.note(&finding.preview));
                    self.noted = true;
                }
                OnInjection::Mark(_) | OnInjection::Log => {}
            }
        }
        found.retain(is_echo);
        for finding in &found {
            let span = finding.span.within(self.received.len() - from);
            if self.coded || !self.mask(from + span.start..from + span.end) {
                return Err(self.context.cut(Reason::SecretFound, &finding.preview));
            }
        }
        if !found.is_empty() {
            self.context.report_redacted("the route's credential in the answer");
        }
        self.trim();
        Ok(())
    }

    /// Masks the part of a secret that is withheld. Returns false if another part was already released unmasked.
    fn mask(&mut self, secret: Range<usize>) -> bool {
        let out = self.index(self.released).clamp(secret.start, secret.end);
        let is_masked = |at: usize| self.masked.iter().any(|part| part.contains(&(self.base + at as u64)));
        if (secret.start..out).any(|at| self.received[at].is_ascii_alphanumeric() && !is_masked(at)) {
            return false;
        }
        let first = self.index(self.released);
        if out < secret.end {
            let mut output = Vec::with_capacity(self.received.len() - first);
            self.output.drain(..).for_each(|chunk| output.extend_from_slice(&chunk));
            mask(&mut output[out - first..secret.end - first]);
            self.output.push_back(output.into());
        }
        self.masked.push(self.base + secret.start as u64..self.base + secret.end as u64);
        true
    }

    /// Returns the offset up to which text is released without waiting: the last line end. If more than twice [`TAIL`]
    /// bytes follow the last line end, all text except the last [`TAIL`] bytes is released.
    fn line_end(&self) -> u64 {
        if !self.context.may_withhold() {
            return self.end();
        }
        let line = self.line.max(self.released);
        if self.end() - line > 2 * TAIL { self.end() - TAIL } else { line }
    }

    /// Scans the text if necessary, and appends the unreleased text before `offset` to `ready`. Secrets in this text
    /// are masked. For an encoded body, appends no text.
    fn release(&mut self, offset: u64, ready: &mut VecDeque<Bytes>) -> Result<(), BodyError> {
        if offset > self.scanned && self.context.may_withhold() {
            self.scan()?;
        }
        ready.extend(self.note.take());
        let length = self.index(offset).saturating_sub(self.index(self.released));
        take_front(&mut self.output, length, ready);
        self.released = self.released.max(offset);
        self.trim();
        Ok(())
    }

    /// Drops text that no later scan or release needs. Does nothing if there is too little such text to justify moving
    /// the rest.
    fn trim(&mut self) {
        let needed = if self.coded { self.scanned } else { self.scanned.min(self.released) };
        let unneeded = self.index(needed.saturating_sub(WINDOW));
        if (unneeded as u64) < SCAN_CHUNK {
            return;
        }
        self.received.drain(..unneeded);
        self.base += unneeded as u64;
        self.masked.retain(|part| part.end > self.base);
    }
}

/// Moves the first `length` bytes of `chunks` to `ready`. Joins short pieces, because a separate frame for each piece
/// costs more than copying the pieces.
fn take_front(chunks: &mut VecDeque<Bytes>, mut length: usize, ready: &mut VecDeque<Bytes>) {
    let mut joined = BytesMut::new();
    while length > 0
        && let Some(first) = chunks.front_mut()
    {
        let piece = first.split_to(length.min(first.len()));
        length -= piece.len();
        if first.is_empty() {
            chunks.pop_front();
        }
        if piece.len() < MAX_JOINED && (length > 0 || !joined.is_empty()) {
            joined.extend_from_slice(&piece);
        } else {
            ready.extend((!joined.is_empty()).then(|| joined.split().freeze()));
            ready.push_back(piece);
        }
    }
    ready.extend((!joined.is_empty()).then(|| joined.freeze()));
}

/// Withheld chunks of the body that arrived within [`COALESCE`] of each other.
struct Chunk {
    /// Offset after the decoded text of the chunk.
    end: u64,
    /// The latest time at which the chunk is released.
    due: Instant,
    /// The encoded bytes, for an encoded body.
    coded: BytesMut,
}

/// The rest of a body, and its next frame if this frame was already read.
pub(super) struct Rest {
    pub(super) body: Body,
    pub(super) next: Option<FrameResult>,
}

/// A response body that is scanned while it streams.
pub(super) struct StreamingScan {
    window: Window,
    body: Option<Body>,
    /// A frame that was already read from the body.
    next: Option<FrameResult>,
    /// Released chunks that are sent next.
    ready: VecDeque<Bytes>,
    decoding: Option<Decoding>,
    /// Withheld chunks in order of arrival, so offsets and release times increase.
    queue: VecDeque<Chunk>,
    timer: Pin<Box<Sleep>>,
    /// The trailers or error that are sent after all data.
    last: Option<FrameResult>,
}

impl StreamingScan {
    /// Starts with the part of the body that was already read: `beginning`, and the frame after it in `rest`.
    pub(super) fn new(context: ScanContext, beginning: Bytes, rest: Rest, codings: &[Coding]) -> Self {
        let Rest { body, next } = rest;
        let memory = context.memory.clone();
        // The part that was already read is scanned like any other chunk.
        let first = (!beginning.is_empty()).then(|| Ok(Frame::data(beginning)));
        let (next, last) = if first.is_some() { (first, next) } else { (next, None) };
        Self {
            window: Window::new(context, !codings.is_empty()),
            // A frame without data is the last frame.
            body: last.is_none().then_some(body),
            next,
            ready: VecDeque::new(),
            decoding: (!codings.is_empty()).then(|| Decoding::new(codings, &memory)),
            queue: VecDeque::new(),
            timer: Box::pin(tokio::time::sleep(MAX_DELAY)),
            last,
        }
    }

    /// Appends a chunk and releases the text that is due.
    fn take(&mut self, chunk: Bytes) -> Result<(), BodyError> {
        let Some(decoding) = &mut self.decoding else {
            self.window.push_chunk(chunk)?;
            self.enqueue(self.window.end(), Bytes::new());
            return self.release();
        };
        let mut bad = None;
        let decoded = decoding.feed(&chunk, &mut |text| {
            bad = self.window.push(text).err();
            bad.is_none()
        });
        if let Some(error) = bad {
            return Err(error);
        }
        decoded?;
        let end = self.window.end().saturating_add(decoding.withheld());
        self.enqueue(end, chunk);
        if self.withheld_bytes() > MAX_WITHHELD as u64 {
            return Err(self.window.context.cut(Reason::StructureRefused, "too much undecoded data"));
        }
        self.release()
    }

    /// Queues a chunk whose text ends at `end`.
    fn enqueue(&mut self, end: u64, coded: Bytes) {
        let due = Instant::now() + MAX_DELAY;
        match self.queue.back_mut() {
            Some(last) if due.duration_since(last.due) < COALESCE => {
                last.end = end;
                last.coded.extend_from_slice(&coded);
            }
            _ => self.queue.push_back(Chunk { end, due, coded: coded.into() }),
        }
    }

    /// Returns the offset after the text of a chunk, as far as it is known.
    fn end_of(&self, chunk: &Chunk) -> u64 {
        let decoded = self.decoding.as_ref().is_none_or(|decoding| decoding.withheld() == 0);
        if decoded { chunk.end.min(self.window.end()) } else { chunk.end }
    }

    /// Releases complete lines, and chunks whose delay has expired.
    fn release(&mut self) -> Result<(), BodyError> {
        let now = Instant::now();
        let in_time = self.queue.iter().take_while(|chunk| chunk.due <= now);
        let in_time = in_time.map(|chunk| self.end_of(chunk)).filter(|end| *end <= self.window.end()).last();
        self.release_to(self.window.line_end().max(in_time.unwrap_or(0)))
    }

    fn release_to(&mut self, offset: u64) -> Result<(), BodyError> {
        self.window.release(offset, &mut self.ready)?;
        while self.queue.front().is_some_and(|chunk| self.end_of(chunk) <= offset) {
            let coded = self.queue.pop_front().map(|chunk| chunk.coded).filter(|coded| !coded.is_empty());
            self.ready.extend(coded.map(BytesMut::freeze));
        }
        Ok(())
    }

    /// Returns the next release time if nothing more arrives, or `None` while the decoder withholds the text of the
    /// first queued chunk.
    fn due(&self) -> Option<Instant> {
        let first = self.queue.front()?;
        (self.end_of(first) <= self.window.end()).then_some(first.due)
    }

    /// Scans and releases the remaining text after the last chunk.
    fn finish(&mut self) -> Result<(), BodyError> {
        if self.decoding.as_ref().is_some_and(|decoding| decoding.withheld() > 0) {
            return Err(BrokenBody::EndedEarly.into());
        }
        self.window.scan()?;
        self.release_to(self.window.end())
    }

    /// Returns the last frame. Trailers are redacted like headers.
    fn last_frame(&mut self) -> Option<FrameResult> {
        let frame = self.last.take()?;
        Some(frame.map(|frame| match frame.into_trailers() {
            Ok(trailers) => {
                let redacted = self.window.context.redact_headers(&trailers);
                Frame::trailers(redacted.unwrap_or(trailers))
            }
            Err(frame) => frame,
        }))
    }

    /// Ends the response. If `error` contains an error event, the event is the last data of the response. Otherwise the
    /// response fails with `error`.
    fn fail(&mut self, error: BodyError) -> PollFrame {
        let is_first = self.window.released == 0;
        (self.body, self.next, self.last) = (None, None, None);
        self.queue.clear();
        self.window.output.clear();
        self.window.released = self.window.end();
        Poll::Ready(Some(match error.downcast::<CutWith>() {
            // A part of an event may already be forwarded. The blank line ends this event.
            Ok(cut) if !is_first => Ok(Frame::data([b"\n\n", cut.0.as_bytes()].concat().into())),
            Ok(cut) => Ok(Frame::data(cut.0.into())),
            Err(error) => Err(error),
        }))
    }

    /// Number of bytes received but not yet sent.
    fn unsent_bytes(&self) -> u64 {
        self.withheld_bytes() + self.ready.iter().map(|chunk| chunk.len() as u64).sum::<u64>()
    }

    /// Number of bytes received but not yet released.
    fn withheld_bytes(&self) -> u64 {
        match self.decoding {
            Some(_) => self.queue.iter().map(|chunk| chunk.coded.len() as u64).sum(),
            None => self.window.end() - self.window.released,
        }
    }
}

impl HttpBody for StreamingScan {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame {
        let this = &mut *self;
        loop {
            if let Some(chunk) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            let frame = match (this.next.take(), &mut this.body) {
                (Some(frame), _) => Poll::Ready(Some(frame)),
                (None, Some(body)) => Pin::new(body).poll_frame(cx),
                (None, None) => Poll::Ready(None),
            };
            let outcome = match frame {
                Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                    let Ok(chunk) = frame.into_data() else { continue };
                    this.take(chunk)
                }
                Poll::Ready(Some(other)) => {
                    (this.body, this.last) = (None, Some(other));
                    continue;
                }
                Poll::Ready(None) => {
                    this.body = None;
                    match this.finish() {
                        Ok(()) if this.ready.is_empty() => return Poll::Ready(this.last_frame()),
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
            if let Err(error) = outcome {
                return this.fail(error);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.unsent_bytes() == 0
            && self.next.is_none()
            && self.last.is_none()
            && self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        if self.last.is_some() {
            // Trailers or an error follow the data. If the length were exact, this last frame would be suppressed.
            return SizeHint::default();
        }
        // A mask has the same length as the secret, so the Content-Length from upstream remains correct.
        let withheld = self.unsent_bytes() + self.next.as_ref().map_or(0, data_length);
        let rest = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + withheld);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + withheld);
        }
        hint
    }
}

fn data_length(frame: &FrameResult) -> u64 {
    frame.as_ref().ok().and_then(|frame| Some(frame.data_ref()?.len() as u64)).unwrap_or(0)
}

/// Replaces a secret with asterisks of the same length. Keeps JSON punctuation, so that the text remains valid JSON.
fn mask(secret: &mut [u8]) {
    let mut escaped = false;
    for byte in secret {
        let is_syntax =
            !escaped && matches!(byte, b'"' | b',' | b':' | b'{' | b'}' | b'[' | b']' | b'\n' | b'\r');
        escaped = *byte == b'\\' && !escaped;
        if !is_syntax {
            *byte = b'*';
        }
    }
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::bundle::LogLevel;
    use bottle_scan::KnownSecrets;
    use http_body_util::BodyExt;

    use super::super::body;
    use super::*;
    use crate::report::backlog::Backlog;
    use crate::report::{LogConfig, LogSink, Redaction};

    #[tokio::test]
    async fn releases_a_chunk_without_copying_it() {
        let directory = tempfile::tempdir().expect("directory");
        let sink = LogSink::Files { directory: directory.path(), keep: 0 };
        let log = LogConfig { level: LogLevel::Off, sink };
        let reporter = {
            let redaction = Redaction::new(&[]).expect("redaction");
            Reporter::new("b".into(), log, Arc::new(Backlog::new(1)), redaction).expect("reporter")
        };
        let context = ScanContext {
            info: Arc::default(),
            scanner: Arc::new(Scanner::inbound(Arc::new(KnownSecrets::new([]).expect("no secrets")))),
            credential: None,
            on_injection: OnInjection::Block,
            events: None,
            reporter: Arc::new(reporter),
            reported: 0,
            memory: DecodedMemory::default(),
        };
        let chunk = Bytes::from("a line\n".repeat(10_000));
        let rest = Rest { body: body::full(chunk.clone()), next: None };
        let mut scan = StreamingScan::new(context, Bytes::new(), rest, &[]);
        let released = scan.frame().await.expect("a frame").expect("clean").into_data().expect("data");
        assert_eq!((released.as_ptr(), released.len()), (chunk.as_ptr(), chunk.len()));
        assert!(scan.frame().await.is_none());
    }

    #[test]
    fn masked_json_stays_valid() {
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
