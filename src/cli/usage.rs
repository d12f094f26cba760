//! `bottle usage`: shows how many tokens the models used.

use std::io::Write;

use bottle_host::Host;
use bottle_host::rates::Cost;
use bottle_keeper::ledger::{Group, GroupBy, Ledger, Response, Totals};
use bottle_lib::report::{Money, UsageGroup, UsageRecord};
use bottle_lib::usage::{Costs, up_to_date};
use clap::ValueEnum;
use indicatif::HumanCount;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::since::since;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, counted, inert_json, number, one_line, write_failed};

/// Show how many tokens the models used
///
/// Counts the tokens that providers report, of all bottles, also of those that are removed. Without `--by`, a table sums
/// up each day, and JSON and CSV have one record for each response.
#[derive(Debug, clap::Args)]
pub(crate) struct Usage {
    /// Sum up the tokens by this
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Count only responses since this time, day or age (`7d`)
    #[arg(long, value_name = "TIME|DAY|AGO", value_parser = since)]
    since: Option<Timestamp>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// The values of `--by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// The day, in your time zone
    Day,
    /// claude, codex or pi for responses on the provider route, otherwise the host
    Provider,
    /// The agent manifest
    Agent,
    /// The bottle's name
    Bottle,
    /// The model
    Model,
    /// The host that sent the responses
    Host,
}

impl From<By> for GroupBy {
    fn from(by: By) -> Self {
        match by {
            By::Day => Self::Day,
            By::Provider => Self::Provider,
            By::Agent => Self::Agent,
            By::Bottle => Self::Bottle,
            By::Model => Self::Model,
            By::Host => Self::Host,
        }
    }
}

impl By {
    fn heading(self) -> &'static str {
        match self {
            Self::Day => "DAY",
            Self::Provider => "PROVIDER",
            Self::Agent => "AGENT",
            Self::Bottle => "BOTTLE",
            Self::Model => "MODEL",
            Self::Host => "HOST",
        }
    }
}

impl Usage {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let ledger = up_to_date(host, |text| output.warn(text))?;
        let since = self.since.unwrap_or(Timestamp::MIN);
        let listed = (output.json || self.csv) && self.by.is_none();
        if listed && self.csv {
            output.print_with(|stdout| csv_records(&ledger, since, stdout))?;
        } else if listed {
            output.print_with(|stdout| json_records(&ledger, since, stdout))?;
        } else {
            let by = self.by.unwrap_or(By::Day);
            let groups = ledger.groups(by.into(), since, &TimeZone::system())?;
            let costs = Costs::read(host, &ledger, by.into(), since, &|notice| output.notice(notice))?;
            if self.csv {
                output.print_with(|stdout| csv_groups(&groups, costs.as_ref(), by, stdout))?;
            } else {
                table(&groups, costs.as_ref(), by, self.since.is_some(), output)?;
            }
        }
        Ok(exit::DONE)
    }
}

fn table(
    groups: &[Group],
    costs: Option<&Costs>,
    by: By,
    since_given: bool,
    output: &Output,
) -> Result<(), CliError> {
    let sum = groups.iter().fold(Totals::default(), |mut sum, group| {
        sum.add(&group.totals);
        sum
    });
    let mut heading = vec![
        by.heading(),
        "TOKENS",
        "INPUT",
        "OUTPUT",
        "CACHE READ",
        "CACHE WRITE",
        "RESPONSES",
        "ESTIMATED",
    ];
    heading.extend(costs.map(|costs| costs.currency.as_str()));
    let priced = |group| costs.map_or_else(|| UsageGroup::from(group), |costs| costs.priced(group));
    let values: Vec<UsageGroup> = groups.iter().map(priced).collect();
    output.print_list(&values, &heading, 0, |group| {
        let tokens = group.tokens;
        let counts = [tokens.total, tokens.input, tokens.output, tokens.cache_read, tokens.cache_write];
        let counts = counts.into_iter().chain([group.responses, group.estimated]).map(number);
        let cost = group
            .cost
            .as_ref()
            .map(|Money { amount, partial, .. }| Cost { amount: *amount, is_partial: *partial }.to_string());
        std::iter::once(shown(&group.name)).chain(counts).chain(cost).collect()
    })?;
    if groups.is_empty() {
        let when = if since_given { "in this time" } else { "yet" };
        output.note(format!("no model has responded {when}"));
        return Ok(());
    }
    let total = HumanCount(sum.total());
    output.note(format!("{total} tokens in {}", counted(sum.responses, "response")));
    if let Some(costs) = costs {
        let (sum, currency) = (costs.sum(), &costs.currency);
        let missing = if sum.is_partial { "; a `+` marks tokens of models without a rate" } else { "" };
        output.note(format!("{sum} {currency} by rates.yml{missing}"));
    }
    if sum.estimated > 0 {
        let estimated = counted(sum.estimated, "response");
        output.note(format!("the tokens of {estimated} are estimated, because no complete count arrived"));
    }
    Ok(())
}

/// Formats a name for the table.
fn shown(name: &str) -> String {
    if name.is_empty() { "unknown".to_owned() } else { one_line(name) }
}

fn json_records(ledger: &Ledger, since: Timestamp, stdout: &mut dyn Write) -> Result<(), CliError> {
    let mut separator = "[\n";
    ledger.for_each_response(since, |response| {
        let text = serde_json::to_string(&UsageRecord::from(response))
            .map_err(|error| CliError::cannot("write JSON", error))?;
        let written = write!(stdout, "{separator}  {}", inert_json(&text)).map_err(write_failed);
        separator = ",\n";
        written
    })?;
    let end = if separator == "[\n" { "[]\n" } else { "\n]\n" };
    stdout.write_all(end.as_bytes()).map_err(write_failed)
}

fn csv_records(ledger: &Ledger, since: Timestamp, stdout: &mut dyn Write) -> Result<(), CliError> {
    let head = [
        "time",
        "slug",
        "run",
        "agent",
        "bottles",
        "provider",
        "host",
        "api",
        "model",
        "source",
        "input",
        "output",
        "cache_read",
        "cache_write",
        "total",
        "estimated",
        "interrupted",
    ];
    csv_line(stdout, head.map(str::to_owned))?;
    ledger.for_each_response(since, |response| {
        let Response { time, slug, labels, key, host, api, model, source, totals, interrupted, .. } =
            response;
        let text = [time.to_string(), slug, labels.run.unwrap_or_default(), labels.agent];
        let more = [labels.bottles.join(" "), key, host, api, model, source];
        let flags = [totals.estimated > 0, interrupted].map(|flag| flag.to_string());
        csv_line(stdout, text.into_iter().chain(more).chain(csv_counts(&totals)).chain(flags))
    })
}

fn csv_groups(
    groups: &[Group],
    costs: Option<&Costs>,
    by: By,
    stdout: &mut dyn Write,
) -> Result<(), CliError> {
    let by = by.heading().to_ascii_lowercase();
    let head = ["input", "output", "cache_read", "cache_write", "total", "responses", "estimated"];
    let cost_head = costs.map(|costs| format!("cost_{}", costs.currency.to_lowercase()));
    csv_line(stdout, std::iter::once(by).chain(head.map(str::to_owned)).chain(cost_head))?;
    groups.iter().try_for_each(|Group { name, totals }| {
        let responses = [totals.responses, totals.estimated].map(|count| count.to_string());
        let cost = costs.map(|costs| format!("{:.6}", costs.of(name).amount));
        csv_line(stdout, std::iter::once(name.clone()).chain(csv_counts(totals)).chain(responses).chain(cost))
    })
}

fn csv_counts(totals: &Totals) -> [String; 5] {
    [totals.input, totals.output, totals.cache_read, totals.cache_write, totals.total()]
        .map(|count| count.to_string())
}

fn csv_line(stdout: &mut dyn Write, fields: impl IntoIterator<Item = String>) -> Result<(), CliError> {
    let line = fields.into_iter().map(|field| csv_field(&field)).collect::<Vec<_>>().join(",");
    writeln!(stdout, "{line}").map_err(write_failed)
}

/// Formats a field of a CSV file. The name of a model is untrusted: a spreadsheet program must not mistake it for a
/// formula.
fn csv_field(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_fields_are_quoted_and_never_formulas() {
        for (text, field) in [
            ("claude-sonnet-4-5", "claude-sonnet-4-5"),
            ("a,b", "\"a,b\""),
            ("a\"b\nc", "\"a\"\"b\nc\""),
            ("=1+1", "'=1+1"),
            ("@sum,1", "\"'@sum,1\""),
            ("", ""),
        ] {
            assert_eq!(csv_field(text), field);
        }
    }
}
