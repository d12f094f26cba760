//! Collects the findings of a push, without duplicates and up to a limit.

use std::collections::BTreeMap;
use std::fmt;

use bottle_scan::{Detector, Finding, Pieces};
use sha2::{Digest, Sha256};

/// The maximum number of findings in a report or an approval. A push with more findings is blocked.
pub(crate) const MOST_FINDINGS: usize = 100;

/// A finding that blocks a push or requires approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The id of the rule that matched.
    pub(crate) rule: String,
    /// A description of the finding without the secret's value.
    pub(crate) preview: String,
    /// The commit with the finding, if known.
    pub(crate) commit: Option<String>,
    /// The path of the file, or the part of the commit or tag object.
    pub(crate) location: String,
    /// The line number, if the finding is in a file's text.
    pub(crate) line: Option<u64>,
    /// The line of the finding without secrets, for the user.
    pub(crate) excerpt: Option<String>,
    /// Whether the finding is a secret of this bottle. No approval can allow such a finding.
    pub(crate) known: bool,
    /// The index of the known secret, for the lock-out.
    pub(crate) secret: Option<usize>,
    /// The pieces of the known secret in the finding, for the lock-out.
    pub(crate) pieces: Pieces,
    /// The means by which the author marked the finding as harmless: `gitleaks:allow` or `.gitleaksignore`. `None` if
    /// the finding is not marked.
    pub(crate) marked: Option<&'static str>,
    /// A hash that identifies the finding in later pushes if it is at the same location.
    pub(crate) fingerprint: [u8; 32],
}

/// The place of a finding in a push.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    /// The commit with the finding, if known.
    pub(crate) commit: Option<String>,
    /// The path of the file, or the part of the commit or tag object.
    pub(crate) location: String,
    /// The line number, if the finding is in a file's text.
    pub(crate) line: Option<u64>,
    /// The line of the finding without secrets, for the user.
    pub(crate) excerpt: Option<String>,
}

impl Location {
    /// Creates a location without a line number.
    pub(crate) fn new(commit: Option<String>, location: String) -> Self {
        Self { commit, location, line: None, excerpt: None }
    }
}

impl Found {
    /// Converts a finding of the scanner. `value` is the matched text or its hash. For a known secret, the line number
    /// is dropped, because the start of a match reveals how much of the secret matched.
    pub(crate) fn from_scan(finding: &Finding, location: Location, value: &[u8]) -> Self {
        let known = finding.detector == Detector::KnownSecrets;
        let (secret, pieces) = (finding.secret, finding.pieces.clone());
        let location = if known { Location { line: None, excerpt: None, ..location } } else { location };
        Self { known, secret, pieces, ..Self::from_name(&finding.rule, &finding.preview, location, value) }
    }

    /// Creates a finding for the name of a file, with `description` as the preview.
    pub(crate) fn from_name(rule: &str, description: &str, location: Location, value: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [rule.as_bytes(), location.location.as_bytes(), &Sha256::digest(value)] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let (rule, preview) = (rule.to_owned(), description.to_owned());
        let Location { commit, location, line, excerpt } = location;
        let fingerprint = hash.finalize().into();
        Self {
            rule,
            preview,
            commit,
            location,
            line,
            excerpt,
            known: false,
            secret: None,
            pieces: Pieces::default(),
            marked: None,
            fingerprint,
        }
    }
}

/// Describes the finding on one line, without the secret's value.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}", self.location)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(id) = &self.commit {
            write!(f, " in commit {}", &id[..id.len().min(12)])?;
        }
        write!(f, ": {}: {}", self.rule, self.preview)?;
        self.marked.map_or(Ok(()), |mark| write!(f, " (marked by {mark})"))
    }
}

/// The findings of one push.
#[derive(Debug, Default)]
pub(crate) struct PushFindings {
    pub(crate) found: Vec<Found>,
    /// Whether the push has more than [`MOST_FINDINGS`] findings.
    pub(crate) more: bool,
    /// The pieces of each known secret by the index of the secret, for the lock-out. These pieces include the pieces of
    /// findings beyond [`MOST_FINDINGS`].
    pub(crate) hits: BTreeMap<usize, Pieces>,
}

impl PushFindings {
    /// Adds a finding if there is no equal finding yet. If only one of two equal findings is marked as harmless, the
    /// mark is dropped.
    pub(crate) fn add(&mut self, found: Found) {
        if let Some(secret) = found.secret {
            self.hits.entry(secret).or_default().add(&found.pieces);
        }
        let same =
            |other: &&mut Found| other.fingerprint == found.fingerprint && other.commit == found.commit;
        if let Some(other) = self.found.iter_mut().find(same) {
            other.marked = other.marked.and(found.marked);
            return;
        }
        if self.found.len() < MOST_FINDINGS {
            self.found.push(found);
            return;
        }
        self.more = true;
        // If the limit is reached, a known secret replaces another finding, so that the report includes the
        // secret.
        if found.known
            && let Some(other) = self.found.iter_mut().find(|other| !other.known)
        {
            *other = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, value: &str) -> Found {
        Found::from_name(
            "a-rule",
            "words",
            Location::new(Some("c1".to_owned()), name.to_owned()),
            value.as_bytes(),
        )
    }

    #[test]
    fn deduplicates_findings_and_keeps_a_mark_only_if_all_have_it() {
        let marked = |found: Found| Found { marked: Some("gitleaks:allow"), ..found };
        let mut findings = PushFindings::default();
        findings.add(marked(found("a", "one")));
        findings.add(found("b", "two"));
        findings.add(marked(found("a", "one")));
        let marks =
            |findings: &PushFindings| findings.found.iter().map(|found| found.marked).collect::<Vec<_>>();
        assert_eq!(marks(&findings), [Some("gitleaks:allow"), None], "the other one stays as it is");
        findings.add(found("a", "one"));
        assert_eq!(marks(&findings), [None, None]);
    }

    #[test]
    fn a_known_secret_replaces_another_finding_beyond_the_limit() {
        let mut findings = PushFindings::default();
        for number in 0..MOST_FINDINGS {
            findings.add(found("a", &number.to_string()));
        }
        assert!(!findings.more);
        findings.add(Found { known: true, ..found("b", "secret") });
        assert!(findings.more);
        assert_eq!(
            (findings.found.len(), findings.found.iter().filter(|f| f.known).count()),
            (MOST_FINDINGS, 1)
        );
        findings.add(found("c", "another"));
        assert!(findings.found.iter().all(|found| found.location != "c"));
    }

    #[test]
    fn counts_the_pieces_of_findings_beyond_the_limit() {
        let mut findings = PushFindings::default();
        for number in 0..MOST_FINDINGS {
            findings.add(Found { known: true, secret: Some(1), ..found("a", &number.to_string()) });
        }
        findings.add(Found { known: true, secret: Some(0), ..found("b", "guess") });
        assert!(findings.found.iter().all(|found| found.secret == Some(1)));
        assert_eq!(findings.hits.into_keys().collect::<Vec<_>>(), [0, 1]);
    }
}
