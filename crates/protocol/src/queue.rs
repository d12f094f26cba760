//! Types of the supervise queue: approval requests to the user, and the user's responses.
//!
//! ```text
//! daemon ── Question ──► bundle ──► keeper ── Proposal file ──► user
//!        ◄── Answer ───        ◄──        ◄── Response file ──
//! ```
//! A daemon is a sidecar of the bottle. A daemon sends its question over its channel to the keeper process, and cannot
//! access the queue directory. The keeper writes the proposal files.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use bottle_policy::names::Slug;

/// The largest queue file, in bytes. A larger file is treated as damaged.
pub const MAX_FILE: usize = 1 << 20;

/// The maximum length in bytes of a question's routes or report, and of its justification. A longer question is
/// refused. Even if every character is escaped in JSON, both texts together fit into one frame and one file.
pub const MAX_TEXT: usize = 80 << 10;

/// The most lines in an excerpt. Further lines are cut.
pub const MAX_EXCERPT_LINES: usize = 10;

/// The longest line of an excerpt, in characters. A longer line is cut.
pub const MAX_EXCERPT_LINE: usize = 200;

/// The largest number of questions from one bottle that may wait for a response at the same time. A further
/// question is refused.
pub const MAX_PENDING: usize = 16;

/// A question's id: a UUID in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

impl Id {
    /// Makes a version 4 UUID from random bytes.
    #[must_use]
    pub fn from_random(mut random: [u8; 16]) -> Self {
        random[6] = random[6] & 0x0f | 0x40;
        random[8] = random[8] & 0x3f | 0x80;
        let hex = hex::encode(random);
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
        Self(format!("{a}-{b}-{c}-{d}-{e}"))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight characters, which users type in commands.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..8]
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that is not a question's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a proposal: a UUID in lower case")]
pub struct BadId;

impl TryFrom<String> for Id {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        let dashes = [8, 13, 18, 23];
        let good = text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match byte {
                b'-' => dashes.contains(&at),
                b'0'..=b'9' | b'a'..=b'f' => !dashes.contains(&at),
                _ => false,
            });
        if good { Ok(Self(text)) } else { Err(BadId) }
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl std::str::FromStr for Id {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        Self::try_from(text.to_owned())
    }
}

/// The kind of a question. An agent asks for routes with the supervise (MCP) tool that has the name of the kind. The
/// proxy and the git gate ask for an approval of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// Routes that the agent requests in advance.
    EgressAllow,
    /// Routes that the agent requests after a denial.
    EgressBlock,
    /// Approval of a request in which the proxy found a secret.
    EgressTokenAllow,
    /// Approval of a push in which the git gate found a secret.
    GitleaksAllow,
    /// More tokens for a budget that is spent. The keeper process asks this question.
    BudgetAdd,
    /// A command that a program outside the bottle wants to run in the bottle. The command policy requires the user's
    /// approval of this command.
    CommandAllow,
}

impl Tool {
    /// The kind's name in files and commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EgressAllow => "egress-allow",
            Self::EgressBlock => "egress-block",
            Self::EgressTokenAllow => "egress-token-allow",
            Self::GitleaksAllow => "gitleaks-allow",
            Self::BudgetAdd => "budget-add",
            Self::CommandAllow => "command-allow",
        }
    }

    /// The predicate of a sentence about the bottle, for example "BOTTLE asks for hosts".
    #[must_use]
    pub fn predicate(self) -> &'static str {
        match self {
            Self::EgressAllow => "asks for hosts",
            Self::EgressBlock => "asks for hosts that were refused",
            Self::EgressTokenAllow => "sends what may be a secret",
            Self::GitleaksAllow => "pushes what may be a secret",
            Self::BudgetAdd => "has spent its budget",
            Self::CommandAllow => "is to run a command",
        }
    }

    /// Whether the question is a report (about a scan finding, a spent budget or a command) and does not ask for
    /// routes. The user cannot modify a report, and only the process that asked the question uses the answer.
    #[must_use]
    pub fn reports(self) -> bool {
        !matches!(self, Self::EgressAllow | Self::EgressBlock)
    }

    /// Whether the user can grant a one-time approval: the question asks for routes or for a command.
    #[must_use]
    pub fn has_scope(self) -> bool {
        !self.reports() || self == Self::CommandAllow
    }

    /// The title above the justification on a screen. A bottle's sidecars and its keeper write the justifications of
    /// reports. The agent writes the justifications of all other questions.
    #[must_use]
    pub fn justification_title(self) -> &'static str {
        if self.reports() { "Reason" } else { "Justification from the bottle" }
    }

    /// The title above the proposed routes or the report on a screen.
    #[must_use]
    pub fn request_title(self) -> &'static str {
        match self {
            Self::EgressAllow | Self::EgressBlock => "Request",
            Self::EgressTokenAllow | Self::GitleaksAllow => "Findings",
            Self::BudgetAdd => "Budget",
            Self::CommandAllow => "Command",
        }
    }

    /// Whether the user must give a reason to approve the question, because it reports a possible secret.
    #[must_use]
    pub fn needs_reason(self) -> bool {
        matches!(self, Self::EgressTokenAllow | Self::GitleaksAllow)
    }
}

/// A question that a daemon sends to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The id of the question.
    pub id: Id,
    /// The kind of the question.
    pub tool: Tool,
    /// The proposed routes, or the report; see [`Proposal::proposed_file`]. The text never contains a
    /// secret's value.
    pub proposed_file: String,
    /// The justification, as written by the agent or the daemon.
    pub justification: String,
    /// The text around a finding; see [`Proposal::excerpt`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excerpt: Vec<String>,
    /// The revision of the routes that the question is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// When the daemon stops waiting for an answer.
    pub expires_at: Timestamp,
}

/// The outcome of a question, as the daemon receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// The user decided.
    Decided(Box<Response>),
    /// The user did not decide in time.
    Expired,
    /// The question was not delivered, or the response cannot be read. The text is a lower-case fragment with
    /// the cause.
    Refused(String),
}

/// The content of `<id>.proposal.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// The question's id, which is also in the file name.
    pub id: Id,
    /// The slug of the bottle that sent the question.
    pub bottle_slug: Slug,
    /// The kind of the question.
    pub tool: Tool,
    /// The routes to add, or the report. Untrusted text from an agent: escape it before display.
    pub proposed_file: String,
    /// The justification. Untrusted text from an agent: escape it before display.
    pub justification: String,
    /// For a report, lines of the request or push around the finding, in which every finding is replaced by a mask of
    /// fixed length. The lines are untrusted text from an agent. At most [`MAX_EXCERPT_LINES`] lines of
    /// [`MAX_EXCERPT_LINE`] characters; empty if there is no text to show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excerpt: Vec<String>,
    /// When the keeper received the question, UTC.
    pub arrival_timestamp: Timestamp,
    /// The revision of the routes that the question is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// When the daemon stops waiting for an answer.
    pub expires_at: Timestamp,
    /// How many times the bottle repeated the question after the user rejected it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked_before: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Proposal {
    /// Creates the content of a proposal file from a bottle's question.
    #[must_use]
    pub fn new(slug: Slug, question: Question, now: Timestamp) -> Self {
        Self {
            id: question.id,
            bottle_slug: slug,
            tool: question.tool,
            proposed_file: question.proposed_file,
            justification: question.justification,
            excerpt: bounded_excerpt(question.excerpt),
            arrival_timestamp: now,
            revision: question.revision,
            expires_at: question.expires_at,
            asked_before: 0,
        }
    }

    /// Whether both proposals ask for the same routes or report the same finding. Ignores the justification.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.tool == other.tool && self.proposed_file == other.proposed_file
    }
}

/// Cuts an excerpt to [`MAX_EXCERPT_LINES`] lines of [`MAX_EXCERPT_LINE`] characters.
#[must_use]
pub fn bounded_excerpt(lines: Vec<String>) -> Vec<String> {
    let cut = |mut line: String| {
        if let Some((end, _)) = line.char_indices().nth(MAX_EXCERPT_LINE) {
            line.truncate(end);
        }
        line
    };
    lines.into_iter().take(MAX_EXCERPT_LINES).map(cut).collect()
}

/// The content of `<id>.response.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// The id of the question.
    pub proposal_id: Id,
    /// The user's decision.
    pub status: Status,
    /// The reason for the decision, or another note of the user.
    #[serde(default)]
    pub notes: Option<String>,
    /// The routes that apply instead of the proposed routes. Set only with [`Status::Modified`].
    #[serde(default)]
    pub final_file: Option<String>,
    /// How long approved routes stay in effect.
    #[serde(default, skip_serializing_if = "Scope::is_run")]
    pub scope: Scope,
    /// When the user decided, UTC.
    pub decided_at: Timestamp,
    /// The account of the user who decided.
    pub decided_by: String,
}

/// How long approved routes stay in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// For the next request that the routes allow.
    Once,
    /// Until the bottle's run ends.
    #[default]
    Run,
    /// Until the run ends, and in later runs, because the user also adds the routes to a manifest.
    Saved,
}

impl Scope {
    /// Whether the scope is [`Scope::Run`], the default.
    #[must_use]
    pub fn is_run(&self) -> bool {
        *self == Self::Run
    }
}

/// The user's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The user approved the proposal unchanged.
    Approved,
    /// The user approved the proposal with routes that differ from the proposed ones.
    Modified,
    /// The user rejected the proposal.
    Rejected,
}

impl Response {
    /// Checks that the response is complete and belongs to `proposal`.
    ///
    /// # Errors
    /// A lower-case fragment with the cause.
    pub fn check(&self, proposal: &Proposal) -> Result<(), String> {
        if self.proposal_id != proposal.id {
            return Err("the response belongs to another proposal".to_owned());
        }
        let modified = self.status == Status::Modified;
        if modified && proposal.tool.reports() {
            return Err(format!("a proposal of {} cannot be modified", proposal.tool.name()));
        }
        if modified != self.final_file.is_some() {
            return Err("`final_file` is required with `modified` and not allowed otherwise".to_owned());
        }
        if !self.scope.is_run() && (self.status == Status::Rejected || !proposal.tool.has_scope()) {
            return Err("`scope` is allowed only when routes or a command are approved".to_owned());
        }
        let reason = self.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
        if self.status == Status::Approved && proposal.tool.needs_reason() && !reason {
            return Err(format!("an approval of {} needs a reason in `notes`", proposal.tool.name()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_lower_case_uuids_only() {
        let id = Id::from_random([0xff; 16]);
        assert_eq!(id.as_str(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        for text in
            ["", "../x", "FFFFFFFF-ffff-4fff-bfff-ffffffffffff", "ffffffff0ffff04fff0bfff0ffffffffffff"]
        {
            assert_eq!(text.parse::<Id>(), Err(BadId), "{text}");
        }
    }

    #[test]
    fn users_type_the_first_part_of_an_id() {
        let id = Id::from_random([0xab; 16]);
        assert!(id.as_str().starts_with(&format!("{}-", id.short())), "{id}");
    }

    #[test]
    fn describes_each_kind_in_its_own_words() {
        let kinds = [
            Tool::EgressAllow,
            Tool::EgressBlock,
            Tool::EgressTokenAllow,
            Tool::GitleaksAllow,
            Tool::BudgetAdd,
            Tool::CommandAllow,
        ];
        let words: std::collections::HashSet<_> = kinds.iter().map(|kind| kind.predicate()).collect();
        assert_eq!(words.len(), kinds.len());
        for kind in kinds {
            let name = serde_json::to_value(kind).expect("JSON");
            assert_eq!(name, kind.name(), "commands and files use the same name");
            // Only the approval of a possible secret needs a reason.
            let (reason, title) = match kind {
                Tool::EgressAllow | Tool::EgressBlock => ("Justification from the bottle", "Request"),
                Tool::EgressTokenAllow | Tool::GitleaksAllow => ("Reason", "Findings"),
                Tool::BudgetAdd => ("Reason", "Budget"),
                Tool::CommandAllow => ("Reason", "Command"),
            };
            assert_eq!((kind.justification_title(), kind.request_title()), (reason, title));
            assert_eq!(kind.needs_reason(), kind.predicate().contains("secret"), "{kind:?}");
            assert!(kind.reports() || kind.predicate().contains("hosts"), "{kind:?}");
        }
    }

    #[test]
    fn an_excerpt_is_cut_to_its_bounds() {
        let long = "ä".repeat(MAX_EXCERPT_LINE + 1);
        let cut = bounded_excerpt(vec![long; MAX_EXCERPT_LINES + 1]);
        assert_eq!(cut, vec!["ä".repeat(MAX_EXCERPT_LINE); MAX_EXCERPT_LINES]);
        assert_eq!(bounded_excerpt(vec!["short".to_owned()]), ["short"]);
    }

    #[test]
    fn checks_a_response_against_its_proposal() {
        let id = Id::from_random([1; 16]);
        let proposal = |tool| Proposal {
            id: id.clone(),
            bottle_slug: "a-1".parse().expect("slug"),
            tool,
            proposed_file: String::new(),
            justification: String::new(),
            excerpt: Vec::new(),
            arrival_timestamp: Timestamp::UNIX_EPOCH,
            revision: None,
            expires_at: Timestamp::UNIX_EPOCH,
            asked_before: 0,
        };
        let response = |status, notes: Option<&str>, file: Option<&str>| Response {
            proposal_id: id.clone(),
            status,
            notes: notes.map(str::to_owned),
            final_file: file.map(str::to_owned),
            scope: Scope::Run,
            decided_at: Timestamp::UNIX_EPOCH,
            decided_by: "someone".to_owned(),
        };
        let (routes, report) = (proposal(Tool::EgressAllow), proposal(Tool::GitleaksAllow));
        for (status, notes, file, fits_routes, fits_report) in [
            (Status::Approved, None, None, true, false),
            (Status::Approved, Some(" "), None, true, false),
            (Status::Approved, Some("a fixture"), None, true, true),
            (Status::Approved, Some("a fixture"), Some("x"), false, false),
            (Status::Modified, None, Some("routes: []"), true, false),
            (Status::Modified, None, None, false, false),
            (Status::Rejected, None, None, true, true),
        ] {
            let response = response(status, notes, file);
            assert_eq!(response.check(&routes).is_ok(), fits_routes, "{response:?}");
            assert_eq!(response.check(&report).is_ok(), fits_report, "{response:?}");
        }
        for (status, notes, fits_routes) in [
            (Status::Approved, None, true),
            (Status::Approved, Some("a reason"), true),
            (Status::Rejected, None, false),
        ] {
            let once = Response { scope: Scope::Once, ..response(status, notes, None) };
            assert_eq!(once.check(&routes).is_ok(), fits_routes, "{once:?}");
            assert!(once.check(&report).is_err(), "{once:?}");
        }
        let other =
            Response { proposal_id: Id::from_random([2; 16]), ..response(Status::Rejected, None, None) };
        assert!(other.check(&routes).is_err());
    }
}
