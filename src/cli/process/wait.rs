//! `bottle process wait`: waits for the end of a process, or for a line of its output.

use std::time::Duration;

use bottle_host::Host;
use bottle_lib::lines::pattern;
use bottle_lib::processes::Processes;
use bottle_lib::report::ProcessEnd;
use bottle_protocol::session::process::ProcessState;
use regex::bytes::Regex;

use crate::cli::process_output::Target;
use crate::cli::time_limit::time_limit;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;
use crate::console::signals::Signals;

/// Wait until a process ends, and exit with its exit code
///
/// With `--until`, wait until its output has a line that matches, and print that line. Output that it wrote before counts
/// too.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    target: Target,
    /// Exit with 124 if it takes longer than so long: seconds, or with a unit (5m). The process goes on
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
            let processes = Processes::new(host, &self.target.slug);
            let mut signals = Signals::catch()?;
            let limit = async {
                match self.timeout {
                    Some(limit) => tokio::time::sleep(limit).await,
                    None => std::future::pending().await,
                }
            };
            let reached = async {
                match &self.until {
                    Some(pattern) => self.line(processes, pattern, output).await,
                    None => self.end(processes, output).await,
                }
            };
            tokio::select! {
                code = reached => code,
                () = limit => {
                    output.json_or(&ProcessEnd::from(ProcessState::Running), || Ok(()))?;
                    Ok(exit::TIMED_OUT)
                }
                number = signals.end() => Ok(128u8.saturating_add(number)),
            }
        })
    }

    /// Waits until the process ends. Returns the exit code of the process.
    async fn end(&self, processes: Processes<'_>, output: &Output) -> Result<u8, CliError> {
        let exit = processes.wait(self.target.process.clone()).await?;
        output.json_or(&ProcessEnd::from(ProcessState::Exited(exit)), || Ok(()))?;
        Ok(exit.shell_code())
    }

    /// Waits for a line of output that matches `pattern`.
    async fn line(&self, processes: Processes<'_>, pattern: &Regex, output: &Output) -> Result<u8, CliError> {
        let matched = processes.wait_for_line(&self.target.process, pattern, self.from).await?;
        output.json_or(&matched, || output.print(&one_line(&matched.line)))?;
        Ok(exit::DONE)
    }
}
