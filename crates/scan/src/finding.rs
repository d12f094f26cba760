//! Defines the findings that detectors report.

use std::ops::Range;
use std::sync::Arc;

use bottle_policy::credential::exempt::Exempt;
use bottle_policy::lock_out::{HITS, Piece};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The finding is only logged.
    Warn,
    /// The text is blocked or the finding is redacted.
    Block,
}

/// The detector that reported a finding. The names in backticks are those of `dlp.outbound_detectors` and
/// `dlp.inbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Detector {
    /// `token_patterns`: text that matches the pattern of a vendor's credential.
    TokenPatterns,
    /// `token_patterns`: text that matches a rule of the user.
    ScannerRules,
    /// `known_secrets`: text that contains a secret of this bottle.
    KnownSecrets,
    /// `entropy`: text that is random enough to be a key.
    Entropy,
    /// A line break in a header or request line.
    Structure,
    /// `naive_injection_detection`: a phrase that is typical of a prompt injection.
    Injection,
}

/// A finding at one position of a text. Never contains the matched value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// The position of the finding, in bytes from the start of the scanned text or stream.
    pub span: Range64,
    /// The id of the rule that matched.
    pub rule: Arc<str>,
    /// The detector that reported the finding.
    pub detector: Detector,
    /// The severity of the finding.
    pub severity: Severity,
    /// For `known_secrets`: the index of the secret in the order passed to
    /// [`KnownSecrets::new`](crate::KnownSecrets::new).
    pub secret: Option<usize>,
    /// For `known_secrets`: the pieces of the secret that the span contains. A span can contain several pieces if its
    /// text is compressed.
    pub pieces: Pieces,
    /// A description for the user: the kind of credential and its public part. The description never contains the
    /// length of the match. The agent may read the description, and the match may be a part of a secret that the agent
    /// does not hold.
    pub preview: String,
}

impl Finding {
    /// Returns whether `exempt` exempts this finding. `exempt` is the exemption for the place where the finding was
    /// made. If the agent must not send some secrets in any case, the caller has to check for them first.
    #[must_use]
    pub fn is_exempt(&self, exempt: Exempt) -> bool {
        match exempt {
            Exempt::OwnCredential => self.detector != Detector::Structure,
            Exempt::IssuedLink => self.detector == Detector::TokenPatterns,
            Exempt::Rules(rules) => self.detector == Detector::TokenPatterns && rules.contains(&&*self.rule),
        }
    }
}

/// The pieces of one secret in the span of a finding. Each list contains at most [`HITS`] pieces, because that many
/// pieces lock a bottle.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pieces {
    whole: Vec<Piece>,
    /// Pieces that the edge of a window truncated. Their content depends on their position in the text, so they count
    /// only if `whole` is empty.
    cut: Vec<Piece>,
}

impl Pieces {
    pub(crate) fn one(piece: Piece, is_cut: bool) -> Self {
        match is_cut {
            false => Self { whole: vec![piece], cut: Vec::new() },
            true => Self { whole: Vec::new(), cut: vec![piece] },
        }
    }

    /// Adds the pieces of another finding of the same secret.
    pub fn add(&mut self, other: &Self) {
        for (pieces, more) in [(&mut self.whole, &other.whole), (&mut self.cut, &other.cut)] {
            pieces.extend(more);
            pieces.sort_unstable();
            pieces.dedup();
            pieces.truncate(HITS);
        }
    }

    /// Returns the pieces that count for the lock-out.
    pub fn counted(&self) -> impl Iterator<Item = Piece> + '_ {
        if self.whole.is_empty() { self.cut.iter() } else { self.whole.iter() }.copied()
    }
}

/// A range of `u64` offsets that implements `Copy` and `Ord`, with `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range64 {
    /// The offset of the first byte.
    pub start: u64,
    /// The offset after the last byte.
    pub end: u64,
}

impl Range64 {
    /// Converts a `range` of a buffer to offsets in the stream. `base` is the offset of the buffer's start.
    pub(crate) fn at(base: u64, range: &Range<usize>) -> Self {
        Self { start: base + range.start as u64, end: base + range.end as u64 }
    }

    /// Converts to indices into a text of `length` bytes that was scanned from its start. Offsets after the
    /// end of the text are reduced to `length`.
    #[must_use]
    pub fn within(self, length: usize) -> Range<usize> {
        let clamp = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(length);
        clamp(self.start)..clamp(self.end)
    }
}

/// Sorts findings by position, removes duplicates, and merges overlapping findings of the same rule and
/// secret.
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
            kept.pieces.add(&next.pieces);
        }
        joins
    });
    findings.sort_unstable();
    findings
}
