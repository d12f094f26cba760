//! The list of bottles, in groups. On a narrow screen, each row of a table becomes a card, so the rows name their roles
//! and the titles of their columns.

use bottle_lib::dashboard::model::{Bottle, Filter, Group, Snapshot, rate};
use bottle_lib::dashboard::words;
use jiff::Timestamp;
use maud::{Markup, html};

use super::parts::{chart, curve, meter_bar, most, number, outlook, problems, state, visible};

/// Returns the query fields of a filter.
pub(in crate::web) fn filter_query(filter: &Filter) -> Vec<(&'static str, &str)> {
    let text = Some(filter.text()).filter(|text| !text.is_empty());
    let group = filter.group.map(Group::name);
    text.map(|text| ("q", text)).into_iter().chain(group.map(|group| ("show", group))).collect()
}

/// Returns the form that filters the list.
pub(in crate::web) fn filter_form(filter: &Filter, directory: &str) -> Markup {
    html! {
        form.filter role="search" action=(directory) {
            div {
                label for="q" { "Filter" }
                input #q type="search" name="q" value=(filter.text()) maxlength="100" autocomplete="off" placeholder="name, agent, state";
            }
            div {
                label for="show" { "Show" }
                select #show name="show" {
                    option value="" { "All bottles" }
                    @for group in Group::ALL {
                        option value=(group.name()) selected[filter.group == Some(group)] { (group.title()) }
                    }
                }
            }
            button type="submit" { "Apply" }
            @if !filter.is_empty() { a.button href=(directory) { "Show all" } }
        }
    }
}

/// Returns the list of the bottles that the filter shows.
pub(in crate::web) fn bottles(snapshot: &Snapshot, filter: &Filter, directory: &str) -> Markup {
    let in_group = |group: Group| {
        let bottles = snapshot.bottles.iter().filter(move |bottle| bottle.group() == group);
        bottles.collect::<Vec<&Bottle>>()
    };
    let shown = |group: Group| {
        let bottles = in_group(group).into_iter().filter(|bottle| filter.shows(bottle));
        bottles.collect::<Vec<&Bottle>>()
    };
    let [waiting, running, kept, ended] = Group::ALL.map(shown);
    let is_empty = [&waiting, &running, &kept, &ended].iter().all(|bottles| bottles.is_empty());
    html! {
        (problems(&snapshot.problems))
        @if !snapshot.bottles.is_empty() {
            div.numbers {
                (number(Group::Waiting.title(), &in_group(Group::Waiting).len().to_string()))
                (number(Group::Running.title(), &in_group(Group::Running).len().to_string()))
                (number("Tokens a minute", &words::tokens(rate(&snapshot.recent))))
                (chart(&snapshot.recent))
            }
        }
        @if snapshot.bottles.is_empty() {
            (nothing(directory))
        } @else if is_empty {
            div.empty {
                h2 { "No bottle matches the filter" }
                p { a href=(directory) { "Show all bottles" } }
            }
        }
        @if !waiting.is_empty() || !running.is_empty() {
            (active([(Group::Waiting, waiting), (Group::Running, running)], snapshot.at, directory))
        }
        (past(Group::Kept, &kept, true, snapshot.at, directory))
        (past(Group::Ended, &ended, !filter.is_empty(), snapshot.at, directory))
    }
}

fn nothing(directory: &str) -> Markup {
    html! {
        div.empty {
            h2 { "No bottle is running" }
            p { code { "bottle start" } " starts one. It appears here with its budgets, its usage and its proposals." }
            p { a href={ (directory) "usage" } { "What earlier bottles used" } }
        }
    }
}

/// Returns the table of the bottles that are not at their end. The charts of all bottles have the same scale.
fn active(groups: [(Group, Vec<&Bottle>); 2], at: Timestamp, directory: &str) -> Markup {
    let all = groups.iter().flat_map(|(_, bottles)| bottles);
    let top = all.map(|bottle| most(&bottle.recent)).max().unwrap_or(0);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Bottles" {
            table.stack role="table" {
                thead role="rowgroup" {
                    tr role="row" {
                        th scope="col" role="columnheader" { "Bottle" }
                        th scope="col" role="columnheader" { "State" }
                        th scope="col" role="columnheader" { "Budget that ends first" }
                        th scope="col" role="columnheader" .n { "Time left" }
                        th scope="col" role="columnheader" .n { "Age" }
                        th scope="col" role="columnheader" .n { "Tokens a minute" }
                        th scope="col" role="columnheader" .n { "Tokens" }
                        th scope="col" role="columnheader" {
                            "Last 30 minutes" span.about { "0 to " (words::tokens(top)) " a minute" }
                        }
                    }
                }
                @for (group, bottles) in &groups {
                    @if !bottles.is_empty() {
                        tbody.(group.name()) role="rowgroup" {
                            tr.group role="row" {
                                th scope="rowgroup" role="rowheader" colspan="8" { (group.title()) " (" (bottles.len()) ")" }
                            }
                            @for bottle in bottles { (active_row(bottle, top, at, directory)) }
                        }
                    }
                }
            }
        }
    }
}

fn name_cell(bottle: &Bottle, directory: &str) -> Markup {
    let slug = bottle.slug.as_str();
    html! {
        th scope="row" role="rowheader" {
            a id={ "b-" (slug) } href={ (directory) "bottles/" (slug) } { (slug) }
            @if !bottle.agent.is_empty() { span.about { (visible(&bottle.agent)) } }
        }
    }
}

fn active_row(bottle: &Bottle, top: u64, at: Timestamp, directory: &str) -> Markup {
    html! {
        tr role="row" {
            (name_cell(bottle, directory))
            td role="cell" data-title="State" {
                (state(bottle, directory))
                @if let Some(why) = bottle.problem.as_ref().or(bottle.paused.as_ref()) { span.about { (visible(why)) } }
            }
            @match bottle.meters.first() {
                Some(meter) => {
                    td role="cell" data-title="Budget that ends first" {
                        (meter_bar(meter))
                        span.about { (meter.percent()) "% of " (words::tokens(meter.standing.limit)) ", " (words::budget(&meter.declared)) }
                    }
                    td role="cell" .n data-title="Time left" { (outlook(meter)) }
                }
                None => {
                    td role="cell" data-title="Budget that ends first" { span.quiet { "none" } }
                    td role="cell" .n data-title="Time left" { "-" }
                }
            }
            td role="cell" .n data-title="Age" { (words::bottle_age(bottle, at)) }
            td role="cell" .n data-title="Tokens a minute" { (words::tokens(bottle.rate())) }
            td role="cell" .n data-title="Tokens" { (words::tokens(bottle.tokens)) }
            td role="cell" data-title="Last 30 minutes" { (curve(&bottle.recent, top)) }
        }
    }
}

/// Returns the bottles of a group that have ended, as a table that can be folded.
fn past(group: Group, bottles: &[&Bottle], is_open: bool, at: Timestamp, directory: &str) -> Markup {
    let about = match group {
        Group::Kept => "Ended, and can be resumed: what is kept waits until you resume or discard it.",
        _ => "Ended, and nothing is kept.",
    };
    html! {
        @if !bottles.is_empty() {
            details.fold.(group.name()) id={ "g-" (group.name()) } open[is_open] {
                summary { h2 { (group.title()) " (" (bottles.len()) ")" } span.quiet { (about) } }
                div.scroll tabindex="0" role="region" aria-label={ (group.title()) " bottles" } {
                    table.stack.past role="table" {
                        thead role="rowgroup" {
                            tr role="row" {
                                th scope="col" role="columnheader" { "Bottle" }
                                th scope="col" role="columnheader" { (if group == Group::Kept { "Kept" } else { "State" }) }
                                th scope="col" role="columnheader" .n { "Age" }
                                th scope="col" role="columnheader" .n { "Tokens" }
                            }
                        }
                        tbody role="rowgroup" { @for bottle in bottles { (past_row(bottle, at, directory)) } }
                    }
                }
            }
        }
    }
}

fn past_row(bottle: &Bottle, at: Timestamp, directory: &str) -> Markup {
    html! {
        tr role="row" {
            (name_cell(bottle, directory))
            td role="cell" data-title="State" { (state(bottle, directory)) }
            td role="cell" .n data-title="Age" { (words::bottle_age(bottle, at)) }
            td role="cell" .n data-title="Tokens" { (words::tokens(bottle.tokens)) }
        }
    }
}
