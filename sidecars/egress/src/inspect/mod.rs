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

use std::collections::HashMap;
use std::sync::Arc;

use bottle_contract::credential::Binding;
use bottle_contract::decide;
use bottle_contract::route::{Dlp, InboundDetector, OutboundDetector};
use bottle_scan::{Detector, Finding, KnownSecret, KnownSecrets, RuleFiles, Scanner, Severity, TooLarge};

pub(crate) use decode::Coding;
pub(crate) use rewritten::decoded;
pub(crate) use rewritten::{LONGEST, rewritten};
pub(crate) use text::{Decoding, Look, Seen, codings};
pub(crate) use unreadable::Unreadable;

/// Every scanner that a route can choose.
pub(crate) struct Inspector {
    /// By [`OUT_TOKENS`], [`OUT_KNOWN`] and [`OUT_ENTROPY`].
    outbound: Vec<Arc<Scanner>>,
    phrases: Arc<Scanner>,
    /// By where each credential is bound: for it alone, and for it and phrases.
    credentials: HashMap<Binding, (Arc<Scanner>, Arc<Scanner>)>,
    /// How many of the known secrets, from the first on, nobody can approve.
    unapprovable: usize,
}

const OUT_TOKENS: usize = 1;
const OUT_KNOWN: usize = 2;
const OUT_ENTROPY: usize = 4;

/// What an answer is scanned with.
pub(crate) struct Answers {
    pub(crate) scanner: Arc<Scanner>,
    /// Finds nothing but the credential that was injected, if one was.
    pub(crate) credential: Option<Arc<Scanner>>,
}

impl Inspector {
    /// Looks for `unapprovable` (credentials, the canary) and `known` values, and for what a user's own `rules`
    /// describe, which go with the shapes of tokens. What is `harmless`
    /// has such a shape and is none.
    ///
    /// # Errors
    /// [`TooLarge`]: without all of them nothing may pass.
    pub(crate) fn new(
        unapprovable: &[KnownSecret<'_>],
        known: &[KnownSecret<'_>],
        rules: RuleFiles,
        harmless: &[String],
    ) -> Result<Self, TooLarge> {
        let rules = (rules.count() > 0).then(|| Arc::new(rules));
        let all = Arc::new(KnownSecrets::from_known(unapprovable.iter().chain(known).copied())?);
        let none = Arc::new(KnownSecrets::new([])?);
        let outbound = (0..8).map(|flags| {
            let tokens = flags & OUT_TOKENS != 0;
            let scanner = Scanner::outbound(Arc::clone(if flags & OUT_KNOWN != 0 { &all } else { &none }))
                .with_tokens(tokens);
            let scanner = scanner.with_entropy(flags & OUT_ENTROPY != 0).with_placeholders(harmless);
            Arc::new(match rules.as_ref().filter(|_| tokens) {
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

    /// Takes in what is injected, so that answers are scanned for it.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub(crate) fn with_credentials<'s>(
        mut self,
        credentials: impl Iterator<Item = (&'s Binding, KnownSecret<'s>)>,
    ) -> Result<Self, TooLarge> {
        for (binding, credential) in credentials {
            let known = Arc::new(KnownSecrets::from_known([credential])?);
            let alone = Scanner::inbound(Arc::clone(&known)).with_phrases(false);
            self.credentials.insert(binding.clone(), (Arc::new(alone), Arc::new(Scanner::inbound(known))));
        }
        Ok(self)
    }

    /// What a route wants of what comes back with the credential that is bound there; none when nothing.
    pub(crate) fn inbound(&self, dlp: &Dlp, credential: Option<&Binding>) -> Option<Answers> {
        let wants = |detector| dlp.inbound_detectors.as_ref().is_none_or(|list| list.contains(&detector));
        let phrases = wants(InboundDetector::NaiveInjectionDetection);
        let credential = credential.and_then(|binding| self.credentials.get(binding));
        match credential.filter(|_| wants(InboundDetector::KnownSecrets)) {
            Some((alone, both)) => {
                let scanner = Arc::clone(if phrases { both } else { alone });
                Some(Answers { scanner, credential: Some(Arc::clone(alone)) })
            }
            None => phrases.then(|| Answers { scanner: Arc::clone(&self.phrases), credential: None }),
        }
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

/// What was found and where, for a user: the first of it, and how many more.
///
/// Of a known secret it says that one is in the request, and nothing else: where its match begins, or how many
/// guesses of a request match, would answer many questions at once.
pub(crate) fn described<'f>(found: impl Iterator<Item = (&'f Finding, &'f str)>) -> String {
    let blocks: Vec<_> = found.filter(|(finding, _)| finding.severity == Severity::Block).collect();
    if let Some((known, _)) = blocks.iter().find(|(finding, _)| finding.secret.is_some()) {
        return format!("{} in the request", known.preview);
    }
    let mut blocks = blocks.into_iter();
    let Some((first, place)) = blocks.next() else { return String::new() };
    match blocks.count() {
        0 => format!("{} in {place}", first.preview),
        more => format!("{} in {place}, and {more} more", first.preview),
    }
}
