//! The output of an agent as lines of text, without escape sequences.
//!
//! `rendered`: renders the output · `screen`: a model of a screen, for output that moves the cursor

mod rendered;
mod screen;

use bottle_lib::logs::AgentLog;

pub(crate) use self::rendered::Rendered;

/// Renders the lines of the log. `tail` limits them to this number of lines from the end.
pub(crate) fn lines(log: &AgentLog, tail: Option<u64>) -> Vec<String> {
    let mut lines = rendered::render(&log.bytes, log.terminal);
    let most = tail.map_or(usize::MAX, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
    lines.split_off(lines.len().saturating_sub(most))
}
