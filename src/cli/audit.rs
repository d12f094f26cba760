//! `bottle audit`: shows the audit log and verifies its hash chain.

use bottle_contract::audit::Record;
use bottle_contract::lock_out::LockOut;
use bottle_contract::names::Slug;
use clap::Subcommand;

use super::error::{CliError, Kind};
use super::exit;
use super::json_schema::{AuditLine, VerifiedLog};
use super::layout::Table;
use super::output::{Output, one_line};
use crate::causes;
use crate::host::Host;
use crate::instance::Store;
use crate::instance::audit::{self, AuditError, Entry, Trail};

/// Show or verify the audit log, whose lines form a hash chain
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Show every decision and the routes that it made live
    Show {
        /// The bottle, running or ended; all bottles when omitted
        slug: Option<Slug>,
    },
    /// Verify that no line was altered, added or removed
    ///
    /// Exits with 1 if one was.
    Verify {
        /// The bottle, running or ended; all bottles when omitted
        slug: Option<Slug>,
    },
}

impl Audit {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::Show { slug } => show(host, output, slug),
            Self::Verify { slug } => verify(host, output, slug),
        }
    }
}

/// Returns the named bottle, or every bottle that has an audit log.
fn selected(host: &Host, slug: Option<Slug>) -> Result<Vec<Slug>, CliError> {
    let all = audit::slugs(&host.home).map_err(|error| {
        CliError::new(Kind::State, format!("cannot read the audit log: {error}"))
            .hint("`audit` in $BOTTLE_HOME must be a folder that you own")
    })?;
    match slug {
        None => Ok(all),
        Some(slug) if all.contains(&slug) => Ok(vec![slug]),
        Some(slug) => {
            let head = host.home.join("audit").join("heads").join(slug.as_str());
            // The verification reports a missing file, not this lookup. A bottle without decisions has an empty
            // audit log.
            if head.exists() || Store::of(host).state(&slug).is_some() {
                return Ok(vec![slug]);
            }
            Err(CliError::new(Kind::NoSuchBottle, format!("there are no audit entries for {slug}"))
                .about(slug)
                .hint("`bottle audit show` lists the bottles that have some"))
        }
    }
}

fn show(host: &Host, output: &Output, slug: Option<Slug>) -> Result<u8, CliError> {
    let mut all = Vec::new();
    let mut broken = false;
    for slug in selected(host, slug)? {
        match Trail::of(&host.home, &slug).read() {
            Ok((records, _)) => all.extend(records.into_iter().map(|record| (slug.clone(), record))),
            Err(error) => {
                broken = true;
                output.warn(format!("{}; its entries are not shown", causes::one_line(&error)));
            }
        }
    }
    all.sort_by_key(|(_, record)| record.time);
    let code = if broken { exit::FAILED } else { exit::DONE };
    if output.json {
        let audited = all.into_iter().map(|(slug, record)| {
            let Record { seq, time, by, entry, .. } = record;
            AuditLine { slug: slug.to_string(), seq, time, by, entry }
        });
        output.print_json(&audited.collect::<Vec<_>>())?;
        return Ok(code);
    }
    if all.is_empty() && !broken {
        output.note("the audit log is empty");
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|(slug, record)| {
            let time = record.time.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
            let (event, subject) = describe(&record.entry);
            vec![slug.to_string(), time, one_line(&record.by), event.to_owned(), one_line(&subject)]
        })
        .collect();
    output.print_table(&Table {
        heading: &["BOTTLE", "TIME", "BY", "EVENT", "SUBJECT"],
        name: 0,
        rows: &rows,
    })?;
    Ok(code)
}

/// Returns the kind of an entry and its subject.
fn describe(entry: &Entry) -> (&'static str, String) {
    use bottle_contract::queue::{Scope, Status};
    let status = |status: &Status| match status {
        Status::Approved => "approved",
        Status::Modified => "changed",
        Status::Rejected => "rejected",
    };
    let because = |reason: &Option<String>| match reason {
        Some(reason) => format!(": {reason}"),
        None => String::new(),
    };
    match entry {
        Entry::Decided { tool, status: answer, reason, .. } => {
            (status(answer), format!("{}{}", tool.name(), because(reason)))
        }
        Entry::Intent { tool, status: answer, scope, reason, revision, gains, .. } => {
            let gains = if gains.is_empty() { "no change".to_owned() } else { gains.join("; ") };
            let (tool, scope) = (
                tool.name(),
                match scope {
                    Scope::Once => " for one request",
                    Scope::Run => "",
                    Scope::Saved => " to be saved",
                },
            );
            (status(answer), format!("{tool}{scope}, routes {revision}: {gains}{}", because(reason)))
        }
        Entry::Spent { proposal } => ("spent", format!("the one-time grant of {}", proposal.short())),
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
        let slug = slug.to_string();
        verified.push(match read {
            Ok((_, head)) => {
                VerifiedLog { slug, whole: true, lines: head.seq, head: Some(head.hash), why: None }
            }
            Err(error) => {
                let why = match error {
                    AuditError::Broken { source, .. } => source.to_string(),
                    AuditError::Io { .. } => causes::one_line(&error),
                };
                VerifiedLog { slug, whole: false, lines: 0, head: None, why: Some(why) }
            }
        });
    }
    let whole = verified.iter().all(|verified| verified.whole);
    let code = if whole { exit::DONE } else { exit::FAILED };
    if output.json {
        output.print_json(&verified)?;
        return Ok(code);
    }
    if verified.is_empty() {
        output.note("the audit log is empty");
    }
    let styles = output.styles();
    let rows: Vec<Vec<String>> = verified
        .iter()
        .map(|VerifiedLog { slug, lines, head, why, .. }| match (head, why) {
            (Some(head), _) => {
                vec![slug.clone(), styles.green("intact"), lines.to_string(), head.clone()]
            }
            (None, why) => {
                let why = why.as_deref().map(one_line).unwrap_or_default();
                vec![slug.clone(), styles.red("broken"), String::new(), why]
            }
        })
        .collect();
    output.print_table(&Table { heading: &["BOTTLE", "CHAIN", "LINES", "HEAD"], name: 0, rows: &rows })?;
    if !whole {
        output.note(
            "no approval works for that bottle until `audit/BOTTLE.jsonl` in $BOTTLE_HOME is restored; \
             to start a new log, move it away together with `audit/heads/BOTTLE`",
        );
    }
    Ok(code)
}
