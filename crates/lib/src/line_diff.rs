//! Finds the lines that differ between two texts.

use similar::{Change, ChangeTag, TextDiff};

/// A line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// A line of the new text.
    Added(String),
    /// A line of the old text that is removed or replaced.
    Removed(String),
    /// An unchanged line near a change.
    Same(String),
    /// A gap where unchanged lines are not shown.
    Gap,
}

/// The number of unchanged lines shown around a change.
const AROUND: usize = 2;

/// Compares the old text `now` with the new text `then`, line by line. Leaves out unchanged lines that are not near a
/// change.
pub fn changed(now: &str, then: &str) -> Vec<Changed> {
    let diff = TextDiff::from_lines(now, then);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(AROUND) {
        if group.first().is_some_and(|first| first.old_range().start > 0) {
            lines.push(Changed::Gap);
        }
        lines.extend(group.iter().flat_map(|op| diff.iter_changes(op)).map(line));
    }
    lines
}

/// Compares the old text `now` with the new text `then`, line by line. Returns every line of both.
pub fn all_lines(now: &str, then: &str) -> Vec<Changed> {
    TextDiff::from_lines(now, then).iter_all_changes().map(line).collect()
}

fn line(change: Change<&str>) -> Changed {
    let line = change.value().trim_end_matches('\n').to_owned();
    match change.tag() {
        ChangeTag::Insert => Changed::Added(line),
        ChangeTag::Delete => Changed::Removed(line),
        ChangeTag::Equal => Changed::Same(line),
    }
}
