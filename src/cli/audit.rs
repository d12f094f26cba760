//! `bottle audit`: shows the audit log and verifies its hash chain.

use bottle_host::Host;
use bottle_host::causes;
use bottle_instance::Store;
use bottle_instance::audit::{self, AuditError, Entry, Trail};
use bottle_instance::audited_routes::{AuditedChange, AuditedRoutes};
use bottle_lib::line_diff::{Changed, all_lines};
use bottle_lib::report::{AuditLine, VerifiedLog};
use bottle_lib::routes::as_list;
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::Slug;
use bottle_policy::route::edit::{Action, RouteEdit};
use bottle_protocol::audit::Record;
use clap::Subcommand;

use crate::console::error::{CliError, Kind};
use crate::console::exit;
use crate::console::output::{Output, Styles, counted, inert, one_line};

/// Show or verify the audit log, whose lines form a hash chain
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Show every decision and the routes that each one activated
    Show {
        /// The bottle, running or ended; shows all bottles when omitted
        slug: Option<Slug>,
        /// Also show the routes before and after each approval and each change
        #[arg(long)]
        routes: bool,
    },
    /// Verify that no line was altered, added or removed
    ///
    /// Exits with 1 if a line was altered, added or removed.
    Verify {
        /// The bottle, running or ended; verifies all bottles when omitted
        slug: Option<Slug>,
    },
}

impl Audit {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::Show { slug, routes } => show(host, output, slug, routes),
            Self::Verify { slug } => verify(host, output, slug),
        }
    }
}

/// Returns the given bottle, or every bottle that has an audit log.
fn selected(host: &Host, slug: Option<Slug>) -> Result<Vec<Slug>, CliError> {
    let all = audit::slugs(&host.home).map_err(|error| {
        CliError::state(format!("cannot read the audit log: {error}"))
            .hint("`audit` in $BOTTLE_HOME must be a directory that you own")
    })?;
    match slug {
        None => Ok(all),
        Some(slug) if all.contains(&slug) => Ok(vec![slug]),
        Some(slug) => {
            let head = host.home.join("audit").join("heads").join(slug.as_str());
            // A bottle without decisions has an empty audit log. This function does not report a missing log file,
            // because the verification reports it.
            if head.exists() || Store::of(host).state(&slug).is_some() {
                return Ok(vec![slug]);
            }
            Err(CliError::new(Kind::NoSuchBottle, format!("there are no audit entries for {slug}"))
                .about(slug)
                .hint("`bottle audit show` lists the bottles that have some"))
        }
    }
}

fn show(host: &Host, output: &Output, slug: Option<Slug>, routes: bool) -> Result<u8, CliError> {
    let mut all = Vec::new();
    let mut broken = false;
    for slug in selected(host, slug)? {
        match Trail::of(&host.home, &slug).read() {
            Ok((records, _)) => all.extend(records.into_iter().map(|record| {
                let Record { seq, time, by, entry, .. } = record;
                AuditLine { slug: slug.to_string(), seq, time, by, entry }
            })),
            Err(error) => {
                broken = true;
                output.warn(format!("{}; its entries are not shown", causes::one_line(&error)));
            }
        }
    }
    all.sort_by_key(|line| line.time);
    if all.is_empty() && !broken {
        output.note("the audit log is empty");
    }
    if routes && !output.json && !all.is_empty() {
        let entries: Vec<String> = all.iter().map(|line| with_routes(line, output.styles())).collect();
        output.print(&entries.join("\n"))?;
    } else {
        output.print_list(&all, &["BOTTLE", "TIME", "BY", "EVENT", "SUBJECT"], 0, cells)?;
    }
    Ok(if broken { exit::FAILED } else { exit::DONE })
}

/// Returns the cells of an entry's row.
fn cells(line: &AuditLine) -> Vec<String> {
    let time = line.time.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
    let (event, subject) = describe(&line.entry);
    vec![line.slug.clone(), time, one_line(&line.by), event.to_owned(), one_line(&subject)]
}

/// Renders an entry with the routes before and after it. Entries of earlier versions have no routes.
fn with_routes(line: &AuditLine, styles: Styles) -> String {
    let mut lines = vec![cells(line).join("  ")];
    if let Entry::Intent { effective, .. } | Entry::Change { effective, .. } = &line.entry {
        match effective {
            Some(change) => lines.extend(route_lines(change, styles)),
            None => lines.push("  an earlier version wrote this entry, without the routes".to_owned()),
        }
    }
    lines.join("\n")
}

/// Renders the routes before and after a change as one list, in which signs mark the lines that were removed or added.
fn route_lines(change: &AuditedChange, styles: Styles) -> Vec<String> {
    let AuditedChange { unchanged, before, after } = change;
    let mut lines = vec![if *unchanged {
        format!("  routes {}, unchanged:", after.revision)
    } else {
        format!("  routes {} before (-), routes {} after (+):", before.revision, after.revision)
    }];
    lines.extend(all_lines(&as_text(before), &as_text(after)).iter().map(|line| match line {
        Changed::Added(line) => styles.green(&format!("  + {}", inert(line))),
        Changed::Removed(line) => styles.red(&format!("  - {}", inert(line))),
        Changed::Same(line) => format!("    {}", inert(line)),
        Changed::Gap => String::new(),
    }));
    for (side, when) in [(before, "before"), (after, "after")] {
        if side.omitted > 0 {
            let count = counted(side.omitted, "more route");
            lines.push(format!("  {count} {when}: not recorded, because all of them together are too large"));
        }
    }
    lines
}

/// Renders routes as the items of `egress.routes`, with the one-time grants below.
fn as_text(routes: &AuditedRoutes) -> String {
    let once = routes.once.iter().map(|grant| {
        format!("# for one request, by proposal {}\n{}\n", grant.proposal.short(), grant.routes.trim_end())
    });
    once.fold(as_list(&routes.routes), |text, grant| text + &grant)
}

/// Returns the kind of an audit log entry, and a description of its content.
fn describe(entry: &Entry) -> (&'static str, String) {
    use bottle_protocol::queue::{Scope, Status};
    let status = |status: &Status| match status {
        Status::Approved => "approved",
        Status::Modified => "changed",
        Status::Rejected => "rejected",
    };
    let because = |reason: &Option<String>| reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    match entry {
        Entry::Enforced { budget, action, why } => {
            let of = budget.as_ref().map(|budget| format!(" of the budget {budget}")).unwrap_or_default();
            ("budget", format!("{action}{of}: {why}"))
        }
        Entry::Decided { tool, status: answer, reason, .. } => {
            (status(answer), format!("{}{}", tool.name(), because(reason)))
        }
        Entry::Intent { tool, status: answer, reason, revision, effective: Some(effective), .. }
            if effective.unchanged =>
        {
            let (tool, because) = (tool.name(), because(reason));
            (status(answer), format!("{tool}, routes {revision} unchanged: they allowed all of it{because}"))
        }
        Entry::Intent { tool, status: answer, scope, reason, revision, gains, .. } => {
            let gains = if gains.is_empty() { "no new permission".to_owned() } else { gains.join("; ") };
            let scope = match scope {
                Scope::Once => " for one request",
                Scope::Run => "",
                Scope::Saved => " to be saved",
            };
            let (tool, because) = (tool.name(), because(reason));
            (status(answer), format!("{tool}{scope}, routes {revision}: {gains}{because}"))
        }
        Entry::Change { edit, host, revision, gains, losses, .. } => {
            let event = match edit {
                None => "undone",
                Some(RouteEdit { action: Action::Allow, .. }) => "allowed",
                Some(RouteEdit { action: Action::Deny, .. }) => "denied",
            };
            let parts =
                [("allows", gains), ("denies", losses)].into_iter().filter(|(_, list)| !list.is_empty());
            let parts: Vec<String> =
                parts.map(|(verb, list)| format!("{verb} {}", list.join("; "))).collect();
            (event, format!("{host}, routes {revision}: {}", parts.join("; ")))
        }
        Entry::Spent { proposal } => ("spent", format!("the one-time grant of {}", proposal.short())),
        Entry::ReplacesSecrets { slots, .. } => {
            ("secrets", format!("new values of the credentials {}", slots.join(", ")))
        }
        Entry::ReplacedSecrets { failure: None, .. } => ("live", "the new values of credentials".to_owned()),
        Entry::ReplacedSecrets { failure: Some(why), .. } => {
            ("failed", format!("the new values of credentials: {why}"))
        }
        Entry::LockedOut(LockOut { parent: Some(parent), .. }) => {
            ("locked", format!("because {parent}, which started it, is locked"))
        }
        Entry::LockedOut(LockOut { hits, places, .. }) => {
            ("locked", format!("{hits} different parts of credentials in requests to {}", places.join(", ")))
        }
        Entry::Live { revision, .. } => ("live", format!("routes {revision}")),
        Entry::Failed { revision, why, .. } => ("failed", format!("routes {revision}: {why}")),
    }
}

fn verify(host: &Host, output: &Output, slug: Option<Slug>) -> Result<u8, CliError> {
    let mut verified = Vec::new();
    for slug in selected(host, slug)? {
        let read = Trail::of(&host.home, &slug).read();
        let (lines, head, why) = match read {
            Ok((_, head)) => (head.seq, Some(head.hash), None),
            Err(AuditError::Broken { source, .. }) => (0, None, Some(source.to_string())),
            Err(error @ AuditError::Io { .. }) => (0, None, Some(causes::one_line(&error))),
        };
        verified.push(VerifiedLog { slug: slug.to_string(), whole: why.is_none(), lines, head, why });
    }
    let whole = verified.iter().all(|verified| verified.whole);
    if verified.is_empty() {
        output.note("the audit log is empty");
    }
    let styles = output.styles();
    let row = |VerifiedLog { slug, lines, head, why, .. }: &VerifiedLog| match why {
        None => {
            let head = head.clone().unwrap_or_default();
            vec![slug.clone(), styles.green("intact"), lines.to_string(), head]
        }
        Some(why) => vec![slug.clone(), styles.red("broken"), String::new(), one_line(why)],
    };
    output.print_list(&verified, &["BOTTLE", "CHAIN", "LINES", "HEAD"], 0, row)?;
    if !whole {
        output.note(
            "no approval works for that bottle until `audit/BOTTLE.jsonl` in $BOTTLE_HOME is restored; \
             to start a new log, move it away together with `audit/heads/BOTTLE`",
        );
    }
    Ok(if whole { exit::DONE } else { exit::FAILED })
}
