//! What is looked for in requests and answers, and how text is made readable first.
//!
//! ```text
//! head ────────────────────────────────► scanner ─► findings ─► weighed for the decision
//! body ─► decode (codings) ─► text ─────►   │
//!                               └─ nested ──┘   compressed files inside, archives' entries
//! spool   what is held until its verdict, encrypted where it lies on disk
//! ```
//! Scanners are made once, when the secrets are known: routes only choose among them.

mod decode;
pub(crate) mod head;
mod nested;
mod rewritten;
pub(crate) mod spool;
mod text;
mod unreadable;

use std::sync::Arc;

use bottle_contract::decide;
use bottle_contract::route::{Dlp, InboundDetector, OutboundDetector};
use bottle_contract::secret::Secret;
use bottle_scan::{Detector, Finding, KnownSecrets, RuleFiles, Scanner, Severity, TooLarge};

pub(crate) use decode::Coding;
pub(crate) use rewritten::decoded;
pub(crate) use rewritten::{LONGEST, rewritten};
pub(crate) use text::{Decoding, Look, Seen, codings};
pub(crate) use unreadable::Unreadable;

/// Every scanner that a route can choose.
pub(crate) struct Inspector {
    /// By [`OUT_TOKENS`], [`OUT_KNOWN`] and [`OUT_ENTROPY`].
    outbound: Vec<Arc<Scanner>>,
    /// By [`IN_KNOWN`] and [`IN_PHRASES`].
    inbound: Vec<Arc<Scanner>>,
    /// How many of the known secrets, from the first on, nobody can approve.
    unapprovable: usize,
}

const OUT_TOKENS: usize = 1;
const OUT_KNOWN: usize = 2;
const OUT_ENTROPY: usize = 4;
const IN_KNOWN: usize = 1;
const IN_PHRASES: usize = 2;

impl Inspector {
    /// Looks for `unapprovable` (credentials, the canary) and `known` values, and for what a person's own `rules`
    /// describe, which go with the shapes of tokens. What is `harmless`
    /// has such a shape and is none.
    ///
    /// # Errors
    /// [`TooLarge`]: without all of them nothing may pass.
    pub(crate) fn new(
        unapprovable: &[&Secret],
        known: &[&Secret],
        rules: RuleFiles,
        harmless: &[String],
    ) -> Result<Self, TooLarge> {
        let rules = (rules.count() > 0).then(|| Arc::new(rules));
        let all = Arc::new(KnownSecrets::new(unapprovable.iter().chain(known).copied())?);
        let none = Arc::new(KnownSecrets::new([])?);
        let known = |flags: usize, flag: usize| Arc::clone(if flags & flag != 0 { &all } else { &none });
        let outbound = (0..8).map(|flags| {
            let tokens = flags & OUT_TOKENS != 0;
            let scanner = Scanner::outbound(known(flags, OUT_KNOWN)).with_tokens(tokens);
            let scanner = scanner.with_entropy(flags & OUT_ENTROPY != 0).with_harmless(harmless);
            Arc::new(match rules.as_ref().filter(|_| tokens) {
                Some(rules) => scanner.with_rules(Arc::clone(rules)),
                None => scanner,
            })
        });
        let inbound = (0..4).map(|flags| {
            let secrets = known(flags, IN_KNOWN);
            Arc::new(Scanner::inbound(secrets).with_phrases(flags & IN_PHRASES != 0))
        });
        Ok(Self {
            outbound: outbound.collect(),
            inbound: inbound.collect(),
            unapprovable: unapprovable.len(),
        })
    }

    /// What a route wants of what leaves; none when nothing.
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

    /// What a route wants of what comes back; none when nothing.
    pub(crate) fn inbound(&self, dlp: &Dlp) -> Option<&Arc<Scanner>> {
        let flags = match &dlp.inbound_detectors {
            None => IN_KNOWN | IN_PHRASES,
            Some(list) => list.iter().fold(0, |flags, detector| {
                flags
                    | match detector {
                        InboundDetector::KnownSecrets => IN_KNOWN,
                        InboundDetector::NaiveInjectionDetection => IN_PHRASES,
                    }
            }),
        };
        if flags == 0 { None } else { self.inbound.get(flags) }
    }

    /// For known secrets that come back, whatever the route wants of answers beside that.
    pub(crate) fn echoes(&self) -> &Arc<Scanner> {
        &self.inbound[IN_KNOWN]
    }

    /// The same in the decision's words; what is only worth a warning is not among them.
    pub(crate) fn weighed<'f>(&self, findings: impl Iterator<Item = &'f Finding>) -> Vec<decide::Finding> {
        let mut weighed: Vec<decide::Finding> = Vec::new();
        for finding in findings.filter(|finding| finding.severity == Severity::Block) {
            let word = match (finding.detector, finding.secret) {
                (Detector::Structure, _) => decide::Finding::Structure,
                (_, Some(secret)) if secret < self.unapprovable => decide::Finding::Unapprovable,
                _ => decide::Finding::Secret,
            };
            if !weighed.contains(&word) {
                weighed.push(word);
            }
        }
        weighed
    }
}

/// What was found and where, for a person: the first of it, and how many more.
pub(crate) fn described<'f>(found: impl Iterator<Item = (&'f Finding, &'f str)>) -> String {
    let mut blocks = found.filter(|(finding, _)| finding.severity == Severity::Block);
    let Some((first, place)) = blocks.next() else { return String::new() };
    match blocks.count() {
        0 => format!("{} in {place}", first.preview),
        more => format!("{} in {place}, and {more} more", first.preview),
    }
}
