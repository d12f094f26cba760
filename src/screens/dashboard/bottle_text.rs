//! One bottle in full, as lines of text: its budgets, its usage by model, and the last decisions of the proxy.

use bottle_keeper::ledger::SourceUsage;
use dialoguer::console::measure_text_width;
use jiff::Timestamp;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::cells::{bar, level_color, remark, right, sparkline, state_words};
use super::state::State;
use crate::console::output::one_line;
use crate::console::style::Styles;
use crate::console::text_layout::{bold, dim, fitted, padded, tinted};
use bottle_lib::access_log::{Shown, Tone};
use bottle_lib::dashboard::model::{Bottle, Detail, Meter, Outlook};
use bottle_lib::dashboard::words;

/// The width of a bar, in columns.
const BAR: usize = 24;

/// The widths of the columns in the tables of models and of decisions.
const MODEL: usize = 28;
const SOURCE: usize = 8;
const COUNT: usize = 7;
const VERDICT: usize = 8;
const METHOD: usize = 7;
const PLACE: usize = 34;

/// Returns the heading of a bottle: its name, state and agent.
pub(super) fn title(bottle: &Bottle, columns: usize, styles: Styles, now: Timestamp) -> Line<'static> {
    let (state, color) = state_words(bottle);
    let mut about = Vec::new();
    if let Some(label) = bottle.label.as_ref().filter(|label| *label != bottle.slug.as_str()) {
        about.push(one_line(label));
    }
    if !bottle.agent.is_empty() {
        let bottles = bottle.bottles.join(", ");
        let inside = if bottles.is_empty() { String::new() } else { format!(" in {bottles}") };
        about.push(format!("{}{inside}", bottle.agent));
    }
    about.extend((!bottle.backend.is_empty()).then(|| bottle.backend.clone()));
    about.extend(bottle.mode.filter(|_| bottle.can_stop()).map(str::to_owned));
    about.extend(bottle.started_at.map(|at| format!("started {} ago", words::age(at, now))));
    let slug = format!("{}  ", bottle.slug);
    let taken = slug.len() + state.len() + 2;
    let about = fitted(&about.join(", "), columns.saturating_sub(taken), styles);
    Line::from(vec![
        Span::styled(slug, bold()),
        Span::styled(format!("{state}  "), tinted(color, styles)),
        Span::styled(about, dim()),
    ])
}

/// Returns the text about the bottle under the cursor.
pub(super) fn lines(state: &State, columns: usize, styles: Styles) -> Vec<Line<'static>> {
    let Some(bottle) = state.current() else { return Vec::new() };
    let snapshot = state.snapshot();
    let mut lines = vec![title(bottle, columns, styles, snapshot.at)];
    if let Some(problem) = &bottle.problem {
        lines.extend(remark(problem, "", Color::Red, columns, styles));
    }
    if let Some(why) = &bottle.paused {
        lines.extend(remark(why, "", Color::Yellow, columns, styles));
    }
    lines.push(Line::default());
    budgets(bottle, columns, styles, &mut lines);
    lines.push(Line::default());
    let spark = Span::styled(sparkline(&bottle.recent, styles), tinted(Color::Cyan, styles));
    let rate = format!(
        "  {} tokens/min over 10 minutes, {} tokens in all launches",
        words::tokens(bottle.rate()),
        words::tokens(bottle.tokens)
    );
    let room = columns.saturating_sub(bottle.recent.len());
    let mut last = vec![spark];
    if columns > bottle.recent.len() + 20 {
        last.push(Span::raw(fitted(&rate, room, styles)));
    }
    lines.push(Line::styled("Tokens of the last 30 minutes", bold()));
    lines.push(Line::from(last));
    lines.push(Line::default());
    match state.detail() {
        None => lines.push(Line::styled("reading usage and decisions", dim())),
        Some(detail) => {
            models(detail, snapshot.currency.as_deref(), columns, styles, &mut lines);
            lines.push(Line::default());
            decisions(detail, columns, styles, &mut lines);
        }
    }
    lines
}

fn budgets(bottle: &Bottle, columns: usize, styles: Styles, lines: &mut Vec<Line<'static>>) {
    lines.push(Line::styled("Budgets", bold()));
    if bottle.meters.is_empty() {
        lines.push(Line::styled("  no budget governs this bottle", dim()));
    }
    for meter in &bottle.meters {
        lines.extend(meter_lines(meter, columns, styles));
    }
}

fn meter_lines(meter: &Meter, columns: usize, styles: Styles) -> [Line<'static>; 3] {
    let color = tinted(level_color(meter.level()), styles);
    let outlook = match meter.outlook() {
        Outlook::Spent => "nothing left".to_owned(),
        Outlook::Idle => "idle".to_owned(),
        Outlook::Minutes(minutes) => {
            let rate = words::tokens(meter.rate);
            format!("{} left at {rate} tokens/min", words::minutes(minutes))
        }
    };
    let standing = meter.standing;
    let reserved = match standing.reserved {
        0 => String::new(),
        reserved => format!(", {} reserved", words::grouped(reserved)),
    };
    let numbers =
        format!("{} of {} tokens{reserved}", words::grouped(standing.spent), words::grouped(standing.limit));
    let mut first = vec![Span::raw("  ")];
    let width = BAR.min(columns / 3);
    first.extend(bar(meter, width, styles));
    let room = columns.saturating_sub(width + 3);
    let words = format!(" {}%  {outlook}", meter.percent());
    first.push(Span::styled(fitted(&words, room, styles), color));
    let room = columns.saturating_sub(2);
    let name = format!("{}: {numbers}", words::budget(&meter.declared));
    let origin = format!("declared in {}", meter.declared.origin);
    [
        Line::from(first),
        Line::raw(format!("  {}", fitted(&name, room, styles))),
        Line::styled(format!("  {}", fitted(&origin, room, styles)), dim()),
    ]
}

fn models(
    detail: &Detail,
    currency: Option<&str>,
    columns: usize,
    styles: Styles,
    lines: &mut Vec<Line<'static>>,
) {
    lines.push(Line::styled("Usage by model, last 7 days", bold()));
    if detail.sources.is_empty() {
        lines.push(Line::styled("  no model has responded in this time", dim()));
        return;
    }
    let name = |source: &SourceUsage| measure_text_width(&source.model);
    let widest = detail.sources.iter().map(name).max().unwrap_or(0).max("unknown".len());
    let model = widest.min(MODEL).min(columns / 3);
    let cost_width = if currency.is_some() { COUNT + 2 } else { 0 };
    let taken = 2 + model + 2 + SOURCE + 2 + cost_width;
    // The total is always shown. The other counts are shown as far as they fit.
    let shown = (columns.saturating_sub(taken) / (COUNT + 2)).clamp(1, 5);
    let row = |name: &str, source: &str, counts: [String; 5], cost: Option<String>| {
        let mut text = format!("  {}{}", padded(name, model, styles), padded(source, SOURCE, styles));
        text.extend(counts.iter().take(shown).map(|count| right(count, COUNT)));
        text.extend(cost.map(|cost| right(&cost, COUNT)));
        text.trim_end().to_owned()
    };
    let cost_title = currency.map(str::to_owned);
    let titles = ["TOKENS", "INPUT", "OUTPUT", "CACHE", "ANSWERS"].map(str::to_owned);
    lines.push(Line::styled(row("MODEL", "BY", titles, cost_title), dim()));
    for (at, source) in detail.sources.iter().enumerate() {
        let totals = source.totals;
        let cache = totals.cache_read.saturating_add(totals.cache_write);
        let counts =
            [totals.total(), totals.input, totals.output, cache, totals.responses].map(words::tokens);
        let name = if source.model.is_empty() { "unknown" } else { &source.model };
        let by = if source.source.is_empty() { "-" } else { &source.source };
        let cost = detail.costs.get(at).map(|cost| cost.to_string());
        lines.push(Line::raw(row(name, by, counts, cost)));
    }
}

fn decisions(detail: &Detail, columns: usize, styles: Styles, lines: &mut Vec<Line<'static>>) {
    lines.push(Line::styled("Egress decisions, newest first", bold()));
    if detail.decisions.is_empty() {
        let why = "  none are logged: `egress.log` in the bottle manifest sets what is";
        lines.push(Line::styled(fitted(why, columns, styles), dim()));
    }
    for decision in &detail.decisions {
        lines.push(decision_line(decision, columns, styles));
    }
}

fn decision_line(decision: &Shown, columns: usize, styles: Styles) -> Line<'static> {
    let color = match decision.tone {
        Tone::Good => tinted(Color::Green, styles),
        Tone::Notable => tinted(Color::Yellow, styles),
        Tone::Bad => tinted(Color::Red, styles),
        Tone::Plain => Style::new(),
    };
    let zone = jiff::tz::TimeZone::system();
    let time =
        decision.time.map_or_else(String::new, |time| time.to_zoned(zone).strftime("%H:%M:%S").to_string());
    let place = if decision.explanation.is_empty() { usize::MAX } else { PLACE };
    let verdict = padded(&decision.verdict, VERDICT, styles);
    let method = padded(&decision.method, METHOD, styles);
    let before = 2 + 10 + VERDICT + 2 + METHOD + 2;
    let place = place.min(columns.saturating_sub(before).max(1));
    let rest = format!("{}{}", padded(&decision.place, place, styles), decision.explanation);
    Line::from(vec![
        Span::styled(format!("  {}", padded(&time, 8, styles)), dim()),
        Span::styled(verdict, color),
        Span::raw(method),
        Span::raw(fitted(rest.trim_end(), columns.saturating_sub(before), styles)),
    ])
}
