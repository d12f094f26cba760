//! Relays a WebSocket and scans its messages before they are forwarded.
//!
//! A blocking finding closes the WebSocket, because a message cannot wait for the user's approval and a conversation
//! cannot be redacted. The proxy scans each message together with the end of the preceding messages. So the scan finds
//! a secret that is split over two messages when the second message arrives. If several messages have arrived, the
//! proxy first scans them together, and scans them one by one only if this scan finds something. Otherwise the text of
//! small messages would be scanned three times, because later scans include it again.
//!
//! The proxy forwards pings, pongs and close frames unchanged. The proxy adds a close frame only if it ends the
//! conversation itself: because of a finding, a violation of the protocol, a denied request to a model, a lock-out, or
//! the idle timeout.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bottle_policy::decide::{Reason, Refusal};
use bottle_policy::route::InboundOnMatch;
use bottle_scan::{Finding, Scanner, Severity};
use bytes::BytesMut;
use http::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::approval::ApprovalKey;
use super::model_socket::{self, ModelSocket};
use super::permit::Permit;
use super::websocket_frames::{FrameReader, Part, Violation, close_frame, text_message};
use crate::bounds;
use crate::egress::Egress;
use crate::inspect::{BodyFindings, BodyScan, Unreadable};
use crate::report::record::RequestInfo;

/// How many bytes at the end of the preceding messages are scanned again with the next message.
const WINDOW: usize = 2 << 10;

/// The longest payload of messages that are scanned together, in bytes.
const TOGETHER: usize = 64 << 10;

/// How many bytes are read at once.
const READ_BYTES: usize = 16 << 10;

/// The maximum number of bytes that the proxy reads while a message waits until its tokens are reserved. The proxy
/// reads during this time to detect whether the sender disconnects.
const READ_AHEAD: usize = 64 << 10;

/// The code of a close frame for a policy violation (RFC 6455, 7.4.1).
const POLICY: u16 = 1008;

/// The code of a close frame after the idle timeout.
const GOING_AWAY: u16 = 1001;

/// Relays the messages of one WebSocket. Contains the scanners of the WebSocket and the facts for reports.
pub(super) struct MessageRelay {
    egress: Arc<Egress>,
    info: Arc<RequestInfo>,
    /// Whether prompt injections are only logged.
    only_logs: bool,
    outbound: Option<Arc<Scanner>>,
    inbound: Option<Arc<Scanner>>,
    /// `None` if the WebSocket is not for a model.
    model: Option<ModelSocket>,
    /// Whether messages may be compressed.
    deflate: bool,
}

/// The direction of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Outbound,
    Inbound,
}

/// A close frame of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Close {
    code: u16,
    reason: &'static str,
}

/// Which parts of the conversation have ended.
#[derive(Debug, Clone, Copy, Default)]
struct Ending {
    /// The close frame with which the proxy ends the conversation. `None` if the proxy does not end it. Only the first
    /// close frame is kept.
    close: Option<Close>,
    /// Whether the bottle ended its direction. If the bottle sent a close frame, the proxy has forwarded this frame.
    outbound: bool,
    /// Whether upstream ended its direction.
    inbound: bool,
}

/// The state that both directions of one conversation share.
struct Conversation {
    ending: watch::Sender<Ending>,
    /// A message that the proxy sends to the bottle before its close frame.
    last_words: OnceLock<Vec<u8>>,
    last_read: Mutex<Instant>,
}

impl Conversation {
    fn close(&self, close: Close) {
        self.ending
            .send_if_modified(|ending| ending.close.is_none() && ending.close.replace(close).is_none());
    }

    fn end(&self, direction: Direction) {
        self.ending.send_modify(|ending| match direction {
            Direction::Outbound => ending.outbound = true,
            Direction::Inbound => ending.inbound = true,
        });
    }

    /// Waits until the proxy ends the conversation.
    async fn closed(&self) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.ending.subscribe().wait_for(|ending| ending.close.is_some()).await;
    }

    fn has_been_read(&self) {
        *self.last_read.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_idle(&self) -> bool {
        self.last_read.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= bounds::TUNNEL_IDLE
    }
}

/// One direction of a conversation.
struct Half<'c, R, W> {
    direction: Direction,
    conversation: &'c Conversation,
    from: &'c mut R,
    to: &'c mut W,
    ending: watch::Receiver<Ending>,
    /// The received bytes that have not been parsed.
    input: BytesMut,
    /// The end of the scanned messages.
    window: Vec<u8>,
}

impl<'c, R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Half<'c, R, W> {
    fn new(direction: Direction, conversation: &'c Conversation, from: &'c mut R, to: &'c mut W) -> Self {
        let ending = conversation.ending.subscribe();
        Self { direction, conversation, from, to, ending, input: BytesMut::new(), window: Vec::new() }
    }

    /// Reads more input. Returns [`ControlFlow::Break`] if the direction has ended.
    async fn read(&mut self) -> ControlFlow<()> {
        let now = *self.ending.borrow_and_update();
        if now.close.is_some() {
            return ControlFlow::Break(());
        }
        // After one side has closed, the other side only has to confirm the close.
        let closing = now.outbound || now.inbound;
        let wait = if closing { bounds::CLOSE_WITHIN } else { bounds::TUNNEL_IDLE };
        self.input.reserve(READ_BYTES);
        let read = tokio::select! {
            biased;
            _ = self.ending.changed() => return ControlFlow::Continue(()),
            read = timeout(wait, self.from.read_buf(&mut self.input)) => read,
        };
        match read {
            Ok(Ok(1..)) => self.conversation.has_been_read(),
            Err(_) if !closing && !self.conversation.is_idle() => {}
            Err(_) if !closing => {
                self.conversation.close(Close { code: GOING_AWAY, reason: "" });
                return ControlFlow::Break(());
            }
            _ => {
                self.disconnected().await;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Shuts down the connection to the other side, because the sender of this direction has disconnected.
    async fn disconnected(&mut self) {
        let _ = timeout(bounds::CLOSE_WITHIN, self.to.shutdown()).await;
        self.conversation.end(self.direction);
    }
}

impl MessageRelay {
    /// Returns `None` if the route disables all scans, and the WebSocket is not for a model.
    pub(super) fn for_permit(egress: &Arc<Egress>, permit: &Permit<'_>, headers: &HeaderMap) -> Option<Self> {
        let model = ModelSocket::for_permit(egress, permit, headers);
        let outbound = egress.secrets.inspector.outbound(&permit.route.dlp).cloned();
        let inbound = egress.secrets.inspector.inbound(permit.route).map(|scanners| scanners.scanner);
        (outbound.is_some() || inbound.is_some() || model.is_some()).then(|| Self {
            egress: Arc::clone(egress),
            info: Arc::clone(&permit.info),
            only_logs: permit.route.provider
                || permit.route.dlp.inbound_on_match == Some(InboundOnMatch::Warn),
            outbound,
            inbound,
            model,
            deflate: false,
        })
    }

    /// Sets whether both sides agreed on compressed messages.
    pub(super) fn with_deflate(self, deflate: bool) -> Self {
        Self { deflate, ..self }
    }

    /// Relays messages until both sides have closed, both are idle for too long, or the proxy closes the socket.
    pub(super) async fn relay(self, bottle: Upgraded, upstream: Upgraded) {
        let (mut from_bottle, mut to_bottle) = split(TokioIo::new(bottle));
        let (mut from_upstream, mut to_upstream) = split(TokioIo::new(upstream));
        let conversation = Conversation {
            ending: watch::Sender::default(),
            last_words: OnceLock::new(),
            last_read: Mutex::new(Instant::now()),
        };
        let ended = {
            let outbound = Half::new(Direction::Outbound, &conversation, &mut from_bottle, &mut to_upstream);
            let inbound = Half::new(Direction::Inbound, &conversation, &mut from_upstream, &mut to_bottle);
            let both = async { tokio::join!(self.relay_direction(outbound), self.relay_direction(inbound)) };
            tokio::pin!(both);
            tokio::select! {
                _ = &mut both => true,
                () = self.closed_or_locked(&conversation) => {
                    // Lets a frame that is being written finish before the close frame.
                    timeout(bounds::CLOSE_WITHIN, &mut both).await.is_ok()
                }
            }
        };
        let Ending { close, outbound, inbound } = *conversation.ending.borrow();
        if let Some(Close { code, reason }) = close.filter(|_| ended) {
            let words = conversation.last_words.get().map_or(&[][..], Vec::as_slice);
            let to_bottle_last = [words, &close_frame(code, reason, false)].concat();
            let to_upstream_last = close_frame(code, reason, true);
            let send = async |to: &mut (dyn AsyncWrite + Send + Unpin), bytes: &[u8], is_closed: bool| {
                // A side that has already disconnected does not receive this frame.
                if !is_closed {
                    let _ = write(to, bytes).await;
                }
            };
            let both = async {
                tokio::join!(
                    send(&mut to_bottle, &to_bottle_last, inbound),
                    send(&mut to_upstream, &to_upstream_last, outbound)
                )
            };
            let _ = timeout(bounds::CLOSE_WITHIN, both).await;
        }
        let ends = async { tokio::join!(end(from_bottle, to_bottle), end(from_upstream, to_upstream)) };
        let _ = timeout(bounds::CLOSE_WITHIN, ends).await;
    }

    async fn closed_or_locked(&self, conversation: &Conversation) {
        tokio::select! {
            () = conversation.closed() => {}
            _ = self.egress.lockout.locked() => conversation.close(self.deny(Reason::LockedOut, "")),
        }
    }

    /// Relays one direction until its sender closes or disconnects, or the proxy ends the conversation.
    async fn relay_direction<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(&self, mut half: Half<'_, R, W>) {
        let is_outbound = half.direction == Direction::Outbound;
        let mut reader = FrameReader::new(is_outbound, self.deflate, &self.egress.decoded_memory);
        // The reader's result after the parts that are forwarded together. The next iteration processes this result.
        let mut held = None;
        loop {
            let flow = match held.take().unwrap_or_else(|| reader.next(&mut half.input)) {
                Ok(Some(part)) => {
                    let mut parts = vec![part];
                    if self.model.is_none() {
                        held = more(&mut parts, &mut reader, &mut half.input);
                    }
                    self.forward(&mut half, parts).await
                }
                Ok(None) => half.read().await,
                Err(violation) => {
                    half.conversation.close(Close { code: violation.code(), reason: "" });
                    ControlFlow::Break(())
                }
            };
            if flow.is_break() {
                return;
            }
        }
    }

    /// Scans `parts`, and writes their frames if the scan finds nothing. Returns [`ControlFlow::Break`] if the
    /// direction has ended.
    async fn forward<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        half: &mut Half<'_, R, W>,
        mut parts: Vec<Part>,
    ) -> ControlFlow<()> {
        let are_clean = parts.len() > 1 && self.are_clean(half.direction, &mut half.window, &parts);
        if are_clean {
            join(&mut parts);
        }
        for part in parts {
            let close = match are_clean {
                true => None,
                false => self.scan(half.direction, &mut half.window, &part.payload),
            };
            // Waits until the hits in this message are counted. If this message locks the bottle, the conversation ends
            // because of the lock.
            self.egress.lockout.settled().await;
            if let Some(close) = close {
                half.conversation.close(close);
                return ControlFlow::Break(());
            }
            if part.is_message {
                self.meter(half, &part.payload).await?;
            }
            if write(half.to, &part.frames).await.is_err() || part.is_close {
                half.conversation.end(half.direction);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Counts the tokens of a message from a model, or waits until the tokens of a message to a model are reserved. Does
    /// nothing if the WebSocket is not for a model. Returns [`ControlFlow::Break`] if the direction has ended.
    async fn meter<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        half: &mut Half<'_, R, W>,
        payload: &[u8],
    ) -> ControlFlow<()> {
        let Some(model) = &self.model else { return ControlFlow::Continue(()) };
        if half.direction == Direction::Inbound {
            model.inbound(payload);
            return ControlFlow::Continue(());
        }
        let reserved = model.outbound(payload);
        match while_connected(reserved, &mut half.ending, half.from, &mut half.input).await {
            Some(Ok(())) => return ControlFlow::Continue(()),
            Some(Err(refusal)) => self.refuse(half.conversation, &refusal),
            None if half.ending.borrow().close.is_some() => {}
            None => half.disconnected().await,
        }
        ControlFlow::Break(())
    }

    fn scanner(&self, direction: Direction) -> Option<&Arc<Scanner>> {
        match direction {
            Direction::Outbound => self.outbound.as_ref(),
            Direction::Inbound => self.inbound.as_ref(),
        }
    }

    /// Whether a scan of all `parts` together finds nothing in them. If the scan finds something, the window is
    /// unchanged, so that each part can be scanned alone.
    fn are_clean(&self, direction: Direction, window: &mut Vec<u8>, parts: &[Part]) -> bool {
        let Some(scanner) = self.scanner(direction) else { return true };
        let seen = window.len();
        parts.iter().for_each(|part| window.extend_from_slice(&part.payload));
        let findings = self.findings(scanner, window);
        let is_old = |finding: &Finding| finding.span.end <= seen as u64;
        let clean = findings.is_ok_and(|found| found.packed.is_empty() && found.plain.iter().all(is_old));
        if clean {
            shorten(window);
        } else {
            window.truncate(seen);
        }
        clean
    }

    fn findings(&self, scanner: &Arc<Scanner>, text: &[u8]) -> Result<BodyFindings, Unreadable> {
        let mut scan = BodyScan::new(scanner, &[], &HeaderMap::new(), &self.egress.decoded_memory);
        scan.feed(text)?;
        scan.finish()
    }

    /// Scans `text`. Returns the close frame if the message must not be forwarded.
    fn scan(&self, direction: Direction, window: &mut Vec<u8>, text: &[u8]) -> Option<Close> {
        let scanner = self.scanner(direction)?;
        let seen = window.len() as u64;
        window.extend_from_slice(text);
        let Ok(findings) = self.findings(scanner, window) else {
            return Some(self.deny(Reason::StructureRefused, "a WebSocket message cannot be read"));
        };
        let is_approved = |finding: &&Finding| {
            let value = &window[finding.span.within(window.len())];
            direction == Direction::Outbound
                && self.egress.approvals.approves(&ApprovalKey::new(finding, value, &self.info.host))
        };
        let mut findings = findings;
        let approved: Vec<Finding> = findings.plain.iter().filter(is_approved).cloned().collect();
        findings.plain.retain(|finding| !approved.contains(finding));
        if direction == Direction::Outbound {
            let new = findings.plain.iter().filter(|finding| finding.span.end > seen);
            self.egress.count_hits(new.chain(&findings.packed), &self.info.host);
        }
        shorten(window);
        let new = findings.plain.iter().filter(|finding| finding.span.end > seen).chain(&findings.packed);
        for finding in new {
            if let Some(close) = self.denial(direction, finding) {
                return Some(close);
            }
        }
        None
    }

    fn denial(&self, direction: Direction, finding: &Finding) -> Option<Close> {
        let words = format!("{} in a WebSocket message", finding.preview);
        let is_injection = direction == Direction::Inbound && finding.secret.is_none();
        if finding.severity == Severity::Warn || (is_injection && self.only_logs) {
            self.egress.reporter.report_finding(&self.info, "noticed", &words);
            return None;
        }
        let reason = if is_injection { Reason::InjectionFound } else { Reason::SecretFound };
        Some(self.deny(reason, &words))
    }

    /// Ends the conversation because of a request that is denied, and sends the bottle the reason.
    fn refuse(&self, conversation: &Conversation, refusal: &Refusal) {
        self.egress.reporter.report_denial(&self.info, refusal);
        let _ = conversation.last_words.set(text_message(&model_socket::error_message(refusal)));
        conversation.close(Close { code: POLICY, reason: refusal.reason.as_str() });
    }

    fn deny(&self, reason: Reason, words: &str) -> Close {
        let refusal = match reason {
            Reason::LockedOut => Refusal::locked_out(&self.info.host),
            reason => Refusal::later(reason, &self.info.host, words),
        };
        self.egress.reporter.report_denial(&self.info, &refusal);
        Close { code: POLICY, reason: reason.as_str() }
    }
}

/// Adds further parts that have arrived and can be scanned together with the first part. Returns the reader's next
/// result if this result does not belong to these parts.
fn more(parts: &mut Vec<Part>, reader: &mut FrameReader, input: &mut BytesMut) -> Option<Read> {
    let mut length = 0;
    while let Some(last) = parts.last().filter(|last| !last.is_close) {
        length += last.payload.len();
        match reader.next(input) {
            Ok(Some(next))
                if ends_words(&last.payload, &next.payload) && length + next.payload.len() <= TOGETHER =>
            {
                parts.push(next);
            }
            Ok(None) => break,
            read => return Some(read),
        }
    }
    None
}

/// Joins parts, so that all their frames are written at once. Drops all payloads but the last one, because the dropped
/// payloads are no longer needed.
fn join(parts: &mut Vec<Part>) {
    let frames = parts.iter().map(|part| &part.frames[..]).collect::<Vec<_>>().concat();
    parts.drain(..parts.len().saturating_sub(1));
    if let Some(last) = parts.last_mut() {
        last.frames = frames.into();
    }
}

/// What a [`FrameReader`] returns.
type Read = Result<Option<Part>, Violation>;

/// Whether no word continues from `payload` into `next`. If a word continued, a joint scan might not find a credential
/// at the end of `payload`, because more letters would follow the credential.
fn ends_words(payload: &[u8], next: &[u8]) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| b" \t\r\n\"'{}[]()<>,;".contains(byte));
    ends(payload.last()) || ends(next.first())
}

/// Keeps only the end of the scanned text.
fn shorten(window: &mut Vec<u8>) {
    window.drain(..window.len().saturating_sub(WINDOW));
    // Without this call, every WebSocket would keep the memory of its longest message.
    window.shrink_to(2 * WINDOW);
}

/// Waits for `work`. Returns `None` if the sender disconnects or the proxy ends the conversation first.
async fn while_connected<T>(
    work: impl Future<Output = T>,
    ending: &mut watch::Receiver<Ending>,
    from: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        let has_room = input.len() < READ_AHEAD;
        input.reserve(READ_BYTES);
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            _ = ending.wait_for(|ending| ending.close.is_some()) => return None,
            read = from.read_buf(input), if has_room => {
                if !matches!(read, Ok(1..)) {
                    return None;
                }
            }
        }
    }
}

/// Writes `bytes`.
///
/// # Errors
/// The side has disconnected, or has not read for [`bounds::WRITE_STALL`].
async fn write(to: &mut (impl AsyncWrite + Unpin + ?Sized), bytes: &[u8]) -> std::io::Result<()> {
    let written = async {
        to.write_all(bytes).await?;
        to.flush().await
    };
    timeout(bounds::WRITE_STALL, written).await?
}

/// Closes the connection to one side, and reads until that side has closed it too. Otherwise the kernel could discard
/// the close frame that was sent last.
async fn end(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    if to.shutdown().await.is_ok() {
        let mut rest = [0; 4096];
        while from.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    }
}
