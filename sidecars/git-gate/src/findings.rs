//! What is found in a push: each thing once, and no more than a user can be told.

use bottle_scan::{Detector, Finding};
use sha2::{Digest, Sha256};

/// Findings that are told and asked about; a push with more is refused whole.
pub(crate) const MOST_FINDINGS: usize = 100;

/// Something in a push that must not leave unseen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The rule's name.
    pub(crate) rule: String,
    /// What it looks like; never the value.
    pub(crate) preview: String,
    /// The commit, where one is known.
    pub(crate) commit: Option<String>,
    /// The path, or which part of a commit or tag it is.
    pub(crate) place: String,
    /// The line, where lines are meant.
    pub(crate) line: Option<u64>,
    /// A secret of this bottle: never to pass, whatever anybody says.
    pub(crate) known: bool,
    /// The secret's number and what of the push matched, hashed: what a lock-out counts.
    pub(crate) hit: Option<(usize, [u8; 32])>,
    /// What its author marked as harmless: `gitleaks:allow`, or `.gitleaksignore`.
    pub(crate) marked: Option<&'static str>,
    /// The same finding in the same place, when it is pushed again.
    pub(crate) fingerprint: [u8; 32],
}

/// Where something was found.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The commit, where one is known.
    pub(crate) commit: Option<String>,
    /// The path, or which part of a commit or tag it is.
    pub(crate) place: String,
    /// The line, where lines are meant.
    pub(crate) line: Option<u64>,
}

impl Place {
    /// One without lines.
    pub(crate) fn new(commit: Option<String>, place: String) -> Self {
        Self { commit, place, line: None }
    }
}

impl Found {
    /// What the scanner found, with what its value is known again by. Of a known secret no line is kept: where a match
    /// begins tells how much of it matched.
    pub(crate) fn by_scanner(finding: &Finding, place: Place, value: &[u8]) -> Self {
        let known = finding.detector == Detector::KnownSecrets;
        let hit = finding.secret.map(|secret| (secret, Sha256::digest(value).into()));
        let place = if known { Place { line: None, ..place } } else { place };
        Self { known, hit, ..Self::by_name(&finding.rule, &finding.preview, place, value) }
    }

    /// What a name tells, in these words.
    pub(crate) fn by_name(rule: &str, words: &str, place: Place, value: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [rule.as_bytes(), place.place.as_bytes(), &Sha256::digest(value)] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let (rule, preview) = (rule.to_owned(), words.to_owned());
        let Place { commit, place, line } = place;
        let fingerprint = hash.finalize().into();
        Self { rule, preview, commit, place, line, known: false, hit: None, marked: None, fingerprint }
    }
}

/// What a push holds.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) found: Vec<Found>,
    /// There is more than [`MOST_FINDINGS`].
    pub(crate) more: bool,
}

impl Reading {
    /// Keeps it, unless it is there already. One that is marked in one place of a commit and not in another is
    /// not marked.
    pub(crate) fn add(&mut self, found: Found) {
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
        // One that never passes is told before any other.
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
        Found::by_name(
            "a-rule",
            "words",
            Place::new(Some("c1".to_owned()), name.to_owned()),
            value.as_bytes(),
        )
    }

    #[test]
    fn the_same_is_told_once_and_a_mark_counts_where_all_of_it_is_marked() {
        let marked = |found: Found| Found { marked: Some("gitleaks:allow"), ..found };
        let mut reading = Reading::default();
        reading.add(marked(found("a", "one")));
        reading.add(found("b", "two"));
        reading.add(marked(found("a", "one")));
        let marks = |reading: &Reading| reading.found.iter().map(|found| found.marked).collect::<Vec<_>>();
        assert_eq!(marks(&reading), [Some("gitleaks:allow"), None], "the other one stays as it is");
        reading.add(found("a", "one"));
        assert_eq!(marks(&reading), [None, None]);
    }

    #[test]
    fn past_the_most_a_secret_of_the_bottle_takes_the_place_of_another() {
        let mut reading = Reading::default();
        for number in 0..MOST_FINDINGS {
            reading.add(found("a", &number.to_string()));
        }
        assert!(!reading.more);
        reading.add(Found { known: true, ..found("b", "secret") });
        assert!(reading.more);
        assert_eq!(
            (reading.found.len(), reading.found.iter().filter(|f| f.known).count()),
            (MOST_FINDINGS, 1)
        );
        reading.add(found("c", "another"));
        assert!(reading.found.iter().all(|found| found.place != "c"));
    }
}
