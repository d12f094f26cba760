//! What is asked of a user, and what the user answers: the words of the queue.
//!
//! ```text
//! daemon ── Question ──► bundle ──► keeper ── Proposal file ──► user
//!        ◄── Answer ───        ◄──        ◄── Response file ──
//! ```
//! A daemon asks over its channel and sees no folder; the keeper is the one who asks on disk.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::Slug;

/// The largest file of the queue. What is larger is damaged.
pub const MAX_FILE: usize = 1 << 20;

/// The longest of a question's texts, in bytes: with every character escaped it still fits into a frame and
/// a file.
pub const MAX_TEXT: usize = 80 << 10;

/// Questions of one bottle that may wait for an answer at once.
pub const MAX_PENDING: usize = 16;

/// A question's name: a UUID, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

impl Id {
    /// A version 4 UUID of these random bytes.
    #[must_use]
    pub fn of(mut random: [u8; 16]) -> Self {
        random[6] = random[6] & 0x0f | 0x40;
        random[8] = random[8] & 0x3f | 0x80;
        let hex = hex::encode(random);
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
        Self(format!("{a}-{b}-{c}-{d}-{e}"))
    }

    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its beginning, by which a user names it.
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

/// A text that is no name of a question.
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

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// Routes that the agent needs, before it needs them.
    EgressAllow,
    /// Routes that the agent needs, after a refusal.
    EgressBlock,
    /// A request in which the proxy found a secret.
    EgressTokenAllow,
    /// A push in which the git gate found a secret.
    GitleaksAllow,
}

impl Tool {
    /// Its name in files and commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EgressAllow => "egress-allow",
            Self::EgressBlock => "egress-block",
            Self::EgressTokenAllow => "egress-token-allow",
            Self::GitleaksAllow => "gitleaks-allow",
        }
    }

    /// What a bottle does that asks for it, as the end of a sentence.
    #[must_use]
    pub fn deed(self) -> &'static str {
        match self {
            Self::EgressAllow => "asks for hosts",
            Self::EgressBlock => "asks for hosts that were refused",
            Self::EgressTokenAllow => "sends what may be a secret",
            Self::GitleaksAllow => "pushes what may be a secret",
        }
    }

    /// Whether it only reports: there is nothing to modify, and an approval needs a reason.
    #[must_use]
    pub fn reports(self) -> bool {
        matches!(self, Self::EgressTokenAllow | Self::GitleaksAllow)
    }
}

/// A question on its way from a daemon to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Its name.
    pub id: Id,
    /// What is asked for.
    pub tool: Tool,
    /// What is proposed, or the report; see [`Proposal::proposed_file`]. Never holds a secret's value.
    pub proposed_file: String,
    /// Why, in the asker's words.
    pub justification: String,
    /// The routes it was made against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// When the asker gives up.
    pub expires_at: Timestamp,
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// A user decided.
    Decided(Box<Response>),
    /// Nobody did in time.
    Expired,
    /// It was never asked, or the answer cannot be read: a lower-case fragment that says why.
    Refused(String),
}

/// `<id>.proposal.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Its name, also the file's.
    pub id: Id,
    /// Who asks.
    pub bottle_slug: Slug,
    /// What is asked for.
    pub tool: Tool,
    /// The routes to add, or the report. Text of an agent: hostile, shown inert.
    pub proposed_file: String,
    /// Why. Text of an agent as well.
    pub justification: String,
    /// When it was asked, UTC.
    pub arrival_timestamp: Timestamp,
    /// The routes it was made against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// When the asker gives up.
    pub expires_at: Timestamp,
    /// How often the same was asked for before, since it was rejected.
    #[serde(default, skip_serializing_if = "is_none")]
    pub asked_before: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Proposal {
    /// The question of a bottle, as it stands on disk.
    #[must_use]
    pub fn new(slug: Slug, question: Question, now: Timestamp) -> Self {
        Self {
            id: question.id,
            bottle_slug: slug,
            tool: question.tool,
            proposed_file: question.proposed_file,
            justification: question.justification,
            arrival_timestamp: now,
            revision: question.revision,
            expires_at: question.expires_at,
            asked_before: 0,
        }
    }

    /// Whether it asks for the same, whatever the reason given.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.tool == other.tool && self.proposed_file == other.proposed_file
    }
}

/// `<id>.response.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// The question.
    pub proposal_id: Id,
    /// The decision.
    pub status: Status,
    /// The reason, or what the user wants to say.
    #[serde(default)]
    pub notes: Option<String>,
    /// What applies instead of what was proposed, with [`Status::Modified`].
    #[serde(default)]
    pub final_file: Option<String>,
    /// How long a yes to routes holds.
    #[serde(default, skip_serializing_if = "Scope::is_run")]
    pub scope: Scope,
    /// When, UTC.
    pub decided_at: Timestamp,
    /// Who.
    pub decided_by: String,
}

/// How long a yes to routes holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// For the next request that they let through.
    Once,
    /// As long as the bottle runs.
    #[default]
    Run,
    /// The same, and the user writes them into a manifest for the next one.
    Saved,
}

impl Scope {
    /// Whether it is the one that is meant where none is given.
    #[must_use]
    pub fn is_run(&self) -> bool {
        *self == Self::Run
    }
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// As proposed.
    Approved,
    /// In another form.
    Modified,
    /// No.
    Rejected,
}

impl Response {
    /// Whether it is an answer to this proposal, and a whole one.
    ///
    /// # Errors
    /// A lower-case fragment that says what is wrong with it.
    pub fn check(&self, proposal: &Proposal) -> Result<(), String> {
        if self.proposal_id != proposal.id {
            return Err("the response is to another proposal".to_owned());
        }
        let modified = self.status == Status::Modified;
        if modified && proposal.tool.reports() {
            return Err(format!("a proposal of {} cannot be modified", proposal.tool.name()));
        }
        if modified != self.final_file.is_some() {
            return Err("`final_file` belongs to `modified`, and to nothing else".to_owned());
        }
        if !self.scope.is_run() && (self.status == Status::Rejected || proposal.tool.reports()) {
            return Err("`scope` belongs to a yes to routes, and to nothing else".to_owned());
        }
        let reason = self.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
        if self.status == Status::Approved && proposal.tool.reports() && !reason {
            return Err(format!("an approval of {} needs a reason in `notes`", proposal.tool.name()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_and_nothing_else() {
        let id = Id::of([0xff; 16]);
        assert_eq!(id.as_str(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        for text in
            ["", "../x", "FFFFFFFF-ffff-4fff-bfff-ffffffffffff", "ffffffff0ffff04fff0bfff0ffffffffffff"]
        {
            assert_eq!(text.parse::<Id>(), Err(BadId), "{text}");
        }
    }

    #[test]
    fn a_response_fits_its_proposal() {
        let id = Id::of([1; 16]);
        let proposal = |tool| Proposal {
            id: id.clone(),
            bottle_slug: "a-1".parse().expect("slug"),
            tool,
            proposed_file: String::new(),
            justification: String::new(),
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
        let other = Response { proposal_id: Id::of([2; 16]), ..response(Status::Rejected, None, None) };
        assert!(other.check(&routes).is_err());
    }
}
