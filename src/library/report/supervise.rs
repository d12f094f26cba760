//! The JSON output of the commands for proposals, routes and the audit log.

use bottle_instance::audit::Entry;
use bottle_instance::proxy_log::Warning;
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use serde::Serialize;

/// A proposal as `bottle supervise list --json` and `bottle supervise show --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Question {
    pub(crate) id: String,
    pub(crate) slug: String,
    pub(crate) tool: &'static str,
    /// The first line of the justification.
    pub(crate) summary: String,
    /// The justification: untrusted text from the bottle.
    pub(crate) justification: String,
    /// The proposed routes, or the report: untrusted text from the bottle.
    pub(crate) proposed_file: String,
    /// For a finding: lines of the request or push around it, with the values redacted; untrusted text from the
    /// bottle.
    pub(crate) excerpt: Vec<String>,
    /// Requests that the proposed routes would newly allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gains: Option<Vec<String>>,
    /// With `show`: the scanner's last warnings in the proxy's log of this bottle, newest first; untrusted text from
    /// the bottle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warnings: Option<Vec<Warning>>,
    pub(crate) arrived_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    /// How many times the agent made the same proposal after it was rejected.
    pub(crate) asked_before: u32,
    /// Whether the process that made the proposal no longer waits for the answer.
    pub(crate) stale: bool,
}

impl From<&Pending> for Question {
    fn from(pending: &Pending) -> Self {
        let proposal = &pending.proposal;
        Self {
            id: proposal.id.to_string(),
            slug: proposal.bottle_slug.to_string(),
            tool: proposal.tool.name(),
            summary: proposal.justification.lines().next().unwrap_or_default().to_owned(),
            justification: proposal.justification.clone(),
            proposed_file: proposal.proposed_file.clone(),
            excerpt: proposal.excerpt.clone(),
            gains: None,
            warnings: None,
            arrived_at: proposal.arrival_timestamp,
            expires_at: proposal.expires_at,
            asked_before: proposal.asked_before,
            stale: matches!(pending.state, State::Expired | State::Stale),
        }
    }
}

/// The output of `bottle supervise approve --json` and `bottle supervise reject --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Answered {
    pub(crate) id: String,
    pub(crate) slug: String,
    /// `approved`, `rejected`, or `dismissed` for a stale proposal.
    pub(crate) status: &'static str,
    /// With `--scope save`: the file that the routes were added to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<String>,
    /// With `--scope save`: the routes, and why they were not written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsaved: Option<UnsavedManifest>,
}

/// The output of `bottle allow --json` and `bottle deny --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ChangedRoutes {
    pub(crate) slug: String,
    /// The changed hosts, in canonical form.
    pub(crate) host: String,
    /// The revision of the routes after the change.
    pub(crate) revision: u64,
    /// Whether the routes differ from the previous ones.
    pub(crate) changed: bool,
    /// The routes that now decide about these hosts, each as an entry of `egress.routes`, in YAML.
    pub(crate) routes: Vec<String>,
    /// Requests that are newly allowed, in words.
    pub(crate) gains: Vec<String>,
    /// Requests that are no longer allowed, in words.
    pub(crate) losses: Vec<String>,
    /// How the change weakens the protection, in words.
    pub(crate) weakenings: Vec<String>,
    /// The command that undoes the change; absent if nothing changed.
    pub(crate) undo: Option<String>,
    /// With `--save`: the file that was changed in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<String>,
    /// With `--save`: the routes, and why the file was not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsaved: Option<UnsavedManifest>,
}

/// An element of the array that `bottle audit show --json` prints: the entry of the audit log, without its hashes.
#[derive(Debug, Serialize)]
pub(crate) struct AuditLine {
    pub(crate) slug: String,
    pub(crate) seq: u64,
    pub(crate) time: Timestamp,
    pub(crate) by: String,
    pub(crate) entry: Entry,
}

/// An element of the array that `bottle audit verify --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedLog {
    pub(crate) slug: String,
    pub(crate) whole: bool,
    /// The number of lines in the log; 0 if the chain is broken.
    pub(crate) lines: u64,
    /// The hash of the last line, if the chain is intact.
    pub(crate) head: Option<String>,
    /// What is wrong with the chain; absent if the chain is intact.
    pub(crate) why: Option<String>,
}

/// The output of `bottle learn --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LearnReport {
    pub(crate) slug: String,
    /// The learned routes, as `egress.routes` writes them.
    pub(crate) routes: Option<String>,
    /// Requests that the routes newly allow.
    pub(crate) opens: Vec<String>,
    pub(crate) hosts: Vec<LearntHost>,
    /// The generalizations with which the routes allow more than was requested.
    pub(crate) rules: Vec<String>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Whether the routes are now a pending proposal, which `bottle supervise` shows.
    pub(crate) asked: bool,
}

/// How many times a host was requested.
#[derive(Debug, Serialize)]
pub(crate) struct LearntHost {
    pub(crate) host: String,
    pub(crate) times: usize,
}

/// A host for which no route was learned.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) host: String,
    pub(crate) times: usize,
    pub(crate) why: String,
}

/// A bottle manifest that was not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct UnsavedManifest {
    /// Why the manifest was not written.
    pub(crate) why: String,
    /// The routes, for the user to add by hand.
    pub(crate) routes: String,
}
