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
    /// Show those of the bottles that its agent started too
    #[arg(long)]
    children: bool,
}

impl List {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let heading = ["HANDLE", "NAME", "STATE", "PID", "CPU", "MEMORY", "COMMAND"];
        let processes = Processes::new(host, &self.slug);
        if self.children {
            let all = block_on(async { Ok(processes.list_with_children(|_| true).await?) })?;
            let heading: Vec<&str> = std::iter::once("BOTTLE").chain(heading).collect();
            output.print_list(&all, &heading, 7, row_with_bottle)?;
        } else {
            let all = block_on(async { Ok(processes.list().await?) })?;
            output.print_list(&all, &heading, 6, row)?;
        }
        Ok(exit::DONE)
    }
}

fn row_with_bottle(process: &BottleProcess) -> Vec<String> {
    [vec![process.bottle.clone()], row(process)].concat()
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
