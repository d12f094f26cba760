//! The facts about a request that appear in reports.

use std::borrow::Cow;
use std::time::Instant;

use bottle_policy::decide::Reason;
use serde::Serialize;

/// The facts about a request that are known before the verdict.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestInfo {
    /// The requested host in canonical form; empty if the host is not valid.
    pub(crate) host: String,
    /// The requested port.
    pub(crate) port: u16,
    /// The method; empty if no request was read.
    pub(crate) method: String,
    /// The path without the query; empty if no request was read.
    pub(crate) path: String,
}

impl RequestInfo {
    /// Describes a connection on which no request was read.
    pub(crate) fn for_connection(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port, ..Self::default() }
    }
}

/// One line of the log, which `bottle logs --egress --json` prints. Later versions may add fields but do not change
/// existing ones.
#[derive(Debug, Serialize)]
pub(super) struct Line<'l> {
    pub(super) event: &'static str,
    pub(super) time: String,
    pub(super) bottle: &'l str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'l str>,
    pub(super) host: Cow<'l, str>,
    pub(super) port: u16,
    pub(super) method: Cow<'l, str>,
    pub(super) path: Cow<'l, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) query: Option<Cow<'l, str>>,
    pub(super) verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Reason>,
    /// The findings and their locations, without the values that matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) found: Option<Cow<'l, str>>,
    /// The names of the headers and query keys that were stripped from the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) stripped: Vec<Cow<'l, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    pub(super) bytes: u64,
    pub(super) milliseconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<LogMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<LogMessage>,
}

/// Headers and body of a message in a log line, redacted.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct LogMessage {
    pub(super) headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
}

/// Milliseconds since `started`.
pub(super) fn milliseconds(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}
