//! The texts about a spent budget for the user and the agent.

use std::time::Duration;

use bottle_host::budget::{Declared, Window};
use bottle_protocol::queue::{Question, Tool};
use bottle_queue::question as new_question;
use indicatif::HumanCount;
use serde_json::json;

use crate::ledger::Shortage;

/// The number of tokens that an approval adds: the original size of the limit, or the number that the request needs,
/// whichever is larger.
pub(super) fn proposed_tokens(shortage: &Shortage) -> u64 {
    shortage.declared.limit.tokens.max(shortage.needed)
}

/// Creates the question that asks the user to raise a limit.
pub(super) fn question(shortage: &Shortage, wait: Duration) -> Question {
    let Shortage { declared: Declared { scope, limit, origin }, standing, needed, .. } = shortage;
    let report = json!({
        "scope": scope.to_string(),
        "provider": limit.key,
        "window": limit.window.name(),
        "origin": origin,
        "limit": standing.limit,
        "spent": standing.spent,
        "reserved": standing.reserved,
        "needed": needed,
        "approval_adds": proposed_tokens(shortage),
    });
    let why = format!(
        "{}. An approval adds {} tokens; `bottle budget add {scope} TOKENS --provider {} --window {}` adds another number",
        cause(shortage),
        HumanCount(proposed_tokens(shortage)),
        limit.key,
        limit.window
    );
    new_question(Tool::BudgetAdd, format!("{report:#}"), why, wait)
}

/// Describes why the bottle is paused or ends, as a clause for a message.
pub(super) fn cause(shortage: &Shortage) -> String {
    let Shortage { declared: Declared { scope, limit, .. }, standing, needed, .. } = shortage;
    let [left, most, needed] =
        [standing.limit.saturating_sub(standing.spent), standing.limit, *needed].map(HumanCount);
    let each = if limit.window == Window::Minute { " in each minute" } else { "" };
    format!(
        "the budget of {scope} for {}{each} has {left} of {most} tokens left, and the next request may use {needed}",
        limit.key
    )
}

/// Describes why requests are denied, as a clause for a message to the agent.
pub(super) fn denial(shortage: &Shortage) -> String {
    format!("{}; only the user can raise it", cause(shortage))
}
