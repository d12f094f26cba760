//! The pages of proposals, and the forms that answer them.

use bottle_lib::line_diff::Changed;
use bottle_lib::proposals::pending::WARNINGS_TITLE;
use bottle_lib::proposals::review::{Choice, FileChange, Listed, Review};
use bottle_lib::proposals::scope::RequestedScope;
use bottle_protocol::queue::{MAX_TEXT, Tool};
use bottle_text::terminal::inert;
use maud::{Markup, html};

use super::forms::token_field;
use super::parts::{problems, visible};

/// Returns the list of all pending proposals. The proposals for which no process waits are folded.
pub(in crate::web) fn proposals(listed: &[Listed], skipped: &[String], directory: &str) -> Markup {
    let (waiting, gone): (Vec<&Listed>, Vec<&Listed>) = listed.iter().partition(|proposal| proposal.waits);
    html! {
        (problems(skipped))
        @if waiting.is_empty() {
            div.empty {
                h2 { "No proposal waits" }
                p { "Requests that need your approval appear here: hosts, secrets in requests, and secrets in pushes." }
            }
        }
        ul.cards { @for proposal in waiting { (card(proposal, directory)) } }
        @if !gone.is_empty() {
            details.fold.ended #g-gone {
                summary { h2 { "No longer waiting (" (gone.len()) ")" } span.quiet { "Expired, or the client is gone: they can only be dismissed." } }
                ul.cards { @for proposal in gone { (card(proposal, directory)) } }
            }
        }
    }
}

fn card(proposal: &Listed, directory: &str) -> Markup {
    html! {
        li.card {
            div.line {
                a id={ "p-" (proposal.id) } href={ (directory) "proposals/" (proposal.id) } { strong { (visible(&proposal.title)) } }
                span.state.(if proposal.waits { "warn" } else { "quiet-state" }) { (proposal.state) }
            }
            blockquote { (visible(&proposal.why)) }
        }
    }
}

/// Returns the page of a proposal in full, with the links to its answers.
pub(in crate::web) fn proposal(review: &Review, directory: &str) -> Markup {
    let base = format!("{directory}proposals/{}", review.listed.id);
    let waits = review.listed.waits;
    html! {
        p.facts { span.state.(if waits { "warn" } else { "quiet-state" }) { (review.listed.state) } " " span { (review.asked) } }
        (content(review))
        p.actions {
            @if waits { a.button.approve href={ (base) "/approve" } { "Approve…" } }
            @if waits && review.routes.is_some() { a.button href={ (base) "/edit" } { "Edit…" } }
            a.button href={ (base) "/reject" } { (if waits { "Reject…" } else { "Dismiss…" }) }
        }
        @if !review.other_requests.is_empty() {
            section.others aria-labelledby="others" {
                h2 #others { (WARNINGS_TITLE) }
                p.quiet { "They are not a part of this proposal, and its answer does not affect them." }
                ul { @for warning in &review.other_requests { li { (visible(warning)) } } }
            }
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
            h2 #request { (if review.is_edited { "Your edit" } else { review.tool.request_title() }) }
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
            h2 #effect { (if review.is_edited { "Your edit would allow" } else { "Effect of this proposal" }) }
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
                details #g-diff {
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

/// Returns the change of the file to which the approval is saved.
fn saved(review: &Review) -> Markup {
    html! {
        @match &review.saved {
            None => {},
            Some(Err(why)) => p.message.bad { "It cannot be saved: " (visible(why)) },
            Some(Ok(FileChange { path, diff: Err(why) })) => p.message.bad {
                "Cannot save to " (visible(&path.display().to_string())) ": " (visible(why)) ". The next page shows the lines to add by hand."
            },
            Some(Ok(FileChange { path, diff: Ok(diff) })) => section aria-labelledby="saved" {
                h2 #saved { (visible(&path.display().to_string())) " after the approval" }
                pre.diff tabindex="0" aria-labelledby="saved" { @for changed in diff { (changed_line(changed)) "\n" } }
            },
        }
    }
}

fn changed_line(changed: &Changed) -> Markup {
    html! {
        @match changed {
            Changed::Added(text) => ins { "+ " (inert(text)) },
            Changed::Removed(text) => del { "- " (inert(text)) },
            Changed::Same(text) => { "  " (inert(text)) },
            Changed::Gap => "  …",
        }
    }
}

/// Returns the page that asks for the answer to a proposal. The page shows everything that the proposal's digest
/// covers. If `message` is set, the page says why nothing was answered yet.
pub(in crate::web) fn answer(
    review: &Review,
    approves: bool,
    choice: &Choice,
    message: Option<&str>,
    directory: &str,
    token: &str,
) -> Markup {
    let base = format!("{directory}proposals/{}", review.listed.id);
    let needs_reason = !approves && review.listed.waits || approves && review.tool.needs_reason();
    let can_approve = !matches!(review.gains, Some(Err(_)));
    let verb = match (approves, review.listed.waits) {
        (true, _) => "Approve",
        (false, true) => "Reject",
        (false, false) => "Dismiss",
    };
    html! {
        @if let Some(message) = message { p.message.warn role="alert" { (visible(message)) } }
        @if approves { (content(review)) (saved(review)) }
        form method="post" action={ (base) (if approves { "/approve" } else { "/reject" }) } {
            (token_field(token))
            input type="hidden" name="digest" value=(review.digest);
            @if let Some(routes) = &choice.routes { input type="hidden" name="routes" value=(routes); }
            @if approves && can_approve && review.tool.has_scope() { (scopes(review, &choice.scope)) }
            @if needs_reason {
                p {
                    label for="reason" { (if approves { "Reason" } else { "Reason, for the agent" }) }
                    input #reason name="reason" autocomplete="off" maxlength="400" required autofocus;
                }
            }
            p.actions {
                @if !approves || can_approve { button type="submit" .approve[approves] .main[!approves] { (verb) } }
                @if approves && review.routes.is_some() { a.button href={ (base) "/edit" } { "Edit…" } }
                a.button href=(base) { "Cancel" }
            }
        }
    }
}

/// Returns the choice of the scope of an approval.
fn scopes(review: &Review, chosen: &RequestedScope) -> Markup {
    let once = match review.tool {
        Tool::CommandAllow => "for this run of the command",
        _ => "for the next request that the routes allow",
    };
    let mut scopes = vec![
        (RequestedScope::Run, "while the bottle runs".to_owned()),
        (RequestedScope::Once, once.to_owned()),
    ];
    scopes.extend(review.files.iter().map(|name| {
        let words = format!("while the bottle runs, and saved to the bottle manifest {name}");
        (RequestedScope::Saved(Some(name.clone())), words)
    }));
    html! {
        fieldset {
            legend { "The approval is valid" }
            @for (scope, words) in &scopes {
                p { label { input type="radio" name="scope" value=(scope) checked[scope == chosen]; " " (words) } }
            }
            @if !review.files.is_empty() {
                p.quiet { "Before a manifest is written, the next page shows its change and asks again." }
            }
        }
    }
}

/// Returns the page on which the user edits the proposed routes. `text` is the text to edit, and `error` says why it
/// cannot be applied.
pub(in crate::web) fn edit(
    review: &Review,
    text: &str,
    error: Option<&str>,
    directory: &str,
    token: &str,
) -> Markup {
    let base = format!("{directory}proposals/{}", review.listed.id);
    html! {
        @if let Some(error) = error { p #error .message .bad role="alert" { "It cannot be applied: " (visible(error)) } }
        form method="post" action={ (base) "/edit" } {
            (token_field(token))
            p {
                label for="routes" { "Routes" }
                // The browser drops a line break directly after the tag.
                textarea #routes name="routes" rows="14" maxlength=(MAX_TEXT) spellcheck="false" autocomplete="off" autocapitalize="off"
                    required autofocus aria-describedby=[error.map(|_| "error")] { "\n" (text) }
            }
            p.quiet { "Nothing applies before the next page shows the effect and you approve it." }
            p.actions {
                button.main type="submit" { "Next: the effect" }
                a.button href=(base) { "Cancel" }
            }
        }
    }
}
