//! The subcommands `list`, `show`, `approve` and `reject`, for scripts, editors and screen readers.

use std::io::Read;
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_lib::proposals::answer::{self, Decision, Saved};
use bottle_lib::proposals::pending::{
    self, WARNINGS_TITLE, first_line, scanner_warnings, span, state_text, warning_line,
};
use bottle_lib::proposals::route_change::{lookalike_warning, proposed_text, route_change};
use bottle_lib::proposals::scope::{GrantScope, RequestedScope};
use bottle_lib::report::{Answered, Question};
use bottle_protocol::queue::{MAX_TEXT, Proposal, Tool};
use bottle_queue::{Pending, State};
use jiff::Timestamp;

use crate::cli::route_addition::show_addition;
use crate::console::error::{CliError, Kind};
use crate::console::layout::Table;
use crate::console::output::{Output, counted, one_line, times};
use crate::console::runtime::block_on;
use crate::console::text_layout::wrapped;

/// The minimum number of characters from the beginning of an id that can name a proposal.
const SHORTEST: usize = 4;

/// Parses a proposal's id, or its first characters.
pub(super) fn parse_id(text: &str) -> Result<String, String> {
    let good = text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let why = || {
        format!("a proposal's id is at least {SHORTEST} characters of those that `bottle supervise` shows")
    };
    good.then(|| text.to_ascii_lowercase()).ok_or_else(why)
}

/// Returns all pending proposals, and prints a warning for each unreadable proposal.
fn all(host: &Host, output: &Output, now: Timestamp) -> Result<Vec<Pending>, CliError> {
    let (pending, skipped) = pending::all(host, now)?;
    skipped.iter().for_each(|warning| output.warn(warning));
    Ok(pending)
}

/// Returns the only pending proposal whose id starts with `begins`.
fn find(host: &Host, output: &Output, begins: &str, now: Timestamp) -> Result<Pending, CliError> {
    let mut found = all(host, output, now)?;
    found.retain(|pending| pending.proposal.id.as_str().starts_with(begins));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(CliError::usage(format!("no proposal's id starts with {begins}"))
            .about(begins)
            .hint("`bottle supervise` lists pending proposals")),
        more => Err(CliError::usage(format!("the ids of {more} proposals start with {begins}"))
            .about(begins)
            .hint("`bottle supervise list --json` shows full ids")),
    }
}

pub(super) fn list(host: &Host, output: &Output) -> Result<(), CliError> {
    let now = Timestamp::now();
    let pending = all(host, output, now)?;
    if output.json {
        let question = |pending: &Pending| {
            let change = route_change(host, &pending.proposal, &pending.proposal.proposed_file);
            let gains = change.and_then(Result::ok).map(|change| change.gains);
            Question { gains, ..Question::from(pending) }
        };
        return output.print_json(&pending.iter().map(question).collect::<Vec<_>>());
    }
    if !pending.iter().any(|pending| pending.state == State::Waiting) {
        output.note("there are no pending proposals");
    }
    let styles = output.styles();
    let row = |pending: &Pending| {
        let Proposal { id, bottle_slug, tool, justification, .. } = &pending.proposal;
        let waits = match pending.state {
            State::Waiting => styles.green(&state_text(pending, now)),
            _ => styles.yellow(&state_text(pending, now)),
        };
        let reason = untrusted(&first_line(justification));
        let asked = asked(host, &pending.proposal);
        let mut row = vec![id.short().to_owned(), bottle_slug.to_string(), tool.name().to_owned(), waits];
        if styles.columns().is_some() {
            // The request and the reason share the last column, because only the last column wraps.
            row.push(format!("{asked}\n{reason}"));
        } else {
            row.extend([reason, asked]);
        }
        row
    };
    let rows: Vec<Vec<String>> = pending.iter().map(row).collect();
    // In a pipe, `print_table` omits the heading.
    let heading = &["ID", "BOTTLE", "TOOL", "STATE", "REQUEST AND REASON"];
    output.print_table(&Table { heading, name: 0, rows: &rows })?;
    if !rows.is_empty() {
        output.note("`bottle supervise show ID` shows one in full");
    }
    Ok(())
}

/// Describes on one line what an approval would allow: hosts, methods and paths, or the request or push of a finding.
fn asked(host: &Host, proposal: &Proposal) -> String {
    match route_change(host, proposal, &proposal.proposed_file) {
        Some(Ok(change)) if change.gains.is_empty() => "nothing new".to_owned(),
        Some(Ok(change)) => one_line(&change.gains.join("; ")),
        Some(Err(why)) => one_line(&format!("cannot be applied: {why}")),
        None => untrusted(&one_line(&reported(&proposal.proposed_file))),
    }
}

/// Describes the report of a finding in a few words. The fields of the report are text from the bottle.
fn reported(report: &str) -> String {
    let report: serde_json::Value = serde_json::from_str(report).unwrap_or_default();
    let field = |name: &str| report.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
    let list = |name: &str| {
        let items = report.get(name).and_then(serde_json::Value::as_array);
        let items: Vec<&str> = items.into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
        items.join(", ")
    };
    match (field("host"), field("repository"), field("command")) {
        ("", "", "") => report.to_string(),
        ("", "", command) => command.to_owned(),
        ("", repository, _) => {
            let several = several_findings(&report).map(|count| format!(": {}", counted(count, "finding")));
            format!("push of {} to {repository}{}", list("refs"), several.unwrap_or_default())
        }
        (host, ..) => {
            let request = format!("{} {host}{}", field("method"), field("path"));
            let found = Some(field("found")).filter(|found| !found.is_empty());
            request.trim_start().to_owned() + &found.map(|found| format!(": {found}")).unwrap_or_default()
        }
    }
}

/// The prefix of every line that comes from a bottle. No other line has this prefix, so a bottle cannot imitate the
/// program's own output.
const BAR: &str = "| ";

/// Adds the prefix to a line that comes from a bottle.
fn untrusted(line: &str) -> String {
    format!("{BAR}{line}")
}

pub(super) fn show(host: &Host, output: &Output, id: &str) -> Result<(), CliError> {
    let now = Timestamp::now();
    let pending = find(host, output, id, now)?;
    let route_change = route_change(host, &pending.proposal, &pending.proposal.proposed_file);
    let warnings = scanner_warnings(host, &pending.proposal.bottle_slug);
    if output.json {
        let gains = route_change.and_then(Result::ok).map(|route_change| route_change.gains);
        let warnings = Some(warnings);
        return output.print_json(&Question { gains, warnings, ..Question::from(&pending) });
    }
    let styles = output.styles();
    let Proposal { id, bottle_slug, tool, justification, arrival_timestamp, asked_before, .. } =
        &pending.proposal;
    let asked = arrival_timestamp.strftime("%Y-%m-%d %H:%M:%SZ");
    let ago = span(now.duration_since(*arrival_timestamp));
    let field = |name: &str, text: &str| format!("  {name:<7} {}", styles.hanging(text, 10));
    // Wrapped lines get the prefix too, so that no line of a bottle can be mistaken for a line of `bottle` itself.
    let room = styles.width.map_or(usize::MAX, |columns| columns.saturating_sub(2 + BAR.len()).max(1));
    let foreign = |text: &str| {
        let lines = wrapped(text.trim_end(), room, styles);
        lines.iter().map(|line| format!("  {}", untrusted(line))).collect::<Vec<_>>().join("\n")
    };
    let mut lines = vec![
        format!("{} of {}", styles.bold(tool.name()), styles.bold(bottle_slug.as_str())),
        field("id", id.as_str()),
        field("asked", &format!("{asked}, {ago} ago")),
        field("state", &state_text(&pending, now)),
    ];
    if *asked_before > 0 {
        lines.push(field("before", &format!("proposed {} since it was rejected", times(*asked_before))));
    }
    lines.push(format!("\n  {}:", tool.justification_title()));
    lines.push(foreign(justification));
    lines.push(format!("\n  {}:", tool.request_title()));
    lines.push(foreign(&proposed_text(&pending.proposal)));
    if !pending.proposal.excerpt.is_empty() {
        lines.push("\n  Excerpt, with the values redacted:".to_owned());
        lines.extend(pending.proposal.excerpt.iter().map(|line| foreign(line)));
    }
    match route_change {
        None => {}
        Some(Ok(route_change)) if route_change.gains.is_empty() => {
            lines.push("\n  It changes nothing: all of it is already allowed.".to_owned());
        }
        Some(Ok(route_change)) => {
            lines.push("\n  Approval would allow:".to_owned());
            lines.extend(
                route_change.gains.iter().map(|gain| format!("  - {}", styles.hanging(&one_line(gain), 4))),
            );
            for host in &route_change.disguised {
                lines.push(format!("  {}", styles.yellow(&styles.hanging(&lookalike_warning(host), 2))));
            }
        }
        Some(Err(why)) => {
            let why = one_line(&why.to_string());
            lines.push(format!("\n  It cannot be applied: {}", styles.hanging(&why, 2)));
        }
    }
    if !warnings.is_empty() {
        lines.push(format!("\n  {WARNINGS_TITLE}:"));
        lines.extend(warnings.iter().map(|warning| foreign(&warning_line(warning))));
    }
    output.print(&lines.join("\n"))?;
    if pending.state == State::Waiting {
        let (short, reason) = (id.short(), if tool.needs_reason() { " --reason TEXT" } else { "" });
        let count = count_findings(&pending.proposal).map(|count| format!(" --findings {count}"));
        let count = count.unwrap_or_default();
        output.note(format!(
            "`bottle supervise approve {short}{reason}{count}` or `bottle supervise reject {short} --reason TEXT`"
        ));
    }
    Ok(())
}

/// The flags of an approval.
#[derive(Debug)]
pub(super) struct Approval {
    pub(super) reason: Option<String>,
    /// The number of findings that the user saw.
    pub(super) findings: Option<usize>,
    pub(super) edit: Option<PathBuf>,
    pub(super) scope: RequestedScope,
}

pub(super) fn approve(host: &Host, output: &Output, id: &str, approval: Approval) -> Result<(), CliError> {
    let Approval { reason, findings, edit, scope: wanted } = approval;
    let pending = find(host, output, id, Timestamp::now())?;
    check_count(&pending.proposal, findings)?;
    let routes = edit.as_deref().map(edited).transpose()?;
    let text = routes.as_deref().unwrap_or(&pending.proposal.proposed_file);
    // Only proposals for routes and commands have a choice of scope. For other proposals, `answer` refuses the scope
    // `Once`.
    let grant = match &wanted {
        RequestedScope::Once | RequestedScope::Saved(_) if !pending.proposal.tool.has_scope() => {
            GrantScope::Once
        }
        wanted => wanted.resolve(host, &pending.proposal, text)?,
    };
    if let GrantScope::Remembered(addition) = &grant {
        output.note(format!("these entries are added to `commands.allow` in {}", addition.path.display()));
        addition.entries.iter().for_each(|entry| output.note(format!("  - {}", one_line(entry))));
    }
    if let GrantScope::Saved(addition) = &grant
        && let Err(why) = show_addition(output, addition, "once it is live, ")
    {
        let path = addition.path.display();
        output.note(format!("cannot write {path}: {why}; the routes will be printed instead"));
    }
    answer(host, output, &pending, Decision::Approve { reason, routes, grant })
}

/// Returns the number of findings in a report, if there are several. Returns `None` for a command, because a command is
/// approved as a whole.
fn count_findings(proposal: &Proposal) -> Option<usize> {
    if proposal.tool == Tool::CommandAllow {
        return None;
    }
    let report = proposal.tool.reports().then(|| serde_json::from_str(&proposal.proposed_file).ok())??;
    several_findings(&report)
}

/// Returns the number of findings in `report`, if there are several.
fn several_findings(report: &serde_json::Value) -> Option<usize> {
    report.get("findings")?.as_array().map(Vec::len).filter(|count| *count > 1)
}

/// Checks that the user gave the number of findings that an approval covers.
fn check_count(proposal: &Proposal, given: Option<usize>) -> Result<(), CliError> {
    let Some(count) = count_findings(proposal).filter(|count| given != Some(*count)) else { return Ok(()) };
    let short = proposal.id.short();
    Err(CliError::usage(format!("this approves {count} findings")).about("--findings").hint(format!(
        "`bottle supervise show {short}` shows all of them; `--findings {count}` approves them"
    )))
}

pub(super) fn reject(host: &Host, output: &Output, id: &str, reason: String) -> Result<(), CliError> {
    let pending = find(host, output, id, Timestamp::now())?;
    answer(host, output, &pending, Decision::Reject { reason })
}

/// Answers a proposal, and prints the result.
fn answer(host: &Host, output: &Output, pending: &Pending, decision: Decision) -> Result<(), CliError> {
    let outcome = block_on(async { Ok(answer::answer(host, pending, decision).await?) })?;
    let Proposal { id, bottle_slug, tool, .. } = &pending.proposal;
    let (saved, unsaved) = match outcome.saved {
        Some(Saved { path, unsaved: None }) => (Some(path.display().to_string()), None),
        saved => (None, saved.and_then(|saved| saved.unsaved)),
    };
    if output.json {
        let (id, slug) = (id.to_string(), bottle_slug.to_string());
        return output.print_json(&Answered { id, slug, status: outcome.status, saved, unsaved });
    }
    output.note(format!("{} of {bottle_slug} {}", tool.name(), outcome.words));
    outcome.effects.iter().for_each(|sentence| output.note(one_line(sentence)));
    match unsaved {
        Some(unsaved) => output.print(&unsaved.routes),
        None => Ok(()),
    }
}

/// Reads the routes that replace the proposed routes. Returns the routes in their canonical form.
fn edited(path: &Path) -> Result<String, CliError> {
    let unusable = |message| CliError::usage(message).about(path.display()).hint("name a file of routes");
    let unread = |error: std::io::Error| unusable(format!("cannot read {}: {error}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unread)?;
    file.take(MAX_TEXT as u64 + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() > MAX_TEXT {
        return Err(unusable(format!("{} is too long", path.display())));
    }
    answer::canonical_routes(&text).map_err(|why| {
        CliError::new(Kind::Manifest, format!("{}: {why}", path.display()))
            .about(path.display())
            .hint("`bottle edit` can add routes that an agent may not propose")
    })
}
