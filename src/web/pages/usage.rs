//! The page of usage.

use bottle_keeper::ledger::GroupBy;
use bottle_lib::dashboard::model::{GROUPINGS, Period, Snapshot, UsageRow, UsageTable, grouping_name, share};
use bottle_lib::dashboard::words;
use maud::{Markup, html};

use super::parts::{BAR, counts, problems, visible};
use crate::console::output::counted;
use crate::web::form::query;

/// Returns a usage table, with a note if tokens are estimated.
pub(in crate::web) fn usage(table: Option<&UsageTable>, snapshot: &Snapshot) -> Markup {
    html! {
        (problems(&snapshot.problems))
        @match table {
            None => p.quiet { "The ledger cannot be read." },
            Some(table) if table.rows.is_empty() => p.empty { "No model has responded in this time." },
            Some(table) => {
                (usage_table(table, snapshot.currency.as_deref()))
                @if table.sum.totals.estimated > 0 {
                    p.quiet {
                        "The tokens of " (counted(table.sum.totals.estimated, "answer"))
                        " are estimated, because no complete count arrived."
                    }
                }
            }
        }
    }
}

/// Returns the links that choose a grouping and a period.
pub(in crate::web) fn usage_choices(by: GroupBy, period: Period, directory: &str) -> Markup {
    let link = |by: &str, period: Period| {
        format!("{directory}usage?{}", query(&[("by", by), ("period", period.name())]))
    };
    html! {
        div.choices {
            nav aria-label="Sum up by" {
                ul {
                    @for (known, name) in GROUPINGS {
                        li { a href=(link(name, period)) aria-current=[(known == by).then_some("true")] { "By " (name) } }
                    }
                }
            }
            nav aria-label="Time" {
                ul {
                    @for known in Period::ALL {
                        li { a href=(link(grouping_name(by), known)) aria-current=[(known == period).then_some("true")] { (known.words()) } }
                    }
                }
            }
        }
    }
}

fn usage_table(table: &UsageTable, currency: Option<&str>) -> Markup {
    let (name, all) = (grouping_name(table.by), table.sum.totals.total());
    html! {
        div.scroll tabindex="0" role="region" aria-label="Usage" {
            table {
                thead {
                    tr {
                        th scope="col" .first { (name) }
                        th scope="col" { "Share of all" }
                        @for name in ["Tokens", "Input", "Output", "Cache", "Answers"] { th scope="col" .n { (name) } }
                        @if let Some(currency) = currency { th scope="col" .n { (currency) } }
                    }
                }
                tbody { @for row in &table.rows { (usage_row(row, all, currency.is_some())) } }
                tfoot { (usage_row(&UsageRow { name: "all".to_owned(), ..table.sum.clone() }, all, currency.is_some())) }
            }
        }
    }
}

/// Returns a row. Its bar shows the part of `all` tokens, so that the end of the bar's column is 100 %.
fn usage_row(row: &UsageRow, all: u64, costs: bool) -> Markup {
    let total = row.totals.total();
    let percent = if total == 0 { 0 } else { share(total, all) };
    let width = percent * BAR as u64 / 100;
    html! {
        tr {
            th scope="row" { (visible(words::row_name(row))) }
            td {
                div.share {
                    svg.bar viewBox={ "0 0 " (BAR) " 10" } preserveAspectRatio="none" aria-hidden="true" {
                        rect.free x="0" y="0" width=(BAR) height="10" {}
                        rect.used x="0" y="0" width=(width) height="10" {}
                    }
                    span { (percent) "%" }
                }
            }
            @for count in counts(&row.totals) { td .n { (words::tokens(count)) } }
            @if costs { td .n { (row.cost.map(|cost| cost.to_string()).unwrap_or_default()) } }
        }
    }
}
