//! The findings in one request, and their description for the user.

use std::borrow::Cow;
use std::sync::Arc;

use bottle_policy::decide::Refusal;
use bottle_policy::names::{HTTP_PORT, HTTPS_PORT};
use bottle_scan::{Finding, Severity};
use http::HeaderMap;

use super::approval::ApprovalKey;
use super::buffered_body::BufferedBody;
use super::excerpt::{self, Place};
use super::head::{Denied, DeniedRequest, RequestHead};
use super::permit::Permit;
use crate::egress::Egress;
use crate::inspect::head::{Head, RedactedHead};
use crate::inspect::{BodyFindings, describe, describe_warnings};
use crate::report::record::RequestInfo;

/// The findings in a request.
pub(super) struct RequestFindings {
    head: Head,
    pub(super) in_head: Vec<Finding>,
    pub(super) in_body: BodyFindings,
}

impl RequestFindings {
    /// Scans the head as the proxy sends it, and counts hits for the lock-out.
    pub(super) fn in_head(egress: &Egress, permit: &Permit<'_>, head: &RequestHead) -> Self {
        let method = head.method().as_str();
        let text = permit.with_outgoing_head(head.headers(), |outgoing| Head::with_method(method, outgoing));
        let mut in_head = text.scan(egress.secrets.inspector.outbound(&permit.route.dlp));
        egress.count_hits(&in_head, permit.host());
        if !in_head.is_empty() {
            let passes = permit.route.pass_credentials;
            let link = egress.issued_links.contains(permit);
            in_head.retain(|finding| {
                let exempt = text.exemption(finding, head.headers(), passes, link);
                !exempt.is_some_and(|exempt| egress.secrets.inspector.is_exempt(finding, exempt))
            });
        }
        Self { head: text, in_head, in_body: BodyFindings::default() }
    }

    /// All findings in the request.
    pub(super) fn all(&self) -> impl Iterator<Item = &Finding> {
        self.in_head.iter().chain(self.in_body.all())
    }

    /// Describes the blocking findings and their locations for the user.
    pub(super) fn describe(&self, headers: &HeaderMap) -> String {
        let located = self.located(headers);
        describe(located.iter().map(|(finding, location)| (*finding, &**location)))
    }

    /// Describes each blocking finding and its location for the user.
    pub(super) fn list(&self, headers: &HeaderMap) -> Vec<String> {
        let located = self.located(headers).into_iter();
        let blocking = located.filter(|(finding, _)| finding.severity == Severity::Block);
        blocking.map(|(finding, location)| format!("{} in {location}", finding.preview)).collect()
    }

    /// Describes the warnings and their locations for the log, or returns `None` if there are none.
    pub(super) fn describe_warnings(&self, headers: &HeaderMap) -> Option<String> {
        if self.all().all(|finding| finding.severity == Severity::Block) {
            return None;
        }
        let located = self.located(headers);
        describe_warnings(located.iter().map(|(finding, location)| (*finding, &**location)))
    }

    /// Returns all findings with their locations.
    fn located(&self, headers: &HeaderMap) -> Vec<(&Finding, Cow<'static, str>)> {
        let in_head =
            self.in_head.iter().map(|finding| (finding, self.head.location(finding, headers).into()));
        let plain = self.in_body.plain.iter().map(|finding| (finding, "the body".into()));
        let packed = self.in_body.packed.iter().map(|finding| (finding, "a file in the body".into()));
        in_head.chain(plain).chain(packed).collect()
    }

    /// If the body has a blocking finding, returns the text of the body, because the question to the user then needs
    /// the text. Otherwise returns an empty text. Returns `None` if the text is too long.
    pub(super) async fn text_for_question(&self, body: Option<&BufferedBody>) -> Option<Vec<u8>> {
        if self.in_body.blocks() { body?.text().await } else { Some(Vec::new()) }
    }

    /// Returns the request line and the text around the blocking findings, without the values that were found. `text`
    /// is the text of the body.
    pub(super) fn excerpt(
        &self,
        egress: &Egress,
        permit: &Permit<'_>,
        head: &RequestHead,
        text: &[u8],
    ) -> Vec<String> {
        let RedactedHead { method, path, query, .. } = self.redact_head(permit, head);
        let RequestInfo { host, port, .. } = &*permit.info;
        let scheme = if *port == HTTP_PORT { "http" } else { "https" };
        let port = if [HTTP_PORT, HTTPS_PORT].contains(port) { String::new() } else { format!(":{port}") };
        let query = query.map_or_else(String::new, |query| format!("?{query}"));
        let request_line = format!("{method} {scheme}://{host}{port}{path}{query}");
        let blocks = |finding: &&Finding| finding.severity == Severity::Block;
        let in_head = self.in_head.iter().filter(blocks).filter(|finding| self.head.is_in_header(finding));
        let in_head = in_head.map(|finding| Place {
            location: self.head.location(finding, head.headers()),
            text: self.head.text(),
            found: &self.in_head,
            finding,
            lines: 0,
        });
        let in_body = self.in_body.plain.iter().filter(blocks).map(|finding| Place {
            location: "the body".to_owned(),
            text,
            found: &self.in_body.plain,
            finding,
            lines: 1,
        });
        let scanner = egress.secrets.inspector.outbound(&permit.route.dlp).map(AsRef::as_ref);
        let redact = |text: &str| egress.reporter.redact(text).into_owned();
        excerpt::lines(request_line, in_head.chain(in_body), scanner, &redact)
    }

    /// Returns the head with its findings redacted.
    pub(super) fn redact_head(&self, permit: &Permit<'_>, head: &RequestHead) -> RedactedHead {
        permit.with_outgoing_head(head.headers(), |outgoing| self.head.redact(&self.in_head, outgoing))
    }

    /// Returns the facts for reports, with path and method redacted.
    pub(super) fn redacted_info(&self, permit: &Permit<'_>, head: &RequestHead) -> RequestInfo {
        let RedactedHead { path, method, .. } = self.redact_head(permit, head);
        RequestInfo { path, method, ..(*permit.info).clone() }
    }

    /// Returns a denial. Its report contains the redacted path and method.
    pub(super) fn denied(&self, permit: &Permit<'_>, head: &RequestHead, refusal: Refusal) -> Denied {
        DeniedRequest::new(Arc::new(self.redacted_info(permit, head)), refusal)
    }

    /// Returns the keys of the approvals that the request needs. Returns `None` if a finding is in a packed file,
    /// because its value is not known. `text` is the text of the body.
    pub(super) fn approval_keys(&self, host: &str, text: &[u8]) -> Option<Vec<ApprovalKey>> {
        let blocks = |finding: &&Finding| finding.severity == Severity::Block;
        if self.in_body.packed.iter().any(|finding| blocks(&finding)) {
            return None;
        }
        let in_head = self.in_head.iter().filter(blocks);
        let in_head = in_head.map(|finding| (finding, self.head.matched_text(finding)));
        let in_body = self.in_body.plain.iter().filter(blocks);
        let in_body = in_body.map(|finding| (finding, &text[finding.span.within(text.len())]));
        Some(in_head.chain(in_body).map(|(finding, value)| ApprovalKey::new(finding, value, host)).collect())
    }
}
