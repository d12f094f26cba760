//! Scans WebSocket messages before they are forwarded.
//!
//! A message cannot wait for a user and a conversation cannot be redacted, so a finding closes the socket. Each side
//! answers pings itself. A message is scanned together with the end of the preceding ones: a secret that is split over
//! two messages is found in the second.

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

use super::approval::Key;
use super::outbound::Permit;
use crate::bounds;
use crate::egress::Egress;
use crate::inspect::Look;
use crate::report::record::Asked;

/// Bytes of preceding messages that stay in the scan window.
const VIEW: usize = 2 << 10;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The scans of one WebSocket.
pub(super) struct Messages {
    egress: Arc<Egress>,
    asked: Asked,
    provider: bool,
    out: Option<Arc<Scanner>>,
    back: Option<Arc<Scanner>>,
}

/// The direction of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    Back,
}

impl Messages {
    /// `None` when the route disables all scans.
    pub(super) fn of(egress: &Arc<Egress>, permit: &Permit) -> Option<Self> {
        let inspector = &egress.inspector;
        let out = inspector.outbound(&permit.dlp).cloned();
        let back = inspector.inbound(&permit.dlp, permit.credential.as_ref()).map(|answers| answers.scanner);
        (out.is_some() || back.is_some()).then(|| Self {
            egress: Arc::clone(egress),
            asked: permit.asked.clone(),
            provider: permit.provider,
            out,
            back,
        })
    }

    /// Relays messages until either side ends, a side is idle for too long, or a finding closes the socket.
    pub(super) async fn relay(self, bottle: Upgraded, upstream: Upgraded) {
        let socket = |io, role| WebSocketStream::from_raw_socket(TokioIo::new(io), role, Some(bounded()));
        let (to_bottle, from_bottle) = socket(bottle, Role::Server).await.split();
        let (to_upstream, from_upstream) = socket(upstream, Role::Client).await.split();
        let (mut to_bottle, mut to_upstream) = (to_bottle, to_upstream);
        let ended = tokio::select! {
            ended = self.pass(Direction::Out, from_bottle, &mut to_upstream) => ended,
            ended = self.pass(Direction::Back, from_upstream, &mut to_bottle) => ended,
            _ = self.egress.lockout.locked() => Some(self.refuse(Reason::LockedOut, "")),
        };
        // A close frame for both ends; one that has disconnected misses it.
        let close = || Message::Close(ended.clone());
        let _ = timeout(bounds::CLOSE_WITHIN, async {
            tokio::join!(to_bottle.send(close()), to_upstream.send(close()))
        })
        .await;
    }

    /// Relays one direction; returns the close frame for both ends.
    async fn pass(
        &self,
        way: Direction,
        mut from: SplitStream<Socket>,
        to: &mut SplitSink<Socket, Message>,
    ) -> Option<CloseFrame> {
        let mut view = Vec::new();
        loop {
            let message = match timeout(bounds::TUNNEL_IDLE, from.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Some(of_error(&error)),
                Ok(None) | Err(_) => return None,
            };
            let told = matches!(message, Message::Text(_) | Message::Binary(_));
            let end = if let Message::Close(frame) = &message { Some(frame.clone()) } else { None };
            if let Some(hit) = self.judge(way, &mut view, &payload(&message)) {
                return Some(hit);
            }
            if let Some(frame) = end {
                return frame;
            }
            if told && to.send(message).await.is_err() {
                return None;
            }
        }
    }

    /// Scans `text`; returns the close frame when it must not be forwarded.
    fn judge(&self, way: Direction, view: &mut Vec<u8>, text: &[u8]) -> Option<CloseFrame> {
        let scanner = if way == Direction::Out { self.out.as_ref() } else { self.back.as_ref() }?;
        let seen = view.len() as u64;
        view.extend_from_slice(text);
        let mut look = Look::new(scanner, &[], &HeaderMap::new());
        let looked = look.feed(view).and_then(|()| look.finish());
        let Ok(looked) = looked else {
            return Some(self.refuse(Reason::StructureRefused, "a message cannot be read"));
        };
        let known = |finding: &&Finding| {
            let value = &view[finding.span.within(view.len())];
            way == Direction::Out && self.egress.asking.approves(&Key::of(finding, value, &self.asked.host))
        };
        let mut looked = looked;
        let approved: Vec<Finding> = looked.plain.iter().filter(known).cloned().collect();
        looked.plain.retain(|finding| !approved.contains(finding));
        if way == Direction::Out {
            let new = looked.plain.iter().filter(|finding| finding.span.end > seen);
            let hits = new.map(|finding| (finding, &view[finding.span.within(view.len())]));
            let packed = looked.packed.iter().map(|finding| (finding, text));
            hits.chain(packed).for_each(|(finding, text)| self.egress.count(finding, text, &self.asked.host));
        }
        view.drain(..view.len().saturating_sub(VIEW));
        let new = looked.plain.iter().filter(|finding| finding.span.end > seen).chain(&looked.packed);
        for finding in new {
            if let Some(close) = self.hit(way, finding) {
                return Some(close);
            }
        }
        None
    }

    fn hit(&self, way: Direction, finding: &Finding) -> Option<CloseFrame> {
        let words = format!("{} in a WebSocket message", finding.preview);
        let phrase = way == Direction::Back && finding.secret.is_none();
        if finding.severity == Severity::Warn || (phrase && self.provider) {
            self.egress.reporter.noticed(&self.asked, "noticed", &words);
            return None;
        }
        let reason = if phrase { Reason::InjectionFound } else { Reason::SecretFound };
        Some(self.refuse(reason, &words))
    }

    fn refuse(&self, reason: Reason, words: &str) -> CloseFrame {
        let refusal = match reason {
            Reason::LockedOut => Refusal::locked_out(&self.asked.host),
            reason => Refusal::later(reason, &self.asked.host, words),
        };
        self.egress.reporter.refused(&self.asked, &refusal);
        CloseFrame { code: CloseCode::Policy, reason: reason.as_str().into() }
    }
}

/// Limits the length of messages and frames.
pub(crate) fn bounded() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(bounds::MESSAGE_BYTES))
        .max_frame_size(Some(bounds::MESSAGE_BYTES))
}

/// The bytes of a message that its receiver can read.
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

fn of_error(error: &tokio_tungstenite::tungstenite::Error) -> CloseFrame {
    use tokio_tungstenite::tungstenite::Error;
    let code = match error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Protocol(_) | Error::Utf8(_) => CloseCode::Protocol,
        _ => CloseCode::Away,
    };
    CloseFrame { code, reason: "".into() }
}
