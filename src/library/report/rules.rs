//! The JSON output of the commands for rules and policies.

use bottle_contract::decide::Reason;
use serde::Serialize;

/// The output of `bottle rules check --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RuleAnswer {
    /// `allow`, `deny` or `ask`.
    pub(crate) verdict: &'static str,
    pub(crate) mode: &'static str,
    /// Whether the command was proved to only read.
    pub(crate) read_only: bool,
    pub(crate) findings: Vec<RuleFinding>,
}

/// One finding of [`RuleAnswer`].
#[derive(Debug, Serialize)]
pub(crate) struct RuleFinding {
    pub(crate) rule: &'static str,
    /// Whether the rule denies in each mode.
    pub(crate) floor: bool,
    /// The words of the command that the rule is about.
    pub(crate) command: Vec<String>,
    pub(crate) why: String,
    /// The entry of the settings that approves it, as a file and a line.
    pub(crate) approved_by: Option<String>,
}

/// The output of `bottle rules list --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RuleOverview {
    pub(crate) mode: &'static str,
    pub(crate) rules: Vec<RuleShown>,
    /// The approvals in the settings.
    pub(crate) allow: Vec<RuleApproval>,
}

/// One rule of [`RuleOverview`].
#[derive(Debug, Serialize)]
pub(crate) struct RuleShown {
    pub(crate) rule: &'static str,
    pub(crate) floor: bool,
    pub(crate) finds: &'static str,
}

/// One approval of [`RuleOverview`].
#[derive(Debug, Serialize)]
pub(crate) struct RuleApproval {
    pub(crate) rule: &'static str,
    pub(crate) prefix: Vec<String>,
    /// The file and line of the entry.
    pub(crate) origin: String,
}

/// The output of `bottle policy check --json`.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyAnswer {
    /// `allow`, `deny` or `ask`.
    pub(crate) verdict: &'static str,
    pub(crate) reason: Option<Reason>,
    pub(crate) sentence: String,
    /// The host pattern of the route that decided.
    pub(crate) route: Option<String>,
    /// The file and line of the manifest that defines this route.
    pub(crate) origin: Option<String>,
    /// What the scanner found without blocking the request, as it is logged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}
