//! Draws the screen. Uses only ASCII, so that the screen looks the same in every font. Every meaning of a
//! colour is also expressed in words.

use dialoguer::console::measure_text_width;
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::layout::prompt;
use super::rows::Row;
use super::state::State;
use super::text::{request_title, time_left, time_left_sentence};
use super::view::{Overlay, Tone, View};
use crate::console::style::Styles;
use crate::console::text_layout::{bold, dim, fitted, padded, tinted};

/// The maximum width of a bottle's name, in columns. A longer name is truncated.
const NAME: usize = 24;

/// The width of the column with the kind of a proposal.
const KIND: usize = 6;
/// The width of the column with the remaining time.
const WAITS: usize = 11;

/// The width, in columns, below which the screen omits the kind of a proposal.
const NARROW: usize = 60;

/// The keys, and what each one does.
const HELP: &[(&str, &str)] = &[
    ("Up Down, k j", "move; scroll in the full view"),
    ("Enter, Right", "show in full; Left or Esc goes back"),
    ("n p", "next and previous proposal in the full view"),
    ("a", "approve; routes go live at once, others need a reason"),
    ("m", "edit the routes in $VISUAL or $EDITOR; `a` approves them"),
    ("u", "drop your edit"),
    ("o", "scope of routes: this run, one request, or saved to a file"),
    ("r", "reject with a reason; dismiss when no process waits"),
    ("x", "mark it; `a` or `r` then decides all marked ones"),
    ("+ -", "allow or deny a bottle requests, without a proposal"),
    ("q, Ctrl-C", "quit; proposals stay pending"),
];

/// Draws the state, which [`State::lay_out`] has prepared for an area of this size.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, styles: Styles, now: Timestamp) {
    let rows = state.layout().rows();
    let lengths = [2, rows.body, u16::from(rows.preview > 0), rows.preview, rows.word, 1];
    let [head, body, _, preview, word, keys] = Layout::vertical(lengths.map(Constraint::Length)).areas(area);
    let columns = usize::from(area.width);
    frame.render_widget(Paragraph::new(heading(state, columns, styles, now)), head);
    let lines = state.layout().lines();
    match (state.overlay(), state.view()) {
        (Some(Overlay::Help), _) => frame.render_widget(Paragraph::new(help(columns, styles)), body),
        (_, View::List) if state.rows().all().is_empty() => {
            frame.render_widget(Paragraph::new(lines.to_vec()), body);
        }
        (_, View::List) => {
            frame.render_widget(Paragraph::new(list(state, body, styles, now)), body);
            let seen = lines.iter().take(usize::from(preview.height)).cloned().collect::<Vec<_>>();
            frame.render_widget(Paragraph::new(cut(seen, lines.len(), columns, styles)), preview);
        }
        (_, View::Detail { scroll }) => {
            let seen = lines.iter().skip(scroll).take(usize::from(body.height)).cloned().collect::<Vec<_>>();
            frame.render_widget(Paragraph::new(seen), body);
        }
    }
    frame.render_widget(Paragraph::new(message(state, styles)), word);
    frame.render_widget(bottom(state, columns, styles), keys);
}

/// Returns the two lines of the heading.
fn heading(state: &State, columns: usize, styles: Styles, now: Timestamp) -> Vec<Line<'static>> {
    let total = state.rows().all().len();
    let (left, right, below) = match (state.view(), state.rows().current()) {
        (View::Detail { scroll }, Some(row)) => {
            let (page, all) = (state.layout().page_rows(), state.layout().lines().len());
            let more = if all > page {
                format!("lines {}-{} of {all}   ", scroll + 1, (scroll + page).min(all))
            } else {
                String::new()
            };
            let (waited, style) = (time_left(&row.pending, now).1, Style::new());
            let style = if waited { style } else { tinted(Color::Yellow, styles) };
            let below = Line::styled(fitted(&time_left_sentence(&row.pending, now), columns, styles), style);
            (request_title(&row.pending), format!("{more}{} of {total}", state.rows().at() + 1), below)
        }
        _ => {
            let waiting = state.rows().all().iter().filter(|row| time_left(&row.pending, now).1).count();
            let left = match waiting {
                0 => "No pending proposals".to_owned(),
                1 => "1 proposal waits for you".to_owned(),
                more => format!("{more} proposals wait for you"),
            };
            let right = match total - waiting {
                0 if total > 1 => "oldest first".to_owned(),
                0 => String::new(),
                1 => "1 no longer waits".to_owned(),
                more => format!("{more} no longer wait"),
            };
            let names =
                if total == 0 { Line::default() } else { Line::styled(named(state, columns, styles), dim()) };
            (left, right, names)
        }
    };
    let right = if measure_text_width(&left) + right.len() + 2 > columns { String::new() } else { right };
    let left = fitted(&left, columns, styles);
    let gap = columns.saturating_sub(measure_text_width(&left) + right.len());
    let top = vec![Span::styled(left, bold()), Span::raw(" ".repeat(gap)), Span::styled(right, dim())];
    vec![Line::from(top), below]
}

/// Returns the line of column titles.
fn named(state: &State, columns: usize, styles: Styles) -> String {
    let wide = Columns::for_state(state, columns);
    let kind = if wide.kind > 0 { padded("KIND", wide.kind, styles) } else { String::new() };
    format!(
        "  {}{}{kind}{}",
        padded("LEFT", WAITS - 2, styles),
        padded("BOTTLE", wide.name, styles),
        "REQUEST"
    )
}

/// The widths of the parts of a row.
struct Columns {
    name: usize,
    kind: usize,
    whole: usize,
}

impl Columns {
    fn for_state(state: &State, whole: usize) -> Self {
        let name = |row: &Row| row.pending.proposal.bottle_slug.as_str().len();
        // The column is at least as wide as its title, "BOTTLE".
        let widest = state.rows().all().iter().map(name).max().unwrap_or(0).max(6);
        let kind = if whole < NARROW { 0 } else { KIND };
        Self { name: widest.min(NAME).min(whole / 3), kind, whole }
    }
}

/// Returns the part of the list that fits around the cursor.
fn list(state: &State, area: Rect, styles: Styles, now: Timestamp) -> Vec<Line<'static>> {
    let (rows, at) = (state.rows().all(), state.rows().at());
    let height = usize::from(area.height.max(1));
    let first = at.saturating_sub(height / 2).min(rows.len().saturating_sub(height));
    let wide = Columns::for_state(state, usize::from(area.width));
    let seen = rows.iter().enumerate().skip(first).take(height);
    seen.map(|(index, row)| line(state, row, index == at, &wide, styles, now)).collect()
}

fn line(
    state: &State,
    row: &Row,
    here: bool,
    wide: &Columns,
    styles: Styles,
    now: Timestamp,
) -> Line<'static> {
    let (left, waited) = time_left(&row.pending, now);
    let (left, color) = match state.in_progress(row.id()) {
        Some(doing) => (doing.to_owned(), Color::Cyan),
        None => (left, if waited { Color::Green } else { Color::Yellow }),
    };
    let pointer = if here { "> " } else { "  " };
    let left = padded(&left, WAITS - 2, styles);
    let name = padded(row.pending.proposal.bottle_slug.as_str(), wide.name, styles);
    let kind = if wide.kind > 0 { padded(row.kind(), wide.kind, styles) } else { String::new() };
    let edited = match (state.is_marked(row.id()), state.draft(row.id())) {
        (true, _) => "(marked) ",
        (false, Some(_)) => "(edited) ",
        (false, None) => "",
    };
    let taken: usize = [pointer, &left, &name, &kind, edited].into_iter().map(measure_text_width).sum();
    let weight = if here { bold() } else { Style::new() };
    Line::from(vec![
        Span::styled(pointer, weight),
        Span::styled(left, tinted(color, styles)),
        Span::styled(name, weight),
        Span::styled(kind, tinted(Color::Cyan, styles)),
        Span::styled(edited, tinted(Color::Cyan, styles)),
        Span::raw(fitted(row.summary(), wide.whole.saturating_sub(taken), styles)),
    ])
}

/// If there are more lines than are visible, replaces the last visible line with a note.
fn cut(mut seen: Vec<Line<'static>>, all: usize, columns: usize, styles: Styles) -> Vec<Line<'static>> {
    let more = format!("{} {} more lines: Enter", styles.ellipsis(), all + 1 - seen.len().min(all));
    if seen.len() < all
        && let Some(last) = seen.last_mut()
    {
        *last = Line::styled(fitted(&more, columns, styles), dim());
    }
    seen
}

fn help(columns: usize, styles: Styles) -> Vec<Line<'static>> {
    let widest = HELP.iter().map(|(keys, _)| keys.len()).max().unwrap_or(0);
    let line = |(keys, does): &(&'static str, &'static str)| {
        let keys = padded(keys, widest, styles);
        let room = columns.saturating_sub(keys.len());
        Line::from(vec![Span::styled(keys, bold()), Span::raw(fitted(does, room, styles))])
    };
    HELP.iter().map(line).collect()
}

fn message(state: &State, styles: Styles) -> Vec<Line<'static>> {
    let (lines, message) = state.layout().message();
    let style = match message.map(|message| message.tone) {
        Some(Tone::Good) => tinted(Color::Green, styles),
        Some(Tone::Bad) => tinted(Color::Red, styles),
        Some(Tone::Plain) => tinted(Color::Cyan, styles),
        None => Style::new(),
    };
    lines.iter().map(|line| Line::styled(line.clone(), style)).collect()
}

/// Returns the bottom line: the prompt, or as much of the key help as fits.
fn bottom(state: &State, columns: usize, styles: Styles) -> Line<'static> {
    if let Some((question, typed)) = prompt(state.overlay()) {
        let room = columns.saturating_sub(question.len() + 1);
        return Line::from(vec![
            Span::styled(question, bold()),
            Span::raw(last_of(typed, room, styles)),
            Span::styled("_", bold()),
        ]);
    }
    let words: &[&str] = match (state.overlay(), state.view(), state.rows().all().is_empty()) {
        (Some(Overlay::Help), ..) => &["any key goes back"],
        (_, View::List, true) => &["? help   q quits"],
        (_, View::List, false) => &[
            "Enter details   a approve   r reject   m edit   o scope   ? help   q quits",
            "Enter details  a approve  r reject  m o ? q quits",
            "Enter  a  r  m  o  ?  q quits",
        ],
        (_, View::Detail { .. }, _) => &[
            "a approve   r reject   m edit   o scope   n next   Esc back   ? help   q quits",
            "a approve  r reject  m edit  o scope  Esc back  ?  q quits",
            "a  r  m  o  n  Esc  ?  q quits",
        ],
    };
    let fits = words.iter().find(|words| words.len() <= columns).or(words.last());
    Line::styled(fits.copied().unwrap_or_default(), dim())
}

/// Returns as much of the end of the typed text as fits.
fn last_of(typed: &str, columns: usize, styles: Styles) -> String {
    let typed = styles.displayable(typed);
    let mut from = 0;
    while measure_text_width(&typed[from..]) > columns {
        from += typed[from..].chars().next().map_or(1, char::len_utf8);
    }
    typed[from..].to_owned()
}
