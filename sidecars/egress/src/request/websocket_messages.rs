//! Scans WebSocket messages before they are forwarded.
//!
//! A blocking finding closes the WebSocket, because a message cannot wait for the user's approval and a conversation
//! cannot be redacted. The proxy answers each side's pings itself. The proxy scans each message together with the end
//! of the preceding ones, so it finds a secret that is split over two messages when the second one arrives.

use std::sync::Arc;

use bottle_contract::decide::{Reason, Refusal};
use bottle_scan::{Finding, Scanner, Severity};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::approval::ApprovalKey;
use super::permit::Permit;
use crate::bounds;
use crate::egress::Egress;
use crate::inspect::BodyScan;
use crate::report::record::RequestInfo;

/// How many bytes at the end of the preceding messages are scanned again with the next message.
const WINDOW: usize = 2 << 10;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The scanners of one WebSocket, and what they need for reports.
pub(super) struct MessageRelay {
    egress: Arc<Egress>,
    info: Arc<RequestInfo>,
    provider: bool,
    outbound: Option<Arc<Scanner>>,
    inbound: Option<Arc<Scanner>>,
}

/// The direction of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Outbound,
    Inbound,
}

impl MessageRelay {
    /// Returns `None` if the route disables all scans.
    pub(super) fn for_permit(egress: &Arc<Egress>, permit: &Permit<'_>) -> Option<Self> {
        let outbound = egress.inspector.outbound(&permit.route.dlp).cloned();
        let inbound = egress.inspector.inbound(permit.route).map(|scanners| scanners.scanner);
        (outbound.is_some() || inbound.is_some()).then(|| Self {
            egress: Arc::clone(egress),
            info: Arc::clone(&permit.info),
            provider: permit.route.provider,
            outbound,
            inbound,
        })
    }

    /// Relays messages until either side closes, either side is idle for too long, or a finding closes the socket.
    pub(super) async fn relay(self, bottle: Upgraded, upstream: Upgraded) {
        let socket = |io, role| WebSocketStream::from_raw_socket(TokioIo::new(io), role, Some(limits()));
        let (to_bottle, from_bottle) = socket(bottle, Role::Server).await.split();
        let (to_upstream, from_upstream) = socket(upstream, Role::Client).await.split();
        let (mut to_bottle, mut to_upstream) = (to_bottle, to_upstream);
        let ended = tokio::select! {
            ended = self.relay_direction(Direction::Outbound, from_bottle, &mut to_upstream) => ended,
            ended = self.relay_direction(Direction::Inbound, from_upstream, &mut to_bottle) => ended,
            _ = self.egress.lockout.locked() => Some(self.deny(Reason::LockedOut, "")),
        };
        // Sends a close frame to both sides. A side that has already disconnected misses this frame.
        let close = || Message::Close(ended.clone());
        let _ = timeout(bounds::CLOSE_WITHIN, async {
            tokio::join!(to_bottle.send(close()), to_upstream.send(close()))
        })
        .await;
    }

    /// Relays the messages of one direction. Returns the close frame for both sides.
    async fn relay_direction(
        &self,
        direction: Direction,
        mut from: SplitStream<Socket>,
        to: &mut SplitSink<Socket, Message>,
    ) -> Option<CloseFrame> {
        let mut window = Vec::new();
        loop {
            let message = match timeout(bounds::TUNNEL_IDLE, from.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Some(close_frame_for_error(&error)),
                Ok(None) | Err(_) => return None,
            };
            let is_data = matches!(message, Message::Text(_) | Message::Binary(_));
            let received_close =
                if let Message::Close(frame) = &message { Some(frame.clone()) } else { None };
            if let Some(close) = self.scan(direction, &mut window, &payload(&message)) {
                return Some(close);
            }
            if let Some(frame) = received_close {
                return frame;
            }
            if is_data && to.send(message).await.is_err() {
                return None;
            }
        }
    }

    /// Scans `text`. Returns the close frame if the message must not be forwarded.
    fn scan(&self, direction: Direction, window: &mut Vec<u8>, text: &[u8]) -> Option<CloseFrame> {
        let scanner =
            if direction == Direction::Outbound { self.outbound.as_ref() } else { self.inbound.as_ref() }?;
        let seen = window.len() as u64;
        window.extend_from_slice(text);
        let mut scan = BodyScan::new(scanner, &[], &HeaderMap::new());
        let findings = scan.feed(window).and_then(|()| scan.finish());
        let Ok(findings) = findings else {
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
            let hits = new.map(|finding| (finding, &window[finding.span.within(window.len())]));
            let packed = findings.packed.iter().map(|finding| (finding, text));
            hits.chain(packed).for_each(|(finding, text)| self.egress.count(finding, text, &self.info.host));
        }
        window.drain(..window.len().saturating_sub(WINDOW));
        let new = findings.plain.iter().filter(|finding| finding.span.end > seen).chain(&findings.packed);
        for finding in new {
            if let Some(close) = self.close_frame(direction, finding) {
                return Some(close);
            }
        }
        None
    }

    fn close_frame(&self, direction: Direction, finding: &Finding) -> Option<CloseFrame> {
        let words = format!("{} in a WebSocket message", finding.preview);
        let is_injection = direction == Direction::Inbound && finding.secret.is_none();
        if finding.severity == Severity::Warn || (is_injection && self.provider) {
            self.egress.reporter.report_finding(&self.info, "noticed", &words);
            return None;
        }
        let reason = if is_injection { Reason::InjectionFound } else { Reason::SecretFound };
        Some(self.deny(reason, &words))
    }

    fn deny(&self, reason: Reason, words: &str) -> CloseFrame {
        let refusal = match reason {
            Reason::LockedOut => Refusal::locked_out(&self.info.host),
            reason => Refusal::later(reason, &self.info.host, words),
        };
        self.egress.reporter.report_denial(&self.info, &refusal);
        CloseFrame { code: CloseCode::Policy, reason: reason.as_str().into() }
    }
}

/// Limits the size of messages and frames.
pub(crate) fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(bounds::MESSAGE_BYTES))
        .max_frame_size(Some(bounds::MESSAGE_BYTES))
}

/// Returns the content of a message: its text or data, or the reason text of a close message.
pub(crate) fn payload(message: &Message) -> Vec<u8> {
    match message {
        Message::Text(text) => text.as_bytes().to_vec(),
        Message::Binary(data) | Message::Ping(data) | Message::Pong(data) => data.to_vec(),
        Message::Close(frame) => {
            frame.as_ref().map_or_else(Vec::new, |frame| frame.reason.as_bytes().to_vec())
        }
        Message::Frame(_) => Vec::new(),
    }
}

fn close_frame_for_error(error: &tokio_tungstenite::tungstenite::Error) -> CloseFrame {
    use tokio_tungstenite::tungstenite::Error;
    let code = match error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Protocol(_) | Error::Utf8(_) => CloseCode::Protocol,
        _ => CloseCode::Away,
    };
    CloseFrame { code, reason: "".into() }
}
