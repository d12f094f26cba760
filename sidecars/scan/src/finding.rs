//! What a detector says when it finds something.

use std::ops::Range;
use std::sync::Arc;

/// What a finding is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Logged; nothing is stopped for it.
    Warn,
    /// May not pass as it is.
    Block,
}

/// Which detector speaks. The names are those of `dlp.outbound_detectors` and `dlp.inbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Detector {
    /// `token_patterns`: the shape of a vendor's credential.
    TokenPatterns,
    /// `token_patterns` too: a rule of the user's own.
    OwnRules,
    /// `known_secrets`: a value that this bottle was given.
    KnownSecrets,
    /// `entropy`: a piece of text as random as a key.
    Entropy,
    /// Line breaks where a header or request line has none.
    Structure,
    /// `naive_injection_detection`: phrases that try to take over the agent.
    Injection,
}

/// One place in a text that should not pass. Never holds the value that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// Where, in bytes from the start of the text or stream that was scanned.
    pub span: Range64,
    /// The rule's short name.
    pub rule: Arc<str>,
    /// Which detector.
    pub detector: Detector,
    /// What it is worth.
    pub severity: Severity,
    /// For `known_secrets`: which of the secrets, in the order in which they were given.
    pub secret: Option<usize>,
    /// For a user: what it looks like, with what is public of it and its length.
    pub preview: String,
}

/// A range of positions that can be ordered and copied; `start` is never behind `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range64 {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl Range64 {
    /// The places of `range` in a text that begins `base` bytes into the stream.
    pub(crate) fn at(base: u64, range: &Range<usize>) -> Self {
        Self { start: base + range.start as u64, end: base + range.end as u64 }
    }

    /// As indices into a text of `length` bytes that was scanned from its start.
    #[must_use]
    pub fn within(self, length: usize) -> Range<usize> {
        let clamp = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(length);
        clamp(self.start)..clamp(self.end)
    }
}

/// Sorts findings by place, joins those of one rule and secret that overlap, and drops repeats.
pub(crate) fn settle(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_unstable_by(|one, other| {
        (&one.rule, one.detector, one.secret, one.span).cmp(&(
            &other.rule,
            other.detector,
            other.secret,
            other.span,
        ))
    });
    findings.dedup_by(|next, kept| {
        let joins = next.rule == kept.rule
            && next.detector == kept.detector
            && next.secret == kept.secret
            && next.span.start < kept.span.end;
        if joins {
            kept.span.end = kept.span.end.max(next.span.end);
            kept.severity = kept.severity.max(next.severity);
        }
        joins
    });
    findings.sort_unstable();
    findings
}
