//! Scores the findings of a scanner against the labels of the history.

use std::collections::HashSet;

use crate::history::{History, Label, Place};
use crate::peers::Finding;

/// The recall and precision of one scanner.
pub(crate) struct Score {
    /// Whether the scanner found the secret of each label.
    pub(crate) hit: Vec<bool>,
    /// The findings that match no label.
    pub(crate) wrong: Vec<Finding>,
}

impl Score {
    pub(crate) fn new(history: &History, findings: Vec<Finding>) -> Self {
        let mut hit = vec![false; history.labels.len()];
        let (mut wrong, mut places) = (Vec::new(), HashSet::new());
        for finding in findings {
            match history.labels.iter().position(|label| is(label, &finding)) {
                Some(at) => hit[at] = true,
                None if places.insert((finding.path.clone(), finding.line)) => wrong.push(finding),
                None => {}
            }
        }
        Self { hit, wrong }
    }

    pub(crate) fn found(&self) -> usize {
        self.hit.iter().filter(|hit| **hit).count()
    }

    /// Returns the share of findings that are correct.
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    pub(crate) fn precision(&self) -> f64 {
        self.found() as f64 / (self.found() + self.wrong.len()).max(1) as f64
    }

    /// Returns the number of labels that were found and the number of all labels. Counts only labels for which `which`
    /// returns true.
    pub(crate) fn recall(&self, history: &History, which: impl Fn(&Label) -> bool) -> (usize, usize) {
        let chosen = history.labels.iter().zip(&self.hit).filter(|(label, _)| which(label));
        chosen.fold((0, 0), |(found, all), (_, hit)| (found + usize::from(*hit), all + 1))
    }
}

/// Returns whether a finding matches a label. A finding without a line matches any line.
fn is(label: &Label, finding: &Finding) -> bool {
    match (&finding.path, label.place) {
        (None, Place::Message) => finding.commit.as_ref() == Some(&label.commit),
        (Some(path), place) if place != Place::Message && *path == label.path => {
            finding.line.is_none_or(|line| label.lines.contains(&line))
        }
        _ => false,
    }
}
