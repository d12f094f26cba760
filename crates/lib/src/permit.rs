//! Checks commands that another program runs in a bottle against the command policy.

use std::time::Duration;

use bottle_command_policy::{
    Approval, Assessment, Decision, Finding, Mode, READ_ONLY_ENVIRONMENT, Rule, assess, assess_file_change,
};
use bottle_host::{Host, Settings};
use bottle_instance::record::ApprovedCommand;
use bottle_instance::{State, Store};
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest};
use bottle_policy::names::Slug;
use bottle_protocol::queue::{Answer, Status, Tool};
use bottle_queue::question;
use serde_json::json;

use super::connect::{connect, keeper_lost, unexpected_answer};
use super::failure::Failure;
use super::text::inert;

/// Whether and how long a command that needs approval waits for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The user is not asked.
    Never,
    /// The user is asked. The command waits for the time that the settings define for questions about a finding.
    Waits,
    /// The user is asked. The command waits for the time that the settings define for calls of a tool.
    WaitsForACall,
}

/// Checks that the command policy allows a command in a bottle. Uses the mode `mode` if it is set, otherwise the mode
/// of the settings. If the command must be approved, asks the user as `ask` says. Returns the environment variables to
/// set for the command. If the command was proven to only read, these variables prevent it from doing more than that.
///
/// # Errors
/// Returns an error that names the first finding if the command is denied, or if it needs an approval and does not get
/// one.
pub async fn permit(
    host: &Host,
    slug: &Slug,
    argv: &[String],
    mode: Option<Mode>,
    ask: Ask,
) -> Result<&'static [(&'static str, &'static str)], Failure> {
    let line = joined(argv)?;
    decided(host, slug, &line, assess(&line), mode, ask).await
}

/// Checks that the command policy allows a tool to change these files of a bottle, as [`permit`] checks a command. If
/// `paths` is empty, checks that the tool may change any file.
///
/// # Errors
/// Returns the errors of [`permit`].
pub async fn permit_file_change(
    host: &Host,
    slug: &Slug,
    tool: &str,
    paths: &[String],
    mode: Option<Mode>,
    ask: Ask,
) -> Result<(), Failure> {
    let line = joined(&[&[tool.to_owned()][..], paths].concat())?;
    decided(host, slug, &line, assess_file_change(tool, paths), mode, ask).await.map(drop)
}

fn joined(words: &[String]) -> Result<String, Failure> {
    shlex::try_join(words.iter().map(String::as_str))
        .map_err(|_| Failure::usage("a word of the command contains a NUL character"))
}

async fn decided(
    host: &Host,
    slug: &Slug,
    line: &str,
    assessment: Assessment,
    mode: Option<Mode>,
    ask: Ask,
) -> Result<&'static [(&'static str, &'static str)], Failure> {
    let settings = Settings::load(host)?;
    let approvals = [settings.commands.approvals(), approved_in(host, slug)].concat();
    let findings = match assessment.decide(mode.unwrap_or(settings.commands.mode), &approvals) {
        Decision::Allow if assessment.is_read_only => return Ok(READ_ONLY_ENVIRONMENT),
        Decision::Allow => return Ok(&[]),
        Decision::Ask(findings) => findings,
        Decision::Deny(findings) => {
            let hint = "no setting allows it: `bottle rules list` shows what is denied";
            return Err(refused("the command", "is denied", &findings).about("--checked").hint(hint));
        }
    };
    let waits = match ask {
        Ask::Never => None,
        Ask::Waits => Some(settings.waits.token_seconds),
        Ask::WaitsForACall => Some(settings.waits.call_seconds),
    };
    match waits.filter(|_| is_supervised(host, slug)) {
        Some(seconds) => approval(host, slug, line, &findings, Duration::from_secs(seconds)).await,
        None => {
            let hint = match ask {
                Ask::Never => format!("`--ask` asks you; or {APPROVE_IN_SETTINGS}"),
                Ask::Waits | Ask::WaitsForACall => APPROVE_IN_SETTINGS.to_owned(),
            };
            Err(refused("the command", "must be approved", &findings).about("--checked").hint(hint))
        }
    }
}

/// Checks a script that a shell of a bottle runs, as [`permit`] checks a command. Returns the script, preceded by
/// exports of the environment variables that [`permit`] returned.
///
/// # Errors
/// Returns the errors of [`permit`].
pub async fn permit_script(
    host: &Host,
    slug: &Slug,
    script: &str,
    mode: Option<Mode>,
    ask: Ask,
) -> Result<String, Failure> {
    let argv = ["sh", "-c", script].map(str::to_owned);
    let variables = permit(host, slug, &argv, mode, ask).await?;
    let exports = variables.iter().map(|(name, value)| format!("export {name}='{value}'; "));
    Ok(exports.chain([script.to_owned()]).collect())
}

const APPROVE_IN_SETTINGS: &str =
    "approve it in `commands.allow` of settings.yml: `bottle rules check` shows the entry";

/// The commands that the user approved for the current run of a bottle.
fn approved_in(host: &Host, slug: &Slug) -> Vec<Approval> {
    let Some(State::Alive(record)) = Store::of(host).state(slug) else { return Vec::new() };
    let approval = |command: ApprovedCommand| {
        let rule = Rule::named(&command.rule).filter(|rule| !rule.is_floor())?;
        Some(Approval { rule, prefix: command.prefix })
    };
    record.approved_commands.into_iter().filter_map(approval).collect()
}

/// Whether the user can be asked while the bottle runs.
fn is_supervised(host: &Host, slug: &Slug) -> bool {
    matches!(
        Store::of(host).state(slug),
        Some(State::Alive(record)) if record.services.iter().any(|service| service.name == bottle_supervise::NAME)
    )
}

/// Asks the user to approve a command, through the bottle's supervise queue.
async fn approval(
    host: &Host,
    slug: &Slug,
    line: &str,
    findings: &[Finding],
    wait: Duration,
) -> Result<&'static [(&'static str, &'static str)], Failure> {
    let approves = findings.iter().map(|finding| ApprovedCommand {
        rule: finding.rule.id().to_owned(),
        prefix: finding.command.clone(),
    });
    let report = json!({
        "command": line,
        "findings": findings
            .iter()
            .map(|finding| json!({"rule": finding.rule.id(), "command": finding.command, "why": finding.why}))
            .collect::<Vec<_>>(),
    });
    // Lists of proposals show only the first line of this text.
    let first =
        findings.first().map(|finding| format!("{} {}", finding.shown(), finding.why)).unwrap_or_default();
    let why = format!(
        "{first}\nA program outside of the bottle wants to run this command. An approval holds for these commands, with \
         any further arguments, until the bottle ends; with the scope `once` for this command only"
    );
    let request = KeeperRequest::Permit {
        question: Box::new(question(Tool::CommandAllow, format!("{report:#}"), why, wait)),
        approves: approves.collect(),
    };
    let channel = connect(host, slug).await?;
    let mut stream = channel.open(&request).await.map_err(keeper_lost)?;
    let missing = |why: &str| refused("the command", why, findings).about("--checked");
    match stream.receive().await.map_err(keeper_lost)? {
        KeeperEvent::Decision(Answer::Decided(response)) if response.status == Status::Approved => Ok(&[]),
        KeeperEvent::Decision(Answer::Decided(response)) => {
            let error = missing("was rejected by the user");
            Err(error.hint_if(response.notes.map(|notes| format!("the reason: {}", inert(&notes)))))
        }
        KeeperEvent::Decision(Answer::Expired) => Err(missing("was not approved in time")
            .hint("the user answers with `bottle supervise`; try it again then")),
        KeeperEvent::Decision(Answer::Refused(why)) => Err(missing("cannot be approved").hint(inert(&why))),
        _ => Err(unexpected_answer()),
    }
}

/// Checks a text that is typed into a program against the floor of the command policy: the rules that deny in every
/// mode. Other rules are not checked, because the meaning of the text is unknown.
///
/// # Errors
/// Returns an error that names the first finding if the text is denied.
pub fn permit_input(text: &str) -> Result<(), Failure> {
    match assess(text).decide(Mode::LetItGo, &[]) {
        Decision::Deny(findings) => Err(refused("the input", "is denied", &findings)),
        Decision::Allow | Decision::Ask(_) => Ok(()),
    }
}

fn refused(what: &str, verb: &str, findings: &[Finding]) -> Failure {
    let first = findings.first();
    let why = first.map(|finding| format!("{} {}", finding.shown(), finding.why)).unwrap_or_default();
    let rule = first.map_or("", |finding| finding.rule.id());
    Failure::state(format!("{what} {verb} ({rule}): {}", inert(&why)))
}
