//! The parts of lines that several views draw: bars, states, remarks and right-aligned texts.

use dialoguer::console::{Alignment, pad_str};
use ratatui::style::Color;
use ratatui::text::{Line, Span};

use crate::console::output::one_line;
use crate::console::style::Styles;
use crate::console::text_layout::{dim, tinted, wrapped};
use bottle_lib::dashboard::model::{Bottle, Level, Meter, StateTone};

/// Returns the state of a bottle in words, and a colour for this state.
pub(super) fn state_words(bottle: &Bottle) -> (String, Color) {
    let asks = match bottle.proposals {
        0 => String::new(),
        count => format!(", asks {count}"),
    };
    let color = match bottle.tone() {
        StateTone::Bad => Color::Red,
        _ if bottle.proposals > 0 => Color::Yellow,
        StateTone::Notice => Color::Yellow,
        StateTone::Good => Color::Green,
        StateTone::Kept => Color::Cyan,
        StateTone::Quiet => Color::DarkGray,
    };
    (format!("{}{asks}", bottle.word()), color)
}

pub(super) fn level_color(level: Level) -> Color {
    match level {
        Level::Low => Color::Green,
        Level::High => Color::Yellow,
        Level::Spent => Color::Red,
    }
}

/// Returns a bar in three parts: spent, reserved and free tokens.
pub(super) fn bar(meter: &Meter, width: usize, styles: Styles) -> [Span<'static>; 3] {
    let (spent, reserved) = meter.cells(width);
    let [full, half, free] = if styles.unicode { ["█", "▒", "·"] } else { ["#", "=", "."] };
    let color = tinted(level_color(meter.level()), styles);
    [
        Span::styled(full.repeat(spent), color),
        Span::styled(half.repeat(reserved), color),
        Span::styled(free.repeat(width - spent - reserved), dim()),
    ]
}

/// Formats the tokens of the last minutes, with one character for each minute.
pub(super) fn sparkline(recent: &[u64], styles: Styles) -> String {
    let heights: &[&str] = if styles.unicode {
        &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]
    } else {
        &["_", ".", "-", "=", "*", "#"]
    };
    let most = recent.iter().copied().max().unwrap_or(0);
    let height = |tokens: u64| match (tokens, most) {
        (0, _) | (_, 0) => 0,
        _ => {
            let steps = u128::from(tokens) * (heights.len() as u128 - 1) / u128::from(most);
            usize::try_from(steps).unwrap_or(0).max(1)
        }
    };
    recent.iter().map(|tokens| heights[height(*tokens)]).collect()
}

/// Formats a text at the right of a column, with the space after the column.
pub(super) fn right(text: &str, width: usize) -> String {
    pad_str(text, width, Alignment::Right, Some("")).into_owned() + "  "
}

/// Formats a remark on the bottle, on as many lines as the remark needs.
pub(super) fn remark(
    text: &str,
    indent: &str,
    color: Color,
    columns: usize,
    styles: Styles,
) -> Vec<Line<'static>> {
    let lines = wrapped(&one_line(text), columns.saturating_sub(indent.len()).max(1), styles).into_iter();
    lines.map(|line| Line::styled(format!("{indent}{line}"), tinted(color, styles))).collect()
}
