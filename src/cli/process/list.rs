//! `bottle ps`: lists the processes that were started in a bottle.

use bottle_contract::names::Slug;
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use bottle_contract::session::process::ProcessInfo;
use bottle_host::Host;
use bottle_lib::processes::ask;
use bottle_lib::report::BottleProcess;
use indicatif::BinaryBytes;

use crate::cli::candidates;
use crate::cli::connect::unexpected_answer;
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::output::{Output, one_line};
use crate::cli::process_output::Source;
use crate::cli::runtime::block_on;

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
        let processes = block_on(async {
            let channel = match Source::of(host, &self.slug).await? {
                Source::Running(channel) => channel,
                Source::Ended(saved) => return Ok(saved.list()),
            };
            match ask(&channel, GuestRequest::ListProcesses, &self.slug).await? {
                GuestEvent::Processes { processes } => Ok(processes),
                _ => Err(unexpected_answer()),
            }
        })?;
        let processes: Vec<BottleProcess> = processes.into_iter().map(bottle_process).collect();
        let heading = ["HANDLE", "NAME", "STATE", "PID", "CPU", "MEMORY", "COMMAND"];
        output.print_list(&processes, &heading, 6, row)?;
        Ok(exit::DONE)
    }
}

fn bottle_process(info: ProcessInfo) -> BottleProcess {
    BottleProcess {
        handle: info.handle.map(String::from),
        name: info.name.map(String::from),
        pid: info.pid,
        command: info.argv,
        terminal: info.terminal,
        started_at: info.started_at,
        ended_at: info.ended_at,
        state: info.state.into(),
        processes: info.processes,
        #[allow(clippy::cast_precision_loss, reason = "no process runs for 2^53 milliseconds")]
        cpu_seconds: info.cpu_ms as f64 / 1000.0,
        memory_bytes: info.memory_bytes,
    }
}

fn row(process: &BottleProcess) -> Vec<String> {
    let state = match (process.state.code, process.state.signal) {
        (Some(code), _) => format!("exited {code}"),
        (_, Some(signal)) => format!("killed by {signal}"),
        (None, None) => "running".to_owned(),
    };
    let command = shlex::try_join(process.command.iter().map(String::as_str));
    let command = command.unwrap_or_else(|_| process.command.join(" "));
    vec![
        process.handle.clone().unwrap_or_else(|| "agent".to_owned()),
        process.name.clone().unwrap_or_default(),
        state,
        process.pid.to_string(),
        format!("{:.1}s", process.cpu_seconds),
        BinaryBytes(process.memory_bytes).to_string(),
        one_line(&command),
    ]
}
