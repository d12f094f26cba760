//! The layout of the screen: text wrapped to the terminal, and the height of each part.
//!
//! Text is wrapped again only when the text or the width changes, because an agent's text may be long.

use bottle_policy::route::edit::Action;
use bottle_protocol::queue::Id;
use jiff::Timestamp;
use ratatui::text::Line;

use super::state::State;
use super::text;
use super::view::{Message, Overlay, View};
use crate::console::style::Styles;
use crate::console::text_layout::wrapped;

/// The maximum number of lines of a message. Further lines are not shown.
const WORD_ROWS: usize = 3;

/// The prepared lines and heights.
#[derive(Debug, Default)]
pub(super) struct ScreenLayout {
    /// The prepared text. [`ScreenLayout::forget`] removes it.
    made: Option<Prepared>,
    /// The progress of the user in reading the text that was last shown in full.
    read: ReadText,
    word: Vec<String>,
    message: Option<Message>,
    rows: Rows,
}

/// The full text of a proposal, and how much of it was on the screen.
#[derive(Debug, Default)]
struct ReadText {
    id: Option<Id>,
    columns: u16,
    lines: Vec<Line<'static>>,
    /// The number of lines, from the beginning of the text, that were all on the screen. Lines after a gap are not
    /// counted, for example after a jump to the end.
    to: usize,
}

impl ReadText {
    /// Records that these lines of a text are on the screen. If the text has changed, all lines from the first changed
    /// line on are unread again.
    fn note(&mut self, text: &Prepared, visible: std::ops::Range<usize>) {
        if self.id != text.id || self.columns != text.columns {
            *self = Self { id: text.id.clone(), columns: text.columns, ..Self::default() };
        }
        if self.lines != text.lines {
            let same = self.lines.iter().zip(&text.lines).take_while(|(before, now)| before == now).count();
            (self.to, self.lines) = (self.to.min(same), text.lines.clone());
        }
        if visible.start <= self.to {
            self.to = self.to.max(visible.end.min(text.lines.len()));
        }
    }
}

#[derive(Debug)]
struct Prepared {
    columns: u16,
    whole: bool,
    id: Option<Id>,
    lines: Vec<Line<'static>>,
}

/// The heights of the screen's parts, in lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// The height of the list, or of one proposal in full.
    pub(super) body: u16,
    /// The height of the preview of a proposal below the list.
    pub(super) preview: u16,
    /// The height of the message.
    pub(super) word: u16,
}

impl ScreenLayout {
    /// Invalidates the prepared text.
    pub(super) fn forget(&mut self) {
        self.made = None;
    }

    /// Computes the layout of the screen: the message below the list, and the lines of the text of the proposal under
    /// the cursor. Reuses the lines if the width is unchanged.
    pub(super) fn fit(&mut self, state: &State, size: (u16, u16), styles: Styles, now: Timestamp) {
        let (columns, rows) = size;
        let width = usize::from(columns);
        self.message = state.current_message(now);
        let word = self.message.as_ref().map(|message| wrapped(&message.words, width.max(2), styles));
        self.word = word.unwrap_or_default();
        self.word.truncate(WORD_ROWS);
        let list = state.view() == View::List;
        let empty = state.rows().all().is_empty();
        self.rows = parts(rows, list && !empty, self.word.len());
        if self.made.as_ref().is_some_and(|made| made.columns == columns) {
            return;
        }
        let row = state.rows().current();
        let (known, draft) = (state.known(), row.and_then(|row| state.draft(row.id())));
        let lines = match row {
            None => text::nothing(width, styles),
            Some(row) if list => text::preview(row, known, draft.is_some(), width, styles),
            Some(row) => text::page(row, known, draft, state.warnings().unwrap_or_default(), width, styles),
        };
        let knows = row.is_some_and(|row| row.pending.proposal.tool.reports()) || known.is_some();
        let whole = list
            && knows
            && lines.len() <= usize::from(self.rows.preview)
            && !row.is_some_and(text::has_more);
        self.made = Some(Prepared { columns, whole, id: row.map(|row| row.id().clone()), lines });
    }

    /// Records that the full text of a proposal is on the screen, from the line `scroll` on.
    pub(super) fn note_shown(&mut self, scroll: usize) {
        let visible = scroll..scroll + self.page_rows();
        if let Some(text) = &self.made {
            self.read.note(text, visible);
        }
    }

    /// Returns the number of lines in the full text of this proposal that were not on the screen yet. Returns `None` if
    /// the full text is not shown.
    pub(super) fn unread(&self, id: &Id) -> Option<usize> {
        let is_shown = self.is_of(id) && self.read.id.as_ref() == Some(id);
        is_shown.then(|| self.read.lines.len() - self.read.to.min(self.read.lines.len()))
    }

    /// Whether lines above the line `scroll` were not on the screen yet. If so, the next pages do not show them.
    pub(super) fn is_unread_above(&self, scroll: usize) -> bool {
        self.read.to < scroll
    }

    /// Whether the preview shows everything that approving this proposal would allow.
    pub(super) fn shows_all_of(&self, id: &Id) -> bool {
        self.made.as_ref().is_some_and(|made| made.whole && made.id.as_ref() == Some(id))
    }

    /// Whether this proposal's text is on the screen.
    pub(super) fn is_of(&self, id: &Id) -> bool {
        self.made.as_ref().is_some_and(|made| made.id.as_ref() == Some(id))
    }

    pub(super) fn lines(&self) -> &[Line<'static>] {
        self.made.as_ref().map_or(&[], |made| &made.lines)
    }

    pub(super) fn message(&self) -> (&[String], Option<&Message>) {
        (&self.word, self.message.as_ref())
    }

    pub(super) fn rows(&self) -> Rows {
        self.rows
    }

    /// The number of visible lines in the view of one full proposal.
    pub(super) fn page_rows(&self) -> usize {
        usize::from(self.rows.body)
    }

    /// Limits a scroll offset to the length of the text.
    pub(super) fn clamp(&self, scroll: usize) -> usize {
        scroll.min(self.lines().len().saturating_sub(self.page_rows()))
    }
}

/// Divides the height of the screen. The heading gets two lines, the keys get one line, and a message gets the lines
/// that it needs.
fn parts(rows: u16, list: bool, word: usize) -> Rows {
    let word = u16::try_from(word).unwrap_or(u16::MAX).min(rows / 4);
    let left = rows.saturating_sub(3 + word);
    if !list {
        return Rows { body: left, preview: 0, word };
    }
    // One line separates the list from the preview.
    let preview = (rows / 3).clamp(3, 10).min(left / 2);
    Rows { body: left.saturating_sub(preview + 1), preview, word }
}

/// Returns the question of an open window, and the typed text. They are shown above the keys.
pub(super) fn prompt(overlay: Option<&Overlay>) -> Option<(&'static str, &str)> {
    match overlay {
        Some(Overlay::Reason { yes: true, line, .. }) => Some(("Reason to approve: ", line.text())),
        Some(Overlay::Reason { yes: false, line, .. }) => Some(("Reason to reject: ", line.text())),
        Some(Overlay::Routes { action: Action::Allow, line }) => Some(("Allow: ", line.text())),
        Some(Overlay::Routes { action: Action::Deny, line }) => Some(("Deny: ", line.text())),
        Some(Overlay::Weaken { .. }) => Some(("Change the routes nevertheless? [y/N] ", "")),
        Some(Overlay::Help) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_fits_any_height() {
        for rows in 0..60 {
            for word in 0..4 {
                for list in [false, true] {
                    let parts = parts(rows, list, word);
                    let live_between = u16::from(list && parts.preview > 0);
                    let all = 3 + parts.word + parts.body + parts.preview + live_between;
                    assert!(all <= rows.max(4), "{rows} {word} {parts:?}");
                    assert!(rows < 10 || parts.body >= 1, "{rows} {word} {parts:?}");
                }
            }
        }
    }
}
