//! The JSON output of the commands for rules and policies.

use bottle_policy::decide::Reason;
use serde::Serialize;

/// The output of `bottle rules check --json`.
#[derive(Debug, Serialize)]
pub struct RuleAnswer {
    /// `allow`, `deny` or `ask`.
    pub verdict: &'static str,
    /// The mode of the command policy.
    pub mode: &'static str,
    /// Whether the command was proven to only read.
    pub read_only: bool,
    /// The findings of the rules.
    pub findings: Vec<RuleFinding>,
}

/// One finding of [`RuleAnswer`].
#[derive(Debug, Serialize)]
pub struct RuleFinding {
    /// The name of the rule.
    pub rule: &'static str,
    /// Whether the rule denies in every mode.
    pub floor: bool,
    /// The words of the command to which the finding applies.
    pub command: Vec<String>,
    /// What the rule found, as one sentence.
    pub why: String,
    /// The file and line of the settings entry that approves the finding.
    pub approved_by: Option<String>,
}

/// The output of `bottle rules list --json`.
#[derive(Debug, Serialize)]
pub struct RuleOverview {
    /// The mode of the command policy.
    pub mode: &'static str,
    /// The rules, in the order in which they are checked.
    pub rules: Vec<RuleShown>,
    /// The approvals in the settings.
    pub allow: Vec<RuleApproval>,
}

/// One rule of [`RuleOverview`].
#[derive(Debug, Serialize)]
pub struct RuleShown {
    /// The name of the rule.
    pub rule: &'static str,
    /// Whether the rule denies in every mode.
    pub floor: bool,
    /// What the rule finds.
    pub finds: &'static str,
}

/// One approval of [`RuleOverview`].
#[derive(Debug, Serialize)]
pub struct RuleApproval {
    /// The name of the approved rule.
    pub rule: &'static str,
    /// The words with which an approved command begins.
    pub prefix: Vec<String>,
    /// The file and line of the entry.
    pub origin: String,
}

/// The output of `bottle policy check --json`.
#[derive(Debug, Serialize)]
pub struct PolicyAnswer {
    /// `allow`, `deny` or `ask`.
    pub verdict: &'static str,
    /// Why the request is denied. `None` if it is allowed.
    pub reason: Option<Reason>,
    /// The decision as one sentence.
    pub sentence: String,
    /// The host pattern of the route that decided.
    pub route: Option<String>,
    /// The file and line of the manifest that defines this route.
    pub origin: Option<String>,
    /// The scanner's findings that did not block the request, in the form of the proxy's log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The output of `bottle policy test --json`.
#[derive(Debug, Default, Serialize)]
pub struct Replayed {
    /// The number of requests that were decided again.
    pub replayed: usize,
    /// The number of records that cannot be decided again: connections without a request, redacted requests,
    /// and findings that were only logged.
    pub skipped: usize,
    /// The distinct requests whose verdict changed.
    pub changed: Vec<ChangedVerdict>,
    /// Whether more requests changed than are listed.
    pub more: bool,
}

/// A request whose verdict changed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ChangedVerdict {
    /// The number of the line, from 1, that contains the request first.
    pub line: usize,
    /// How many times the request occurs in the file.
    pub times: usize,
    /// The method of the request.
    pub method: String,
    /// The URL of the request.
    pub url: String,
    /// The recorded verdict.
    pub was: RecordedVerdict,
    /// The verdict of the current routes.
    pub now: RecordedVerdict,
    /// The current decision as a sentence.
    pub sentence: String,
}

/// A verdict and, if the verdict has one, its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedVerdict {
    /// `allow`, `deny` or `ask`.
    pub verdict: String,
    /// Why the request is denied. `None` if it is allowed.
    pub reason: Option<String>,
}
