//! Draws the screen. Every meaning of a colour or a bar is also expressed in words or numbers. On a terminal without
//! characters beyond ASCII, bars are ASCII too.

use dialoguer::console::measure_text_width;
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::cells::{bar, level_color, remark, right, sparkline, state_words};
use super::state::{Overlay, State, Tone, View};
use super::{bottle_text, usage_text};
use crate::console::style::Styles;
use crate::console::text_layout::{bold, dim, fitted, padded, tinted, wrapped};
use bottle_lib::dashboard::model::{Bottle, BottleState, Group, Meter, Snapshot, rate};
use bottle_lib::dashboard::words;

/// The maximum number of lines of a message or of a question's explanation.
const WORD_ROWS: usize = 3;

/// The number of lines above the body: the tabs, and the titles of columns.
const HEAD_ROWS: u16 = 2;

/// The maximum width of a bottle's name, in columns. A longer name is truncated.
const NAME: usize = 24;

/// The widths of the columns of the list.
const STATE: usize = 15;
const BAR: usize = 6;
const AGE: usize = 6;
const PERCENT: usize = 4;
const RATE: usize = 7;
const LEFT: usize = 11;
const AGENT: usize = 14;
const TOKENS: usize = 7;

/// The keys, and what each one does.
const HELP: &[(&str, &str)] = &[
    ("1 2 3, Tab", "bottles, usage, proposals"),
    ("Up Down, k j", "move; scroll in a long text"),
    ("Enter, Right", "show a bottle in full; Left or Esc goes back"),
    ("n N", "next and previous bottle in the full view"),
    ("/", "show only bottles with these words; Esc shows all"),
    ("e", "show or fold ended bottles"),
    ("b", "raise a budget of the bottle"),
    ("s", "stop the bottle; its unsaved work is kept"),
    ("z", "pause the bottle, or let it go on"),
    ("c", "deny its requests to models, or allow them again"),
    ("f", "freeze it: save a snapshot and stop it"),
    ("x", "kill it, without saving anything"),
    ("d", "discard the kept files of a bottle that has ended"),
    ("p", "the bottle's proposals"),
    ("d p a b m", "usage by day, provider, agent, bottle, model"),
    ("t", "usage of today, 7 days, 30 days, all time"),
    ("q, Ctrl-C", "quit; bottles run on"),
];

/// The parts of the screen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Areas {
    tabs: Rect,
    titles: Rect,
    body: Rect,
    preview: Rect,
    word: Rect,
    keys: Rect,
}

/// Returns the area of the supervise queue: everything below the tabs.
pub(super) fn queue_area(area: Rect) -> Rect {
    let rows = HEAD_ROWS.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// Prepares the state for a terminal of this size, and divides the screen.
pub(super) fn prepare(
    state: &mut State,
    area: Rect,
    styles: Styles,
    now: Timestamp,
) -> (Areas, Vec<Line<'static>>) {
    let areas = areas(state, area, styles, now);
    let columns = usize::from(area.width);
    let lines = match state.view() {
        View::Bottle => bottle_text::lines(state, columns, styles),
        View::Usage => usage_text::lines(state, columns, styles),
        View::Bottles | View::Proposals => Vec::new(),
    };
    state.fit(lines.len(), usize::from(areas.body.height));
    (areas, lines)
}

fn areas(state: &State, area: Rect, styles: Styles, now: Timestamp) -> Areas {
    let word = word(state, usize::from(area.width), styles, now).len();
    let word = u16::try_from(word).unwrap_or(0).min(area.height / 3);
    let preview = match (state.view(), state.current()) {
        (View::Bottles, Some(bottle)) if area.height >= 20 => {
            let lines = preview(bottle, usize::from(area.width), styles, now).len();
            u16::try_from(lines).unwrap_or(u16::MAX).min(area.height / 4 + 2)
        }
        _ => 0,
    };
    let lengths = [
        Constraint::Length(1),
        Constraint::Length(HEAD_ROWS - 1),
        Constraint::Fill(1),
        Constraint::Length(preview),
        Constraint::Length(word),
        Constraint::Length(1),
    ];
    let [tabs, titles, body, preview, word, keys] = Layout::vertical(lengths).areas(area);
    Areas { tabs, titles, body, preview, word, keys }
}

/// Draws what [`prepare`] has prepared. The caller draws the supervise queue in [`queue_area`].
pub(super) fn draw(
    frame: &mut Frame<'_>,
    areas: Areas,
    lines: &[Line<'static>],
    state: &State,
    styles: Styles,
    now: Timestamp,
) {
    let columns = usize::from(areas.tabs.width);
    frame.render_widget(tabs(state, columns, styles), areas.tabs);
    if state.view() == View::Proposals {
        return;
    }
    let body = areas.body;
    if matches!(state.overlay(), Some(Overlay::Help)) {
        frame.render_widget(Paragraph::new(help(columns, styles)), body);
        frame.render_widget(Line::styled("any key goes back", dim()), areas.keys);
        return;
    }
    let height = usize::from(body.height);
    let seen: Vec<Line<'static>> = match state.view() {
        View::Bottles if state.snapshot().bottles.is_empty() => nothing(columns, styles),
        View::Bottles => {
            let table = Table::new(&state.bottles(), columns);
            frame.render_widget(Line::styled(table.titles(styles), dim()), areas.titles);
            let hidden = state
                .hidden()
                .map(|hidden| Line::styled(fitted(&format!("  {hidden}"), columns, styles), dim()));
            let mut rows = table.rows(state, height.saturating_sub(usize::from(hidden.is_some())), styles);
            rows.extend(hidden);
            rows
        }
        _ => lines.iter().skip(state.scroll()).take(height).cloned().collect(),
    };
    frame.render_widget(Paragraph::new(seen), body);
    if let (View::Bottles, Some(bottle)) = (state.view(), state.current())
        && areas.preview.height > 0
    {
        frame.render_widget(Paragraph::new(preview(bottle, columns, styles, now)), areas.preview);
    }
    frame.render_widget(Paragraph::new(word(state, columns, styles, now)), areas.word);
    frame.render_widget(bottom(state, lines.len() > height, columns, styles), areas.keys);
}

/// Returns the line with the tabs and a summary of all bottles.
fn tabs(state: &State, columns: usize, styles: Styles) -> Line<'static> {
    let snapshot = state.snapshot();
    let proposals = match snapshot.proposals {
        0 => "3 Proposals".to_owned(),
        count => format!("3 Proposals ({count})"),
    };
    let here = match state.view() {
        View::Bottles | View::Bottle => 0,
        View::Usage => 1,
        View::Proposals => 2,
    };
    let mut spans = Vec::new();
    let mut taken = 0;
    for (at, name) in ["1 Bottles".to_owned(), "2 Usage".to_owned(), proposals].into_iter().enumerate() {
        // Brackets mark the current tab, even without colours.
        let text = if at == here { format!("[{name}]") } else { format!(" {name} ") };
        let style = match at == here {
            true => bold(),
            false if at == 2 && snapshot.proposals > 0 => tinted(Color::Yellow, styles),
            false => dim(),
        };
        taken += text.len() + 1;
        spans.push(Span::styled(text, style));
        spans.push(Span::raw(" "));
    }
    let right = summary(snapshot);
    if taken + right.len() < columns {
        spans.push(Span::raw(" ".repeat(columns - taken - right.len())));
        spans.push(Span::styled(right, dim()));
    }
    Line::from(spans)
}

/// Returns a summary of all bottles.
fn summary(snapshot: &Snapshot) -> String {
    let running = snapshot.bottles.iter().filter(|bottle| bottle.state == BottleState::Running).count();
    format!("{running} running, {} tokens/min", words::tokens(rate(&snapshot.recent)))
}

/// The columns of the list that fit on the screen.
struct Table {
    name: usize,
    agent: bool,
    tokens: bool,
    spark: usize,
    bar: usize,
    rate: bool,
    left: bool,
    age: bool,
}

impl Table {
    fn new(bottles: &[&Bottle], columns: usize) -> Self {
        let name = |bottle: &&Bottle| bottle.slug.as_str().len();
        let widest = bottles.iter().map(name).max().unwrap_or(0).clamp(6, NAME);
        let name = widest.min((columns / 4).max(10));
        let mut table = Self {
            name,
            agent: false,
            tokens: false,
            spark: 0,
            bar: BAR,
            rate: false,
            left: false,
            age: false,
        };
        // The columns are added in this order, as long as they fit. The most useful column is the first one.
        let steps: [fn(&mut Self); 8] = [
            |table| table.left = true,
            |table| table.age = true,
            |table| table.rate = true,
            |table| table.tokens = true,
            |table| table.bar = BAR * 2,
            |table| table.agent = true,
            |table| table.bar = BAR * 4,
            |table| table.spark = bottle_lib::dashboard::model::RECENT_MINUTES,
        ];
        if table.width() > columns {
            table.bar = 0;
        }
        for step in steps {
            let mut wider = Self { ..table };
            step(&mut wider);
            if wider.width() <= columns {
                table = wider;
            }
        }
        table
    }

    fn width(&self) -> usize {
        let optional = [
            (self.agent, AGENT + 2),
            (self.bar > 0, self.bar + 2),
            (self.rate, RATE + 2),
            (self.left, LEFT + 2),
            (self.age, AGE + 2),
            (self.tokens, TOKENS + 2),
            (self.spark > 0, self.spark + 2),
        ];
        let optional: usize = optional.iter().filter(|(shown, _)| *shown).map(|(_, width)| width).sum();
        2 + self.name + 2 + STATE + 2 + PERCENT + 2 + optional
    }

    fn titles(&self, styles: Styles) -> String {
        let mut text = format!("  {}", padded("BOTTLE", self.name, styles));
        if self.agent {
            text += &padded("AGENT", AGENT, styles);
        }
        text += &padded("STATE", STATE, styles);
        if self.age {
            text += &right("AGE", AGE);
        }
        if self.bar > 0 {
            text += &padded("BUDGET", self.bar, styles);
        }
        text += &padded("USED", PERCENT, styles);
        if self.rate {
            text += &right("TOK/MIN", RATE);
        }
        if self.left {
            text += &right("TIME LEFT", LEFT);
        }
        if self.tokens {
            text += &right("TOKENS", TOKENS);
        }
        if self.spark > 0 {
            text += "LAST 30 MINUTES";
        }
        text
    }

    /// Returns the part of the list that fits around the cursor.
    fn rows(&self, state: &State, height: usize, styles: Styles) -> Vec<Line<'static>> {
        let (bottles, at, now) = (state.bottles(), state.at(), state.snapshot().at);
        let height = height.max(1);
        let first = at.saturating_sub(height / 2).min(bottles.len().saturating_sub(height));
        let seen = bottles.iter().enumerate().skip(first).take(height);
        seen.map(|(index, bottle)| self.row(bottle, index == at, now, styles)).collect()
    }

    fn row(&self, bottle: &Bottle, here: bool, now: Timestamp, styles: Styles) -> Line<'static> {
        let has_ended = matches!(bottle.group(), Group::Kept | Group::Ended);
        let weight = match bottle.group() {
            _ if here => bold(),
            Group::Ended => dim(),
            Group::Waiting | Group::Running | Group::Kept => Style::new(),
        };
        let mut spans = vec![
            Span::styled(if here { "> " } else { "  " }, weight),
            Span::styled(padded(bottle.slug.as_str(), self.name, styles), weight),
        ];
        if self.agent {
            spans.push(Span::styled(padded(&bottle.agent, AGENT, styles), weight));
        }
        let (words, color) = state_words(bottle);
        spans.push(Span::styled(padded(&words, STATE, styles), tinted(color, styles)));
        if self.age {
            spans.push(Span::styled(right(&words::bottle_age(bottle, now), AGE), weight));
        }
        // The budgets of a bottle that has ended say nothing about it.
        let meter = bottle.meters.first().filter(|_| !has_ended);
        if self.bar > 0 {
            match meter {
                Some(meter) => spans.extend(bar(meter, self.bar, styles)),
                None => spans.push(Span::raw(" ".repeat(self.bar))),
            }
            spans.push(Span::raw("  "));
        }
        let style = meter.map_or(Style::new(), |meter| tinted(level_color(meter.level()), styles));
        let percent = meter.map_or_else(|| "-".to_owned(), |meter| format!("{}%", meter.percent()));
        spans.push(Span::styled(right(&percent, PERCENT), style));
        if self.rate {
            spans.push(Span::raw(right(&words::tokens(bottle.rate()), RATE)));
        }
        if self.left {
            let left = meter.map_or_else(|| "-".to_owned(), |meter| words::outlook(meter.outlook()));
            spans.push(Span::styled(right(&left, LEFT), style));
        }
        if self.tokens {
            spans.push(Span::raw(right(&words::tokens(bottle.tokens), TOKENS)));
        }
        if self.spark > 0 {
            spans.push(Span::styled(sparkline(&bottle.recent, styles), tinted(Color::Cyan, styles)));
        }
        Line::from(spans)
    }
}

/// Returns a preview of the bottle under the cursor, below a blank line.
fn preview(bottle: &Bottle, columns: usize, styles: Styles, now: Timestamp) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default(), bottle_text::title(bottle, columns, styles, now)];
    if let Some(problem) = &bottle.problem {
        lines.extend(remark(problem, "  ", Color::Red, columns, styles));
    }
    if let Some(why) = &bottle.paused {
        lines.extend(remark(why, "  ", Color::Yellow, columns, styles));
    }
    if bottle.meters.is_empty() && bottle.problem.is_none() {
        lines.push(Line::styled("  no budget governs it", dim()));
    }
    for meter in &bottle.meters {
        lines.push(meter_line(meter, columns, styles));
    }
    lines
}

/// Formats a budget on one line, without a bar.
fn meter_line(meter: &Meter, columns: usize, styles: Styles) -> Line<'static> {
    let standing = meter.standing;
    let reserved = match standing.reserved {
        0 => String::new(),
        reserved => format!(", {} reserved", words::tokens(reserved)),
    };
    let text = format!(
        "  {}: {} of {}{reserved}",
        words::budget(&meter.declared),
        words::tokens(standing.spent),
        words::tokens(standing.limit),
    );
    let at_rate = match meter.rate {
        0 => String::new(),
        rate => format!(", {}/min", words::tokens(rate)),
    };
    let end = format!("  {}%{at_rate}", meter.percent());
    let text = fitted(&text, columns.saturating_sub(end.len()), styles);
    Line::from(vec![Span::raw(text), Span::styled(end, tinted(level_color(meter.level()), styles))])
}

fn nothing(columns: usize, styles: Styles) -> Vec<Line<'static>> {
    let text = [
        ("No bottle is running.", bold()),
        ("", Style::new()),
        (
            "`bottle start` starts one: it appears here with its budgets, its usage and its proposals.",
            Style::new(),
        ),
        ("Press 2 for what earlier bottles used.", Style::new()),
    ];
    let lines = text.iter().flat_map(|(text, style)| {
        wrapped(text, columns.max(2), styles).into_iter().map(|line| Line::styled(line, *style))
    });
    std::iter::once(Line::default()).chain(lines).collect()
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

/// Returns the lines of the message, or of the explanation of a question.
fn word(state: &State, columns: usize, styles: Styles, now: Timestamp) -> Vec<Line<'static>> {
    let message = state.message(now);
    let lines = |text: &str, style: Style| {
        let lines = wrapped(text, columns.max(2), styles).into_iter().take(WORD_ROWS);
        lines.map(|line| Line::styled(line, style)).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    if let Some(message) = message {
        let color = match message.tone {
            Tone::Good => Color::Green,
            Tone::Bad => Color::Red,
            Tone::Plain => Color::Cyan,
        };
        all.extend(lines(&message.words, tinted(color, styles)));
    }
    if let Some((about, _)) = state.prompt() {
        let style = if state.asks_to_delete() { tinted(Color::Red, styles) } else { Style::new() };
        all.extend(about.iter().flat_map(|text| lines(text, style)));
    }
    all
}

/// Returns the bottom line: the prompt, or as much of the key help as fits.
fn bottom(state: &State, scrolls: bool, columns: usize, styles: Styles) -> Line<'static> {
    if let Some((_, question)) = state.prompt() {
        let question = fitted(&question, columns.saturating_sub(1), styles);
        let style = if state.asks_to_delete() { tinted(Color::Red, styles).patch(bold()) } else { bold() };
        return Line::from(vec![Span::styled(question, style), Span::styled("_", bold())]);
    }
    let own = state.current().map_or("z pause", own_key);
    let key = own.get(..1).unwrap_or_default();
    let words = match (state.view(), state.current()) {
        (View::Bottles, None) if state.hidden().is_some() => {
            vec!["1 2 3 Tab views   / filter   e ended   ? help   q quits".to_owned()]
        }
        (View::Bottles, None) => vec!["1 2 3 Tab views   ? help   q quits".to_owned()],
        (View::Bottles, Some(_)) => vec![
            format!(
                "Enter details   b raise budget   s stop   {own}   p proposals   / filter   e ended   ? help   q quits"
            ),
            format!("Enter details  b budget  s stop  {own}  p proposals  / filter  ? q quits"),
            format!("Enter  b  s  {key}  p  Tab  ?  q quits"),
        ],
        (View::Bottle, _) if scrolls => vec![
            format!(
                "Up Down scroll   n next   b raise budget   s stop   {own}   p proposals   Esc back   ? help   q quits"
            ),
            format!("Up Down scroll  n next  b budget  s stop  {own}  Esc back  ? help  q quits"),
            format!("Up Down  n  b  s  {key}  p  Esc  ?  q quits"),
        ],
        (View::Bottle, _) => vec![
            format!("n next   b raise budget   s stop   {own}   p proposals   Esc back   ? help   q quits"),
            format!("n next  b budget  s stop  {own}  p proposals  Esc back  ? help  q quits"),
            format!("n  b  s  {key}  p  Esc  ?  q quits"),
        ],
        _ => [
            "d day   p provider   a agent   b bottle   m model   t time   Esc back   ? help   q quits",
            "d day  p provider  a agent  b bottle  m model  t time  Esc back  q quits",
            "d p a b m  t  Esc  ?  q quits",
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    let fits = words.iter().find(|words| measure_text_width(words) <= columns).or(words.last());
    Line::styled(fits.cloned().unwrap_or_default(), dim())
}

/// Returns the help for the key that suits the state of a bottle best.
fn own_key(bottle: &Bottle) -> &'static str {
    if bottle.can_discard() {
        "d discard"
    } else if bottle.paused.is_some() {
        "z continue"
    } else if bottle.cut_off {
        "c continue"
    } else {
        "z pause"
    }
}
