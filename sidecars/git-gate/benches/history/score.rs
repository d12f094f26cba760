//! What a scanner's findings are worth against the labels.

use std::collections::HashSet;

use crate::history::{History, Label, Place};
use crate::peers::Finding;

/// See the module.
pub(crate) struct Score {
    /// For each label, whether it was found.
    pub(crate) hit: Vec<bool>,
    /// Places where nothing is, with the rule that says otherwise.
    pub(crate) wrong: Vec<Finding>,
}

impl Score {
    pub(crate) fn of(history: &History, findings: Vec<Finding>) -> Self {
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

    /// Of all that was found, the share that is there.
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    pub(crate) fn precision(&self) -> f64 {
        self.found() as f64 / (self.found() + self.wrong.len()).max(1) as f64
    }

    /// How many of the labels that `which` chooses were found.
    pub(crate) fn of_those(&self, history: &History, which: impl Fn(&Label) -> bool) -> (usize, usize) {
        let chosen = history.labels.iter().zip(&self.hit).filter(|(label, _)| which(label));
        chosen.fold((0, 0), |(found, all), (_, hit)| (found + usize::from(*hit), all + 1))
    }
}

/// Whether a finding is this secret. A scanner that names no line is believed.
fn is(label: &Label, finding: &Finding) -> bool {
    match (&finding.path, label.place) {
        (None, Place::Message) => finding.commit.as_ref() == Some(&label.commit),
        (Some(path), place) if place != Place::Message && *path == label.path => {
            finding.line.is_none_or(|line| label.lines.contains(&line))
        }
        _ => false,
    }
}
