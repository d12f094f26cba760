//! The command line. The file of each command parses the flags, calls the library and prints the result. No other
//! module parses flags.
//!
//! ```text
//! args           the commands                  candidates     the names that a shell completes
//! client         a client connected to a running bottle
//! choice         an agent and its bottles      connect        exit codes of failed connections and requests
//! launch         preflight and launch          summary        the resolved configuration of an agent
//! kept_reason    why a bottle was kept         unsaved_work   unsaved work at the end of a session
//! pulled_work    what a pull brought           page           a page of `docs/` on a terminal
//! ended          how a bottle ended            bottle_status  the status of a bottle in words
//! select_bottle  the bottle of a command       save_snapshot  commits with their progress
//! snapshot_table the table of snapshots        probe_table    the table of a probe
//! command        a command in a bottle         process_output the output of a process
//! route_args     arguments of allow and deny   since          the values of `--since`
//! route_addition the changed lines of a bottle manifest
//! command_groups commands by task, and suggestions
//! overview       what `bottle` prints without a command
//! confirm_repositories  whether a repository may be used
//!
//! and one file (or directory) for each command. What two commands need is a module of its own, here or in `bottle_lib`
//! ```
//! The code of a command runs in three steps: merge flags, settings and manifests into one value, act on it,
//! print the result.

mod allow;
mod apply;
mod args;
mod attach;
mod audit;
mod bottle_status;
mod budget;
mod budget_change;
mod candidates;
mod choice;
mod cleanup;
mod client;
mod command;
mod command_groups;
mod commit;
mod completions;
mod confirm_repositories;
mod connect;
mod cp;
mod dashboard;
mod deny;
mod diff;
mod discard;
mod doctor;
mod edit;
mod ended;
mod environment;
mod exec;
mod export;
mod fork;
mod fs;
mod help;
mod import;
mod info;
mod init;
mod kept_reason;
mod launch;
mod learn;
mod list;
mod live;
mod logs;
mod man;
mod mcp;
mod overview;
mod page;
mod policy;
mod probe;
#[cfg(target_os = "linux")]
mod probe_inside;
mod probe_table;
mod process;
mod process_output;
mod program_args;
mod prune;
mod pull;
mod pulled_work;
mod read_secrets;
mod resume;
mod route_addition;
pub(crate) mod route_args;
mod route_change;
mod rules;
mod save_snapshot;
mod secrets;
mod select_bottle;
mod service;
mod settings;
mod shell;
mod since;
mod snapshot_table;
mod snapshots;
mod start;
mod stop;
mod summary;
mod supervise;
mod time_limit;
mod unsaved_work;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use tracing_subscriber::EnvFilter;

#[cfg(target_os = "linux")]
pub use self::probe_inside::run as probe_from_inside;

use bottle_host::Host;

use self::args::{Cli, Command};
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::{exit, output, terminal};

/// Runs the command line and returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(code) = completions::complete(Cli::command, &arguments) {
        return code;
    }
    terminal::restore_on_panic();
    let parsed = command_groups::grouped(Cli::command()).try_get_matches_from(&arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &arguments),
    };
    let output = Output::new(&cli.global);
    start_tracing(cli.global.verbose);
    let code = match dispatch(cli.command, &output) {
        Ok(code) => code,
        Err(error) => {
            terminal::restore();
            output.error(&error);
            error.exit
        }
    };
    ExitCode::from(code)
}

fn dispatch(command: Option<Command>, output: &Output) -> Result<u8, CliError> {
    let host = || -> Result<Host, CliError> {
        let mut host = Host::of_this_process()?;
        host.read_bot_bottle_variables().into_iter().for_each(|note| output.note(note));
        if output.verbose > 1 {
            // If this command starts a keeper, the keeper inherits this variable and logs at the same level.
            host.env.entry("RUST_LOG".into()).or_insert_with(|| DEBUG.into());
        }
        host.check_home()?.into_iter().for_each(|note| output.note(note));
        terminal::restore_after_kill(&host.runtime);
        Ok(host)
    };
    let Some(command) = command else { return overview::show(host(), output) };
    match command {
        Command::Start(start) => start.run(&host()?, output),
        Command::Attach(attach) => attach.run(&host()?, output),
        Command::Exec(exec) => exec.run(host(), output),
        Command::Shell(shell) => shell.run(&host()?, output),
        Command::Process(process) => process.run(host(), output),
        Command::Env(environment) => environment.run(host(), output),
        Command::Service(service) => service.run(&host()?, output),
        Command::Ps(ps) => ps.run(&host()?, output),
        Command::Logs(logs) => logs.run(&host()?, output),
        Command::Cp(cp) => cp.run(&host()?, output),
        Command::Fs(fs) => fs.run(&host()?, output),
        Command::Stop(stop) => stop.run(&host()?, output),
        Command::Discard(discard) => discard.run(&host()?, output),
        Command::Pull(pull) => pull.run(&host()?, output),
        Command::Diff(diff) => diff.run(&host()?, output),
        Command::Apply(apply) => apply.run(&host()?, output),
        Command::Resume(resume) => resume.run(&host()?, output),
        Command::Commit(commit) => commit.run(&host()?, output),
        Command::Fork(fork) => fork.run(&host()?, output),
        Command::Export(export) => export.run(&host()?, output),
        Command::Import(import) => import.run(&host()?, output),
        Command::Snapshots(snapshots) => snapshots.run(&host()?, output),
        Command::List(list) => list.run(&host()?, output),
        Command::Info(info) => info.run(&host()?, output),
        Command::Init(init) => init.run(&host()?, output),
        Command::Edit(edit) => edit.run(&host()?, output),
        Command::Settings(settings) => settings.run(&host()?, output),
        Command::Policy(policy) => policy.run(&host()?, output),
        Command::Rules(rules) => rules.run(&host()?, output),
        Command::Supervise(supervise) => supervise.run(&host()?, output),
        Command::Allow(allow) => allow.run(&host()?, output),
        Command::Deny(deny) => deny.run(&host()?, output),
        Command::Secrets(secrets) => secrets.run(&host()?, output),
        Command::Learn(learn) => learn.run(&host()?, output),
        Command::Audit(audit) => audit.run(&host()?, output),
        Command::Probe(probe) => probe.run(&host()?, output),
        Command::Doctor(doctor) => doctor.run(&host()?, output),
        Command::Completions(completions) => completions.run(output),
        Command::Man(man) => man.run(Cli::command(), &host()?, output),
        Command::Help(help) => help.run(command_groups::grouped(Cli::command()), output),
        Command::Cleanup(cleanup) => cleanup.run(&host()?, output),
        Command::Prune(prune) => prune.run(&host()?, output),
        Command::Usage(usage) => usage.run(&host()?, output),
        Command::Budget(budget) => budget.run(&host()?, output),
        Command::Mcp(mcp) => mcp.run(&host()?, output),
        Command::Dashboard(dashboard) => dashboard.run(&host()?, output),
    }
}

/// Prints the help or the version, or reports wrong usage.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print().map_err(output::write_failed) {
            Ok(()) => ExitCode::from(exit::DONE),
            Err(error) => {
                Output::for_errors(false).error(&error);
                ExitCode::from(error.exit)
            }
        };
    }
    // The arguments could not be parsed, so `--json` is searched for in the arguments before `--`.
    let json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    if let Some(error) = command_groups::unknown_command(error, arguments) {
        Output::for_errors(json).error(&error);
    } else if json {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Output::for_errors(true)
            .error(&CliError::usage(message).hint("`bottle --help` lists commands and flags"));
    } else {
        let _ = error.print();
    }
    ExitCode::from(exit::USAGE)
}

/// The log filter of `-vv`.
const DEBUG: &str = "bottle=debug,bottle_channel=debug";

/// Logs to standard error. `RUST_LOG` sets the filter; without it, the number of `--verbose` flags sets the
/// level.
fn start_tracing(verbose: u8) {
    let level = match verbose {
        0 => "off",
        1 => "bottle=info",
        _ => DEBUG,
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}
