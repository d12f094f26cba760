//! Proposals for the web dashboard: the request of a proposal, the effect of an approval, and the answer.
//!
//! The user approves what a page showed. The page's digest is a part of the answer, and the answer is refused if the
//! proposal or its effect changed meanwhile.

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
    /// The bottle.
    pub slug: String,
    /// What the bottle asks for, as a sentence.
    pub title: String,
    /// The first line of the bottle's justification. The text comes from the bottle.
    pub why: String,
    /// The time left, or why no process waits for the answer.
    pub state: String,
    /// Whether a process waits for the answer.
    pub waits: bool,
}

/// A proposal in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// The proposal as a list shows it.
    pub listed: Listed,
    /// When and how often the bottle made the proposal.
    pub asked: String,
    /// The whole justification. The text comes from the bottle.
    pub justification: String,
    /// The proposed routes in their canonical form, or the report of a finding. The text comes from the bottle.
    pub request: String,
    /// The text around a finding, with the values redacted. The text comes from the bottle.
    pub excerpt: Vec<String>,
    /// The requests that an approval would newly allow. `None` for a report, or if the routes are unknown.
    pub gains: Option<Result<Vec<String>, String>>,
    /// The changed lines of the routes: whether each is added, and its text.
    pub diff: Vec<(bool, String)>,
    /// Warnings about names that can be mistaken for others, and warnings of the scanner.
    pub warnings: Vec<String>,
    /// The kind of the proposal.
    pub tool: Tool,
    /// The digest of the shown content, which identifies it.
    pub digest: String,
}

/// The user's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The agent gets what it asked for.
    Approve {
        /// The text that the agent gets with the approval.
        reason: Option<String>,
        /// Limits an approval of routes to the next request.
        once: bool,
    },
    /// The agent does not get it.
    Reject {
        /// The text that the agent gets.
        reason: String,
    },
}

/// Returns the pending proposals, oldest first, and the files that were skipped.
pub fn list(host: &Host, now: Timestamp) -> Result<(Vec<Listed>, Vec<String>), Failure> {
    let (mut pending, skipped) = all(host, now)?;
    pending.sort_by_key(|pending| (pending.proposal.arrival_timestamp, pending.proposal.id.clone()));
    let listed = pending.iter().map(|pending| listed(pending, now)).collect();
    Ok((listed, skipped))
}

/// Returns a pending proposal in full. `None` if it is no longer pending.
pub fn find(host: &Host, id: &Id, now: Timestamp) -> Result<Option<Review>, Failure> {
    Ok(pending(host, id, now)?.map(|pending| review(host, &pending, now)))
}

/// Answers the proposal whose page had this digest when the user saw it. Returns the result as a sentence.
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

/// A hash of what is shown and decided: the whole proposal, what an approval would allow, and how it changes the routes.
fn digest(
    proposal: &Proposal,
    gains: Option<&Result<Vec<String>, String>>,
    diff: &[(bool, String)],
) -> String {
    let shown = serde_json::json!([proposal.id.as_str(), content(proposal), gains, diff]);
    hex::encode(Sha256::digest(shown.to_string()))
}

/// All parts of a proposal that an approval covers. Excludes parts that do not affect the approval, such as the time.
pub fn content(proposal: &Proposal) -> impl PartialEq + Serialize {
    let Proposal { bottle_slug, tool, proposed_file, justification, excerpt, .. } = proposal;
    (bottle_slug, tool.name(), proposed_file, justification, excerpt)
}
