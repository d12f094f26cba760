//! The forms that act on a bottle or a budget. Each form asks once, and says what the action does.

use bottle_lib::dashboard::action::Action;
use bottle_lib::dashboard::model::Meter;
use bottle_lib::dashboard::words;
use maud::{Markup, html};

use super::parts::{meter_bar, visible};

/// Returns the field with the token that every form contains.
pub(super) fn token_field(token: &str) -> Markup {
    html! { input type="hidden" name="token" value=(token); }
}

/// Returns the page that asks the user to confirm this action on the bottle `slug`.
pub(in crate::web) fn confirm(action: &Action, slug: &str, path: &str, back: &str, token: &str) -> Markup {
    let is_destructive = action.is_destructive();
    html! {
        form method="post" action=(path) {
            (token_field(token))
            p .message[is_destructive] .bad[is_destructive] #effect { (action.effect()) }
            p.actions {
                button type="submit" .main[!is_destructive] .danger[is_destructive] aria-describedby="effect" { (action.verb()) " " (slug) }
                a.button href=(back) { "Cancel" }
            }
        }
    }
}

/// Returns the fields that name a budget.
fn budget_fields(meter: &Meter) -> Markup {
    let limit = &meter.declared.limit;
    html! {
        input type="hidden" name="scope" value=(meter.declared.scope);
        input type="hidden" name="provider" value=(limit.key);
        input type="hidden" name="window" value=(limit.window);
    }
}

/// Returns the page that asks by how much to raise a budget. The next page shows the resulting limit. `tokens` is the
/// text that the user typed before.
pub(in crate::web) fn raise(
    meter: &Meter,
    path: &str,
    back: &str,
    tokens: &str,
    error: Option<&str>,
) -> Markup {
    let standing = meter.standing;
    html! {
        form action=(path) {
            (budget_fields(meter))
            (meter_bar(meter))
            p { (words::grouped(standing.spent)) " of " (words::grouped(standing.limit)) " tokens are spent, " (words::grouped(standing.reserved)) " reserved." }
            @if let Some(error) = error { p #error .message .bad role="alert" { (visible(error)) } }
            p {
                label for="tokens" { "Tokens to add" }
                input #tokens name="tokens" value=(tokens) inputmode="numeric" autocomplete="off" required pattern="[0-9]+" autofocus
                    aria-describedby=[error.map(|_| "error")];
            }
            p.actions {
                button.main type="submit" { "Next: the resulting limit" }
                a.button href=(back) { "Cancel" }
            }
        }
    }
}

/// Returns the page that shows the limit that results from a raise, and asks once.
pub(in crate::web) fn confirm_raise(
    meter: &Meter,
    tokens: u64,
    path: &str,
    back: &str,
    token: &str,
) -> Markup {
    let standing = meter.standing;
    let limit = standing.limit.saturating_add(tokens);
    let left = limit.saturating_sub(standing.spent.saturating_add(standing.reserved));
    html! {
        form method="post" action=(path) {
            (token_field(token))
            (budget_fields(meter))
            // The form sends the limit that the user saw, because the limit may change before the user submits the
            // form.
            input type="hidden" name="limit" value=(standing.limit);
            input type="hidden" name="tokens" value=(tokens);
            dl.sums {
                dt { "Limit now" } dd { (words::grouped(standing.limit)) }
                dt { "Added" } dd { "+ " (words::grouped(tokens)) }
                dt { "Resulting limit" } dd.result { (words::grouped(limit)) }
                dt { "Left of it" } dd { (words::grouped(left)) }
            }
            p { "The limit becomes " (words::grouped(limit)) " tokens, in its current window." }
            p.actions {
                button.main type="submit" { "Raise the budget" }
                a.button href=(back) { "Cancel" }
            }
        }
    }
}
