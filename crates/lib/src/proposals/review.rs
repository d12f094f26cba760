//! Proposals for the web dashboard: the request of a proposal, the effect of an approval, and the answer.
//!
//! The user approves the content that a page showed. The answer contains a digest of this content. The answer is
//! refused if the proposal or its effect has changed since the page was shown. The content includes the routes that the
//! user wrote instead of the proposed routes, and the change of the file to which the approval is saved.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_policy::names::Name;
use bottle_protocol::queue::{Id, Proposal, Tool};
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::answer::{self, Decision, Saved};
use super::pending::{
    all, first_line, local_time, queue_error, scanner_warnings, span, state_text, warning_line,
};
use super::report_text::report_text;
use super::route_change::{lookalike_warning, proposed_text, route_change};
use super::scope::{GrantScope, RequestedScope};
use crate::failure::Failure;
use crate::line_diff::Changed;
use crate::saved_routes::files;

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
    /// Warnings about host names in the proposal that can be mistaken for other names.
    pub warnings: Vec<String>,
    /// The scanner's last warnings about other requests of the bottle, newest first.
    pub other_requests: Vec<String>,
    /// The kind of the proposal.
    pub tool: Tool,
    /// The proposed routes in their canonical form, or the routes that the user wrote. `None` if the proposal has no valid
    /// routes to edit.
    pub routes: Option<String>,
    /// Whether `request`, `gains` and `diff` are of the routes that the user wrote.
    pub is_edited: bool,
    /// The user's bottle manifests to which the routes can be saved.
    pub files: Vec<Name>,
    /// The change of the file to which the approval is saved, or why it cannot be saved. `None` if the user did not
    /// choose to save the approval.
    pub saved: Option<Result<FileChange, String>>,
    /// The digest that identifies the shown content.
    pub digest: String,
}

/// What the user chose for an approval. The default is the proposal as it is, while the bottle runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The routes that the user wrote instead of the proposed routes.
    pub routes: Option<String>,
    /// The scope of the approval.
    pub scope: RequestedScope,
}

/// The change of a file to which an approval is saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The path of the file.
    pub path: PathBuf,
    /// The changed lines, or why the file cannot be extended. The result of the answer then contains the routes.
    pub diff: Result<Vec<Changed>, String>,
}

/// The result of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The result as a sentence.
    pub words: String,
    /// The routes that could not be saved, for the user to add to the file by hand.
    pub unsaved: Option<String>,
}

/// The user's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Approves the proposal.
    Approve {
        /// The text that the agent gets with the approval.
        reason: Option<String>,
        /// The routes and the scope of the approval.
        choice: Choice,
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

/// Returns a pending proposal with all its details, and the effect of an approval with this choice. `None` if the
/// proposal is no longer pending.
pub fn find(host: &Host, id: &Id, choice: &Choice, now: Timestamp) -> Result<Option<Review>, Failure> {
    Ok(pending(host, id, now)?.map(|pending| review(host, &pending, choice, now)))
}

/// Answers a proposal. `digest` is the digest of the page that the user saw.
///
/// # Errors
/// Returns an error if the approval would cover something other than the shown content, or if the answer is not
/// accepted.
pub async fn answer(host: &Host, id: &Id, digest: &str, wanted: Answer) -> Result<Answered, Failure> {
    let now = Timestamp::now();
    let Some(pending) = pending(host, id, now)? else {
        return Err(Failure::state("it no longer waits: another process answered it, or it ended"));
    };
    let choice = match &wanted {
        Answer::Approve { choice, .. } => choice.clone(),
        Answer::Reject { .. } => Choice::default(),
    };
    if review(host, &pending, &choice, now).digest != digest {
        return Err(Failure::state("the proposal or its effect changed: nothing was answered")
            .hint("look at it again, and then decide"));
    }
    let decision = match wanted {
        Answer::Approve { reason, choice: Choice { routes, scope } } => {
            let routes = routes.as_deref().map(answer::canonical_routes).transpose();
            let routes =
                routes.map_err(|why| Failure::state(format!("the routes cannot be applied: {why}")))?;
            let text = routes.as_deref().unwrap_or(&pending.proposal.proposed_file);
            let grant = scope.resolve(host, &pending.proposal, text)?;
            Decision::Approve { reason, routes, grant }
        }
        Answer::Reject { reason } => Decision::Reject { reason },
    };
    let outcome = answer::answer(host, &pending, decision).await?;
    let effects = outcome.effects.iter().map(|effect| format!("; {effect}")).collect::<String>();
    let Proposal { bottle_slug, tool, .. } = &pending.proposal;
    let words = format!("{} of {bottle_slug} {}{effects}", tool.name(), outcome.words);
    let unsaved = outcome.saved.and_then(|Saved { unsaved, .. }| unsaved).map(|unsaved| unsaved.routes);
    Ok(Answered { words, unsaved })
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

fn review(host: &Host, pending: &Pending, choice: &Choice, now: Timestamp) -> Review {
    let proposal = &pending.proposal;
    let asked_for = choice.routes.as_ref().unwrap_or(&proposal.proposed_file);
    let effect = route_change(host, proposal, asked_for);
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
    let saved = file_change(host, proposal, asked_for, &choice.scope);
    let text = choice.routes.clone().unwrap_or_else(|| proposed_text(proposal));
    let arrival = proposal.arrival_timestamp;
    let ago = span(now.duration_since(arrival));
    let before = match proposal.asked_before {
        0 => String::new(),
        count => format!(", {count} times since it was rejected"),
    };
    Review {
        digest: digest(&[
            &serde_json::json!([proposal.id.as_str(), content(proposal), choice.routes]),
            &serde_json::json!([gains, diff]),
            &serde_json::json!(saved.as_ref().map(shown_change)),
        ]),
        listed: listed(pending, now),
        asked: format!("asked {ago} ago, at {}{before}", local_time(arrival)),
        justification: proposal.justification.clone(),
        request: if proposal.tool.reports() { report_text(&text) } else { text },
        excerpt: proposal.excerpt.clone(),
        gains,
        diff,
        warnings,
        other_requests: scanner_warnings(host, &proposal.bottle_slug).iter().map(warning_line).collect(),
        tool: proposal.tool,
        routes: editable(proposal, choice),
        is_edited: choice.routes.is_some(),
        files: if proposal.tool.reports() { Vec::new() } else { files(host, &proposal.bottle_slug) },
        saved,
    }
}

/// Returns the routes that the user can edit, never the text as the agent wrote it.
fn editable(proposal: &Proposal, choice: &Choice) -> Option<String> {
    if proposal.tool.reports() {
        return None;
    }
    choice.routes.clone().or_else(|| answer::canonical_routes(&proposal.proposed_file).ok())
}

/// Returns the change of the file to which an approval of these routes is saved. `None` for the other scopes.
fn file_change(
    host: &Host,
    proposal: &Proposal,
    text: &str,
    scope: &RequestedScope,
) -> Option<Result<FileChange, String>> {
    match scope.resolve(host, proposal, text) {
        Ok(GrantScope::Once | GrantScope::Run) => None,
        Ok(GrantScope::Saved(addition)) => {
            let diff = addition.diff().map_err(ToString::to_string);
            Some(Ok(FileChange { path: addition.path, diff }))
        }
        Ok(GrantScope::Remembered(addition)) => {
            let diff = addition.entries.into_iter().map(Changed::Added).collect();
            Some(Ok(FileChange { path: addition.path, diff: Ok(diff) }))
        }
        Err(why) => Some(Err(why.message)),
    }
}

/// Returns the parts of a file's change that the digest covers.
fn shown_change(saved: &Result<FileChange, String>) -> serde_json::Value {
    match saved {
        Ok(FileChange { path, diff }) => {
            let line = |changed: &Changed| match changed {
                Changed::Added(text) => ("+", text.clone()),
                Changed::Removed(text) => ("-", text.clone()),
                Changed::Same(text) => ("=", text.clone()),
                Changed::Gap => ("gap", String::new()),
            };
            let diff = diff.as_ref().map(|diff| diff.iter().map(line).collect::<Vec<_>>());
            serde_json::json!([path.to_string_lossy(), diff])
        }
        Err(why) => serde_json::json!(why),
    }
}

/// Returns a hash of the content that the user sees and decides about: the proposal and the user's routes, the effect
/// of an approval, and the change of the file to which the approval is saved.
fn digest(shown: &[&serde_json::Value]) -> String {
    hex::encode(Sha256::digest(serde_json::json!(shown).to_string()))
}

/// Returns all parts of a proposal that an approval covers. Parts that do not affect the approval, such as the time,
/// are excluded.
pub fn content(proposal: &Proposal) -> impl PartialEq + Serialize {
    let Proposal { bottle_slug, tool, proposed_file, justification, excerpt, .. } = proposal;
    (bottle_slug, tool.name(), proposed_file, justification, excerpt)
}
