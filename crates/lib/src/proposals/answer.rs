//! Answers a proposal. No other module answers proposals.
//!
//! If the answer changes routes, the bottle's keeper applies the answer and reports the result. Any other answer is
//! written as a file to the queue. If a proposal gets several answers, only the first answer has an effect.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_host::account;
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest};
use bottle_policy::proposal::{self, ProposalError};
use bottle_protocol::queue::{Id, Proposal, Response, Scope, Status};
use bottle_queue::{Pending, RespondError, State};
use jiff::Timestamp;

use super::pending::{queue_error, state_text};
use super::scope::{GrantScope, SettingsAddition};
use crate::connect::{connect, keeper_lost, unexpected_answer};
use crate::failure::Failure;
use crate::report::UnsavedManifest;

/// The user's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Approves the proposal.
    Approve {
        /// The reason that the user gave.
        reason: Option<String>,
        /// Routes to apply instead of the proposed routes, in the form that [`canonical_routes`] returns.
        routes: Option<String>,
        /// The scope of the approval.
        grant: GrantScope,
    },
    /// Rejects the proposal, or dismisses it if no process waits for the answer.
    Reject {
        /// The reason that the user gave.
        reason: String,
    },
}

/// The result of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerOutcome {
    /// `approved`, `rejected` or `dismissed`.
    pub status: &'static str,
    /// The result as the predicate of a sentence whose subject is the proposal.
    pub words: String,
    /// The changes that the answer made, in words.
    pub effects: Vec<String>,
    /// The file to which the routes or the approval had to be added.
    pub saved: Option<Saved>,
}

/// A bottle manifest or the settings file, and whether the file was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The path of the file.
    pub path: PathBuf,
    /// Why the file was not written, and the text to add to it by hand. `None` if the file was written.
    pub unsaved: Option<UnsavedManifest>,
}

impl AnswerOutcome {
    fn new(status: &'static str, words: impl Into<String>) -> Self {
        Self { status, words: words.into(), effects: Vec::new(), saved: None }
    }
}

/// Answers a proposal, and waits until the answer is applied.
///
/// # Errors
/// Returns an error if the answer is not accepted. The proposal then remains unanswered.
pub async fn answer(host: &Host, pending: &Pending, decision: Decision) -> Result<AnswerOutcome, Failure> {
    let proposal = &pending.proposal;
    let waits = pending.state == State::Waiting;
    match decision {
        Decision::Approve { reason, routes, grant } => {
            check_approval(pending, reason.as_deref(), routes.as_deref(), &grant)?;
            let status = if routes.is_some() { Status::Modified } else { Status::Approved };
            let response = Response { scope: grant.scope(), ..response(proposal, status, reason, routes) };
            if proposal.tool.reports() {
                respond(host, proposal, &response)?;
                return Ok(match &grant {
                    GrantScope::Remembered(addition) => remembered(addition),
                    _ => AnswerOutcome::new("approved", "was approved"),
                });
            }
            let effects = apply_routes(host, proposal, response).await?;
            Ok(AnswerOutcome { effects, ..live(host, &grant) })
        }
        Decision::Reject { reason } if waits => {
            respond(host, proposal, &response(proposal, Status::Rejected, Some(reason), None))?;
            Ok(AnswerOutcome::new("rejected", "was rejected"))
        }
        Decision::Reject { .. } => {
            let directory =
                bottle_queue::Directory::open(&host.home, &proposal.bottle_slug).map_err(queue_error)?;
            directory.dismiss(&proposal.id).map_err(|error| respond_failed(error, &proposal.id))?;
            Ok(AnswerOutcome::new("dismissed", "was dismissed; no process waited for it"))
        }
    }
}

/// Saves the approval of a command to the settings, and returns the result.
fn remembered(addition: &SettingsAddition) -> AnswerOutcome {
    let path = addition.path.clone();
    let (words, unsaved) = match addition.write() {
        Ok(()) => (format!("was approved, and is saved to {}", path.display()), None),
        Err(error) => {
            let words = format!("was approved; cannot write {}: {error}", path.display());
            let routes = addition.entries.iter().map(|entry| format!("- {entry}\n")).collect();
            (words, Some(UnsavedManifest { why: error.to_string(), routes }))
        }
    };
    AnswerOutcome { saved: Some(Saved { path, unsaved }), ..AnswerOutcome::new("approved", words) }
}

/// Returns the result for routes that the keeper has activated. Saves the routes to a manifest if `grant` says so.
fn live(host: &Host, grant: &GrantScope) -> AnswerOutcome {
    let addition = match grant {
        GrantScope::Once => {
            return AnswerOutcome::new("approved", "was approved, and is live for one request");
        }
        GrantScope::Run => return AnswerOutcome::new("approved", "was approved, and is live"),
        GrantScope::Saved(addition) => addition,
        GrantScope::Remembered(addition) => return remembered(addition),
    };
    let path = addition.path.clone();
    let (words, unsaved) = match addition.write(host) {
        Ok(()) => (format!("was approved, is live, and is saved to {}", path.display()), None),
        Err(error) => {
            let words = format!("was approved, and is live; cannot write {}: {error}", path.display());
            (words, Some(UnsavedManifest { why: error.to_string(), routes: addition.to_paste() }))
        }
    };
    AnswerOutcome { saved: Some(Saved { path, unsaved }), ..AnswerOutcome::new("approved", words) }
}

/// Checks that the user may approve this proposal with this answer.
fn check_approval(
    pending: &Pending,
    reason: Option<&str>,
    routes: Option<&str>,
    grant: &GrantScope,
) -> Result<(), Failure> {
    let Proposal { id, tool, .. } = &pending.proposal;
    if pending.state != State::Waiting {
        let message = format!("no process waits for this answer: {}", state_text(pending, Timestamp::now()));
        let hint = format!("`bottle supervise reject {} --reason TEXT` dismisses it", id.short());
        return Err(Failure::state(message).about(id).hint(hint));
    }
    if !tool.reports() {
        return Ok(());
    }
    let (tool_needs_reason, has_scope, tool) = (tool.needs_reason(), tool.has_scope(), tool.name());
    let (message, flag, hint) = if routes.is_some() {
        let message = format!("a proposal of {tool} has no routes to edit");
        (message, "--edit", "approve it as it is, or reject it")
    } else if !has_scope && *grant != GrantScope::Run {
        (format!("an approval of {tool} always holds until the bottle ends"), "--scope", "omit `--scope`")
    } else if tool_needs_reason && reason.is_none_or(|reason| reason.trim().is_empty()) {
        (format!("an approval of {tool} needs a reason"), "--reason", "give one with `--reason TEXT`")
    } else {
        return Ok(());
    };
    Err(Failure::usage(message).about(flag).hint(hint))
}

/// Parses routes that the user wrote, and renders them in their canonical form.
///
/// # Errors
/// Returns an error if the routes do not parse.
pub fn canonical_routes(text: &str) -> Result<String, ProposalError> {
    proposal::parse(text).map(|routes| routes.render())
}

fn response(
    proposal: &Proposal,
    status: Status,
    notes: Option<String>,
    final_file: Option<String>,
) -> Response {
    Response {
        proposal_id: proposal.id.clone(),
        status,
        notes,
        final_file,
        scope: Scope::Run,
        decided_at: Timestamp::now(),
        decided_by: account::own_name(),
    }
}

fn respond(host: &Host, proposal: &Proposal, response: &Response) -> Result<(), Failure> {
    let directory = bottle_queue::Directory::open(&host.home, &proposal.bottle_slug).map_err(queue_error)?;
    directory.respond(response).map_err(|error| respond_failed(error, &proposal.id))
}

/// Sends the new routes to the keeper, which applies them. Returns the changes in words.
async fn apply_routes(host: &Host, proposal: &Proposal, response: Response) -> Result<Vec<String>, Failure> {
    let channel = connect(host, &proposal.bottle_slug).await?;
    let mut stream = channel.open(&KeeperRequest::Answer(Box::new(response))).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
        KeeperEvent::Answered(effects) => Ok(effects),
        KeeperEvent::Refused(why) => Err(Failure::state(why)
            .about(&proposal.id)
            .hint("nothing was changed; `bottle supervise` lists pending proposals")),
        _ => Err(unexpected_answer()),
    }
}

fn respond_failed(error: RespondError, id: &Id) -> Failure {
    Failure::state(error.to_string())
        .about(id)
        .hint("nothing was changed; `bottle supervise` lists pending proposals")
}
