//! The JSON output of the commands for proposals, routes and the audit log.

use bottle_instance::audit::Entry;
use bottle_instance::proxy_log::Warning;
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use serde::Serialize;

/// A proposal as `bottle supervise list --json` and `bottle supervise show --json` print it.
#[derive(Debug, Serialize)]
pub struct Question {
    /// The id by which `supervise approve` and `supervise reject` name the proposal.
    pub id: String,
    /// The slug of the bottle.
    pub slug: String,
    /// The name of the tool that made the proposal.
    pub tool: &'static str,
    /// The first line of the justification.
    pub summary: String,
    /// The justification: untrusted text from the bottle.
    pub justification: String,
    /// The proposed routes, or the report: untrusted text from the bottle.
    pub proposed_file: String,
    /// For a finding: the lines of the request or push around the finding, with the found values redacted. This is
    /// untrusted text from the bottle.
    pub excerpt: Vec<String>,
    /// Requests that the proposed routes would newly allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gains: Option<Vec<String>>,
    /// With `show`: the scanner's last warnings in the proxy's log of this bottle, newest first. This is untrusted text
    /// from the bottle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<Warning>>,
    /// When the proposal arrived.
    pub arrived_at: Timestamp,
    /// When the proposal expires.
    pub expires_at: Timestamp,
    /// How many times the agent made the same proposal after it was rejected.
    pub asked_before: u32,
    /// Whether the process that made the proposal no longer waits for the answer.
    pub stale: bool,
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
pub struct Answered {
    /// The id of the proposal.
    pub id: String,
    /// The slug of the bottle.
    pub slug: String,
    /// `approved`, `rejected`, or `dismissed` for a stale proposal.
    pub status: &'static str,
    /// With `--scope save`: the file to which the routes or the approval were added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
    /// With `--scope save`: the text that was not written to a file, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<UnsavedManifest>,
}

/// The output of `bottle allow --json` and `bottle deny --json`.
#[derive(Debug, Serialize)]
pub struct ChangedRoutes {
    /// The slug of the bottle.
    pub slug: String,
    /// The host or host pattern whose routes were changed, in canonical form.
    pub host: String,
    /// The revision of the routes after the change.
    pub revision: u64,
    /// Whether the routes differ from the previous routes.
    pub changed: bool,
    /// The routes that now decide about these hosts, each as an entry of `egress.routes`, in YAML.
    pub routes: Vec<String>,
    /// Requests that are newly allowed, in words.
    pub gains: Vec<String>,
    /// Requests that are no longer allowed, in words.
    pub losses: Vec<String>,
    /// How the change weakens the protection, in words.
    pub weakenings: Vec<String>,
    /// The command that undoes the change; absent if nothing changed.
    pub undo: Option<String>,
    /// With `--save`: the file that was changed in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
    /// With `--save`: the routes, and why the file was not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<UnsavedManifest>,
}

/// An element of the array that `bottle secrets list --json` prints.
#[derive(Debug, Serialize)]
pub struct Credential {
    /// The name of the credential: the host of its route.
    pub name: String,
    /// Where the value comes from, in words.
    pub source: String,
    /// What the credential is for, in words.
    pub purpose: String,
}

/// The output of `bottle secrets set --json`.
#[derive(Debug, Serialize)]
pub struct ReplacedCredentials {
    /// The slug of the bottle.
    pub slug: String,
    /// The names of the credentials whose values were replaced.
    pub credentials: Vec<String>,
}

/// An element of the array that `bottle audit show --json` prints: the entry of the audit log, without its hashes.
#[derive(Debug, Serialize)]
pub struct AuditLine {
    /// The slug of the bottle.
    pub slug: String,
    /// The number of the entry in the log of the slug, from 0.
    pub seq: u64,
    /// When the event happened.
    pub time: Timestamp,
    /// Who caused the event.
    pub by: String,
    /// The event.
    pub entry: Entry,
}

/// An element of the array that `bottle audit verify --json` prints.
#[derive(Debug, Serialize)]
pub struct VerifiedLog {
    /// The slug of the bottle.
    pub slug: String,
    /// Whether the chain of hashes is intact.
    pub whole: bool,
    /// The number of lines in the log; 0 if the chain is broken.
    pub lines: u64,
    /// The hash of the last line, if the chain is intact.
    pub head: Option<String>,
    /// What is wrong with the chain; absent if the chain is intact.
    pub why: Option<String>,
}

/// The output of `bottle learn --json`.
#[derive(Debug, Serialize)]
pub struct LearnReport {
    /// The slug of the bottle.
    pub slug: String,
    /// The learned routes, in the YAML form of `egress.routes`.
    pub routes: Option<String>,
    /// Requests that the routes newly allow.
    pub opens: Vec<String>,
    /// The hosts for which routes were learned.
    pub hosts: Vec<LearntHost>,
    /// The generalizations through which the routes allow more than the agent requested.
    pub rules: Vec<String>,
    /// The hosts for which no routes were learned.
    pub left_out: Vec<LeftOut>,
    /// Whether the routes are now a pending proposal, which `bottle supervise` shows.
    pub asked: bool,
}

/// How many times a host was requested.
#[derive(Debug, Serialize)]
pub struct LearntHost {
    /// The host.
    pub host: String,
    /// The number of requests.
    pub times: usize,
}

/// A host for which no route was learned.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    /// The host.
    pub host: String,
    /// The number of requests.
    pub times: usize,
    /// Why no route was learned.
    pub why: String,
}

/// The text that could not be added to a bottle manifest or to the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnsavedManifest {
    /// Why the file was not written.
    pub why: String,
    /// The routes or approvals, which the user can add by hand.
    pub routes: String,
}
