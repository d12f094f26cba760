//! Findings of the detectors.

use std::ops::Range;
use std::sync::Arc;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Log only.
    Warn,
    /// Block or redact.
    Block,
}

/// The detector of a finding. The names are those of `dlp.outbound_detectors` and `dlp.inbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Detector {
    /// `token_patterns`: the pattern of a vendor's credential.
    TokenPatterns,
    /// `token_patterns` too: one of the user's own rules.
    OwnRules,
    /// `known_secrets`: a secret of this bottle.
    KnownSecrets,
    /// `entropy`: text as random as a key.
    Entropy,
    /// A line break in a header or request line.
    Structure,
    /// `naive_injection_detection`: a phrase of a prompt injection.
    Injection,
}

/// A finding at one position of a text. Never contains the matched value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// The position, in bytes from the start of the scanned text or stream.
    pub span: Range64,
    /// The rule's id.
    pub rule: Arc<str>,
    /// The detector.
    pub detector: Detector,
    /// The severity.
    pub severity: Severity,
    /// For `known_secrets`: the index of the secret, in the order given.
    pub secret: Option<usize>,
    /// A description for the user: the kind, its public part and its length.
    pub preview: String,
}

/// A `u64` range that can be ordered and copied; `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range64 {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl Range64 {
    /// Positions of `range` in a text that begins at offset `base` of the stream.
    pub(crate) fn at(base: u64, range: &Range<usize>) -> Self {
        Self { start: base + range.start as u64, end: base + range.end as u64 }
    }

    /// Converts to indices of a text of `length` bytes that was scanned from its start.
    #[must_use]
    pub fn within(self, length: usize) -> Range<usize> {
        let clamp = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(length);
        clamp(self.start)..clamp(self.end)
    }
}

/// Sorts findings by position, merges overlapping ones of one rule and secret, and drops duplicates.
pub(crate) fn merge_findings(mut findings: Vec<Finding>) -> Vec<Finding> {
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
