//! The JSON that scripts rely on. Fields are only ever added.

use bottle_contract::decide::Reason;
use bottle_contract::lock_out::LockOut;
use bottle_contract::session::guest::{Attempt, Reach};
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use serde::Serialize;

use super::supervise::Unsaved;
use crate::backend::{Finding, Unused};
use crate::instance::audit::Entry;
use crate::instance::record::Service;
use crate::launch::isolation::{Control, JudgedAttempt};

/// One line of `bottle list active --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ActiveBottle {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    /// As given with `--color-label`.
    pub(crate) color: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) bottles: Vec<String>,
    pub(crate) backend: Option<String>,
    pub(crate) mode: Option<&'static str>,
    pub(crate) status: &'static str,
    pub(crate) started_at: Option<Timestamp>,
    /// Questions of this bottle that wait for a user.
    pub(crate) pending: u32,
    /// What guards its proxy, while it runs.
    pub(crate) services: Vec<Service>,
    /// Why nothing leaves it any more, while it runs.
    pub(crate) locked: Option<LockOut>,
    /// Why nothing more is known of it, when its record cannot be read.
    pub(crate) problem: Option<String>,
}

/// `bottle cleanup --json`.
#[derive(Debug, Serialize)]
pub(crate) struct CleanupReport {
    /// Whether nothing was done.
    pub(crate) dry_run: bool,
    /// Bottles that ran and were stopped (`--all`).
    pub(crate) stopped: Vec<String>,
    /// What had no keeper any more.
    pub(crate) removed: Vec<Leftover>,
    /// References of snapshots that nothing refers to.
    pub(crate) snapshots: Vec<String>,
    /// Images, volumes and the like that no bottle needs any more.
    pub(crate) unused: Vec<Unused>,
    /// Folders and sockets that nobody uses.
    pub(crate) files: Vec<String>,
    /// Bottles' names of whose usage old records went.
    pub(crate) usage: Vec<String>,
    /// What was left alone, and why.
    pub(crate) left: Vec<String>,
    /// What failed; everything else was done.
    pub(crate) errors: Vec<String>,
}

/// One bottle that `cleanup` removed.
#[derive(Debug, Serialize)]
pub(crate) struct Leftover {
    pub(crate) slug: String,
    pub(crate) backend: String,
    pub(crate) why: String,
    /// Whether it was stopped and kept instead, for the work in it.
    pub(crate) work_kept: bool,
    /// Its keys on forges that were revoked, or could not be: `errors` says which.
    pub(crate) deploy_keys: Vec<String>,
}

/// `bottle discard --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Discarded {
    pub(crate) slug: String,
    /// Whether a snapshot of it is there to go on from.
    pub(crate) snapshot: bool,
}

/// `bottle commit --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Committed {
    pub(crate) slug: String,
    /// The backend's own name for the snapshot.
    pub(crate) reference: String,
    pub(crate) made_at: Timestamp,
    /// Bytes of the files in it, when that is known.
    pub(crate) bytes: Option<u64>,
    /// What the user should know of it.
    pub(crate) notes: Vec<String>,
    /// The command that goes on from it.
    pub(crate) resume: String,
    /// The command that packs it for another machine.
    pub(crate) moved_by: Option<String>,
}

/// `bottle pull --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Pulled {
    pub(crate) slug: String,
    /// The branch, without `refs/heads/`.
    pub(crate) branch: String,
    /// The commit it was at before; absent when there was no such branch.
    pub(crate) before: Option<String>,
    pub(crate) after: String,
    /// Commits that `HEAD` has not.
    pub(crate) commits: u64,
    /// Files in the bottle that are in no commit.
    pub(crate) uncommitted: usize,
    /// Branches in the bottle whose commits are not here.
    pub(crate) elsewhere: usize,
}

/// `bottle diff --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) slug: String,
    /// The commit it is compared with; absent when there is none.
    pub(crate) base: Option<String>,
    /// A unified diff.
    pub(crate) diff: String,
    /// A unified diff from the same commit to the bottle's last one, of files that the workspace has otherwise.
    pub(crate) committed: String,
    /// Whether there is more.
    pub(crate) cut: bool,
}

/// One line of `bottle list snapshots --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ListedSnapshot {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) backend: String,
    pub(crate) reference: String,
    pub(crate) made_at: Timestamp,
    pub(crate) bytes: Option<u64>,
    /// `ready`, `gone` when somebody removed it, `unknown` when its backend could not be asked, `unnamed` when
    /// its bottle's state is not there any more.
    pub(crate) status: &'static str,
}

/// One line of `bottle list agents --json` and `bottle list bottles --json`.
#[derive(Debug, Serialize)]
pub(crate) struct NamedManifest {
    pub(crate) name: String,
    /// Who put it there.
    pub(crate) from: &'static str,
    pub(crate) file: String,
    /// Whose file of the same name it shadows.
    pub(crate) replaces: Option<&'static str>,
}

/// One line of `bottle doctor --json`.
#[derive(Debug, Serialize)]
pub(crate) struct BackendHealth {
    pub(crate) backend: &'static str,
    pub(crate) usable: bool,
    pub(crate) findings: Vec<Finding>,
}

/// One line of `bottle supervise list --json`, and `bottle supervise show --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Question {
    pub(crate) id: String,
    pub(crate) slug: String,
    pub(crate) tool: &'static str,
    /// The first line of the justification.
    pub(crate) summary: String,
    /// Why, in the words of who asks: text from inside a bottle.
    pub(crate) justification: String,
    /// What is proposed, or the report: text from inside a bottle.
    pub(crate) proposed_file: String,
    /// With `show`, of proposed routes: what they would open that is not allowed now, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gains: Option<Vec<String>>,
    pub(crate) arrived_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    /// How often the same was asked for before, since it was rejected.
    pub(crate) asked_before: u32,
    /// Whether nobody waits for the answer any more.
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
            gains: None,
            arrived_at: proposal.arrival_timestamp,
            expires_at: proposal.expires_at,
            asked_before: proposal.asked_before,
            stale: matches!(pending.state, State::Expired | State::Stale),
        }
    }
}

/// `bottle supervise approve --json` and `reject --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Answered {
    pub(crate) id: String,
    pub(crate) slug: String,
    /// `approved`, `rejected`, or `dismissed` where nobody waited.
    pub(crate) status: &'static str,
    /// With `--scope save`: the file that the routes were added to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<String>,
    /// With `--scope save`: why none was written, and the routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsaved: Option<Unsaved>,
}

/// One line of `bottle audit show --json`: the record as it stands in the file, without its hashes.
#[derive(Debug, Serialize)]
pub(crate) struct Audited {
    pub(crate) slug: String,
    pub(crate) seq: u64,
    pub(crate) time: Timestamp,
    pub(crate) by: String,
    pub(crate) entry: Entry,
}

/// One line of `bottle audit verify --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Verified {
    pub(crate) slug: String,
    pub(crate) whole: bool,
    /// Lines that are there and follow each other.
    pub(crate) lines: u64,
    /// The last line's hash, where the chain is whole.
    pub(crate) head: Option<String>,
    /// What is wrong with it.
    pub(crate) why: Option<String>,
}

/// `bottle learn --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Learnt {
    pub(crate) slug: String,
    /// What would have let it through, in the words of `egress.routes`.
    pub(crate) routes: Option<String>,
    /// What they open that is not allowed now, in words.
    pub(crate) opens: Vec<String>,
    pub(crate) hosts: Vec<LearntHost>,
    /// Where the routes say more than was asked for.
    pub(crate) rules: Vec<String>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Whether they wait for an answer in `bottle supervise`.
    pub(crate) asked: bool,
}

/// How often a host was asked for.
#[derive(Debug, Serialize)]
pub(crate) struct LearntHost {
    pub(crate) host: String,
    pub(crate) times: usize,
}

/// What no route is learned for.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) host: String,
    pub(crate) times: usize,
    pub(crate) why: String,
}

/// One line of `bottle probe --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ProbeAttempt {
    pub(crate) target: String,
    pub(crate) via: String,
    pub(crate) result: Reach,
    /// What was seen.
    pub(crate) seen: String,
    /// What is known of the target from outside: `answered`, `not-needed`, `missing`.
    pub(crate) control: &'static str,
}

impl From<&JudgedAttempt> for ProbeAttempt {
    fn from(tried: &JudgedAttempt) -> Self {
        let Attempt { target, via, result, seen, .. } = tried.attempt.clone();
        let control = match tried.control {
            Control::Answered => "answered",
            Control::NotNeeded => "not-needed",
            Control::Missing => "missing",
        };
        Self { target, via, result, seen, control }
    }
}

/// `bottle policy check --json`.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyAnswer {
    /// `allow`, `refuse` or `ask`.
    pub(crate) verdict: &'static str,
    pub(crate) reason: Option<Reason>,
    pub(crate) sentence: String,
    /// The host pattern of the route that decided.
    pub(crate) route: Option<String>,
    /// Where that route was written.
    pub(crate) origin: Option<String>,
}
