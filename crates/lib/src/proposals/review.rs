//! Proposals for the web dashboard: the request of a proposal, the effect of an approval, and the answer.
//!
//! The user approves the content that a page showed. The answer contains a digest of this content. The answer is
//! refused if the proposal or its effect has changed since the page was shown.

use bottle_host::Host;
use bottle_protocol::queue::{Id, Proposal, Tool};
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::answer::{self, Decision};
use super::pending::{all, first_line, queue_error, scanner_warnings, span, state_text, warning_line};
use super::report_text::report_text;
use super::route_change::{lookalike_warning, proposed_text, route_change};
use super::scope::GrantScope;
use crate::failure::Failure;
use crate::line_diff::Changed;

/// A pending proposal in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The id of the proposal.
    pub id: Id,
    /// The slug of the bottle.
    pub slug: String,
    /// What the bottle asks for, as a sentence.
    pub title: String,
    /// The first line of the bottle's justification, which is untrusted text.
    pub why: String,
    /// The time that is left for an answer, or why no process waits for the answer.
    pub state: String,
    /// Whether a process waits for the answer.
    pub waits: bool,
}

/// A proposal with all its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// The proposal as a list shows it.
    pub listed: Listed,
    /// When and how often the bottle made the proposal.
    pub asked: String,
    /// The whole justification, which is untrusted text from the bottle.
    pub justification: String,
    /// The proposed routes in their canonical form, or the report of a finding. This is untrusted text from the bottle.
    pub request: String,
    /// The text around a finding, with the found values redacted. This is untrusted text from the bottle.
    pub excerpt: Vec<String>,
    /// The requests that an approval would newly allow, or why the proposal cannot be applied. `None` for a report, or
    /// if the bottle's routes are unknown.
    pub gains: Option<Result<Vec<String>, String>>,
    /// The changed lines of the routes: for each line, whether it is added or removed, and its text.
    pub diff: Vec<(bool, String)>,
    /// Warnings about host names that can be mistaken for other names, and warnings of the scanner.
    pub warnings: Vec<String>,
    /// The kind of the proposal.
    pub tool: Tool,
    /// The digest that identifies the shown content.
    pub digest: String,
}

/// The user's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Approves the proposal.
    Approve {
        /// The text that the agent gets with the approval.
        reason: Option<String>,
        /// Limits an approval of routes to the next request.
        once: bool,
    },
    /// Rejects the proposal.
    Reject {
        /// The text that the agent gets with the rejection.
        reason: String,
    },
}

/// Returns the pending proposals, oldest first, and a warning for each file that was skipped.
pub fn list(host: &Host, now: Timestamp) -> Result<(Vec<Listed>, Vec<String>), Failure> {
    let (mut pending, skipped) = all(host, now)?;
    pending.sort_by_key(|pending| (pending.proposal.arrival_timestamp, pending.proposal.id.clone()));
    let listed = pending.iter().map(|pending| listed(pending, now)).collect();
    Ok((listed, skipped))
}

/// Returns a pending proposal with all its details. `None` if the proposal is no longer pending.
pub fn find(host: &Host, id: &Id, now: Timestamp) -> Result<Option<Review>, Failure> {
    Ok(pending(host, id, now)?.map(|pending| review(host, &pending, now)))
}

/// Answers a proposal. `digest` is the digest of the page that the user saw. Returns the result as a sentence.
///
/// # Errors
/// Returns an error if the approval would cover something other than the shown content, or if the answer is not
/// accepted.
pub async fn answer(host: &Host, id: &Id, digest: &str, wanted: Answer) -> Result<String, Failure> {
    let now = Timestamp::now();
    let Some(pending) = pending(host, id, now)? else {
        return Err(Failure::state("it no longer waits: another process answered it, or it ended"));
    };
    if review(host, &pending, now).digest != digest {
        return Err(Failure::state("the proposal or its effect changed: nothing was answered")
            .hint("look at it again, and then decide"));
    }
    let decision = match wanted {
        Answer::Approve { reason, once } => {
            let grant = if once { GrantScope::Once } else { GrantScope::Run };
            Decision::Approve { reason, routes: None, grant }
        }
        Answer::Reject { reason } => Decision::Reject { reason },
    };
    let outcome = answer::answer(host, &pending, decision).await?;
    let effects = outcome.effects.iter().map(|effect| format!("; {effect}")).collect::<String>();
    let Proposal { bottle_slug, tool, .. } = &pending.proposal;
    Ok(format!("{} of {bottle_slug} {}{effects}", tool.name(), outcome.words))
}

fn pending(host: &Host, id: &Id, now: Timestamp) -> Result<Option<Pending>, Failure> {
    let Some(directory) = bottle_queue::find(&host.home, id).map_err(queue_error)? else { return Ok(None) };
    let found = directory.get(id, now).map_err(queue_error)?;
    Ok(found.filter(|pending| pending.state != State::Answered))
}

fn listed(pending: &Pending, now: Timestamp) -> Listed {
    let Proposal { id, bottle_slug, tool, justification, .. } = &pending.proposal;
    Listed {
        id: id.clone(),
        slug: bottle_slug.to_string(),
        title: format!("{bottle_slug} {}", tool.predicate()),
        why: first_line(justification),
        state: state_text(pending, now),
        waits: pending.state == State::Waiting,
    }
}

fn review(host: &Host, pending: &Pending, now: Timestamp) -> Review {
    let proposal = &pending.proposal;
    let effect = route_change(host, proposal, &proposal.proposed_file);
    let mut warnings: Vec<String> = Vec::new();
    let mut diff = Vec::new();
    let gains = effect.map(|effect| {
        let effect = effect.map_err(|error| error.to_string())?;
        warnings.extend(effect.disguised.iter().map(|host| lookalike_warning(host)));
        diff.extend(effect.diff.into_iter().filter_map(|line| match line {
            Changed::Added(text) => Some((true, text)),
            Changed::Removed(text) => Some((false, text)),
            Changed::Same(_) | Changed::Gap => None,
        }));
        Ok(effect.gains)
    });
    warnings.extend(scanner_warnings(host, &proposal.bottle_slug).iter().map(warning_line));
    let text = proposed_text(proposal);
    let ago = span(now.duration_since(proposal.arrival_timestamp));
    let before = match proposal.asked_before {
        0 => String::new(),
        count => format!(", {count} times since it was rejected"),
    };
    Review {
        digest: digest(proposal, gains.as_ref(), &diff),
        listed: listed(pending, now),
        asked: format!("asked {ago} ago{before}"),
        justification: proposal.justification.clone(),
        request: if proposal.tool.reports() { report_text(&text) } else { text },
        excerpt: proposal.excerpt.clone(),
        gains,
        diff,
        warnings,
        tool: proposal.tool,
    }
}

/// Returns a hash of the content that the user sees and decides about: the proposal, the requests that an approval
/// would allow, and the changed lines of the routes.
fn digest(
    proposal: &Proposal,
    gains: Option<&Result<Vec<String>, String>>,
    diff: &[(bool, String)],
) -> String {
    let shown = serde_json::json!([proposal.id.as_str(), content(proposal), gains, diff]);
    hex::encode(Sha256::digest(shown.to_string()))
}

/// Returns all parts of a proposal that an approval covers. Parts that do not affect the approval, such as the time,
/// are excluded.
pub fn content(proposal: &Proposal) -> impl PartialEq + Serialize {
    let Proposal { bottle_slug, tool, proposed_file, justification, excerpt, .. } = proposal;
    (bottle_slug, tool.name(), proposed_file, justification, excerpt)
}
