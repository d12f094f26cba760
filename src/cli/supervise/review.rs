//! Proposals for the web dashboard: what one asks for, what an approval would allow, and the answer.
//!
//! The user approves what a page showed. The page's digest is a part of the answer, and the answer is refused if the
//! proposal or its effect changed meanwhile.

use bottle_contract::queue::{Id, Proposal, Tool};
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::answer::{self, Decision};
use super::pending::{
    first_line, queue_error, scanner_warnings, skipped_file, span, state_text, warning_line,
};
use super::route_change::{Changed, lookalike_warning, proposed_text, route_change};
use super::scope::GrantScope;
use super::screen::report_text;
use crate::cli::error::CliError;
use crate::host::Host;

/// A pending proposal in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Listed {
    pub(in crate::cli) id: Id,
    pub(in crate::cli) slug: String,
    /// What the bottle asks for, as a sentence.
    pub(in crate::cli) title: String,
    /// The first line of the bottle's justification. The text is the bottle's.
    pub(in crate::cli) why: String,
    /// The time left, or why no process waits for the answer.
    pub(in crate::cli) state: String,
    /// Whether a process waits for the answer.
    pub(in crate::cli) waits: bool,
}

/// A proposal in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Review {
    pub(in crate::cli) listed: Listed,
    /// When and how often it was asked.
    pub(in crate::cli) asked: String,
    /// The whole justification. The text is the bottle's.
    pub(in crate::cli) justification: String,
    /// The proposed routes in their canonical form, or the report of a finding. The text is the bottle's.
    pub(in crate::cli) request: String,
    /// The text around a finding, with the values redacted. The text is the bottle's.
    pub(in crate::cli) excerpt: Vec<String>,
    /// What an approval would newly allow; none for a report, or if the routes are unknown.
    pub(in crate::cli) gains: Option<Result<Vec<String>, String>>,
    /// The changed lines of the routes: whether each is added, and its text.
    pub(in crate::cli) diff: Vec<(bool, String)>,
    /// Warnings about names that can be mistaken, and of the scanner.
    pub(in crate::cli) warnings: Vec<String>,
    /// What kind of question it is.
    pub(in crate::cli) tool: Tool,
    /// Identifies what is shown.
    pub(in crate::cli) digest: String,
}

/// The user's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Answer {
    /// `once` limits an approval of routes to the next request.
    Approve {
        reason: Option<String>,
        once: bool,
    },
    Reject {
        reason: String,
    },
}

/// Returns the pending proposals, oldest first, and the files that were skipped.
pub(in crate::cli) fn list(host: &Host, now: Timestamp) -> Result<(Vec<Listed>, Vec<String>), CliError> {
    let bottle_queue::Listing { mut pending, damaged } =
        bottle_queue::list(&host.home, now).map_err(queue_error)?;
    pending.retain(|pending| pending.state != State::Answered);
    pending.sort_by_key(|pending| (pending.proposal.arrival_timestamp, pending.proposal.id.clone()));
    let listed = pending.iter().map(|pending| listed(pending, now)).collect();
    Ok((listed, damaged.iter().map(skipped_file).collect()))
}

/// Returns a pending proposal in full. None if it is not pending any more.
pub(in crate::cli) fn find(host: &Host, id: &Id, now: Timestamp) -> Result<Option<Review>, CliError> {
    Ok(pending(host, id, now)?.map(|pending| review(host, &pending, now)))
}

/// Answers a proposal of which the page with this digest was shown. Returns the result as a sentence.
///
/// # Errors
/// Returns an error if something else would be approved than what was shown, or if the answer is not accepted.
pub(in crate::cli) fn answer(host: &Host, id: &Id, digest: &str, wanted: Answer) -> Result<String, CliError> {
    let now = Timestamp::now();
    let Some(pending) = pending(host, id, now)? else {
        return Err(CliError::state("it no longer waits: another process answered it, or it ended"));
    };
    if review(host, &pending, now).digest != digest {
        return Err(CliError::state("the proposal or its effect changed: nothing was answered")
            .hint("look at it again, and then decide"));
    }
    let decision = match wanted {
        Answer::Approve { reason, once } => {
            let grant = if once { GrantScope::Once } else { GrantScope::Run };
            Decision::Approve { reason, routes: None, grant }
        }
        Answer::Reject { reason } => Decision::Reject { reason },
    };
    let outcome = answer::answer(host, &pending, decision)?;
    let effects = outcome.effects.iter().map(|effect| format!("; {effect}")).collect::<String>();
    let Proposal { bottle_slug, tool, .. } = &pending.proposal;
    Ok(format!("{} of {bottle_slug} {}{effects}", tool.name(), outcome.words))
}

fn pending(host: &Host, id: &Id, now: Timestamp) -> Result<Option<Pending>, CliError> {
    let Some(folder) = bottle_queue::find(&host.home, id).map_err(queue_error)? else { return Ok(None) };
    let found = folder.get(id, now).map_err(queue_error)?;
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
    let Proposal { id, bottle_slug, tool, proposed_file, justification, excerpt, .. } = proposal;
    let shown = serde_json::json!([
        id.as_str(),
        bottle_slug.as_str(),
        tool.name(),
        proposed_file,
        justification,
        excerpt,
        gains,
        diff
    ]);
    hex::encode(Sha256::digest(shown.to_string()))
}
