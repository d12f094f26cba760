//! The page of one bottle in full.

use bottle_lib::access_log::{Shown, Tone};
use bottle_lib::dashboard::action::{Action, actions_for};
use bottle_lib::dashboard::model::{Bottle, Detail, Meter, Snapshot};
use bottle_lib::dashboard::words;
use jiff::tz::TimeZone;
use maud::{Markup, html};

use super::parts::{chart, counts, meter_bar, number, problems, state, used, visible};
use crate::console::output::counted;
use crate::web::form::query;

/// Returns the page of one bottle in full.
pub(in crate::web) fn bottle(
    bottle: &Bottle,
    detail: Option<&Detail>,
    snapshot: &Snapshot,
    directory: &str,
) -> Markup {
    let base = format!("{directory}bottles/{}", bottle.slug);
    let (destructive, others): (Vec<_>, Vec<_>) =
        actions_for(bottle).into_iter().partition(Action::is_destructive);
    html! {
        (problems(&snapshot.problems))
        (facts(bottle, snapshot, directory))
        @if bottle.proposals > 0 {
            p.actions {
                a.button.main #a-proposals href={ (directory) "proposals" } { "Answer " (counted(bottle.proposals, "question")) "…" }
            }
        }
        (actions("Control", "control", false, &others, &base))
        section aria-labelledby="budgets" {
            h2 #budgets { "Budgets" }
            @if bottle.meters.is_empty() { p.quiet { "No budget governs this bottle." } }
            @for (at, meter) in bottle.meters.iter().enumerate() { (meter_card(meter, at, &base)) }
        }
        section aria-labelledby="tokens" {
            h2 #tokens { "Tokens" }
            div.numbers {
                (number("Tokens a minute", &words::tokens(bottle.rate())))
                (number("All launches", &words::tokens(bottle.tokens)))
                (chart(&bottle.recent))
            }
            @if let Some(detail) = detail { (sources(detail, snapshot.currency.as_deref())) }
        }
        @if let Some(detail) = detail { (decisions(detail)) }
        (actions("Delete its work", "delete", true, &destructive, &base))
    }
}

fn facts(bottle: &Bottle, snapshot: &Snapshot, directory: &str) -> Markup {
    let slug = bottle.slug.as_str();
    html! {
        p.facts {
            (state(bottle, directory)) " "
            @if let Some(label) = bottle.label.as_ref().filter(|label| *label != slug) { span { (visible(label)) } " " }
            @if !bottle.agent.is_empty() {
                span { (visible(&bottle.agent)) @if !bottle.bottles.is_empty() { " in " (visible(&bottle.bottles.join(", "))) } } " "
            }
            @if !bottle.backend.is_empty() { span { (bottle.backend) } " " }
            @if bottle.started_at.is_some() { span { "started " (words::bottle_age(bottle, snapshot.at)) " ago" } }
        }
        @if let Some(why) = &bottle.problem { p .message .bad { (visible(why)) } }
        @if let Some(why) = &bottle.paused { p .message .warn { "Paused: " (visible(why)) } }
        @if bottle.cut_off { p .message .warn { "Cut off: its requests to models are denied." } }
    }
}

/// Returns the actions, each with a sentence that says what it does.
fn actions(title: &str, id: &str, is_destructive: bool, actions: &[Action], base: &str) -> Markup {
    html! {
        @if !actions.is_empty() {
            section aria-labelledby=(id) {
                h2 id=(id) { (title) }
                ul.action-list.danger-zone[is_destructive] {
                    @for action in actions {
                        li {
                            a.button.danger[is_destructive] id={ "a-" (action.name()) } href={ (base) "/" (action.name()) } aria-describedby={ "d-" (action.name()) } {
                                (action.verb()) "…"
                            }
                            span id={ "d-" (action.name()) } { (action.effect()) }
                        }
                    }
                }
            }
        }
    }
}

fn meter_card(meter: &Meter, at: usize, base: &str) -> Markup {
    let standing = meter.standing;
    let limit = &meter.declared.limit;
    let (scope, window) = (meter.declared.scope.to_string(), limit.window.to_string());
    let raise = query(&[("scope", &scope), ("provider", &limit.key), ("window", &window)]);
    let name = words::budget(&meter.declared);
    html! {
        div.card {
            div.line { strong { (name) } (used(meter)) }
            (meter_bar(meter))
            div.ends aria-hidden="true" { span { "0" } span { (words::tokens(standing.limit)) } }
            div.line {
                span {
                    (words::grouped(standing.spent)) " of " (words::grouped(standing.limit)) " tokens"
                    @if standing.reserved > 0 { ", " (words::grouped(standing.reserved)) " reserved" }
                    span.about { "declared in " (visible(&meter.declared.origin)) }
                }
                a.button id={ "raise-" (at) } href={ (base) "/raise?" (raise) } aria-label={ "Raise " (name) } { "Raise…" }
            }
        }
    }
}

fn sources(detail: &Detail, currency: Option<&str>) -> Markup {
    html! {
        @if detail.sources.is_empty() {
            p.quiet { "No model has responded in the last 7 days." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Usage by model" {
                table {
                    caption { "By model, last 7 days" }
                    thead {
                        tr {
                            th scope="col" { "Model" } th scope="col" { "Asked by" }
                            @for name in ["Tokens", "Input", "Output", "Cache", "Answers"] { th scope="col" .n { (name) } }
                            @if let Some(currency) = currency { th scope="col" .n { (currency) } }
                        }
                    }
                    tbody {
                        @for (at, source) in detail.sources.iter().enumerate() {
                            tr {
                                th scope="row" { (known(&source.model)) }
                                td { (if source.source.is_empty() { "-" } else { &source.source }) }
                                @for count in counts(&source.totals) { td .n { (words::tokens(count)) } }
                                @if currency.is_some() {
                                    td .n { (detail.costs.get(at).map(ToString::to_string).unwrap_or_default()) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn known(name: &str) -> String {
    if name.is_empty() { "unknown".to_owned() } else { visible(name) }
}

fn decisions(detail: &Detail) -> Markup {
    html! {
        section aria-labelledby="decisions" {
            h2 #decisions { "Egress decisions" }
            @if detail.decisions.is_empty() {
                p.quiet { "None are logged. " code { "egress.log" } " in the bottle manifest sets what is." }
            } @else {
                div.scroll.tall tabindex="0" role="region" aria-label="Egress decisions, newest first" {
                    table.log {
                        thead {
                            tr { @for name in ["Time", "Decision", "Method", "Request", "Why"] { th scope="col" { (name) } } }
                        }
                        tbody { @for shown in &detail.decisions { (decision(shown)) } }
                    }
                }
            }
        }
    }
}

fn decision(shown: &Shown) -> Markup {
    let tone = match shown.tone {
        Tone::Good => "good",
        Tone::Notable => "warn",
        Tone::Bad => "bad",
        Tone::Plain => "plain",
    };
    let zone = TimeZone::system();
    html! {
        tr {
            td { @if let Some(time) = shown.time { time datetime=(time) { (time.to_zoned(zone).strftime("%H:%M:%S").to_string()) } } }
            td { span.state.(tone) { (shown.verdict) } }
            td { (shown.method) }
            td .request { (shown.place) }
            td { (shown.explanation) }
        }
    }
}
