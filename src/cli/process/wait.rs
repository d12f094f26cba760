//! `bottle process wait`: waits for the ends of processes, or for a line of the output of one process.

use std::time::Duration;

use bottle_host::Host;
use bottle_lib::lines::pattern;
use bottle_lib::processes::Processes;
use bottle_lib::report::{ProcessEnd, WaitedProcess};
use bottle_policy::names::Slug;
use bottle_protocol::session::process::{ProcessName, ProcessState};
use regex::bytes::Regex;

use super::state::state_word;
use crate::cli::candidates;
use crate::cli::time_limit::time_limit;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::layout::Table;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;
use crate::console::signals::Signals;

/// The headings of the table of processes.
const HEADING: [&str; 2] = ["PROCESS", "STATE"];

/// Wait until a process ends, and exit with its exit code
///
/// With several processes, wait for the first one that ends, print it, and exit with its exit code. With `--until`, wait
/// until the output of the process has a line that matches, and print that line. Output that it wrote before counts too.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
    /// The processes: their handles or names, as `bottle ps` shows them
    #[arg(required = true, value_name = "PROCESS")]
    processes: Vec<ProcessName>,
    /// Wait until all of them have ended, and print them. Exit with 0 if all exited with 0, and otherwise with the code of
    /// the first one in your order that did not
    #[arg(long, conflicts_with = "until")]
    all: bool,
    /// Exit with 124 if it takes longer than so long: seconds, or with a unit (5m). The processes go on
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    timeout: Option<Duration>,
    /// Wait for a line that matches this regular expression. Exit with 1 if the process ends without one
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    until: Option<Regex>,
    /// With `--until`: begin at this position of the output, counted in bytes
    #[arg(long, value_name = "POSITION", default_value_t = 0, requires = "until")]
    from: u64,
}

impl Wait {
    /// Whether this command waits for a line. If so, it does not return the exit code of the process.
    pub(super) fn is_for_a_line(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(async {
            let processes = Processes::new(host, &self.slug);
            let mut signals = Signals::catch()?;
            let reached = async {
                match &self.until {
                    Some(pattern) => self.line(processes, pattern, output).await,
                    None if self.all => self.all_ends(processes, output).await,
                    None => self.first_end(processes, output).await,
                }
            };
            tokio::select! {
                code = reached => code,
                number = signals.end() => Ok(128u8.saturating_add(number)),
            }
        })
    }

    /// Waits until one of the processes ends. Returns its exit code.
    async fn first_end(&self, processes: Processes<'_>, output: &Output) -> Result<u8, CliError> {
        let ended = processes.wait_for_first(&self.processes, self.timeout).await?;
        let document = WaitedProcess::first(&self.processes, ended.as_ref());
        output.json_or(&document, || match (&ended, &self.processes[..]) {
            (Some(_), [_, _, ..]) => print(&[document_row(&document)], output),
            _ => Ok(()),
        })?;
        Ok(ended.map_or(exit::TIMED_OUT, |(_, exit)| exit.shell_code()))
    }

    /// Waits until all processes have ended. Returns the first exit code that is not 0.
    async fn all_ends(&self, processes: Processes<'_>, output: &Output) -> Result<u8, CliError> {
        let states = processes.wait_for_all(&self.processes, self.timeout).await?;
        let documents: Vec<_> =
            states.iter().map(|(process, state)| WaitedProcess::of(process, *state)).collect();
        output
            .json_or(&documents, || print(&documents.iter().map(document_row).collect::<Vec<_>>(), output))?;
        Ok(code_of_all(states.iter().map(|(_, state)| *state)))
    }

    /// Waits for a line of output that matches `pattern`.
    async fn line(&self, processes: Processes<'_>, pattern: &Regex, output: &Output) -> Result<u8, CliError> {
        let [process] = &self.processes[..] else {
            let error = CliError::usage("`--until` waits for a line of one process");
            return Err(error.about("--until").hint("name one process"));
        };
        let line = processes.wait_for_line(process, pattern, self.from);
        let matched = match self.timeout {
            Some(limit) => tokio::time::timeout(limit, line).await.ok(),
            None => Some(line.await),
        };
        let Some(matched) = matched.transpose()? else {
            output.json_or(&ProcessEnd::from(ProcessState::Running), || Ok(()))?;
            return Ok(exit::TIMED_OUT);
        };
        output.json_or(&matched, || output.print(&one_line(&matched.line)))?;
        Ok(exit::DONE)
    }
}

fn print(rows: &[Vec<String>], output: &Output) -> Result<(), CliError> {
    output.print_table(&Table { heading: &HEADING, name: 0, rows })
}

fn document_row(document: &WaitedProcess) -> Vec<String> {
    vec![document.process.clone().unwrap_or_default(), state_word(&document.state)]
}

/// Returns the exit code for processes with these states: the first exit code that is not 0. If a process still runs, the
/// time limit has passed.
fn code_of_all(states: impl Iterator<Item = ProcessState>) -> u8 {
    let codes = states.map(|state| match state {
        ProcessState::Running => None,
        ProcessState::Exited(exit) => Some(exit.shell_code()),
    });
    let codes: Option<Vec<u8>> = codes.collect();
    codes.map_or(exit::TIMED_OUT, |codes| codes.into_iter().find(|code| *code != 0).unwrap_or(exit::DONE))
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::guest::Exit;

    use super::*;

    #[test]
    fn the_first_failure_in_order_is_the_code_of_all() {
        let exited = |code| ProcessState::Exited(Exit::Code(code));
        let killed = ProcessState::Exited(Exit::Signal(9));
        for (states, code) in [
            (vec![exited(0), exited(0)], 0),
            (vec![exited(0), exited(3), killed], 3),
            (vec![killed, exited(3)], 137),
            (vec![exited(3), ProcessState::Running], 124),
        ] {
            assert_eq!(code_of_all(states.iter().copied()), code, "{states:?}");
        }
    }
}
