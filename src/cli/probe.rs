//! `bottle probe`: tests from inside a bottle what the bottle can reach, and shows the results in a table.
//!
//! [`Probe`] asks the guest of a running bottle to run the attempts. `probe_inside` is the program of the shipped
//! agent `probe`, and runs the attempts in its own bottle. Both print the same table.

use std::time::Duration;

use bottle_contract::names::Slug;
use bottle_contract::session::guest::{Attempt, GuestEvent, GuestRequest, Reach};

use super::commit::backend_of;
use super::completions;
use super::connect::{connect, guest_failure, keeper_lost, open_guest, unexpected_answer};
use super::error::CliError;
use super::exit;
use super::json_schema::ProbeAttempt;
use super::layout::Table;
use super::output::{Output, inert};
use super::style::Styles;
use crate::host::Host;
use crate::instance::{State, Store};
use crate::launch::isolation::{Controls, JudgedAttempt, all_blocked};

/// The time limit for all attempts together; exceeding it is an error. The attempts run concurrently, and their
/// individual time limits are much shorter.
const PROBED_WITHIN: Duration = Duration::from_secs(30);

/// Probe a bottle's isolation from inside, and show the results
///
/// Exits with 5 if the probe reached a target, or could not show that a target is blocked.
#[derive(Debug, clap::Args)]
pub(crate) struct Probe {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::running())]
    slug: Slug,
}

impl Probe {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let tried = super::block_on(self.ask(host)).map_err(|error| error.about(&self.slug))?;
        let attempts: Vec<Attempt> = tried.iter().map(|tried| tried.attempt.clone()).collect();
        let shown: Vec<_> = tried.iter().map(ProbeAttempt::from).collect();
        output.json_or(&shown, || output.print(&table(&attempts, output.styles())))?;
        Ok(if all_blocked(&attempts) { exit::DONE } else { exit::ISOLATION })
    }

    async fn ask(&self, host: &Host) -> Result<Vec<JudgedAttempt>, CliError> {
        let channel = connect(host, &self.slug).await?;
        let others = match Store::of(host).state(&self.slug) {
            Some(State::Alive(record)) => backend_of(host, &record)?.other_listeners(&self.slug).await?,
            _ => return Err(keeper_lost("it ended")),
        };
        let controls = Controls::listen().await;
        let controls = controls.map_err(|error| CliError::cannot("list this machine's addresses", error))?;
        let request = controls.request(others, false);
        let mut stream = open_guest(&channel, GuestRequest::Probe(request)).await?;
        let answer = tokio::time::timeout(PROBED_WITHIN, stream.receive::<GuestEvent>());
        match answer.await.map_err(|_| keeper_lost("the probe did not end"))?.map_err(keeper_lost)? {
            GuestEvent::Probed { attempts } => Ok(controls.judge(attempts).await),
            GuestEvent::Failed(failure) => Err(guest_failure(failure).exit(exit::FAILED)),
            _ => Err(unexpected_answer()),
        }
    }
}

/// Renders the table and a one-line verdict. Attempts with the same target and result share a row.
pub(super) fn table(attempts: &[Attempt], styles: Styles) -> String {
    let same = |one: &Attempt, other: &Attempt| {
        (&one.target, one.result, &one.seen) == (&other.target, other.result, &other.seen)
    };
    let mut groups: Vec<Vec<&Attempt>> = Vec::new();
    for attempt in attempts {
        match groups.iter_mut().find(|group| same(group[0], attempt)) {
            Some(group) => group.push(attempt),
            None => groups.push(vec![attempt]),
        }
    }
    let rows: Vec<Vec<String>> = groups
        .iter()
        .map(|group| {
            let Attempt { target, via, result, seen, .. } = group[0];
            // The number of ways comes first, because a narrow terminal truncates the end of the cell.
            let via = match group.len() {
                1 => inert(via),
                ways => format!("{ways} ways, as {}", inert(via)),
            };
            let result = match result {
                Reach::Blocked => styles.green("blocked"),
                Reach::Reached => styles.red("REACHED"),
                Reach::Unknown => styles.yellow("unknown"),
            };
            vec![inert(target), via, result, inert(seen)]
        })
        .collect();
    let heading = ["TARGET", "VIA", "RESULT", "OBSERVED"];
    let table = Table { heading: &heading, name: 0, rows: &rows };
    format!("{}\n\n{}", table.aligned(styles), verdict(attempts, styles))
}

fn verdict(attempts: &[Attempt], styles: Styles) -> String {
    let count = |reach| attempts.iter().filter(|attempt| attempt.result == reach).count();
    let (reached, unknown) = (count(Reach::Reached), count(Reach::Unknown));
    match (attempts.len(), reached, unknown) {
        (0, ..) => styles.red("Nothing was tried, so the isolation is unknown."),
        (all, 0, 0) => styles.green(&format!(
            "All {all} attempts were blocked: traffic leaves this bottle through its egress proxy alone."
        )),
        (all, 0, unknown) => {
            styles.yellow(&format!("{unknown} of {all} attempts were not shown to be blocked."))
        }
        (all, reached, _) => styles
            .red(&format!("{reached} of {all} attempts REACHED their target: this bottle is not isolated.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(target: &str, result: Reach) -> Attempt {
        Attempt { target: target.into(), via: "tcp".into(), to: None, result, seen: "x\x1b[2J".into() }
    }

    #[test]
    fn the_table_ends_with_a_verdict() {
        let blocked = attempt("outside", Reach::Blocked);
        let reached = attempt("outside", Reach::Reached);
        let all =
            [blocked.clone(), attempt("host", Reach::Reached), blocked.clone(), blocked.clone(), reached];
        assert_eq!(
            table(&all, Styles::PLAIN),
            "TARGET   VIA             RESULT   OBSERVED\n\
             outside  3 ways, as tcp  blocked  x\\u{1b}[2J\n\
             host     tcp             REACHED  x\\u{1b}[2J\n\
             outside  tcp             REACHED  x\\u{1b}[2J\n\n\
             2 of 5 attempts REACHED their target: this bottle is not isolated."
        );
        assert!(table(&[blocked], Styles::PLAIN).ends_with("through its egress proxy alone."));
        assert!(verdict(&[attempt("x", Reach::Unknown)], Styles::PLAIN).contains("were not shown"));
        assert!(verdict(&[], Styles::PLAIN).contains("is unknown"));
    }
}
