//! Decodes requests and responses and scans them for secrets.
//!
//! ```text
//! head ────────────────────────────────► scanner ─► findings ─► policy findings
//! body ─► decode (codings) ─► text ─────►   │
//!                               └─ nested ──┘   compressed files inside, archive entries
//! spool   buffers a body until its verdict, encrypted on disk
//! ```
//! The scanners are built when the proxy receives the secrets, and again when the user replaces credentials. Routes
//! only select from these scanners.

mod aws_chunked;
mod decode;
pub(crate) mod decoded_memory;
pub(crate) mod head;
mod nested;
mod rewritten;
pub(crate) mod spool;
mod text;
mod unreadable;

use std::collections::HashMap;
use std::sync::Arc;

use bottle_policy::credential::exempt::Exempt;
use bottle_policy::credential::{Binding, binding};
use bottle_policy::decide;
use bottle_policy::route::{Dlp, InboundDetector, OutboundDetector, Route};
use bottle_scan::{Detector, Finding, KnownSecret, KnownSecrets, RuleFiles, Scanner, Severity, TooLarge};

pub(crate) use decode::Coding;
pub(crate) use rewritten::decoded;
pub(crate) use rewritten::{MAX_REWRITTEN, rewritten};
pub(crate) use text::{BodyFindings, BodyScan, Decoding, codings, request_codings};
pub(crate) use unreadable::Unreadable;

/// All scanners that a route can select.
pub(crate) struct Inspector {
    /// One scanner for each set of detectors. The index is the sum of the flags [`OUT_TOKENS`], [`OUT_KNOWN`] and
    /// [`OUT_ENTROPY`].
    outbound: Vec<Arc<Scanner>>,
    phrases: Arc<Scanner>,
    /// Two scanners for each binding: one for its current and replaced credentials only, and one for its credentials
    /// and the injection phrases.
    credentials: HashMap<Binding, (Arc<Scanner>, Arc<Scanner>)>,
    /// The user cannot approve a finding of a known secret with a lower number than this.
    unapprovable: usize,
}

const OUT_TOKENS: usize = 1;
const OUT_KNOWN: usize = 2;
const OUT_ENTROPY: usize = 4;

/// The scanners of a response.
pub(crate) struct ResponseScanners {
    pub(crate) scanner: Arc<Scanner>,
    /// Finds only the credential that the proxy injects on this route, if there is one.
    pub(crate) credential: Option<Arc<Scanner>>,
}

impl Inspector {
    /// Builds scanners for `unapprovable` values (credentials and the canary), for other `known` secrets, and for the
    /// user's `rules`, which extend the token patterns. Values in `harmless` match token patterns but are not secret.
    ///
    /// # Errors
    /// [`TooLarge`] if the scanners cannot hold all values. Without these scanners, the proxy must not forward
    /// anything.
    pub(crate) fn new(
        unapprovable: &[KnownSecret<'_>],
        known: &[KnownSecret<'_>],
        rules: &Arc<RuleFiles>,
        harmless: &[String],
    ) -> Result<Self, TooLarge> {
        let rules = Some(rules).filter(|rules| rules.count() > 0);
        let all = Arc::new(KnownSecrets::from_known(unapprovable.iter().chain(known).copied())?);
        let none = Arc::new(KnownSecrets::new([])?);
        let outbound = (0..8).map(|flags| {
            let tokens = flags & OUT_TOKENS != 0;
            let scanner = Scanner::outbound(Arc::clone(if flags & OUT_KNOWN != 0 { &all } else { &none }))
                .with_tokens(tokens);
            let scanner = scanner.with_entropy(flags & OUT_ENTROPY != 0).with_placeholders(harmless);
            Arc::new(match rules.filter(|_| tokens) {
                Some(rules) => scanner.with_rules(Arc::clone(rules)),
                None => scanner,
            })
        });
        Ok(Self {
            outbound: outbound.collect(),
            phrases: Arc::new(Scanner::inbound(Arc::clone(&none))),
            credentials: HashMap::new(),
            unapprovable: unapprovable.len(),
        })
    }

    /// The scanner for requests on a route, or `None` if the route disables all detectors.
    pub(crate) fn outbound(&self, dlp: &Dlp) -> Option<&Arc<Scanner>> {
        let flags = match &dlp.outbound_detectors {
            None => OUT_TOKENS | OUT_KNOWN,
            Some(list) => list.iter().fold(0, |flags, detector| {
                flags
                    | match detector {
                        OutboundDetector::TokenPatterns => OUT_TOKENS,
                        OutboundDetector::KnownSecrets => OUT_KNOWN,
                        OutboundDetector::Entropy => OUT_ENTROPY,
                    }
            }),
        };
        if flags == 0 { None } else { self.outbound.get(flags) }
    }

    /// Adds the credentials that the proxy injects or has injected, so that it can scan responses for them.
    ///
    /// # Errors
    /// [`TooLarge`] if the scanners cannot hold all credentials.
    pub(crate) fn with_credentials<'s>(
        mut self,
        credentials: impl Iterator<Item = (&'s Binding, KnownSecret<'s>)>,
    ) -> Result<Self, TooLarge> {
        let mut of_binding: HashMap<&Binding, Vec<KnownSecret<'s>>> = HashMap::new();
        for (binding, credential) in credentials {
            of_binding.entry(binding).or_default().push(credential);
        }
        for (binding, credentials) in of_binding {
            let known = Arc::new(KnownSecrets::from_known(credentials)?);
            let alone = Scanner::inbound(Arc::clone(&known)).with_phrases(false);
            self.credentials.insert(binding.clone(), (Arc::new(alone), Arc::new(Scanner::inbound(known))));
        }
        Ok(self)
    }

    /// The scanners for responses on a route, or `None` if the route disables all detectors.
    pub(crate) fn inbound(&self, route: &Route) -> Option<ResponseScanners> {
        let detectors = &route.dlp.inbound_detectors;
        let enabled = |detector| detectors.as_ref().is_none_or(|list| list.contains(&detector));
        let phrases = enabled(InboundDetector::NaiveInjectionDetection);
        let credential = binding(route).and_then(|binding| self.credentials.get(&binding));
        match credential.filter(|_| enabled(InboundDetector::KnownSecrets)) {
            Some((alone, both)) => {
                let scanner = Arc::clone(if phrases { both } else { alone });
                Some(ResponseScanners { scanner, credential: Some(Arc::clone(alone)) })
            }
            None => {
                phrases.then(|| ResponseScanners { scanner: Arc::clone(&self.phrases), credential: None })
            }
        }
    }

    /// Whether `exempt`, which applies at the location of `finding`, exempts the finding. Two kinds of secret are never
    /// exempt: credentials that the proxy adds, and the canary.
    pub(crate) fn is_exempt(&self, finding: &Finding, exempt: Exempt) -> bool {
        finding.is_exempt(exempt) && finding.secret.is_none_or(|secret| secret >= self.unapprovable)
    }

    /// Converts the blocking findings to the policy's type of findings.
    pub(crate) fn policy_findings<'f>(
        &self,
        findings: impl Iterator<Item = &'f Finding>,
    ) -> Vec<decide::Finding> {
        let mut policy: Vec<decide::Finding> = Vec::new();
        for finding in findings.filter(|finding| finding.severity == Severity::Block) {
            let finding_kind = match (finding.detector, finding.secret) {
                (Detector::Structure, _) => decide::Finding::Structure,
                (_, Some(secret)) if secret < self.unapprovable => decide::Finding::Unapprovable,
                _ => decide::Finding::Secret,
            };
            if !policy.contains(&finding_kind) {
                policy.push(finding_kind);
            }
        }
        policy
    }
}

/// Describes the blocking findings for the user: the first finding and the number of further findings.
///
/// For a known secret, the text says only that the request contains one. Otherwise an agent that sends several guesses
/// in one request could learn from the position or the number of matches which guesses are right.
pub(crate) fn describe<'f>(found: impl Iterator<Item = (&'f Finding, &'f str)>) -> String {
    let blocks: Vec<_> = found.filter(|(finding, _)| finding.severity == Severity::Block).collect();
    match blocks.iter().find(|(finding, _)| finding.secret.is_some()) {
        Some((known, _)) => format!("{} in the request", known.preview),
        None => summary(blocks.into_iter()),
    }
}

/// Describes the warnings for the log, or returns `None` if there are none.
pub(crate) fn describe_warnings<'f>(found: impl Iterator<Item = (&'f Finding, &'f str)>) -> Option<String> {
    let words = summary(found.filter(|(finding, _)| finding.severity == Severity::Warn));
    (!words.is_empty()).then_some(words)
}

/// Describes the first finding with its location, and the number of further findings. Returns an empty text if there
/// are no findings.
fn summary<'f>(mut found: impl Iterator<Item = (&'f Finding, &'f str)>) -> String {
    let Some((first, location)) = found.next() else { return String::new() };
    match found.count() {
        0 => format!("{} in {location}", first.preview),
        more => format!("{} in {location}, and {more} more", first.preview),
    }
}
