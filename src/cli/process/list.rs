//! `bottle ps`: lists the processes that were started in a bottle.

use bottle_host::Host;
use bottle_lib::processes::Processes;
use bottle_lib::report::BottleProcess;
use bottle_policy::names::Slug;
use indicatif::BinaryBytes;

use super::state::state_word;
use crate::cli::candidates;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;

/// Show the agent and the processes that were started in a bottle
///
/// `bottle shell` and `bottle process start` start processes. Programs that these start count as parts of them. Of a
/// bottle that ended, the processes whose output was saved are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::all_bottles())]
    slug: Slug,
}

impl List {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let processes = block_on(async { Ok(Processes::new(host, &self.slug).list().await?) })?;
        let heading = ["HANDLE", "NAME", "STATE", "PID", "CPU", "MEMORY", "COMMAND"];
        output.print_list(&processes, &heading, 6, row)?;
        Ok(exit::DONE)
    }
}

fn row(process: &BottleProcess) -> Vec<String> {
    let command = shlex::try_join(process.command.iter().map(String::as_str));
    let command = command.unwrap_or_else(|_| process.command.join(" "));
    vec![
        process.handle.clone().unwrap_or_else(|| "agent".to_owned()),
        process.name.clone().unwrap_or_default(),
        state_word(&process.state),
        process.pid.to_string(),
        format!("{:.1}s", process.cpu_seconds),
        BinaryBytes(process.memory_bytes).to_string(),
        one_line(&command),
    ]
}
