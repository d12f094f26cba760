//! Formats a proposal as lines of the screen.
//!
//! Bottle's own lines start at the left edge or with a diff sign. Each line of text from a bottle starts with a bar, so
//! that it cannot imitate bottle's own lines.

use bottle_instance::proxy_log::Warning;
use bottle_lib::line_diff::Changed;
use bottle_lib::proposals::pending::{WARNINGS_TITLE, span, warning_line};
use bottle_lib::proposals::report_text::report_text;
use bottle_lib::proposals::route_change::{RouteChange, lookalike_warning, proposed_text};
use bottle_lib::proposals::scope::GrantScope;
use bottle_queue::{Pending, State};
use dialoguer::console::truncate_str;
use jiff::Timestamp;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::rows::Row;
use super::view::{Draft, KnownEffect};
use crate::console::output::times;
use crate::console::style::Styles;
use crate::console::text_layout::{bold, dim, tinted, wrapped};

/// The number of lines of the justification that are shown before the request. The remaining lines follow at the end.
const WHY_FIRST: usize = 6;

/// The number of lines of the justification in the preview.
const WHY_SHORT: usize = 2;

/// Returns a title with the name of the bottle and its request.
pub(super) fn request_title(pending: &Pending) -> String {
    format!("{} {}", pending.proposal.bottle_slug, pending.proposal.tool.predicate())
}

/// Returns the remaining time as text, and whether a process waits for the answer.
pub(super) fn time_left(pending: &Pending, now: Timestamp) -> (String, bool) {
    match pending.state {
        State::Waiting | State::Answered if pending.proposal.expires_at > now => {
            (span(pending.proposal.expires_at.duration_since(now)), true)
        }
        State::Stale => ("gone".to_owned(), false),
        _ => ("expired".to_owned(), false),
    }
}

/// Describes the remaining time as a sentence.
pub(super) fn time_left_sentence(pending: &Pending, now: Timestamp) -> String {
    let ago = span(now.duration_since(pending.proposal.arrival_timestamp));
    let state_text = match time_left(pending, now) {
        (left, true) => format!("{left} left"),
        (gone, false) if gone == "gone" => "no process waits for the answer: the client is gone".to_owned(),
        _ => "no process waits for the answer: it expired".to_owned(),
    };
    format!("{state_text}; asked {ago} ago")
}

/// Collects lines that are wrapped to a width.
struct Lines {
    lines: Vec<Line<'static>>,
    columns: usize,
    styles: Styles,
}

impl Lines {
    fn new(columns: usize, styles: Styles) -> Self {
        Self { lines: Vec::new(), columns, styles }
    }

    fn blank(&mut self) {
        if self.lines.last().is_some_and(|last| last.width() > 0) {
            self.lines.push(Line::default());
        }
    }

    /// Appends text whose first line starts with `sign`. Wrapped lines start with `below`, which has the same
    /// width. Appends at most `most` lines, and returns whether the whole text was appended.
    fn put(
        &mut self,
        sign: &'static str,
        below: &'static str,
        text: &str,
        style: Style,
        most: usize,
    ) -> bool {
        let room = self.columns.saturating_sub(sign.len()).max(2);
        let texts = wrapped(text, room, self.styles);
        let whole = texts.len() <= most;
        for (at, mut text) in texts.into_iter().take(most).enumerate() {
            if !whole && at + 1 == most {
                let ellipsis = self.styles.ellipsis();
                let text_room = room.saturating_sub(ellipsis.len() + 1);
                text = format!("{} {ellipsis}", truncate_str(text.trim_end(), text_room, ""));
            }
            let sign = if at == 0 { sign } else { below };
            self.lines.push(Line::from(vec![Span::styled(sign, style), Span::styled(text, style)]));
        }
        whole
    }

    fn plain(&mut self, text: &str, style: Style) {
        self.put("", "", text, style, usize::MAX);
    }

    /// Appends text that comes from a bottle.
    fn untrusted(&mut self, text: &str, most: usize) -> bool {
        self.put("  | ", "  | ", text.trim_end(), Style::new(), most)
    }

    /// Appends the text around a finding, if the proposal contains this text.
    fn excerpt(&mut self, excerpt: &[String]) {
        if !excerpt.is_empty() {
            self.blank();
            self.plain("Excerpt, with the values redacted", bold());
            for line in excerpt {
                self.untrusted(line, usize::MAX);
            }
        }
    }

    /// Appends the scanner's last warnings about the bottle.
    fn warnings(&mut self, warnings: &[Warning]) {
        if !warnings.is_empty() {
            self.blank();
            self.plain(WARNINGS_TITLE, bold());
            for warning in warnings {
                self.untrusted(&warning_line(warning), usize::MAX);
            }
        }
    }

    /// Appends a note on how many times the agent made the same proposal before.
    fn before(&mut self, count: u32) {
        if count > 0 {
            let words = format!("Proposed {} since it was rejected.", times(count));
            self.plain(&words, tinted(Color::Yellow, self.styles));
        }
    }

    /// Appends the effect and scope of an approval, or why the proposal cannot be approved.
    fn effect(&mut self, known: &KnownEffect) {
        let bad = tinted(Color::Red, self.styles);
        match &known.route_change {
            Some(Ok(route_change)) => self.route_change(route_change),
            Some(Err(why)) => self.plain(&format!("It cannot be applied: {why}"), bad),
            None => {
                self.plain("The effect is unknown: the routes of this bottle are unavailable.", bad);
            }
        }
        self.grant(known);
    }

    fn route_change(&mut self, route_change: &RouteChange) {
        if route_change.gains.is_empty() {
            self.plain("It changes nothing: all of it is already allowed.", bold());
            return;
        }
        self.plain("Approval would allow", bold());
        for gain in &route_change.gains {
            self.put("  + ", "    ", gain, tinted(Color::Yellow, self.styles), usize::MAX);
        }
        for host in &route_change.disguised {
            self.plain(&lookalike_warning(host), tinted(Color::Red, self.styles));
        }
    }

    /// Appends the scope of an approval, unless it is the default.
    fn grant(&mut self, known: &KnownEffect) {
        let (chosen, bad) = (tinted(Color::Cyan, self.styles), tinted(Color::Red, self.styles));
        match &known.grant {
            Ok(GrantScope::Run) => {}
            Ok(GrantScope::Once) => self.plain("Scope: the next request that the routes allow.", chosen),
            Ok(GrantScope::Saved(addition)) => {
                let path = addition.path.display();
                let (words, style) = match addition.diff() {
                    Ok(_) => (format!("Scope: saved to {path}, once it is live."), chosen),
                    Err(why) => {
                        (format!("Cannot save to {path}: {why}. The routes will be printed instead."), bad)
                    }
                };
                self.plain(&words, style);
            }
            // The screen offers no scope that saves the approval of a command.
            Ok(GrantScope::Remembered(_)) => {}
            Err(why) => self.plain(why, bad),
        }
    }

    /// Appends the change of the bottle manifest.
    fn addition(&mut self, known: &KnownEffect) {
        if let Ok(GrantScope::Saved(addition)) = &known.grant
            && let Ok(diff) = addition.diff()
        {
            self.blank();
            self.plain(&format!("{} after the approval", addition.path.display()), bold());
            self.diff(&diff);
        }
    }

    fn diff(&mut self, diff: &[Changed]) {
        for changed in diff {
            let (sign, text, style) = match changed {
                Changed::Added(text) => ("  + ", text.as_str(), tinted(Color::Green, self.styles)),
                Changed::Removed(text) => ("  - ", text.as_str(), tinted(Color::Red, self.styles)),
                Changed::Same(text) => ("    ", text.as_str(), dim()),
                Changed::Gap => ("    ", "...", dim()),
            };
            self.put(sign, "    ", text, style, usize::MAX);
        }
    }
}

/// Formats the preview of a proposal below the list. The lines show everything that an approval covers, unless
/// [`has_more`] returns true.
pub(super) fn preview(
    row: &Row,
    known: Option<&KnownEffect>,
    edited: bool,
    columns: usize,
    styles: Styles,
) -> Vec<Line<'static>> {
    let mut lines = Lines::new(columns, styles);
    let proposal = &row.pending.proposal;
    lines.put("", "", &request_title(&row.pending), bold(), 1);
    lines.untrusted(&proposal.justification, WHY_SHORT);
    lines.before(proposal.asked_before);
    if edited {
        lines.plain("Your edit applies instead.", tinted(Color::Cyan, styles));
    }
    match known {
        Some(known) => lines.effect(known),
        None if proposal.tool.reports() => {
            lines.untrusted(&report_text(&proposed_text(proposal)), usize::MAX);
        }
        None => {}
    }
    lines.lines
}

/// Whether an approval covers something that the full text shows and the preview omits.
pub(super) fn has_more(row: &Row) -> bool {
    !row.pending.proposal.excerpt.is_empty()
}

/// Formats the full text of a proposal, below the heading.
pub(super) fn page(
    row: &Row,
    known: Option<&KnownEffect>,
    draft: Option<&Draft>,
    warnings: &[Warning],
    columns: usize,
    styles: Styles,
) -> Vec<Line<'static>> {
    let mut lines = Lines::new(columns, styles);
    let proposal = &row.pending.proposal;
    lines.lines.push(Line::default());
    if draft.is_some_and(|draft| draft.checked.is_ok()) {
        lines.plain("Your edit, instead of the proposal:", tinted(Color::Cyan, styles));
    }
    if let Some(since) = known.and_then(|known| known.since.as_ref()) {
        changed_since(&mut lines, since);
    }
    if let Some(known) = known {
        lines.effect(known);
    }
    lines.blank();
    lines.plain(proposal.tool.justification_title(), bold());
    let whole = lines.untrusted(&proposal.justification, WHY_FIRST);
    lines.before(proposal.asked_before);
    lines.blank();
    match known.map(|known| &known.route_change) {
        Some(Some(Ok(route_change))) if !route_change.diff.is_empty() => {
            lines.plain("The routes after the approval", bold());
            lines.diff(&route_change.diff);
        }
        Some(Some(Ok(_))) => {}
        _ if proposal.tool.reports() => {
            lines.plain(proposal.tool.request_title(), bold());
            lines.untrusted(&report_text(&proposed_text(proposal)), usize::MAX);
            lines.excerpt(&proposal.excerpt);
        }
        _ => {
            lines.plain("Request", bold());
            lines.untrusted(&proposed_text(proposal), usize::MAX);
        }
    }
    if let Some(known) = known {
        lines.addition(known);
    }
    if !whole {
        lines.blank();
        lines.plain("Full justification", bold());
        lines.untrusted(&proposal.justification, usize::MAX);
    }
    lines.warnings(warnings);
    lines.blank();
    let asked = proposal.arrival_timestamp.strftime("%Y-%m-%d %H:%M:%SZ");
    lines.plain(&format!("{} {}, asked {asked}", proposal.tool.name(), proposal.id), dim());
    lines.lines
}

/// Appends a note that the routes changed since the agent made the proposal.
fn changed_since(lines: &mut Lines, since: &Result<Vec<String>, String>) {
    let style = tinted(Color::Yellow, lines.styles);
    lines.plain("The routes changed meanwhile: approval merges into the current ones.", style);
    match since {
        Ok(gains) if gains.is_empty() => {}
        Ok(gains) => {
            lines.plain("Live since then:", style);
            for gain in gains {
                lines.put("  - ", "    ", gain, Style::new(), usize::MAX);
            }
        }
        Err(why) => lines.plain(&format!("Cannot read what is live since then: {why}"), style),
    }
    lines.blank();
}

/// Returns the text that is shown when there are no proposals.
pub(super) fn nothing(columns: usize, styles: Styles) -> Vec<Line<'static>> {
    let mut lines = Lines::new(columns, styles);
    lines.plain("Requests that need your approval appear here:", Style::new());
    lines.blank();
    for (sign, text) in [
        ("  hosts    ", "an agent wants to reach a host that its routes do not allow"),
        ("  secrets  ", "a request may contain a secret, and waits"),
        ("  pushes   ", "a push may contain a secret, and waits"),
    ] {
        lines.put(sign, "           ", text, Style::new(), usize::MAX);
    }
    lines.blank();
    lines.plain(
        "Leave this open next to your agents, or come back later: a proposal stays until it is answered or \
         expires.",
        dim(),
    );
    lines.lines
}
