//! The usage tables, as lines of text.

use dialoguer::console::measure_text_width;
use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::cells::right;
use super::state::State;
use crate::console::style::Styles;
use crate::console::text_layout::{bold, dim, padded, tinted};
use bottle_lib::dashboard::model::{GROUPINGS, Period, UsageRow, grouping_name};
use bottle_lib::dashboard::words;

/// The widths of the columns of a usage table.
const NAME: usize = 24;
const COUNT: usize = 7;
const BAR: usize = 14;

/// Returns the lines of the usage table in the current view.
pub(super) fn lines(state: &State, columns: usize, styles: Styles) -> Vec<Line<'static>> {
    let mut lines = vec![choices(state), Line::default()];
    let Some(table) = state.usage() else {
        lines.push(Line::styled("reading the ledger", dim()));
        return lines;
    };
    if table.rows.is_empty() {
        let when = if table.period == Period::All { "yet" } else { "in this time" };
        lines.push(Line::styled(format!("no model has responded {when}"), dim()));
        return lines;
    }
    let widest = table.rows.iter().map(|row| measure_text_width(words::row_name(row))).max().unwrap_or(0);
    let shape = Shape::new(columns, widest, state.snapshot().currency.as_deref());
    lines.push(Line::styled(shape.titles(grouping_name(table.by), styles), dim()));
    let most = table.rows.iter().map(|row| row.totals.total()).max().unwrap_or(0);
    lines.extend(table.rows.iter().map(|row| shape.row(row, words::row_name(row), most, styles)));
    lines.push(Line::default());
    let sum = UsageRow { name: "all".to_owned(), ..table.sum.clone() };
    lines.push(shape.row(&sum, "all", 0, styles).style(bold()));
    if table.sum.totals.estimated > 0 {
        let estimated = words::counted(table.sum.totals.estimated, "answer");
        let text = format!("the tokens of {estimated} are estimated, because no complete count arrived");
        lines.push(Line::styled(crate::console::text_layout::fitted(&text, columns, styles), dim()));
    }
    lines
}

/// Returns the line with the groupings and the current period. The current grouping is in brackets.
fn choices(state: &State) -> Line<'static> {
    let mut spans = Vec::new();
    for (by, name) in GROUPINGS {
        let here = by == state.by();
        let text = if here { format!("[{name}]") } else { format!(" {name} ") };
        spans.push(Span::styled(text, if here { bold() } else { dim() }));
    }
    spans.push(Span::raw(format!("   {}", state.period().words())));
    Line::from(spans)
}

/// The columns of the table that fit on the screen.
struct Shape {
    name: usize,
    bar: usize,
    /// Whether each kind of tokens has a column.
    kinds: bool,
    currency: Option<String>,
}

impl Shape {
    fn new(columns: usize, widest: usize, currency: Option<&str>) -> Self {
        let cost = if currency.is_some() { COUNT + 2 } else { 0 };
        let name = widest.min(NAME).min(columns / 3).max(10);
        let fixed = name + 2 + COUNT + 2 + cost;
        let kinds_width = 4 * (COUNT + 2);
        let kinds = fixed + kinds_width <= columns;
        let left = columns.saturating_sub(fixed + if kinds { kinds_width } else { 0 });
        let bar = if left >= 8 { (left - 2).min(if columns > 110 { BAR * 3 } else { BAR }) } else { 0 };
        Self { name, bar, kinds, currency: currency.map(str::to_owned) }
    }

    fn titles(&self, by: &str, styles: Styles) -> String {
        let mut text = padded(&by.to_ascii_uppercase(), self.name, styles);
        if self.bar > 0 {
            text += &" ".repeat(self.bar + 2);
        }
        text += &right("TOKENS", COUNT);
        if self.kinds {
            text.extend(["INPUT", "OUTPUT", "CACHE", "ANSWERS"].map(|title| right(title, COUNT)));
        }
        text.extend(self.currency.as_ref().map(|currency| right(currency, COUNT)));
        text.trim_end().to_owned()
    }

    /// Returns a row of the table. The bar shows which share of `most` the row has. If `most` is 0, the bar is empty.
    fn row(&self, row: &UsageRow, name: &str, most: u64, styles: Styles) -> Line<'static> {
        let totals = row.totals;
        let mut spans = vec![Span::raw(padded(name, self.name, styles))];
        if self.bar > 0 {
            let cells = match (most, totals.total()) {
                (0, _) | (_, 0) => 0,
                (most, total) => {
                    let cells = u128::from(total) * self.bar as u128 / u128::from(most);
                    usize::try_from(cells).unwrap_or(0).clamp(1, self.bar)
                }
            };
            let full = if styles.unicode { "█" } else { "#" };
            spans.push(Span::styled(full.repeat(cells), tinted(Color::Cyan, styles)));
            spans.push(Span::raw(" ".repeat(self.bar - cells + 2)));
        }
        let mut text = right(&words::tokens(totals.total()), COUNT);
        if self.kinds {
            let cache = totals.cache_read.saturating_add(totals.cache_write);
            let counts = [totals.input, totals.output, cache, totals.responses];
            text.extend(counts.map(|count| right(&words::tokens(count), COUNT)));
        }
        text.extend(row.cost.map(|cost| right(&cost.to_string(), COUNT)));
        spans.push(Span::raw(text.trim_end().to_owned()));
        Line::from(spans)
    }
}
