//! Parts of several pages: text, states, bars and charts. Every meaning of a colour is also in words.

use bottle_keeper::ledger::Totals;
use bottle_lib::dashboard::model::{Bottle, Level, Meter, Outlook, RECENT_MINUTES, StateTone};
use bottle_lib::dashboard::words;
use maud::{Markup, html};

use crate::console::output::{counted, one_line};

/// The width of a bar, in units of its SVG view box.
pub(super) const BAR: usize = 1000;

/// The height of the chart of the last minutes, in units of its SVG view box.
const CURVE: u64 = 32;

/// Returns the messages about data that could not be read.
pub(super) fn problems(problems: &[String]) -> Markup {
    html! { @for problem in problems { p .message .bad { (visible(problem)) } } }
}

/// Formats text from a bottle on one line, with control characters made visible.
pub(super) fn visible(text: &str) -> String {
    one_line(text)
}

/// Returns a number below its name.
pub(super) fn number(name: &str, value: &str) -> Markup {
    html! { div.number { span.name { (name) } span.value { (value) } } }
}

/// Returns the state of a bottle in words, and a link to its questions.
pub(super) fn state(bottle: &Bottle, directory: &str) -> Markup {
    let tone = match bottle.tone() {
        StateTone::Good => "good",
        StateTone::Notice => "warn",
        StateTone::Bad => "bad",
        StateTone::Kept => "kept",
        StateTone::Quiet => "quiet-state",
    };
    html! {
        span.state.(tone) { (bottle.word()) }
        @if bottle.proposals > 0 {
            " " a.state.ask href={ (directory) "proposals" } { (counted(bottle.proposals, "question")) }
        }
    }
}

/// Returns how long a budget lasts.
pub(super) fn outlook(meter: &Meter) -> Markup {
    html! { span.(level_class(meter.level())) { (words::outlook(meter.outlook())) } }
}

/// Returns the used share of a budget, and how long the budget lasts, as a sentence fragment.
pub(super) fn used(meter: &Meter) -> Markup {
    html! {
        span.(level_class(meter.level())) {
            (meter.percent()) "% used, "
            @match meter.outlook() {
                Outlook::Spent => "nothing left",
                Outlook::Idle => "idle",
                Outlook::Minutes(minutes) => {
                    (words::minutes(minutes)) " left at " (words::tokens(meter.rate)) " a minute"
                }
            }
        }
    }
}

fn level_class(level: Level) -> &'static str {
    match level {
        Level::Low => "low",
        Level::High => "high",
        Level::Spent => "spent",
    }
}

/// Returns a bar with the spent, reserved and free tokens of a budget. The label of the bar contains the numbers.
pub(super) fn meter_bar(meter: &Meter) -> Markup {
    let (spent, reserved) = meter.cells(BAR);
    let standing = meter.standing;
    let label = format!(
        "{} of {} tokens spent, {} reserved",
        words::grouped(standing.spent),
        words::grouped(standing.limit),
        words::grouped(standing.reserved)
    );
    html! {
        svg.bar.(level_class(meter.level())) viewBox={ "0 0 " (BAR) " 10" } preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.free x="0" y="0" width=(BAR) height="10" {}
            rect.used x="0" y="0" width=(spent) height="10" {}
            rect.reserved x=(spent) y="0" width=(reserved) height="10" {}
        }
    }
}

/// Returns a chart of the tokens of the last minutes, with the scales of both axes.
pub(super) fn chart(recent: &[u64]) -> Markup {
    let most = most(recent);
    html! {
        div.number.wide {
            span.name { "Tokens in each of the last " (RECENT_MINUTES) " minutes" }
            div.chart {
                span.scale aria-hidden="true" { span { (words::tokens(most)) } span { "0" } }
                (curve(recent, most))
                span.times aria-hidden="true" { span { (RECENT_MINUTES) " min ago" } span { "now" } }
            }
        }
    }
}

/// Returns the largest number of tokens in a minute.
pub(super) fn most(recent: &[u64]) -> u64 {
    recent.iter().copied().max().unwrap_or(0)
}

/// Returns a bar chart of the tokens of the last minutes. A bar of the full height has `top` tokens.
pub(super) fn curve(recent: &[u64], top: u64) -> Markup {
    let height = |tokens: u64| match (tokens, top) {
        (0, _) | (_, 0) => 0,
        _ => {
            let height = u128::from(tokens.min(top)) * u128::from(CURVE) / u128::from(top);
            u64::try_from(height).unwrap_or(0).max(1)
        }
    };
    let label = match most(recent) {
        0 => "no tokens in the last 30 minutes".to_owned(),
        most => format!("at most {} tokens in a minute", words::tokens(most)),
    };
    html! {
        svg.curve viewBox={ "0 0 " (RECENT_MINUTES * 4) " " (CURVE) } preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (at, tokens) in recent.iter().enumerate() {
                rect x=(at * 4) y=(CURVE - height(*tokens)) width="3" height=(height(*tokens)) {}
            }
            rect.base x="0" y=(CURVE - 1) width=(RECENT_MINUTES * 4) height="1" {}
        }
    }
}

/// Returns the numbers of all tokens, input tokens, output tokens, cached tokens and responses.
pub(super) fn counts(totals: &Totals) -> [u64; 5] {
    let cache = totals.cache_read.saturating_add(totals.cache_write);
    [totals.total(), totals.input, totals.output, cache, totals.responses]
}
