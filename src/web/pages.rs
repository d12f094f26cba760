//! The pages, as HTML. The template escapes every text. In text from bottles, control characters and direction marks
//! are made visible, so that they cannot change the meaning of a page.

use bottle_lib::proposals::review::{Listed, Review};
use bottle_protocol::queue::Tool;
use bottle_text::terminal::inert;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, html};

use super::access::Refusal;
use super::assets::{SCRIPT, STYLE};
use super::form::query;
use crate::console::output::{counted, one_line};
use bottle_lib::access_log::{Shown, Tone};
use bottle_lib::dashboard::action::Action;
use bottle_lib::dashboard::model::{
    Bottle, BottleState, Detail, GROUPINGS, Level, Meter, Outlook, Period, RECENT_MINUTES, Snapshot,
    StateTone, UsageRow, UsageTable, grouping_name, rate,
};
use bottle_lib::dashboard::words;

/// The width of a bar, in units of its SVG view box.
const BAR: usize = 1000;

/// The height of the chart of the last minutes, in units of its SVG view box.
const CURVE: u64 = 32;

/// A page, and the parts around its content.
pub(super) struct Page<'p> {
    pub(super) title: String,
    /// The tab that is marked as the current one.
    pub(super) tab: Tab,
    /// The part that does not change while the page is open.
    pub(super) fixed: Markup,
    /// The part that is updated while the page is open, and the address of its events, relative to the directory of all
    /// pages.
    pub(super) live: Option<(Markup, String)>,
    /// The result of the last action.
    pub(super) message: Option<&'p Message>,
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) words: String,
    pub(super) is_error: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Bottles,
    Usage,
    Proposals,
}

impl Page<'_> {
    /// Returns the whole document. `directory` is the directory of all pages. `proposals` is the number of pending
    /// proposals.
    pub(super) fn render(&self, directory: &str, proposals: u32) -> Markup {
        let tabs = [
            (Tab::Bottles, "", "Bottles".to_owned()),
            (Tab::Usage, "usage", "Usage".to_owned()),
            (Tab::Proposals, "proposals", "Proposals".to_owned()),
        ];
        html! {
            (DOCTYPE)
            html lang="en" {
                (head(&self.title, true))
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        span.brand { "bottle" }
                        nav aria-label="Views" {
                            ul {
                                @for (tab, path, name) in &tabs {
                                    li {
                                        a href={ (directory) (path) } aria-current=[(*tab == self.tab).then_some("page")] {
                                            (name)
                                            @if *tab == Tab::Proposals {
                                                " " span #count .count hidden[proposals == 0] { (proposals) }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                    main #main tabindex="-1" {
                        @if let Some(Message { words, is_error }) = self.message {
                            p .message .bad[*is_error] role="status" { (visible(words)) }
                        }
                        (self.fixed)
                        @if let Some((live, events)) = &self.live {
                            div #live data-events={ (directory) (events) } { (live) }
                        }
                    }
                    footer {
                        p #notice .quiet role="status" aria-live="polite" {}
                        @if self.live.is_some() {
                            p #connection .quiet { "This page shows the moment when it was loaded." }
                        }
                    }
                }
            }
        }
    }
}

fn head(title: &str, script: bool) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (visible(title)) " - bottle" }
            link rel="stylesheet" href=(STYLE);
            @if script { script src=(SCRIPT) defer {} }
        }
    }
}

/// Formats text from a bottle on one line, with control characters made visible.
fn visible(text: &str) -> String {
    one_line(text)
}

/// Returns the page that forwards from the one-time link to the dashboard. The browser then navigates from a page of
/// this server, so it sends the cookie no matter where the link was opened.
pub(super) fn opened(directory: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0; url=" (directory) };
                title { "Opening the dashboard" }
                link rel="stylesheet" href=(STYLE);
            }
            body { main { h1 { "Opening the dashboard" } p { a href=(directory) { "Continue" } } } }
        }
    }
}

/// Returns the page that says why a request was refused.
pub(super) fn refused(refusal: Refusal) -> Markup {
    let (title, why, next) = match refusal {
        Refusal::WrongHost => (
            "Wrong address",
            "This server answers only to the address that `bottle dashboard --web` printed.",
            "Open the printed link.",
        ),
        Refusal::UsedLink => (
            "This link was used before",
            "The link of a dashboard opens it once, in one browser. If you did not open it, another program did: end the dashboard with Ctrl-C in its terminal.",
            "Run bottle dashboard --web again for a new link.",
        ),
        Refusal::Prefetch => (
            "Not yet",
            "The link of a dashboard opens it once, so it is not loaded ahead.",
            "Open the printed link.",
        ),
        Refusal::NoCookie => (
            "This browser has not opened the dashboard",
            "Only the browser in which the printed link was opened can use it.",
            "Open the link that bottle dashboard --web printed, or run the command again for a new one.",
        ),
        Refusal::OtherSite => (
            "The request came from another site",
            "The dashboard answers only to its own pages, so nothing was done.",
            "Open the dashboard in a tab of its own.",
        ),
        Refusal::BadToken => (
            "The form is not of this dashboard",
            "Its token is missing or wrong, so nothing was done.",
            "Go back, reload the page, and try again.",
        ),
        Refusal::BadMethod => (
            "Unknown method",
            "The dashboard answers to GET, HEAD and POST.",
            "Open the dashboard in a browser.",
        ),
    };
    notice_page(title, why, next, None)
}

/// Returns a page without views, for errors. With `back`, the page links to the dashboard.
pub(super) fn notice_page(title: &str, why: &str, next: &str, back: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, false))
            body {
                main.alone {
                    h1 { (visible(title)) }
                    p { (visible(why)) }
                    p { strong { (visible(next)) } }
                    @if let Some(back) = back { p { a href=(back) { "All bottles" } } }
                }
            }
        }
    }
}

// Functions for the list of bottles.

/// Returns the list of all bottles.
pub(super) fn bottles(snapshot: &Snapshot, directory: &str) -> Markup {
    let running = snapshot.bottles.iter().filter(|bottle| bottle.state == BottleState::Running).count();
    html! {
        (problems(&snapshot.problems))
        div.numbers {
            (number("Running", &running.to_string()))
            (number("Tokens a minute", &words::tokens(rate(&snapshot.recent))))
            (number("Proposals", &snapshot.proposals.to_string()))
            div.number.wide { span.name { "Last 30 minutes" } (curve(&snapshot.recent)) }
        }
        @if snapshot.bottles.is_empty() {
            div.empty {
                h2 { "No bottle is running" }
                p { code { "bottle start" } " starts one. It appears here with its budgets, its usage and its proposals." }
                p { a href={ (directory) "usage" } { "What earlier bottles used" } }
            }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Bottles" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Bottle" }
                            th scope="col" { "State" }
                            th scope="col" { "Budget that ends first" }
                            th scope="col" .n { "Time left" }
                            th scope="col" .n { "Tokens a minute" }
                            th scope="col" .n { "Tokens" }
                            th scope="col" { "Last 30 minutes" }
                        }
                    }
                    tbody { @for bottle in &snapshot.bottles { (bottle_row(bottle, directory)) } }
                }
            }
        }
    }
}

fn number(name: &str, value: &str) -> Markup {
    html! { div.number { span.name { (name) } span.value { (value) } } }
}

fn problems(problems: &[String]) -> Markup {
    html! { @for problem in problems { p .message .bad { (visible(problem)) } } }
}

fn bottle_row(bottle: &Bottle, directory: &str) -> Markup {
    let slug = bottle.slug.as_str();
    html! {
        tr {
            th scope="row" {
                a id={ "b-" (slug) } href={ (directory) "bottles/" (slug) } { (slug) }
                @if !bottle.agent.is_empty() { span.about { (visible(&bottle.agent)) } }
            }
            td { (state(bottle)) @if let Some(why) = bottle.problem.as_ref().or(bottle.paused.as_ref()) { span.about { (visible(why)) } } }
            @match bottle.meters.first() {
                Some(meter) => {
                    td { (meter_bar(meter)) span.about { (words::budget(&meter.declared)) ", " (meter.percent()) "% used" } }
                    td .n { (outlook(meter)) }
                }
                None => { td { span.quiet { "none" } } td .n { "-" } }
            }
            td .n { (words::tokens(bottle.rate())) }
            td .n { (words::tokens(bottle.tokens)) }
            td { (curve(&bottle.recent)) }
        }
    }
}

/// Returns the state of a bottle in words.
fn state(bottle: &Bottle) -> Markup {
    let (word, tone) = match bottle.tone() {
        StateTone::Good => (bottle.word(), "good"),
        StateTone::Notice | StateTone::Kept => (bottle.word(), "warn"),
        StateTone::Bad => (bottle.word(), "bad"),
        StateTone::Quiet => (bottle.word(), "plain"),
    };
    html! {
        span.state.(tone) { (word) }
        @if bottle.proposals > 0 { " " span.state.ask { (counted(bottle.proposals, "question")) } }
    }
}

fn outlook(meter: &Meter) -> Markup {
    html! { span.(level_class(meter.level())) { (words::outlook(meter.outlook())) } }
}

fn level_class(level: Level) -> &'static str {
    match level {
        Level::Low => "low",
        Level::High => "high",
        Level::Spent => "spent",
    }
}

/// Returns a bar with the spent, reserved and free tokens of a budget. The label of the bar contains the numbers.
fn meter_bar(meter: &Meter) -> Markup {
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

/// Returns a bar chart of the tokens of the last minutes.
fn curve(recent: &[u64]) -> Markup {
    let most = recent.iter().copied().max().unwrap_or(0);
    let height = |tokens: u64| match (tokens, most) {
        (0, _) | (_, 0) => 0,
        _ => u64::try_from(u128::from(tokens) * u128::from(CURVE) / u128::from(most)).unwrap_or(0).max(1),
    };
    let label = match most {
        0 => "no tokens in the last 30 minutes".to_owned(),
        _ => format!("at most {} tokens in a minute", words::tokens(most)),
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

// Functions for the page of one bottle.

/// Returns the page of one bottle in full.
pub(super) fn bottle(
    bottle: &Bottle,
    detail: Option<&Detail>,
    snapshot: &Snapshot,
    directory: &str,
) -> Markup {
    let slug = bottle.slug.as_str();
    let base = format!("{directory}bottles/{slug}");
    html! {
        (problems(&snapshot.problems))
        p.facts {
            (state(bottle)) " "
            @if let Some(label) = bottle.label.as_ref().filter(|label| *label != slug) { span { (visible(label)) } " " }
            @if !bottle.agent.is_empty() {
                span { (visible(&bottle.agent)) @if !bottle.bottles.is_empty() { " in " (visible(&bottle.bottles.join(", "))) } } " "
            }
            @if !bottle.backend.is_empty() { span { (bottle.backend) } " " }
            @if let Some(at) = bottle.started_at { span { "started " (words::age(at, snapshot.at)) " ago" } }
        }
        @if let Some(why) = &bottle.problem { p .message .bad { (visible(why)) } }
        @if let Some(why) = &bottle.paused { p .message .warn { "Paused: " (visible(why)) } }
        @if bottle.cut_off { p .message .warn { "Cut off: its requests to models are denied." } }
        p.actions {
            @if bottle.proposals > 0 {
                a.button #a-proposals href={ (directory) "proposals" } { "Answer " (counted(bottle.proposals, "question")) }
            }
            @if bottle.can_stop() {
                @if bottle.paused.is_some() || bottle.cut_off {
                    a.button #a-continue href={ (base) "/continue" } { "Continue…" }
                }
                @if bottle.paused.is_none() { a.button #a-pause href={ (base) "/pause" } { "Pause…" } }
                @if !bottle.cut_off { a.button #a-cutoff href={ (base) "/cutoff" } { "Cut off…" } }
                a.button #a-freeze href={ (base) "/freeze" } { "Freeze…" }
                a.button #a-kill href={ (base) "/kill" } { "Kill…" }
                a.button #a-stop href={ (base) "/stop" } { "Stop…" }
            }
            @if bottle.can_discard() { a.button #a-discard href={ (base) "/discard" } { "Discard…" } }
        }
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
                div.number.wide { span.name { "Last 30 minutes" } (curve(&bottle.recent)) }
            }
            @if let Some(detail) = detail { (sources(detail, snapshot.currency.as_deref())) }
        }
        @if let Some(detail) = detail { (decisions(detail)) }
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
            div.line {
                strong { (name) }
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
            (meter_bar(meter))
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

/// Returns the numbers of all tokens, input tokens, output tokens, cached tokens and responses.
fn counts(totals: &bottle_keeper::ledger::Totals) -> [u64; 5] {
    let cache = totals.cache_read.saturating_add(totals.cache_write);
    [totals.total(), totals.input, totals.output, cache, totals.responses]
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

// Functions for the page of usage.

/// Returns a usage table, with a note if tokens are estimated.
pub(super) fn usage(table: Option<&UsageTable>, snapshot: &Snapshot) -> Markup {
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
pub(super) fn usage_choices(by: bottle_keeper::ledger::GroupBy, period: Period, directory: &str) -> Markup {
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
    let most = table.rows.iter().map(|row| row.totals.total()).max().unwrap_or(0);
    let name = grouping_name(table.by);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Usage" {
            table {
                thead {
                    tr {
                        th scope="col" .first { (name) }
                        th scope="col" { "Share" }
                        @for name in ["Tokens", "Input", "Output", "Cache", "Answers"] { th scope="col" .n { (name) } }
                        @if let Some(currency) = currency { th scope="col" .n { (currency) } }
                    }
                }
                tbody { @for row in &table.rows { (usage_row(row, most, currency.is_some())) } }
                tfoot { (usage_row(&UsageRow { name: "all".to_owned(), ..table.sum.clone() }, 0, currency.is_some())) }
            }
        }
    }
}

fn usage_row(row: &UsageRow, most: u64, costs: bool) -> Markup {
    let total = row.totals.total();
    let width = match most {
        0 => 0,
        _ => u64::try_from(u128::from(total) * BAR as u128 / u128::from(most)).unwrap_or(0),
    };
    html! {
        tr {
            th scope="row" { (visible(words::row_name(row))) }
            td {
                @if most > 0 {
                    svg.share viewBox={ "0 0 " (BAR) " 10" } preserveAspectRatio="none" aria-hidden="true" {
                        rect x="0" y="0" width=(width) height="10" {}
                    }
                }
            }
            @for count in counts(&row.totals) { td .n { (words::tokens(count)) } }
            @if costs { td .n { (row.cost.map(|cost| cost.to_string()).unwrap_or_default()) } }
        }
    }
}

// Functions for the pages of proposals.

/// Returns the list of all pending proposals.
pub(super) fn proposals(listed: &[Listed], skipped: &[String], directory: &str) -> Markup {
    html! {
        (problems(skipped))
        @if listed.is_empty() {
            div.empty {
                h2 { "No proposal waits" }
                p { "Requests that need your approval appear here: hosts, secrets in requests, and secrets in pushes." }
            }
        }
        ul.cards {
            @for proposal in listed {
                li.card {
                    div.line {
                        a id={ "p-" (proposal.id) } href={ (directory) "proposals/" (proposal.id) } { strong { (visible(&proposal.title)) } }
                        span.state.(if proposal.waits { "good" } else { "warn" }) { (proposal.state) }
                    }
                    blockquote { (visible(&proposal.why)) }
                }
            }
        }
    }
}

/// Returns the page of a proposal in full, with the links to its answers.
pub(super) fn proposal(review: &Review, directory: &str) -> Markup {
    let base = format!("{directory}proposals/{}", review.listed.id);
    html! {
        p.facts { span { (review.listed.state) } " " span { (review.asked) } }
        (content(review))
        p.actions {
            @if review.listed.waits { a.button.main href={ (base) "/approve" } { "Approve…" } }
            a.button href={ (base) "/reject" } { (if review.listed.waits { "Reject…" } else { "Dismiss…" }) }
        }
    }
}

/// Returns everything that an approval covers, and the bottle's reason for the proposal.
fn content(review: &Review) -> Markup {
    html! {
        (effect(review))
        section aria-labelledby="why" {
            h2 #why { (review.tool.justification_title()) }
            blockquote.text { (lines(&review.justification)) }
        }
        section aria-labelledby="request" {
            h2 #request { (review.tool.request_title()) }
            pre tabindex="0" aria-labelledby="request" { (inert(&review.request)) }
            @if !review.excerpt.is_empty() {
                h3 { "Excerpt, with the values redacted" }
                pre tabindex="0" aria-label="Excerpt" { @for line in &review.excerpt { (inert(line)) "\n" } }
            }
        }
    }
}

/// Returns what an approval would allow.
fn effect(review: &Review) -> Markup {
    html! {
        section aria-labelledby="effect" {
            h2 #effect { "Effect of an approval" }
            @match &review.gains {
                None if review.tool == Tool::BudgetAdd => p { "The budget is raised, and the requests that wait go on." },
                None if review.tool == Tool::CommandAllow => p { "The command runs." },
                None if review.tool.reports() => p { "The request or push with this finding passes." },
                None => p.message.bad { "The bottle's routes are unknown." },
                Some(Err(why)) => p.message.bad { "It cannot be applied: " (visible(why)) },
                Some(Ok(gains)) if gains.is_empty() => p { "It changes nothing: all of it is already allowed." },
                Some(Ok(gains)) => ul.gains { @for gain in gains { li { (visible(gain)) } } },
            }
            @for warning in &review.warnings { p.message.bad { (visible(warning)) } }
            @if !review.diff.is_empty() {
                details {
                    summary { "Changed lines of the routes" }
                    pre.diff tabindex="0" aria-label="Changed lines" {
                        @for (added, text) in &review.diff {
                            @if *added { ins { "+ " (inert(text)) } } @else { del { "- " (inert(text)) } }
                            "\n"
                        }
                    }
                }
            }
        }
    }
}

fn lines(text: &str) -> Markup {
    let text = inert(text.trim_end());
    html! { @for line in text.lines() { (line) br; } }
}

// Functions for forms.

/// Returns the page that asks the user to confirm this action.
pub(super) fn confirm(action: &Action, path: &str, back: &str, token: &str) -> Markup {
    html! {
        form method="post" action=(path) {
            (token_field(token))
            p { (action.effect()) }
            p.actions {
                button.main type="submit" { (action.verb()) }
                a.button href=(back) { "Cancel" }
            }
        }
    }
}

/// Returns the page that asks by how much to raise a budget.
pub(super) fn raise(meter: &Meter, path: &str, back: &str, token: &str, error: Option<&str>) -> Markup {
    let standing = meter.standing;
    let limit = &meter.declared.limit;
    html! {
        form method="post" action=(path) {
            (token_field(token))
            input type="hidden" name="scope" value=(meter.declared.scope);
            input type="hidden" name="provider" value=(limit.key);
            input type="hidden" name="window" value=(limit.window);
            // The form sends the limit that the user saw, because the limit may change before the user submits the
            // form.
            input type="hidden" name="limit" value=(standing.limit);
            (meter_bar(meter))
            p { (words::grouped(standing.spent)) " of " (words::grouped(standing.limit)) " tokens are spent, " (words::grouped(standing.reserved)) " reserved." }
            @if let Some(error) = error { p #error .message .bad role="alert" { (visible(error)) } }
            p {
                label for="tokens" { "Tokens to add" }
                input #tokens name="tokens" inputmode="numeric" autocomplete="off" required pattern="[0-9]+" autofocus
                    aria-describedby=[error.map(|_| "error")];
            }
            p.actions {
                button.main type="submit" { "Raise the budget" }
                a.button href=(back) { "Cancel" }
            }
        }
    }
}

/// Returns the page that asks for the answer to a proposal. The page shows everything that the proposal's digest
/// covers.
pub(super) fn answer(review: &Review, approves: bool, directory: &str, token: &str) -> Markup {
    let base = format!("{directory}proposals/{}", review.listed.id);
    let needs_reason = !approves && review.listed.waits || approves && review.tool.needs_reason();
    html! {
        @if approves { (content(review)) }
        form method="post" action={ (base) (if approves { "/approve" } else { "/reject" }) } {
            (token_field(token))
            input type="hidden" name="digest" value=(review.digest);
            @if approves && review.tool.has_scope() {
                fieldset {
                    legend { "The approval is valid" }
                    p { label { input type="radio" name="scope" value="run" checked; " while the bottle runs" } }
                    p { label { input type="radio" name="scope" value="once"; (if review.tool == Tool::CommandAllow { " for this run of the command" } else { " for the next request that the routes allow" }) } }
                }
            }
            @if needs_reason {
                p {
                    label for="reason" { (if approves { "Reason" } else { "Reason, for the agent" }) }
                    input #reason name="reason" autocomplete="off" maxlength="400" required autofocus;
                }
            }
            p.actions {
                button.main type="submit" {
                    (match (approves, review.listed.waits) { (true, _) => "Approve", (false, true) => "Reject", (false, false) => "Dismiss" })
                }
                a.button href=(base) { "Cancel" }
            }
        }
    }
}

fn token_field(token: &str) -> Markup {
    html! { input type="hidden" name="token" value=(token); }
}
