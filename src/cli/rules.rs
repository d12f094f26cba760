//! `bottle rules`: shows what the command policy decides, and why.

use bottle_command_policy::{Assessment, Decision, Finding, Mode, Rule, assess, shown};
use bottle_host::command_settings::{CommandSettings, entry};
use bottle_host::{Host, Settings};
use bottle_lib::report::{RuleAnswer, RuleFinding, RuleOverview, RuleShown};
use clap::Subcommand;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};
use crate::console::style::Styles;

/// Show what the command policy decides about commands, and why
///
/// The policy applies to commands that another program runs in a bottle. It is a convenience: the isolation of a bottle
/// does not depend on it.
#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Check whether a command line may run, and show why
    ///
    /// Nothing is run. Exits with 1 if the command is denied or must be approved.
    Check(Check),
    /// List the rules, and the commands that the settings approve
    List,
}

/// The arguments of `rules check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The command line, as a shell would read it
    command: String,
    /// Decide as in this mode: `baby-sitter`, `teenager` or `let-it-go`; by default the mode in the settings
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
}

impl Rules {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?.commands;
        match self {
            Self::Check(check) => check.run(settings, output),
            Self::List => list(&settings, output),
        }
    }
}

impl Check {
    fn run(self, mut settings: CommandSettings, output: &Output) -> Result<u8, CliError> {
        if let Some(name) = &self.mode {
            let named = Mode::parse(name).map_err(|why| CliError::usage(why.to_string()))?;
            (settings.mode, settings.warning) = (named.mode, named.warning);
        }
        if let Some(warning) = &settings.warning {
            output.warn(warning);
        }
        let answer = answer(&assess(&self.command), &settings);
        output.json_or(&answer, || output.print(&text(&answer, &settings, output.styles())))?;
        Ok(if answer.verdict == "allow" { exit::DONE } else { exit::FAILED })
    }
}

/// Returns the decision about a command line. For each finding, the answer contains the entry of the settings that
/// approves the finding.
fn answer(assessment: &Assessment, settings: &CommandSettings) -> RuleAnswer {
    let verdict = match assessment.decide(settings.mode, &settings.approvals()) {
        Decision::Allow => "allow",
        Decision::Ask(_) => "ask",
        Decision::Deny(_) => "deny",
    };
    let described = |finding: &Finding| RuleFinding {
        rule: finding.rule.id(),
        floor: finding.rule.is_floor(),
        command: finding.command.clone(),
        why: finding.why.clone(),
        approved_by: settings
            .allow
            .iter()
            .find(|allowed| allowed.approval.covers(finding))
            .map(|allowed| allowed.origin.clone()),
    };
    RuleAnswer {
        verdict,
        mode: settings.mode.name(),
        read_only: assessment.is_read_only,
        findings: assessment.findings.iter().map(described).collect(),
    }
}

fn text(answer: &RuleAnswer, settings: &CommandSettings, styles: Styles) -> String {
    let verdict = match answer.verdict {
        "allow" => styles.green("allow"),
        "ask" => styles.yellow("ask"),
        _ => styles.red("deny"),
    };
    let mode = match answer.verdict {
        "deny" => "in each mode".to_owned(),
        _ if answer.read_only => "proved to only read".to_owned(),
        _ => format!("mode {}", settings.mode),
    };
    let mut lines = vec![format!("{verdict}  {}", styles.dim(&mode))];
    for finding in &answer.findings {
        let command = inert(&shown(&finding.command));
        let approved = finding.approved_by.as_ref().map(|origin| format!("  approved by {}", inert(origin)));
        lines.push(format!("  {}  {command}", finding.rule));
        lines.push(format!("    {}{}", inert(&finding.why), styles.dim(&approved.unwrap_or_default())));
    }
    let open = answer.findings.iter().filter(|finding| !finding.floor && finding.approved_by.is_none());
    if answer.verdict == "ask" {
        lines.push(
            styles.dim("To approve this for good, add to `commands.allow` in settings.yml:").to_string(),
        );
        lines.extend(open.map(|finding| format!("  - {}", inert(&entry(finding.rule, &finding.command)))));
    }
    lines.join("\n")
}

fn list(settings: &CommandSettings, output: &Output) -> Result<u8, CliError> {
    let overview = RuleOverview {
        mode: settings.mode.name(),
        rules: Rule::ALL
            .iter()
            .map(|rule| RuleShown { rule: rule.id(), floor: rule.is_floor(), finds: rule.says() })
            .collect(),
        allow: settings
            .allow
            .iter()
            .map(|allowed| bottle_lib::report::RuleApproval {
                rule: allowed.approval.rule.id(),
                prefix: allowed.approval.prefix.clone(),
                origin: allowed.origin.clone(),
            })
            .collect(),
    };
    output.json_or(&overview, || output.print(&listed(&overview, output.styles())))?;
    Ok(exit::DONE)
}

fn listed(overview: &RuleOverview, styles: Styles) -> String {
    let width = overview.rules.iter().map(|rule| rule.rule.len()).max().unwrap_or_default();
    let lines = |floor: bool| {
        let rules = overview.rules.iter().filter(move |rule| rule.floor == floor);
        rules.map(move |rule| format!("  {:width$}  {}", rule.rule, rule.finds))
    };
    let mut text = vec![format!("mode: {}", overview.mode), String::new()];
    text.push(styles.bold("Denied in each mode").to_string());
    text.extend(lines(true));
    text.push(String::new());
    text.push(styles.bold("Asked for in the modes baby-sitter and teenager").to_string());
    text.extend(lines(false));
    if !overview.allow.is_empty() {
        text.push(String::new());
        text.push(styles.bold("Approved in the settings").to_string());
        text.extend(overview.allow.iter().map(|allowed| {
            format!(
                "  {:width$}  {}  {}",
                allowed.rule,
                inert(&shown(&allowed.prefix)),
                styles.dim(&inert(&allowed.origin))
            )
        }));
    }
    text.join("\n")
}
