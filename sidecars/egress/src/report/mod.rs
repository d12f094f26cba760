//! Reports denials to the keeper process and writes the log.
//!
//! ```text
//! record ─► redactor ─┬─► backlog ─► the parent ─► the keeper     denials
//!                     ├─► journal ─► a ring of files              by `egress.log`
//!                     └─► or relay ─► the parent ─► the keeper
//! ```
//! The redactor removes secrets from every report first. No request waits for a report to be written.

pub mod backlog;
mod journal;
pub(crate) mod record;
pub(crate) mod relay;

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use bottle_policy::decide::Refusal;
use bottle_policy::secret::Secret;
use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::{BundleEvent, LogLevel, Refused};
use bottle_scan::{Redactor, TooLarge};

use crate::bounds;
use backlog::Backlog;
use journal::Journal;
pub use journal::LogFiles;
use record::{Line, LogMessage, RequestInfo, milliseconds};
use relay::LogRelay;

/// Reports events to the keeper process and writes the log.
pub(crate) struct Reporter {
    bottle: String,
    level: LogLevel,
    journal: Option<LogWriter>,
    backlog: Arc<Backlog>,
    redaction: RwLock<Arc<Redaction>>,
}

/// Removes secrets from reports.
pub(crate) struct Redaction {
    redactor: Redactor,
    /// The number of bytes at the end of a truncated body in which the redactor may miss a truncated secret.
    margin: usize,
}

impl Redaction {
    /// Prepares the redaction of `secrets`.
    ///
    /// # Errors
    /// [`TooLarge`] if the secrets exceed the redactor's limits. Nothing must then be reported.
    pub(crate) fn new(secrets: &[&Secret]) -> Result<Self, TooLarge> {
        let redactor = Redactor::new(secrets.iter().copied())?;
        let longest = secrets.iter().map(|secret| secret.expose().len()).max().unwrap_or_default();
        Ok(Self { redactor, margin: longest * LONGEST_SPELLING })
    }
}

/// The level of the log, and the destination of its lines.
pub(crate) struct LogConfig<'p> {
    pub(crate) level: LogLevel,
    pub(crate) sink: LogSink<'p>,
}

/// The destination of the log lines.
pub(crate) enum LogSink<'p> {
    /// The proxy writes the log lines to files in `directory`.
    Files {
        directory: &'p Path,
        /// Maximum size of all files together, in bytes.
        keep: u64,
    },
    /// The proxy sends the log lines to the keeper process.
    Relay(Arc<LogRelay>),
}

/// Accepts the lines of the log.
enum LogWriter {
    Files(Journal),
    Relay(Arc<LogRelay>),
}

impl LogWriter {
    fn line(&self, line: String) {
        match self {
            Self::Files(journal) => journal.line(line),
            Self::Relay(relay) => relay.line(line),
        }
    }

    async fn settle(&self) {
        match self {
            Self::Files(journal) => journal.settle().await,
            Self::Relay(relay) => relay.settle().await,
        }
    }
}

/// Why reports cannot be written safely. After such an error, the proxy must not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("log")]
    Log(#[from] io::Error),
}

/// The maximum ratio between the length of an encoded secret and the length of the secret (`\u0041` encodes one
/// letter).
const LONGEST_SPELLING: usize = 6;

/// A request to which upstream responded.
pub(crate) struct ForwardedRequest {
    pub(crate) info: Arc<RequestInfo>,
    pub(crate) query: Option<String>,
    pub(crate) started: Instant,
    pub(crate) status: u16,
    /// The names of the headers and query keys that were stripped from the request. A `?` precedes each query key.
    pub(crate) stripped: Vec<String>,
    /// Size of the response body, in bytes.
    pub(crate) bytes: u64,
    pub(crate) request: CapturedMessage,
    pub(crate) response: CapturedMessage,
}

/// Headers and the beginning of a body, without the header of the injected credential.
#[derive(Default)]
pub(crate) struct CapturedMessage {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<String>,
    /// Whether the body continues after the captured part.
    pub(crate) truncated: bool,
}

impl Reporter {
    /// Creates a reporter that writes to `backlog`, and to the log unless its level is `off`.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub(crate) fn new(
        bottle: String,
        log: LogConfig<'_>,
        backlog: Arc<Backlog>,
        redaction: Redaction,
    ) -> Result<Self, ReportError> {
        let LogConfig { level, sink } = log;
        let journal = match (level, sink) {
            (LogLevel::Off, _) => None,
            (_, LogSink::Files { directory, keep }) => {
                Some(LogWriter::Files(Journal::start(directory, keep)?))
            }
            (_, LogSink::Relay(relay)) => Some(LogWriter::Relay(relay)),
        };
        Ok(Self { bottle, level, journal, backlog, redaction: RwLock::new(Arc::new(redaction)) })
    }

    /// Replaces the redaction, because the bottle has new secrets.
    pub(crate) fn set_redaction(&self, redaction: Redaction) {
        *self.redaction.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(redaction);
    }

    fn redaction(&self) -> Arc<Redaction> {
        Arc::clone(&self.redaction.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits, at shutdown, until the queued lines of the log are written. Does not wait for a keeper that is not
    /// connected.
    pub(crate) async fn settle(&self) {
        if let Some(journal) = &self.journal {
            journal.settle().await;
        }
    }

    /// Returns the number of bytes at the beginning of a body to capture for a log line.
    pub(crate) fn captured_body_bytes(&self) -> usize {
        bounds::LOG_BODY_BYTES + self.redaction().margin
    }

    /// Whether the log includes headers and bodies of forwarded requests.
    pub(crate) fn logs_bodies(&self) -> bool {
        self.level == LogLevel::Full
    }

    /// Reports a denial and returns its id, which also appears in the response, the event and the log line.
    pub(crate) fn report_denial(&self, info: &RequestInfo, refusal: &Refusal) -> String {
        let id = id();
        let Refusal { reason, sentence, .. } = refusal;
        let refused = Refused {
            id: id.clone(),
            time: now(),
            host: self.redact(&info.host).into_owned(),
            port: info.port,
            method: self.redact(&info.method).into_owned(),
            path: self.redact(&info.path).into_owned(),
            reason: *reason,
            sentence: self.redact(sentence).into_owned(),
        };
        let found = refusal.reason.is_about_content().then(|| self.redact(sentence));
        let line = Line { id: Some(&id), reason: Some(*reason), found, ..self.line(info, "denied") };
        self.write(&line);
        if !refusal.asks_to_fall_back() {
            self.backlog.push(BundleEvent::Refused(refused));
        }
        id
    }

    /// Reports that a request used a one-time grant.
    pub(crate) fn report_spent_grant(&self, proposal: Id) {
        self.backlog.push(BundleEvent::Spent { proposal });
    }

    /// Logs a finding in a request or response. `verdict` states what the proxy did because of the finding.
    pub(crate) fn report_finding(&self, info: &RequestInfo, verdict: &'static str, found: &str) {
        if self.journal.is_some() {
            self.write(&Line { found: Some(self.redact(found)), ..self.line(info, verdict) });
        }
    }

    /// Logs a TLS passthrough.
    pub(crate) fn report_passthrough(&self, info: &RequestInfo) {
        if self.logs_bodies() {
            self.write(&self.line(info, "passed-unopened"));
        }
    }

    /// Logs a forwarded request.
    pub(crate) fn report_forwarded(&self, forwarded: &ForwardedRequest) {
        if !self.logs_bodies() {
            return;
        }
        self.write(&Line {
            query: forwarded.query.as_deref().map(|query| self.redact(query)),
            stripped: forwarded.stripped.iter().map(|name| self.redact(name)).collect(),
            status: Some(forwarded.status),
            bytes: forwarded.bytes,
            milliseconds: milliseconds(forwarded.started),
            request: Some(self.log_message(&forwarded.request)),
            response: Some(self.log_message(&forwarded.response)),
            ..self.line(&forwarded.info, "passed")
        });
    }

    fn line<'l>(&'l self, info: &'l RequestInfo, verdict: &'static str) -> Line<'l> {
        Line {
            event: "request",
            time: now(),
            bottle: &self.bottle,
            id: None,
            host: self.redact(&info.host),
            port: info.port,
            method: self.redact(&info.method),
            path: self.redact(&info.path),
            query: None,
            verdict,
            reason: None,
            found: None,
            stripped: Vec::new(),
            status: None,
            bytes: 0,
            milliseconds: 0,
            request: None,
            response: None,
        }
    }

    fn write(&self, line: &Line<'_>) {
        let Some(journal) = &self.journal else { return };
        match serde_json::to_string(line) {
            Ok(text) => journal.line(text),
            Err(error) => tracing::warn!(%error, "cannot serialize a log line"),
        }
    }

    fn log_message(&self, message: &CapturedMessage) -> LogMessage {
        let redact = |text: &String| self.redact(text).into_owned();
        LogMessage {
            headers: message.headers.iter().map(|(name, text)| (name.clone(), redact(text))).collect(),
            body: message.body.as_ref().map(|body| self.log_body(body, message.truncated)),
        }
    }

    /// Redacts before truncating, because a truncated body may end in the middle of a secret.
    fn log_body(&self, body: &str, truncated: bool) -> String {
        let mut text = self.redact(body).into_owned();
        if truncated {
            let most = text.len().saturating_sub(self.redaction().margin).min(bounds::LOG_BODY_BYTES);
            text.truncate(text.floor_char_boundary(most));
            text.push('…');
        }
        text
    }

    /// Returns `text` with secrets redacted.
    pub(crate) fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.redaction().redactor.redact(text)
    }
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// Generates the id of a denial: twelve random hex digits, enough to be unique within one bottle and short enough to
/// read out.
fn id() -> String {
    format!("{:012x}", rand::random::<u64>() & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_a_truncated_secret() {
        let secret = Secret::new("known-secret-value".to_owned());
        let directory = tempfile::tempdir().expect("directory");
        let backlog = Arc::new(Backlog::new(1));
        let sink = LogSink::Files { directory: directory.path(), keep: 0 };
        let log = LogConfig { level: LogLevel::Off, sink };
        let reporter =
            Reporter::new("b".into(), log, backlog, Redaction::new(&[&secret]).expect("redaction"))
                .expect("reporter");
        let room = reporter.captured_body_bytes();
        let half = format!("{}known-secret", "a".repeat(room - "known-secret".len()));
        let shown = reporter.log_body(&half, true);
        assert!(!shown.contains("known") && shown.len() >= bounds::LOG_BODY_BYTES, "{}", shown.len());
        assert!(!reporter.log_body("x known-secret-value y", false).contains("known-secret"));
    }
}
